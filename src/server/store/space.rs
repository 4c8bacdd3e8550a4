//! How much room the data directory's file system has, and the ballast that gives a start some (I9, I10).
//!
//! A full disk must not keep a node from starting: a start writes a little, and only a running node serves again by
//! itself once there is room. So a file that holds nothing but its place lies in the directory, and a start that finds
//! the disk full removes it. Below the floor a leader proposes nothing; who asks is in `disk`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::RngCore;
use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;

use super::error::StoreError;
use super::identity::DataDir;

const BALLAST_NAME: &str = "ballast";
/// Two of sled's segments: what several starts and elections write, or what a start and some seconds of appends do.
const BALLAST_BYTES: u64 = 16 * 1024 * 1024;
/// A start goes on with this much: sled fills the rest of its newest segment, 8 MiB, and little else is written.
const START_BYTES: u64 = 10 * 1024 * 1024;
/// A file system that cannot allocate is filled in pieces of this size.
const PIECE_BYTES: usize = 64 * 1024;
/// How often a start looks again whether there is room.
const START_PAUSE: Duration = Duration::from_secs(1);

/// The file system under a data directory.
#[derive(Debug)]
pub(crate) struct Space {
    path: PathBuf,
    directory: File,
}

impl Space {
    /// The file system of this directory.
    ///
    /// # Errors
    /// [`StoreError`] where the directory cannot be opened.
    pub(crate) fn of(dir: &DataDir) -> Result<Self, StoreError> {
        Self::at(dir.path())
    }

    pub(super) fn at(path: &Path) -> Result<Self, StoreError> {
        let directory =
            File::open(path).map_err(StoreError::io("open the data directory", path))?;
        Ok(Self {
            path: path.to_path_buf(),
            directory,
        })
    }

    /// The bytes that this process may still write.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn free(&self) -> io::Result<u64> {
        let found = fstatvfs(&self.directory)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Waits until there is room for a start, and gives up the ballast for it.
    pub(crate) async fn await_room(&self) {
        let mut told = false;
        while let Some(lack) = self.lacking() {
            if !told {
                tracing::warn!(error = %lack, "no room for a start: the node waits for it");
                told = true;
            }
            tokio::time::sleep(START_PAUSE).await;
        }
    }

    /// What is missing for a start, also without the ballast.
    fn lacking(&self) -> Option<Lack> {
        let found = || self.free().ok().filter(|free| *free < START_BYTES);
        found()?;
        match fs::remove_file(self.ballast()) {
            Ok(()) => tracing::warn!("the disk is full: the ballast made room for a start"),
            // Where there is none, nothing can be given up.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::error!(%error, "the ballast cannot be removed"),
        }
        found().map(|free| Lack {
            path: self.path.clone(),
            free,
        })
    }

    /// Makes the ballast where it is missing and both it and the floor leave some room.
    ///
    /// # Errors
    /// The operating system's. What was made is removed again.
    pub(super) fn keep_ballast(&self, floor: u64) -> io::Result<()> {
        let path = self.ballast();
        if is_whole(&path) || self.free()? < floor.saturating_add(2 * BALLAST_BYTES) {
            return Ok(());
        }
        fill(&path).inspect_err(|_| {
            // The error that is told is the first one.
            fs::remove_file(&path).ok();
        })
    }

    fn ballast(&self) -> PathBuf {
        self.path.join(BALLAST_NAME)
    }
}

/// A disk with too little room for a start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the disk of {} has {} MiB free, and a start needs {}: free some",
    path.display(), free >> 20, START_BYTES >> 20
)]
struct Lack {
    path: PathBuf,
    free: u64,
}

/// Whether the file takes the place that it is there for.
fn is_whole(path: &Path) -> bool {
    // A block of `blocks` has 512 bytes, whatever the file system's have.
    fs::metadata(path).is_ok_and(|found| BALLAST_BYTES <= found.blocks().saturating_mul(512))
}

fn fill(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, BALLAST_BYTES) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_out(&mut file),
        allocated => Ok(allocated?),
    }
}

/// Fills a file on a file system that cannot allocate, by chance, so that none makes it smaller.
fn write_out(file: &mut File) -> io::Result<()> {
    let mut piece = [0; PIECE_BYTES];
    for _ in 0..BALLAST_BYTES / PIECE_BYTES as u64 {
        rand::rng().fill_bytes(&mut piece);
        file.write_all(&piece)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ballast_takes_its_place_and_stays_where_there_is_room() {
        let directory = tempfile::tempdir().unwrap();
        let space = Space::at(directory.path()).unwrap();
        let ballast = directory.path().join("ballast");

        space.keep_ballast(0).unwrap();
        assert!(is_whole(&ballast));
        assert_eq!(fs::metadata(&ballast).unwrap().len(), BALLAST_BYTES);

        // A short one, as a full disk leaves it, is made whole.
        File::create(&ballast).unwrap().set_len(4096).unwrap();
        space.keep_ballast(0).unwrap();
        assert!(is_whole(&ballast));

        // There is room here, so it stays.
        assert_eq!(space.lacking(), None);
        assert!(is_whole(&ballast));
    }

    #[test]
    fn no_ballast_is_made_where_it_would_reach_the_floor() {
        let directory = tempfile::tempdir().unwrap();
        let space = Space::at(directory.path()).unwrap();

        space.keep_ballast(u64::MAX).unwrap();

        assert!(!directory.path().join("ballast").exists());
    }

    #[test]
    fn where_a_file_system_cannot_allocate_the_ballast_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ballast");

        write_out(&mut File::create(&path).unwrap()).unwrap();

        assert!(is_whole(&path));
        assert_eq!(fs::metadata(&path).unwrap().len(), BALLAST_BYTES);
    }

    #[test]
    fn a_lack_of_room_says_what_is_there_and_what_is_needed() {
        let lack = Lack {
            path: "/data".into(),
            free: 3 << 20,
        };

        assert_eq!(
            lack.to_string(),
            "the disk of /data has 3 MiB free, and a start needs 10: free some"
        );
    }
}
