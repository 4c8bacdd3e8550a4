//! Records a real node under load: formation, leases and advances, kills, restarts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::history::{Answer, History, Step, now_ns};
use crate::lone::{self, LoneNode};
use crate::omission::DATA;
use crate::trace::Trace;

/// Workers, each with a sequence of its own.
const WORKERS: u64 = 3;
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
    library: PathBuf,
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
        for (number, life) in (0..).zip(lives) {
            let node = LoneNode::spawn(&root.join(DATA), &log, &recorder.environment(root));
            let node = node.wait_until_serving().await;
            history = live(node, history, number, *life).await;
        }
        Self {
            trace: recorder.trace(root),
            history,
        }
    }
}

/// Works until the log is long enough, then ends the node and collects what the workers saw.
async fn live(mut node: LoneNode, history: History, seed: u64, life: Life) -> History {
    let index = Arc::new(LogIndex::default());
    let history = Arc::new(Mutex::new(history));
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let worker = Worker {
            http: lone::http(),
            url: format!("{}/v1/sequences/s{number}", node.api),
            sequence: format!("s{number}"),
            random: StdRng::seed_from_u64(seed * WORKERS + number),
            index: Arc::clone(&index),
            history: Arc::clone(&history),
        };
        workers.spawn(worker.run());
    }
    while index.grown() < life.entries {
        assert!(!workers.is_empty(), "{}", node.said());
        tokio::task::yield_now().await;
    }
    node.signal(match life.end {
        End::Kill => KILL_BETWEEN_EFFECTS,
        End::Terminate => Signal::TERM,
    });
    node.wait_until_ended().await;
    workers.join_all().await;
    Arc::into_inner(history).unwrap().into_inner().unwrap()
}

/// How long the log has become in one life.
struct LogIndex {
    first: AtomicU64,
    last: AtomicU64,
}

impl Default for LogIndex {
    fn default() -> Self {
        Self {
            first: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
        }
    }
}

impl LogIndex {
    fn see(&self, index: u64) {
        self.first.fetch_min(index, Ordering::Relaxed);
        self.last.fetch_max(index, Ordering::Relaxed);
    }

    fn grown(&self) -> u64 {
        let first = self.first.load(Ordering::Relaxed);
        self.last.load(Ordering::Relaxed).saturating_sub(first)
    }
}

/// Asks for one thing after another on its sequence until the node is gone.
struct Worker {
    http: reqwest::Client,
    url: String,
    sequence: String,
    random: StdRng,
    index: Arc<LogIndex>,
    history: Arc<Mutex<History>>,
}

impl Worker {
    async fn run(mut self) {
        // The sequence may be there from an earlier life, at any mark that a request led to which had no answer.
        let mut high = 0;
        if self
            .ask(self.http.put(&self.url).json(&json!({})), 0)
            .await
            .is_none()
        {
            return;
        }
        if let Ok(answer) = self.http.get(&self.url).send().await {
            let Ok(body) = answer.json::<Value>().await else {
                return;
            };
            high = body["high"].as_u64().unwrap_or_default();
        }
        loop {
            let count = self.random.random_range(1..=50);
            let request = if self.random.random_bool(0.1) {
                let url = format!("{}/advance", self.url);
                self.http.post(url).json(&json!({ "to": high + count }))
            } else {
                let url = format!("{}/leases", self.url);
                self.http.post(url).json(&json!({ "count": count }))
            };
            high += count;
            let Some(body) = self.ask(request, high).await else {
                return;
            };
            let told = body.get("last").or(body.get("high"));
            assert_eq!(told.and_then(Value::as_u64), Some(high), "{body}");
            if let Some(index) = body["index"].as_u64() {
                self.index.see(index);
            }
        }
    }

    /// Sends a request that leads to this mark, and notes it with its answer.
    async fn ask(&self, request: reqwest::RequestBuilder, high: u64) -> Option<Value> {
        let sent_ns = now_ns();
        let body = match request.send().await {
            Ok(answer) if answer.status().is_success() => answer.json::<Value>().await.ok(),
            _ => None,
        };
        let answer = body.as_ref().map(|body| Answer {
            received_ns: now_ns(),
            term: body["term"].as_u64(),
            index: body["index"].as_u64(),
        });
        let step = Step {
            sent_ns,
            high,
            answer,
        };
        let mut history = self.history.lock().unwrap();
        let steps = history.steps.entry(self.sequence.clone()).or_default();
        steps.push(step);
        body
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
