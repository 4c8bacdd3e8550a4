//! kill -9 of every node at once, life after life, under load; one checker over all of them (I1 to I4, I6).

use std::time::Duration;

use highwater::chaos::{Recorder, Worker};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::load::{judged, nothing_granted};
use crate::world::{self, PATIENCE, three_nodes};

const WORKERS: usize = 6;
/// How many times all nodes are killed; `HIGHWATER_TEST_LIVES` asks for more.
const LIVES: u64 = 4;
/// What has to be granted in each life before it ends.
const GRANTS_PER_LIFE: u64 = 150;

// canonical/raft#199, spacejam/sled#1533: always starts, never asks for repair.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_granted_again_across_all_lives() {
    let lives = world::rounds("HIGHWATER_TEST_LIVES", LIVES);
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let sequence = world::sequence(&cluster, "photos").await;
    let path = directory.path().join("history.ndjson");
    let (recorder, lines) = Recorder::create(&path).unwrap();
    lines.try_send(nothing_granted(&sequence)).unwrap();
    let progress = recorder.progress();
    let mut recording = JoinSet::new();
    recording.spawn(recorder.run());
    let stop = CancellationToken::new();
    let urls = cluster.urls();
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let worker = Worker::new(format!("w{number}"), (1, &urls), &sequence, &lines).unwrap();
        workers.spawn(worker.run(stop.clone()));
    }

    for life in 1..=lives {
        let enough = life * GRANTS_PER_LIFE;
        let grown = async {
            while progress.grants() < enough {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, grown)
            .await
            .expect("grants go on in every life");
        cluster.kill(&[1, 2, 3]).await.unwrap();
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
    }
    stop.cancel();
    for ended in workers.join_all().await {
        ended.unwrap();
    }
    let last = Worker::new("last".to_owned(), (1, &urls), &sequence, &lines).unwrap();
    last.read_finally().await.unwrap();
    drop((last, lines));
    recording.join_next().await.unwrap().unwrap().unwrap();

    let report = judged(&path);
    assert!(lives * GRANTS_PER_LIFE <= report.grants + report.replays);
    assert!(report.violations.is_empty(), "{report:#?}");
    cluster.stop_all(Duration::from_secs(10)).await.unwrap();
}
