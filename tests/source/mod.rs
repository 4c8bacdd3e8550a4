//! The source text of this repository as the checks read it, and the checks that need no table of layers.

mod benchmarks;
mod bounds;
mod guarantees;
mod planted;
pub(crate) mod reading;
mod shape;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Every Rust file below the folders named: its path from the root of the repository, and its text.
pub(crate) fn rust_files(folders: &[&str]) -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open: Vec<_> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut files = BTreeMap::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            files.insert(name.to_owned(), fs::read_to_string(&path).unwrap());
        }
    }
    files
}
