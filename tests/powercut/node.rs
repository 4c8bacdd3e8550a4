//! Records a real node under load: formation, leases and advances, kills, restarts.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::history::History;
use crate::lone::LoneNode;
use crate::omission::DATA;
use crate::trace::Trace;
use crate::workers::Workers;

/// The signal at which the recorder ends the process, as by kill -9 but between two effects.
pub(crate) const KILL_BETWEEN_EFFECTS: Signal = Signal::USR2;

/// One life of the recorded node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    /// It ends under load once its log is so much longer.
    pub(crate) entries: u64,
    pub(crate) end: End,
}

/// How a life ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// As by kill -9.
    Kill,
    /// By SIGTERM.
    Terminate,
}

/// A recorder, built, and where its trace goes.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) library: PathBuf,
    trace: PathBuf,
}

impl Recorder {
    /// Builds it in this directory.
    pub(crate) fn build(directory: &Path) -> Self {
        let library = directory.join("recorder.so");
        let built = Command::new("cc")
            .args([
                "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o",
            ])
            .arg(&library)
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/preload/recorder.c"
            ))
            .arg("-pthread")
            .status()
            .unwrap();
        assert!(built.success(), "the recorder does not compile");
        Self {
            library,
            trace: directory.join("trace"),
        }
    }

    /// What makes a process record what it does below `root`.
    pub(crate) fn environment<'a>(&'a self, root: &'a Path) -> [(&'static str, &'a Path); 3] {
        [
            ("LD_PRELOAD", &self.library),
            ("RECORDER_ROOT", root),
            ("RECORDER_TRACE", &self.trace),
        ]
    }

    pub(crate) fn trace(&self, root: &Path) -> Trace {
        Trace::read(&self.trace, root)
    }
}

/// What a node did to its disk, and what it told its workers meanwhile.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) trace: Trace,
    pub(crate) history: History,
}

impl Recording {
    /// Records a node below `root`, which may hold what an earlier one left with the workers of `history`.
    pub(crate) async fn make(root: &Path, history: History, lives: &[Life]) -> Self {
        let scratch = tempfile::tempdir_in(root.parent().unwrap()).unwrap();
        let recorder = Recorder::build(scratch.path());
        let log = scratch.path().join("log");
        let mut history = history;
        for (seed, life) in (0..).zip(lives) {
            let node = LoneNode::spawn(&root.join(DATA), &log, &recorder.environment(root));
            let mut node = node.wait_until_serving().await;
            let workers = Workers::start(&[node.api.clone()], history, seed);
            workers.wait_until_grown(life.entries).await;
            node.signal(match life.end {
                End::Kill => KILL_BETWEEN_EFFECTS,
                End::Terminate => Signal::TERM,
            });
            history = workers.stop().await;
            node.wait_until_ended().await;
        }
        Self {
            trace: recorder.trace(root),
            history,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{IoSlice, Write};

    use super::*;

    const CHILD: &str = "HIGHWATER_TEST_WRITEV";

    #[test]
    fn a_process_that_does_what_cannot_be_recorded_ends() {
        if let Some(root) = std::env::var_os(CHILD) {
            let mut file = File::create(Path::new(&root).join("file")).unwrap();
            drop(file.write_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"b")]));
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let recorder = Recorder::build(scratch.path());

        let ended = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "node::tests::a_process_that_does_what_cannot_be_recorded_ends",
            ])
            .arg("--nocapture")
            .env(CHILD, &root)
            .envs(recorder.environment(&root))
            .output()
            .unwrap();

        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(!ended.status.success());
        assert!(said.contains("recorder: writev below the root"), "{said}");
    }
}
