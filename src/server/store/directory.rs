//! The data directory itself: found or made, this process's alone, and writable. What is in it is `identity`'s part.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};

use super::error::StoreError;
use super::{DATABASE_NAME, SNAPSHOTS_NAME, SUPERBLOCK_NAME, files};

/// How long the lock is waited for: a process that ends, or one that only looks, gives it back within this time.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Makes the directory where there is none, with all above it, and locks it for as long as the result lives.
///
/// # Errors
/// [`StoreError`] where it cannot be made, is locked, or may not be written by this process.
pub(super) fn claim(path: &Path) -> Result<File, StoreError> {
    files::create_directory(path).map_err(|error| why_not_made(path, error))?;
    let directory = open(path)?;
    let until = Instant::now() + LOCK_PATIENCE;
    while let Err(error) = directory.try_lock() {
        let refused = not_locked(path, error);
        if !matches!(refused, StoreError::Locked { .. }) || until <= Instant::now() {
            return Err(refused);
        }
        std::thread::sleep(LOCK_RETRY);
    }
    check_access(path)?;
    Ok(directory)
}

/// Refuses a directory that a process holds. The lock is held for a moment only, which is less than the patience of a node
/// that starts.
///
/// # Errors
/// [`StoreError`] where it is locked or cannot be.
pub(super) fn check_unused(path: &Path) -> Result<(), StoreError> {
    open(path)?
        .try_lock_shared()
        .map_err(|error| not_locked(path, error))
}

fn open(path: &Path) -> Result<File, StoreError> {
    File::open(path).map_err(StoreError::io("open the data directory", path))
}

fn not_locked(path: &Path, error: TryLockError) -> StoreError {
    match error {
        TryLockError::WouldBlock => StoreError::Locked {
            path: path.to_path_buf(),
        },
        TryLockError::Error(error) => StoreError::io("lock the data directory", path)(error),
    }
}

/// What stands in the way of the directory: the first of its path that is there, and is none.
fn why_not_made(path: &Path, error: io::Error) -> StoreError {
    let in_the_way = path.ancestors().find_map(|at| {
        let found = fs::symlink_metadata(at).ok()?;
        let leads_nowhere = found.is_symlink() && fs::metadata(at).is_err();
        Some((at, found, leads_nowhere))
    });
    match in_the_way {
        Some((at, _, true)) => StoreError::Dangling {
            path: at.to_path_buf(),
            target: fs::read_link(at).unwrap_or_default(),
        },
        Some((at, _, false)) if !at.is_dir() => StoreError::NotDirectory {
            path: at.to_path_buf(),
        },
        _ => StoreError::io("create the data directory", path)(error),
    }
}

/// Whether this process may write what a store is made of: told by name, before anything is changed.
fn check_access(path: &Path) -> Result<(), StoreError> {
    let database = path.join(DATABASE_NAME);
    let directories = [
        path.to_path_buf(),
        database.clone(),
        database.join("blobs"),
        path.join(SNAPSHOTS_NAME),
    ];
    let files = [
        path.join(SUPERBLOCK_NAME),
        database.join("db"),
        database.join("conf"),
    ];
    let to_write = Access::READ_OK | Access::WRITE_OK;
    let wanted = directories
        .iter()
        .map(|directory| (directory, to_write | Access::EXEC_OK))
        .chain(files.iter().map(|file| (file, to_write)));
    for (path, wanted) in wanted {
        match access(path, wanted).map_err(io::Error::from) {
            // What is missing is missed by the start-up check.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::io("write", path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
