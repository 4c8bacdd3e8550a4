//! Disks that fail, hang, are slow or full, and clocks that are wrong: libraries between a node's process and the system.
//!
//! The one for disks is ours, `faults.c`, and is compiled where it is used; the one for the wall clock is libfaketime.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::HarnessError;

const SOURCE: &str = include_str!("faults.c");

/// Compiles the library of disks into this directory.
///
/// # Errors
/// [`HarnessError`] where there is no C compiler, or it does not like it.
pub fn compile_faults(directory: &Path) -> Result<PathBuf, HarnessError> {
    let (source, library) = (directory.join("faults.c"), directory.join("faults.so"));
    fs::write(&source, SOURCE).map_err(HarnessError::file(&source, "written"))?;
    let said = Command::new("cc")
        .args([
            "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o",
        ])
        .args([&library, &source])
        .output()
        .map_err(HarnessError::file(&source, "compiled by cc"))?;
    if !said.status.success() {
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        let error = io::Error::other(text);
        return Err(HarnessError::file(&source, "compiled by cc")(error));
    }
    Ok(library)
}

/// Whether there is a C compiler.
pub(super) fn has_compiler() -> bool {
    let tried = Command::new("cc").arg("--version").output();
    tried.is_ok_and(|tried| tried.status.success())
}

/// What a disk does at a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskAction {
    /// One call fails with this errno; later ones succeed.
    Fail(i32),
    /// One call fails with it so many milliseconds after it was made.
    FailLate(i32, u32),
    /// From this call on all that match fail with it until the fault is lifted.
    FailAll(i32),
    /// From this call on all that match wait until the fault is lifted.
    Hang,
    /// From this call on each that matches takes so many milliseconds longer, one at least, until the fault is lifted.
    Slow(u32),
}

/// A fault of a disk: at the `nth` of these calls on a path with this part, counted from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskFault<'a> {
    /// Calls by their names in `faults.c`, with commas between.
    pub call: &'a str,
    /// A part of the file's path.
    pub path: &'a str,
    /// From 1 on.
    pub nth: u32,
    /// What the disk does then.
    pub action: DiskAction,
}

/// The disk of every process that was started with its variable and the library.
#[derive(Debug, Clone)]
pub struct FaultyDisk {
    control: PathBuf,
}

impl FaultyDisk {
    /// A disk that is told its faults by this file.
    pub fn new(control: PathBuf) -> Self {
        Self { control }
    }

    /// What tells a process which disk is its own.
    pub fn variable(&self) -> (OsString, OsString) {
        ("FAULTS_CONTROL".into(), self.control.clone().into())
    }

    /// From now on it has this fault.
    ///
    /// # Errors
    /// The system's.
    pub fn plant(&self, fault: DiskFault<'_>) -> io::Result<()> {
        let DiskFault {
            call,
            path,
            nth,
            action,
        } = fault;
        let (code, delay_ms) = match action {
            DiskAction::Fail(code) => (code, 0),
            DiskAction::FailLate(code, delay_ms) => (code, delay_ms),
            DiskAction::FailAll(code) => (-code, 0),
            DiskAction::Hang => (0, 0),
            DiskAction::Slow(delay_ms) => (0, delay_ms.max(1)),
        };
        self.lift()?;
        let new = self.control.with_extension("new");
        fs::write(&new, format!("{call} {path} {nth} {code} {delay_ms}\n"))?;
        fs::rename(new, &self.control)
    }

    /// It is whole again, and what hung goes on.
    ///
    /// # Errors
    /// The system's.
    pub fn lift(&self) -> io::Result<()> {
        for file in [self.control.clone(), self.hit()] {
            match fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the fault was met.
    pub fn is_hit(&self) -> bool {
        self.hit().exists()
    }

    fn hit(&self) -> PathBuf {
        let mut name = self.control.clone().into_os_string();
        name.push(".hit");
        name.into()
    }
}

/// Where Debian and others have libfaketime, the one for processes with threads.
pub(super) fn find_faketime() -> Option<PathBuf> {
    let library = "faketime/libfaketimeMT.so.1";
    let architecture = std::env::consts::ARCH;
    [
        format!("/usr/lib/{architecture}-linux-gnu/{library}"),
        format!("/usr/lib64/{library}"),
        format!("/usr/lib/{library}"),
    ]
    .into_iter()
    .map(PathBuf::from)
    .find(|path| path.exists())
}

/// The wall clock of a process that was started with its variables and libfaketime. The monotonic clock stays right.
#[derive(Debug, Clone)]
pub(super) struct FaultyClock {
    control: PathBuf,
}

impl FaultyClock {
    /// A clock that is told by this file how wrong it is, and is right until then.
    pub(super) fn new(control: PathBuf) -> Self {
        Self { control }
    }

    /// What tells a process which clock is its own.
    pub(super) fn variables(&self) -> Vec<(OsString, OsString)> {
        let mut variables = vec![(
            "FAKETIME_TIMESTAMP_FILE".into(),
            self.control.clone().into(),
        )];
        // What it knows the file to say is at most as old as a call; files keep their times; only the wall clock is wrong. Two
        // names for that, by version.
        let settings = [
            "FAKETIME_NO_CACHE",
            "NO_FAKE_STAT",
            "DONT_FAKE_MONOTONIC",
            "FAKETIME_DONT_FAKE_MONOTONIC",
        ];
        variables.extend(settings.map(|name| (name.into(), "1".into())));
        variables
    }

    /// From now on it is wrong by so many seconds.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn set(&self, seconds: i64) -> io::Result<()> {
        let new = self.control.with_extension("clock-new");
        fs::write(&new, format!("{seconds:+}\n"))?;
        fs::rename(new, &self.control)
    }
}
