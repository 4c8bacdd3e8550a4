//! The layers check seen failing: every form of an offence, planted in a small tree, is found; nothing else is.

use std::collections::BTreeMap;

use crate::{Layers, offences};

/// Where an offence is planted (in its second line), what, and how it is reported.
const PLANTED: &[(&str, &str, &str)] = &[
    (
        "server/store/mod",
        "\nuse crate::server::api::Router;",
        "store may not name api",
    ),
    (
        "server/store/mod",
        "\nuse super::api;",
        "store may not name api",
    ),
    (
        "server/store/mod",
        "\nuse super::*;",
        "store may not name server",
    ),
    (
        "server/store/log",
        "\nuse super::super::api::Router;",
        "store may not name api",
    ),
    (
        "server/store/log",
        "\nuse crate::{Name, server::{types, api as a}};",
        "store may not name api",
    ),
    (
        "server/store/log",
        "\nfn f() -> Vec<crate::server::api::Router> {}",
        "store may not name api",
    ),
    (
        "server/store/log",
        "mod tests {\nuse super::super::super::api; }",
        "store may not name api",
    ),
    (
        "server/types",
        "\nimpl From<super::store::Log> for T {}",
        "node may not name store",
    ),
    (
        "server/types",
        "macro_rules! m { () => {\n $crate::wire::x() } }",
        "node may not name wire",
    ),
    (
        "server/types",
        "\nstruct T(pub crate::Wire);",
        "node may not name wire",
    ),
    (
        "sequence/mod",
        "\nuse super::wire;",
        "sequence may not name wire",
    ),
    (
        "sequence/mod",
        "\nuse crate::server as s;",
        "sequence may not name server",
    ),
    (
        "main",
        "use highwater::server as s;fn f() {\ns::store::open() }",
        "main may not name store",
    ),
    (
        "main",
        "use highwater::server::{self};fn f() {\nserver::api::f() }",
        "main may not name api",
    ),
    (
        "wire",
        "\nuse crate::elsewhere::X;",
        "`elsewhere::X` is in no layer",
    ),
    ("wire", "\nuse crate::*;", "`` is in no layer"),
];

/// What looks like an offence and is none.
const ALLOWED: &[(&str, &str)] = &[
    (
        "server/store/log",
        "use super::Log; use super::super::types::X; use self::inner::Y;",
    ),
    (
        "server/store/log",
        "use crate::{Name, sequence::{self, Table}}; use std::{io, ::fs};",
    ),
    (
        "server/store/log",
        "mod tests { use super::*; use super::super::Log; }",
    ),
    (
        "server/store/log",
        "// crate::server::api\n/* super::super::api */ /// [`crate::wire`]\nfn f() {}",
    ),
    (
        "server/store/log",
        r##"const S: &str = "crate::server::api"; const R: &str = r#"crate::wire"#;"##,
    ),
    (
        "server/store/log",
        "pub(in crate::server) fn f() {} pub(super) fn g() {} fn h() { x.api::<T>() }",
    ),
    (
        "server/api",
        "use crate::wire::Body; use super::store::{Log, log::Tail}; fn f(server: u8) {}",
    ),
    (
        "server/mod",
        "mod types; mod store; mod api; fn f() { api::serve(store::open()) }",
    ),
    (
        "main",
        "mod inner { use crate::X; } fn main() { highwater::server::run() }",
    ),
];

/// A small tree without offence, in which the file named holds the text given.
fn offences_with(file: &str, text: &str) -> Vec<String> {
    let layers = Layers::parse(
        "
sequence | sequence       |
wire     | wire           | sequence
node     | server::types  | sequence
store    | server::store  | sequence node
api      | server::api    | sequence wire node store
server   | server         | sequence wire node store api
chaos    | chaos          | wire
main     | main           | server
",
    );
    let lib =
        "mod sequence; pub mod wire; mod server; pub use {sequence::Name, wire::Body as Wire};";
    let mut tree: BTreeMap<_, _> = ["main", "sequence/mod", "wire", "server/mod", "server/types"]
        .into_iter()
        .chain([
            "server/store/mod",
            "server/store/log",
            "server/api",
            "chaos/mod",
        ])
        .map(|stem| (format!("src/{stem}.rs"), String::new()))
        .collect();
    tree.insert("src/lib.rs".to_owned(), lib.to_owned());
    tree.insert(file.to_owned(), text.to_owned());
    offences(&layers, &tree)
}

#[test]
fn each_form_of_naming_a_layer_above_is_found() {
    for (stem, text, offence) in PLANTED {
        let found = offences_with(&format!("src/{stem}.rs"), text);

        let [found] = &found[..] else {
            panic!("{text}: {found:?}")
        };
        assert!(
            found.contains(&format!("src/{stem}.rs:2: ")),
            "{text}: {found}"
        );
        assert!(found.contains(offence), "{text}: {found}");
    }
}

#[test]
fn what_is_allowed_or_only_said_is_no_offence() {
    for (stem, text) in ALLOWED {
        assert_eq!(
            offences_with(&format!("src/{stem}.rs"), text),
            [""; 0],
            "{text}"
        );
    }
}

#[test]
fn a_file_without_a_layer_and_a_layer_without_a_file_are_found() {
    let stray = offences_with("src/server/cache.rs", "");
    assert_eq!(
        stray,
        ["src/server/cache.rs belongs to no layer: give server::cache its place in the table"]
    );

    let layers = Layers::parse("sequence | sequence |\nserver | server | sequence");
    let tree =
        [("src/lib.rs", ""), ("src/server.rs", "")].map(|(f, t)| (f.to_owned(), t.to_owned()));
    let missing = offences(&layers, &tree.into());
    assert_eq!(
        missing,
        ["src/sequence is missing: sequence has a row without a file"]
    );
}

#[test]
#[should_panic(expected = "wire is not above")]
fn a_row_that_imports_from_below_is_refused() {
    Layers::parse("sequence | sequence | wire\nwire | wire |");
}

#[test]
#[should_panic(expected = "wire has two layers")]
fn a_module_in_two_rows_is_refused() {
    Layers::parse("sequence | sequence wire |\nwire | wire |");
}
