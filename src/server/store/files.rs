//! Files that are there, whole, after a power cut.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Makes the entries of a directory durable: a file created, renamed or removed in it.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Creates a directory and all above it, and makes their entries durable.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if path.is_dir() {
        // An earlier try may have ended before its sync. Where the parent cannot be read, others made it.
        return match sync_directory(parent) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            other => other,
        };
    }
    create_directory(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        other => other?,
    }
    sync_directory(parent)
}

/// Puts `bytes` into a file that is either wholly new or wholly old after a power cut.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    publish(&temporary, path)
}

/// Gives a durable file its final name.
pub(super) fn publish(temporary: &Path, path: &Path) -> io::Result<()> {
    fs::rename(temporary, path)?;
    match path.parent() {
        Some(parent) => sync_directory(parent),
        None => Ok(()),
    }
}
