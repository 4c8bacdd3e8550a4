//! Workers that lease all the time, and the checker over everything that they saw (I1, I2, I3).

use std::path::Path;
use std::sync::Arc;

use highwater::SequenceName;
use highwater::chaos::{HarnessError, LocalCluster, Progress, Recorder, Worker};
use highwater::history::Checker;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::world::{self, PATIENCE};

/// A running load.
pub(crate) struct Load {
    sequence: SequenceName,
    progress: Arc<Progress>,
    stop: CancellationToken,
    workers: JoinSet<Result<(), HarnessError>>,
    recording: JoinSet<Result<Checker, HarnessError>>,
}

impl Load {
    /// Starts so many workers on all nodes. What they see is written into the directory.
    pub(crate) fn start(
        cluster: &LocalCluster,
        sequence: &SequenceName,
        workers: usize,
        directory: &Path,
    ) -> Self {
        let (recorder, lines) = Recorder::create(&directory.join("history.ndjson")).unwrap();
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
                tokio::time::sleep(world::POLL_INTERVAL).await;
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
        let mut checker = self.recording.join_next().await.unwrap().unwrap().unwrap();
        let shown = world::client(cluster)
            .sequence(&self.sequence)
            .await
            .unwrap();
        checker.expect_start(&self.sequence, 1);
        if let Some(high) = shown.high {
            checker.expect_high(&self.sequence, high.get().unwrap());
        }
        let report = checker.check();
        assert!(0 < report.grants);
        assert!(report.violations.is_empty(), "{report:#?}");
    }
}
