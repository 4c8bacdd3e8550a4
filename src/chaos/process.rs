//! What a node's process uses, as the system counts it.

use std::fs;
use std::io;
use std::path::Path;

/// What a process uses at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessUse {
    /// Memory that is resident now, in bytes.
    pub memory: u64,
    /// The most that ever was, in bytes.
    pub memory_peak: u64,
    /// Bytes that it had written to disks since its start.
    pub written: u64,
}

impl ProcessUse {
    /// Of a process of this machine.
    ///
    /// # Errors
    /// Where there is no such process, or the system does not tell.
    pub fn of(pid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let io = fs::read_to_string(format!("/proc/{pid}/io"))?;
        Ok(Self {
            memory: field(&status, "VmRSS:")? * 1024,
            memory_peak: field(&status, "VmHWM:")? * 1024,
            written: field(&io, "write_bytes:")?,
        })
    }
}

fn field(text: &str, name: &str) -> io::Result<u64> {
    let value = text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?;
        value.split_whitespace().next()?.parse().ok()
    });
    value.ok_or_else(|| io::Error::other(format!("the system does not tell {name}")))
}

/// The bytes that the files below a directory take on its disk.
///
/// # Errors
/// The system's. A file that goes meanwhile counts nothing.
pub fn disk_use(directory: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    const BLOCK_BYTES: u64 = 512;
    let mut open = vec![directory.to_owned()];
    let mut bytes = 0;
    while let Some(path) = open.pop() {
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        bytes += metadata.blocks() * BLOCK_BYTES;
        if metadata.is_dir() {
            for entry in fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_what_it_writes_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let before = disk_use(directory.path()).unwrap();
        let inner = directory.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), vec![1; 100_000]).unwrap();

        let used = ProcessUse::of(std::process::id()).unwrap();

        assert!(
            1024 * 1024 < used.memory && used.memory <= used.memory_peak,
            "{used:?}"
        );
        assert!(before + 100_000 <= disk_use(directory.path()).unwrap());
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(ProcessUse::of(u32::MAX).is_err());
        let error = field("VmRSS: much\n", "VmRSS:").unwrap_err();
        assert_eq!(error.to_string(), "the system does not tell VmRSS:");
    }
}
