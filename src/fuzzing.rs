//! Where bytes of strangers are read: each function takes any bytes, and panics where what was read is not what is written.
//!
//! For `fuzz/`, which throws bytes at them, and for a test that does so with the bytes that are kept there. No other build has
//! them.
#![expect(
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "that is how a target says that something is wrong"
)]

use std::fmt::Debug;
use std::str::FromStr;

use crate::history::Line;
use crate::sequence::{NAME_LENGTH_MAX, SequenceName};
pub use crate::server::api::fuzzing::bodies;
pub use crate::server::consensus::fuzzing::{frames, handshakes};
pub use crate::server::store::fuzzing::{backups, records, snapshots};
use crate::wire::{IDEMPOTENCY_KEY_BYTES_MAX, IdempotencyKey};

/// Names of sequences, and request keys.
pub fn names(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Some(name) = stays::<SequenceName>(text) {
        assert!(name.as_str().len() <= NAME_LENGTH_MAX, "{name}");
    }
    if let Some(key) = stays::<IdempotencyKey>(text) {
        assert!(key.as_str().len() <= IDEMPOTENCY_KEY_BYTES_MAX);
    }
}

/// What a text is, where it is something: then it is written as it was read.
fn stays<T: FromStr + ToString + PartialEq + Debug>(text: &str) -> Option<T> {
    let parsed: T = text.parse().ok()?;
    assert_eq!(parsed.to_string(), text);
    Some(parsed)
}

/// Lines of histories.
pub fn history_lines(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(line) = Line::parse(text) else {
        return;
    };
    match Line::parse(&line.to_json()) {
        Ok(again) => assert_eq!(again, line),
        Err(error) => panic!("{error}: {}", line.to_json()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    type Target = fn(&[u8]);

    const TARGETS: [(&str, Target); 8] = [
        ("records", records),
        ("frames", frames),
        ("handshakes", handshakes),
        ("snapshots", snapshots),
        ("backups", backups),
        ("names", names),
        ("bodies", bodies),
        ("history_lines", history_lines),
    ];

    #[test]
    fn every_target_holds_on_the_bytes_that_are_kept() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        for (name, target) in TARGETS {
            let files = fs::read_dir(corpus.join(name)).unwrap();
            let kept: Vec<Vec<u8>> = files
                .map(|file| fs::read(file.unwrap().path()).unwrap())
                .collect();

            for bytes in &kept {
                target(bytes);
            }

            assert!(3 <= kept.len(), "{name}");
        }
    }

    #[test]
    fn every_target_is_built_and_run_by_its_name() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
        for (name, _) in TARGETS {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
            let file = root.join(format!("fuzz/fuzz_targets/{name}.rs"));
            let call = format!("highwater::fuzzing::{name}(bytes)");
            assert!(fs::read_to_string(file).unwrap().contains(&call), "{name}");
        }
    }
}
