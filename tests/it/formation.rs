//! How three empty directories become one cluster, and why a lost one never becomes another.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use highwater::RangeCount;
use highwater::chaos::{ClusterSize, HarnessError, LocalCluster};

use crate::world::{self, PATIENCE, POLL_INTERVAL, send, three_nodes};

/// How many clusters are formed; `HIGHWATER_TEST_FORMATIONS` asks for more.
const ROUNDS: u64 = 3;

async fn cluster_ids(cluster: &LocalCluster) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for url in cluster.urls() {
        ids.insert(
            send("GET", &format!("{url}/v1/cluster"), "", &[])
                .await
                .field("cluster"),
        );
    }
    ids
}

// dgraph-io/dgraph#1828: one cluster, whoever is first.
#[tokio::test]
async fn three_empty_nodes_that_start_at_once_form_one_cluster() {
    for _ in 0..world::rounds("HIGHWATER_TEST_FORMATIONS", ROUNDS) {
        let directory = tempfile::tempdir().unwrap();
        let cluster = three_nodes(directory.path()).await;

        assert_eq!(cluster_ids(&cluster).await.len(), 1);
    }
}

#[tokio::test]
async fn a_cluster_forms_only_once_every_member_has_come() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster =
        LocalCluster::create(directory.path(), ClusterSize::Three, world::program()).unwrap();

    cluster.start(&[1, 2]).unwrap();
    wait_until_logged(
        directory.path(),
        1,
        "waiting for a member to form the cluster node=3",
    )
    .await;
    let early = send("GET", &format!("{}/readyz", cluster.urls()[0]), "", &[]).await;
    cluster.kill(&[1]).await.unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();

    assert_eq!(early.status, 503);
    assert_eq!(cluster_ids(&cluster).await.len(), 1);
}

// databendlabs/openraft#2002, lni/dragonboat#256: amnesia is told by the incarnation, whoever starts first.
#[tokio::test]
async fn a_wiped_node_neither_votes_nor_forms_a_cluster_also_when_it_starts_first() {
    for wiped in [1, 3] {
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = three_nodes(directory.path()).await;
        let sequence = world::sequence(&cluster, "p").await;
        let before = world::client(&cluster)
            .lease(&sequence, RangeCount::ONE)
            .await
            .unwrap();
        let formed = cluster_ids(&cluster).await;
        cluster.stop_all(PATIENCE).await.unwrap();
        fs::remove_dir_all(cluster.data_dir(wiped).unwrap()).unwrap();

        cluster.start(&[wiped]).unwrap();
        wait_until_logged(
            directory.path(),
            wiped,
            "waiting for a member to form the cluster",
        )
        .await;
        let others: Vec<u64> = cluster
            .ids()
            .into_iter()
            .filter(|id| *id != wiped)
            .collect();
        cluster.start(&others).unwrap();
        let refused = loop {
            match cluster.check_alive() {
                Ok(()) => tokio::task::yield_now().await,
                Err(error) => break error,
            }
        };

        assert!(
            matches!(refused, HarnessError::Died { node, .. } if node == wiped),
            "{refused}"
        );
        let line = refused.to_string();
        assert!(
            line.contains(&format!("node {wiped} has lost its data: cluster ")),
            "{line}"
        );
        assert!(
            line.contains("bring back its directory, or replace the node"),
            "{line}"
        );
        // The other two are a quorum, and go on.
        let after = loop {
            match world::client(&cluster)
                .lease(&sequence, RangeCount::ONE)
                .await
            {
                Ok(grant) => break grant,
                Err(error) => assert!(error.problem().is_none_or(|problem| problem.retryable)),
            }
        };
        assert_eq!(after.first(), before.last() + 1);
        assert!(formed.contains(after.cluster()));
    }
}

/// Waits until the node has logged this.
async fn wait_until_logged(directory: &Path, node: u64, text: &str) {
    let log = directory.join(format!("node-{node}.log"));
    let deadline = std::time::Instant::now() + PATIENCE;
    while !fs::read_to_string(&log).is_ok_and(|lines| lines.contains(text)) {
        assert!(
            std::time::Instant::now() < deadline,
            "node {node} never logged {text:?}"
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
