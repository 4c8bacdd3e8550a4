//! What scripts tell the long runs.

use highwater::chaos::Program;

/// What `HIGHWATER_TEST_NAME` says, if it is set.
pub(crate) fn setting<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> Option<T> {
    let text = std::env::var(format!("HIGHWATER_TEST_{name}")).ok()?;
    Some(text.parse().unwrap())
}

/// The binary under test: a script names the release build.
pub(crate) fn program() -> Program {
    let built = || env!("CARGO_BIN_EXE_highwater").into();
    Program {
        path: setting("PROGRAM").unwrap_or_else(built),
        arguments: Vec::new(),
    }
}
