//! Libraries of ours between a node and the system: compiled from `tests/preload`, and preloaded into nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use highwater::chaos::Program;

use crate::world::{PATIENCE, POLL_INTERVAL};

/// Compiles a file of `tests/preload` into a library in this directory.
pub(crate) fn compile(source: &str, directory: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload");
    let library = directory.join(source).with_extension("so");
    let said = Command::new("cc")
        .args([
            "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o",
        ])
        .arg(&library)
        .arg(from.join(source))
        .output()
        .unwrap();
    assert!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    library
}

/// What the disk does at a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// One call fails with this errno; later ones succeed.
    Fail(i32),
    /// One call fails with it so many milliseconds after it was made.
    FailLate(i32, u32),
    /// From this call on all that match wait until the fault is lifted.
    Hang,
}

/// A fault of the disk under some nodes: at the `nth` call of this kind on a path with this part, counted from now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault<'a> {
    pub(crate) call: &'a str,
    pub(crate) path: &'a str,
    pub(crate) nth: u32,
    pub(crate) action: Action,
}

/// Disks that fail when told so. See `tests/preload/faults.c`.
#[derive(Debug)]
pub(crate) struct Faults {
    directory: PathBuf,
    library: PathBuf,
    control: PathBuf,
}

impl Faults {
    /// For nodes whose data is in this directory.
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            library: compile("faults.c", directory),
            control: directory.join("fault"),
        }
    }

    /// The node's program, with the library in it. Every call is written down where that is asked for.
    pub(crate) fn program(&self, settings: &[&str]) -> Program {
        let mut arguments = vec![
            format!("LD_PRELOAD={}", self.library.display()),
            format!("FAULTS_CONTROL={}", self.control.display()),
        ];
        arguments.extend(settings.iter().map(|setting| (*setting).to_owned()));
        arguments.push(env!("CARGO_BIN_EXE_highwater").to_owned());
        Program {
            path: "/usr/bin/env".into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }

    /// The settings that have every call on the nodes' files written down, and where.
    pub(crate) fn tracing(&self) -> ([String; 2], PathBuf) {
        let trace = self.directory.join("calls");
        let settings = [
            format!("FAULTS_TRACE={}", trace.display()),
            format!("FAULTS_ROOT={}/node-", self.directory.display()),
        ];
        (settings, trace)
    }

    /// From now on the disk has this fault.
    pub(crate) fn plant(&self, fault: Fault<'_>) {
        let Fault {
            call,
            path,
            nth,
            action,
        } = fault;
        let (code, delay_ms) = match action {
            Action::Fail(code) => (code, 0),
            Action::FailLate(code, delay_ms) => (code, delay_ms),
            Action::Hang => (0, 0),
        };
        self.lift();
        let new = self.control.with_extension("new");
        fs::write(&new, format!("{call} {path} {nth} {code} {delay_ms}\n")).unwrap();
        fs::rename(new, &self.control).unwrap();
    }

    /// The disk is whole again, and what hung goes on.
    pub(crate) fn lift(&self) {
        for file in [self.control.clone(), self.hit()] {
            if let Err(error) = fs::remove_file(file) {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            }
        }
    }

    /// Whether the fault was met.
    pub(crate) fn is_hit(&self) -> bool {
        self.hit().exists()
    }

    /// Waits until the fault was met.
    pub(crate) async fn wait_until_hit(&self) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while !self.is_hit() {
            assert!(
                std::time::Instant::now() < deadline,
                "no call met the fault"
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn hit(&self) -> PathBuf {
        self.control.with_extension("hit")
    }
}
