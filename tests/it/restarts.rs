//! What a restart leaves: every value, no value twice, and no gap without a reason.

use std::time::Instant;

use highwater::chaos::{ClusterSize, LocalCluster};
use highwater::client::{Client, ClientError, Consistency, Grant};
use highwater::{RangeCount, SequenceName};

use crate::world::{self, PATIENCE, rounds, three_nodes, wait_for_one_state};

/// A lease that was granted at last.
struct Granted {
    grant: Grant,
    /// How many values others of its kind may have taken, whose answers were lost.
    lost: u64,
}

/// Leases until it is granted, however often the leader is lost meanwhile.
async fn wait_for_grant(client: &Client, sequence: &SequenceName, count: u32) -> Granted {
    let deadline = Instant::now() + PATIENCE;
    let mut lost = 0;
    loop {
        match client.lease(sequence, RangeCount::constant(count)).await {
            Ok(grant) => return Granted { grant, lost },
            Err(ClientError::Unknown { .. }) => lost += u64::from(count),
            Err(ClientError::Unavailable { .. }) => {}
            Err(refused @ (ClientError::Refused { .. } | ClientError::Fenced { .. })) => {
                panic!("{refused}")
            }
        }
        assert!(Instant::now() < deadline, "nothing is granted");
    }
}

// pingcap/tidb#5264: a restart costs no value.
#[tokio::test]
async fn a_kill_of_all_nodes_leaves_no_gap_where_nothing_was_in_flight() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let sequence = world::sequence(&cluster, "p").await;
    let first = wait_for_grant(&world::client(&cluster), &sequence, 3).await;
    let mut high = first.grant.last();

    for round in 1..=rounds("HIGHWATER_TEST_KILLS", 20) {
        cluster.kill(&[1, 2, 3]).await.unwrap();
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();

        // A client without connections to the nodes that are gone.
        let client = world::client(&cluster);
        let Granted { grant, lost } = wait_for_grant(&client, &sequence, 1).await;

        assert!(
            high < grant.first() && grant.first() <= high + 1 + lost,
            "round {round}: {} after {high}, and {lost} may be lost",
            grant.first()
        );
        high = grant.last();
    }
}

// clockworklabs/SpacetimeDB#158: a clean stop forgets nothing, whatever the cluster's size.
#[tokio::test]
async fn a_sequence_goes_on_after_a_clean_stop_of_one_or_three_nodes() {
    for size in [ClusterSize::One, ClusterSize::Three] {
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = LocalCluster::create(directory.path(), size, world::program()).unwrap();
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
        let sequence = world::sequence(&cluster, "p").await;
        let client = world::client(&cluster);
        let mut high = wait_for_grant(&client, &sequence, 10).await.grant.last();

        for _ in 0..2 {
            let ended = cluster.terminate_all(PATIENCE).await.unwrap();
            assert!(ended.iter().all(|status| status.success()), "{ended:?}");
            cluster.start_all().unwrap();
            cluster.all_ready(PATIENCE).await.unwrap();

            let Granted { grant, lost } = wait_for_grant(&client, &sequence, 10).await;

            assert!(
                high < grant.first() && grant.first() <= high + 1 + lost,
                "{size:?}: {} after {high}, and {lost} may be lost",
                grant.first()
            );
            high = grant.last();
        }
    }
}

// shaj13/raft#27: nothing is applied twice. nats-io/nats-server#3284: a name without traffic keeps its value.
#[tokio::test]
async fn rolling_restarts_apply_nothing_twice_and_an_idle_name_keeps_its_value() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let busy = world::sequence(&cluster, "busy").await;
    let idle = world::sequence(&cluster, "idle").await;
    let client = world::client(&cluster);
    let before = wait_for_grant(&client, &idle, 7).await;
    let rounds = rounds("HIGHWATER_TEST_RESTARTS", 2);
    let counts: Vec<u32> = (1..=1_000).collect();

    let (mut sum, mut lost) = (0, 0);
    let share = counts.len().div_ceil(usize::try_from(rounds).unwrap());
    for (round, counts) in counts.chunks(share).enumerate() {
        for node in cluster.ids() {
            // One after the other, now by its end and now by a kill.
            if round % 2 == 0 {
                let ended = cluster.terminate(&[node], PATIENCE).await.unwrap();
                assert!(ended.iter().all(|status| status.success()), "{ended:?}");
            } else {
                cluster.kill(&[node]).await.unwrap();
            }
            cluster.start(&[node]).unwrap();
            cluster.all_ready(PATIENCE).await.unwrap();
        }
        for count in counts {
            let granted = wait_for_grant(&client, &busy, *count).await;
            sum += u64::from(*count);
            lost += granted.lost;
        }
    }

    assert_eq!(sum, 500_500);
    wait_for_one_state(&cluster.urls()[0]).await;
    for url in cluster.urls() {
        let node = Client::builder().nodes([url]).build().unwrap();
        for consistency in [Consistency::Local, Consistency::Linearizable] {
            let shown = node.reads(consistency).sequence(&busy).await.unwrap();
            let high = shown.high.unwrap().get().unwrap();
            assert!(
                sum <= high && high <= sum + lost,
                "{high}, {lost} may be lost"
            );
        }
    }
    let Granted { grant, lost } = wait_for_grant(&client, &idle, 1).await;
    let next = before.grant.last() + 1;
    assert!(
        next <= grant.first() && grant.first() <= next + lost,
        "{} after {next}",
        grant.first()
    );
}
