//! A library between nodes and the system, preloaded into them: disks that fail when a test says so.

use std::path::{Path, PathBuf};

use highwater::chaos::{DiskFault, FaultyDisk, Program, compile_faults};

use crate::world::{PATIENCE, POLL_INTERVAL};

/// One disk under all nodes of a directory.
#[derive(Debug)]
pub(crate) struct Faults {
    directory: PathBuf,
    library: PathBuf,
    disk: FaultyDisk,
}

impl Faults {
    /// For nodes whose data is in this directory.
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            library: compile_faults(directory).unwrap(),
            disk: FaultyDisk::new(directory.join("fault")),
        }
    }

    /// The node's program, with the library in it. Every call is written down where that is asked for.
    pub(crate) fn program(&self, settings: &[&str]) -> Program {
        let (name, control) = self.disk.variable();
        let mut arguments = vec![
            format!("LD_PRELOAD={}", self.library.display()),
            format!("{}={}", name.display(), control.display()),
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
    pub(crate) fn plant(&self, fault: DiskFault<'_>) {
        self.disk.plant(fault).unwrap();
    }

    /// The disk is whole again, and what hung goes on.
    pub(crate) fn lift(&self) {
        self.disk.lift().unwrap();
    }

    /// Whether the fault was met.
    pub(crate) fn is_hit(&self) -> bool {
        self.disk.is_hit()
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
}
