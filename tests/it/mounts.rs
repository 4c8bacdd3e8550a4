//! File systems of a test's own, small and in memory, that nobody else on the machine sees.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// A running node writes on at the end of its database. Less than this much of it while a test looks at the file.
const WRITTEN_MEANWHILE: u64 = 512 * 1024;

/// Set in a process that may mount what it likes.
const INSIDE: &str = "HIGHWATER_TEST_INSIDE";

/// Whether this process has mounts of its own. One that has not runs the test of this name again in one that has,
/// and is told `false` once it has passed there.
pub(crate) fn are_private(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    // As root, or else as root of a user namespace.
    let ways = [
        ["--mount"].as_slice(),
        &["--user", "--map-root-user", "--mount"],
    ];
    let works = |way: &&[&str]| {
        let tried = Command::new("unshare").args(*way).arg("true").output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    let way = ways.into_iter().find(works);
    let way = way
        .expect("unshare (util-linux) needs root or user namespaces to give a test its own mounts");
    let passed = Command::new("unshare")
        .args(way)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(passed.success(), "{test} failed in mounts of its own");
    false
}

/// A file system of this many MiB, in memory, at this path.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    pub(crate) fn mount(path: &Path, mib: u64) -> Self {
        fs::create_dir_all(path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"])
            .arg(path)
            .status()
            .unwrap();
        assert!(mounted.success());
        Self {
            path: path.to_owned(),
        }
    }

    /// The bytes that are free.
    pub(crate) fn free(&self) -> u64 {
        let found = statvfs(&self.path).unwrap();
        found.f_bavail * found.f_frsize
    }

    /// Fills it by a file that is not the node's, until this much is left.
    pub(crate) fn fill(&self, leave: u64) {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.foreign())
            .unwrap();
        loop {
            let left = self.free().saturating_sub(leave);
            if left == 0 {
                return;
            }
            match io::copy(&mut io::repeat(7).take(left), &mut file) {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                }
            }
        }
    }

    /// Fills it to the last byte, and takes from the database the place in its newest segment that it has not written
    /// to yet: with that it would go on for tens of thousands of leases.
    pub(crate) fn fill_whole(&self) {
        let path = self.path.join("sled/db");
        let bytes = fs::read(&path).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let keep = u64::try_from(used).unwrap() + WRITTEN_MEANWHILE;
        let length = u64::try_from(bytes.len()).unwrap();
        if keep < length {
            let file = File::options().write(true).open(&path).unwrap();
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, punch, keep, length - keep).unwrap();
        }
        self.fill(0);
    }

    /// Removes that file.
    pub(crate) fn clear(&self) {
        fs::remove_file(self.foreign()).unwrap();
    }

    fn foreign(&self) -> PathBuf {
        self.path.join("foreign")
    }
}
