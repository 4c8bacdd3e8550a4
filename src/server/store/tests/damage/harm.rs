//! Random damage to the files of a directory, the same for the same seed.
//!
//! Both tallies include this file: the store's own, and `tests/it/damage.rs` around the built binary.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

const PAGE: usize = 4096;
const SECTOR: usize = 512;
/// Where most of the bytes are that a node cannot lose.
const DATABASE: &str = "sled/db";

/// How many damages; `HIGHWATER_TEST_DAMAGES` asks for more.
pub(crate) fn damages(otherwise: usize) -> usize {
    let asked = std::env::var("HIGHWATER_TEST_DAMAGES");
    asked.map_or(otherwise, |text| text.parse().unwrap())
}

/// Another choice each time, which `HIGHWATER_TEST_SEED` repeats.
pub(crate) fn seeded() -> StdRng {
    let seed = std::env::var("HIGHWATER_TEST_SEED");
    let seed = seed.map_or_else(|_unset| rand::random(), |text| text.parse().unwrap());
    println!("HIGHWATER_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// A kind of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HarmKind {
    FlippedBit,
    Truncated,
    ZeroedPage,
    ZeroedSector,
    Deleted,
}

impl HarmKind {
    const ALL: [Self; 5] = [
        Self::FlippedBit,
        Self::Truncated,
        Self::ZeroedPage,
        Self::ZeroedSector,
        Self::Deleted,
    ];
}

/// One damage to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Harm {
    pub(crate) kind: HarmKind,
    /// Below the directory.
    pub(crate) file: PathBuf,
    /// The byte that is hit, or the new length.
    pub(crate) at: usize,
    /// Which bit of it.
    pub(crate) bit: u8,
}

impl Harm {
    /// Any damage; bytes are hit where there is something other than zeros.
    pub(crate) fn any(directory: &Path, random: &mut StdRng) -> Self {
        let kind = *HarmKind::ALL.choose(random).unwrap();
        let file = any_file(directory, kind, random);
        let path = directory.join(&file);
        let at = match kind {
            HarmKind::Deleted => 0,
            _ => used_byte(&fs::read(path).unwrap(), random),
        };
        Self {
            kind,
            file,
            at,
            bit: random.random_range(0..8),
        }
    }

    /// Damages the file.
    pub(crate) fn inflict(&self, directory: &Path) {
        let path = directory.join(&self.file);
        let zero = |size: usize| {
            let start = self.at / size * size;
            change(&path, start..start + size, |byte| *byte = 0);
        };
        match self.kind {
            HarmKind::FlippedBit => {
                change(&path, self.at..self.at + 1, |byte| *byte ^= 1 << self.bit);
            }
            HarmKind::ZeroedPage => zero(PAGE),
            HarmKind::ZeroedSector => zero(SECTOR),
            HarmKind::Truncated => {
                let mut bytes = fs::read(&path).unwrap();
                bytes.truncate(self.at);
                fs::write(&path, bytes).unwrap();
            }
            HarmKind::Deleted if path.is_dir() => fs::remove_dir_all(path).unwrap(),
            HarmKind::Deleted => fs::remove_file(path).unwrap(),
        }
    }
}

fn change(path: &Path, range: Range<usize>, change: impl FnMut(&mut u8)) {
    let mut bytes = fs::read(path).unwrap();
    let end = range.end.min(bytes.len());
    bytes[range.start..end].iter_mut().for_each(change);
    fs::write(path, bytes).unwrap();
}

/// Half of the time the database; else any. What is deleted is any file or directory.
fn any_file(directory: &Path, kind: HarmKind, random: &mut StdRng) -> PathBuf {
    if kind != HarmKind::Deleted && random.random_bool(0.5) {
        return DATABASE.into();
    }
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path.clone());
            }
            let has_bytes = path.is_file() && 0 < path.metadata().unwrap().len();
            if has_bytes || kind == HarmKind::Deleted {
                found.push(path.strip_prefix(directory).unwrap().to_owned());
            }
        }
    }
    // The order in which a directory is read is not the seed's.
    found.sort();
    found.choose(random).unwrap().clone()
}

/// A byte that is not zero, in a page of any that have one; the first where all are.
fn used_byte(bytes: &[u8], random: &mut StdRng) -> usize {
    let is_used = |page: &&[u8]| page.iter().any(|byte| *byte != 0);
    let pages = bytes.chunks(PAGE).enumerate();
    let used: Vec<_> = pages.filter(|(_, page)| is_used(page)).collect();
    let Some((number, page)) = used.choose(random) else {
        return 0;
    };
    let within: Vec<_> = (0..page.len()).filter(|at| page[*at] != 0).collect();
    number * PAGE + within.choose(random).unwrap()
}
