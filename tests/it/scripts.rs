//! `scripts/cluster`, as the README uses it.

use std::path::Path;
use std::process::Command;

use highwater::RangeCount;
use highwater::chaos::{ClusterSize, LocalCluster};

use crate::world;

/// Runs the script on a cluster file of its own, and returns what it printed.
fn script(directory: &Path, arguments: &[&str]) -> String {
    let said = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/cluster"))
        .args(arguments)
        .env("HIGHWATER_BIN", env!("CARGO_BIN_EXE_highwater"))
        .env("HIGHWATER_CLUSTER", directory.join("cluster.toml"))
        .env("HIGHWATER_DATA", directory.join("data"))
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr),
    );
    assert!(said.status.success(), "{arguments:?}: {out}{err}");
    out.into_owned()
}

#[tokio::test]
async fn a_local_cluster_goes_up_survives_a_kill_and_goes_down() {
    let directory = tempfile::tempdir().unwrap();
    // Only for its file and free ports: the script starts the nodes.
    let cluster =
        LocalCluster::create(directory.path(), ClusterSize::Three, world::program()).unwrap();

    script(directory.path(), &["up"]);
    script(directory.path(), &["up"]);
    let sequence = world::sequence(&cluster, "p").await;
    let client = world::client(&cluster);
    let before = client.lease(&sequence, RangeCount::ONE).await.unwrap();
    script(directory.path(), &["kill", "1"]);
    script(directory.path(), &["restart", "1"]);
    let status = script(directory.path(), &["status"]);
    let after = client.lease(&sequence, RangeCount::ONE).await.unwrap();
    script(directory.path(), &["down"]);

    assert!(before.last() < after.first());
    for word in ["leader", "follower"] {
        assert!(status.contains(word), "{status}");
    }
    assert_eq!(
        client
            .lease(&sequence, RangeCount::ONE)
            .await
            .unwrap_err()
            .outcome(),
        highwater::wire::ProblemOutcome::NotApplied
    );
}
