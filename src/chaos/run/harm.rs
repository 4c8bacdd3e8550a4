//! What befalls the directory of a node while it is stopped. One harm is one place: a bit, a page, an end.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

/// Where most of the bytes are that a node cannot lose.
const DATABASE: &str = "sled/db";
/// What holds nothing of a node: it may be gone.
const WORTHLESS: [&str; 2] = ["ballast", "ready.json"];
const PAGE: usize = 4_096;
const FLIPS_MAX: u64 = 8;
const TORN_BYTES_MAX: usize = 16 * 1024;

/// Copies all that is in a directory into a new one.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Flips some bits of one page that is used. Tells in which file, and how many.
pub(super) fn flip_bits(directory: &Path, seed: u64) -> io::Result<(PathBuf, u64)> {
    let mut chance = StdRng::seed_from_u64(seed);
    let path = any_file(directory, &mut chance)?;
    let mut bytes = fs::read(&path)?;
    let used: Vec<usize> = used_bytes(&bytes).collect();
    let around = used.choose(&mut chance).copied().unwrap_or(0) / PAGE * PAGE;
    let page: Vec<usize> = used
        .into_iter()
        .filter(|at| at / PAGE * PAGE == around)
        .collect();
    let flips = chance.random_range(1..=FLIPS_MAX);
    for _ in 0..flips {
        let at = page.choose(&mut chance).copied().unwrap_or(0);
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << chance.random_range(0..8);
        }
    }
    fs::write(&path, bytes)?;
    Ok((path, flips))
}

/// Takes away the end of the database: it reads as zeros, or is not there. Tells how many bytes were used of it.
pub(super) fn tear(directory: &Path, seed: u64) -> io::Result<usize> {
    let mut chance = StdRng::seed_from_u64(seed);
    let path = directory.join(DATABASE);
    let bytes = fs::read(&path)?;
    let end = used_bytes(&bytes).last().map_or(0, |at| at + 1);
    let torn = chance.random_range(1..=TORN_BYTES_MAX).min(end);
    let file = File::options().write(true).open(&path)?;
    let from = u64::try_from(end - torn).map_err(io::Error::other)?;
    if chance.random() {
        file.set_len(from)?;
    } else {
        file.write_all_at(&vec![0; torn], from)?;
    }
    Ok(torn)
}

fn used_bytes(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let used = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
    used.map(|(at, _)| at)
}

/// Half of the time the database; else any that counts.
fn any_file(directory: &Path, chance: &mut StdRng) -> io::Result<PathBuf> {
    if chance.random() {
        return Ok(directory.join(DATABASE));
    }
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if 0 < path.metadata()?.len()
                && !WORTHLESS.iter().any(|name| path.ends_with(name))
            {
                found.push(path);
            }
        }
    }
    // The order in which a directory is read is not the seed's.
    found.sort();
    found
        .choose(chance)
        .cloned()
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory as a node's.
    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("sled")).unwrap();
        let mut database = vec![1; 3 * PAGE];
        database.extend([0; PAGE]);
        fs::write(directory.path().join(DATABASE), database).unwrap();
        for name in ["identity", "ballast", "ready.json"] {
            fs::write(directory.path().join(name), [7; 50]).unwrap();
        }
        directory
    }

    #[test]
    fn bits_flip_in_one_page_of_a_file_that_counts_and_the_same_for_the_same_seed() {
        let mut files = std::collections::BTreeSet::new();
        for seed in 0..20 {
            let [one, other] = [directory(), directory()];

            let (path, _) = flip_bits(one.path(), seed).unwrap();
            flip_bits(other.path(), seed).unwrap();

            let file = path.strip_prefix(one.path()).unwrap().to_owned();
            let flipped = fs::read(&path).unwrap();
            assert_eq!(flipped, fs::read(other.path().join(&file)).unwrap());
            let before = fs::read(directory().path().join(&file)).unwrap();
            let differ = before.iter().zip(&flipped).enumerate();
            let differ = differ.filter(|(_, (one, other))| one != other);
            let pages: std::collections::BTreeSet<usize> =
                differ.map(|(at, _)| at / PAGE).collect();
            // Two flips of one bit are none.
            assert!(pages.len() <= 1, "{pages:?}");
            files.insert(file);
        }
        assert_eq!(files.len(), 2, "{files:?}");
    }

    #[test]
    fn the_used_end_of_a_database_is_torn_off() {
        for seed in 0..10 {
            let directory = directory();

            let torn = tear(directory.path(), seed).unwrap();

            let bytes = fs::read(directory.path().join(DATABASE)).unwrap();
            let used = used_bytes(&bytes).last().map_or(0, |at| at + 1);
            assert_eq!(used, 3 * PAGE - torn);
        }
    }

    #[test]
    fn a_copy_has_what_the_directory_had() {
        let (from, to) = (directory(), tempfile::tempdir().unwrap());
        let to = to.path().join("copy");

        copy(from.path(), &to).unwrap();

        let [original, copied] = [from.path(), &to].map(|path| fs::read(path.join(DATABASE)));
        assert_eq!(original.unwrap(), copied.unwrap());
        assert!(copy(from.path(), &to).is_err());
    }
}
