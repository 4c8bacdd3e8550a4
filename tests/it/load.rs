//! Workers that lease all the time, and the checker over everything that they saw.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater::SequenceName;
use highwater::chaos::{HarnessError, LocalCluster, Progress, Recorder, Worker, monotonic_ns};
use highwater::history::{Checker, GapRule, Line, Mark, Operation, Report, Source};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::world::{PATIENCE, POLL_INTERVAL};

/// A running load.
pub(crate) struct Load {
    sequence: SequenceName,
    path: PathBuf,
    lines: mpsc::Sender<Line>,
    progress: Arc<Progress>,
    stop: CancellationToken,
    workers: JoinSet<Result<(), HarnessError>>,
    recording: JoinSet<Result<(), HarnessError>>,
}

impl Load {
    /// Starts so many workers on all nodes, on a sequence of which nothing was granted. What they see is written into the
    /// directory.
    pub(crate) fn start(
        cluster: &LocalCluster,
        sequence: &SequenceName,
        workers: usize,
        directory: &Path,
    ) -> Self {
        let path = directory.join("history.ndjson");
        let (recorder, lines) = Recorder::create(&path).unwrap();
        lines.try_send(nothing_granted(sequence)).unwrap();
        let progress = recorder.progress();
        let mut recording = JoinSet::new();
        recording.spawn(recorder.run());
        let stop = CancellationToken::new();
        let urls = cluster.urls();
        let mut running = JoinSet::new();
        for number in 0..workers {
            let worker = Worker::new(format!("w{number}"), (1, &urls), sequence, &lines).unwrap();
            running.spawn(worker.run(stop.clone()));
        }
        Self {
            sequence: sequence.clone(),
            path,
            lines,
            progress,
            stop,
            workers: running,
            recording,
        }
    }

    /// Waits until so many leases more were granted.
    pub(crate) async fn wait_until_granted(&self, more: u64) {
        let enough = self.progress.grants() + more;
        let grown = async {
            while self.progress.grants() < enough {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        timeout(PATIENCE, grown).await.expect("grants go on");
    }

    /// Ends the load. Nothing that was acknowledged may be missing, granted twice or out of order.
    pub(crate) async fn verify(mut self, cluster: &LocalCluster) {
        self.stop.cancel();
        while let Some(ended) = self.workers.join_next().await {
            ended.unwrap().unwrap();
        }
        let urls = cluster.urls();
        let last = Worker::new("last".to_owned(), (1, &urls), &self.sequence, &self.lines).unwrap();
        last.read_finally().await.unwrap();
        drop((last, self.lines));
        self.recording.join_next().await.unwrap().unwrap().unwrap();
        let report = judged(&self.path);
        assert!(0 < report.grants);
        assert!(report.violations.is_empty(), "{report:#?}");
    }
}

/// What the harness knows of a sequence that it has just created.
pub(crate) fn nothing_granted(sequence: &SequenceName) -> Line {
    let now = monotonic_ns();
    Line {
        worker: "harness".to_owned(),
        node: None,
        sequence: sequence.clone(),
        sent_ns: now,
        received_ns: now,
        operation: Operation::Read(Mark {
            high: None,
            start: Some(1),
            cached: false,
        }),
    }
}

/// What the checker finds in this file.
pub(crate) fn judged(path: &Path) -> Report {
    let checker = Checker::new(GapRule::MustBeExplained).source(Source::file(path));
    checker.check().unwrap()
}
