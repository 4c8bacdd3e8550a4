//! Failures that others had with leaders, links and answers, done to us. Each is named after its report.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use highwater::chaos::{ClusterSize, Connection, Flow, FlowFault, HarnessError, Network};
use highwater::wire::GrantBody;
use tokio::time::sleep;

use crate::crowd::{self, Crowd};
use crate::identity::copy;
use crate::settings::setting;
use crate::world::{PATIENCE, POLL_INTERVAL, Watched, World, proxy_before, wait_until_not_ready};

// pingcap/tidb#46444: a leader that was deposed without knowing it writes its old mark back when it ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_leader_that_ends_at_once_when_it_goes_on_takes_nothing_back() {
    let mut world = World::new().await;
    let leader = world.leader().await;
    let at_it = Crowd::at(&[world.url(leader)], 4);
    at_it.wait_until_granted(100).await;
    world.cluster.freeze(leader, PATIENCE).await.unwrap();
    let elsewhere = Crowd::at(&world.cluster.urls_without(leader), 4);
    elsewhere.wait_until_granted(500).await;
    let mut values = crowd::values(&elsewhere.leave().await);

    // Those at it are in the middle of a request. It is answered before the node ends, or by another node.
    world.cluster.thaw(leader).unwrap();
    values.extend(crowd::values(&at_it.leave().await));
    world.cluster.terminate(&[leader], PATIENCE).await.unwrap();
    world.cluster.terminate_all(PATIENCE).await.unwrap();
    world.restart().await;

    let after = Crowd::at(&world.cluster.urls(), 1);
    after.wait_until_granted(10).await;
    values.extend(crowd::values(&after.leave().await));
    world.check(values).await;
}

// confluentinc/schema-registry#623: who is to lead before it has caught up.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leads_as_soon_as_it_is_back_grants_nothing_twice() {
    let mut world = World::new().await;
    let back = world.leader().await % 3 + 1;
    let crowd = Crowd::at(&world.cluster.urls_without(back), 16);
    world.cluster.kill(&[back]).await.unwrap();
    crowd
        .wait_until_granted(setting("FAILOVER_MISSED_GRANTS").unwrap_or(2_000))
        .await;

    world.cluster.start_all().unwrap();
    // Refused until it answers, and waited for until it has the last entry.
    let client = world.client();
    while client.transfer_leader(Some(back)).await.is_err() {}
    crowd.wait_until_granted(100).await;

    let taken = crowd.leave().await;
    world.all_ready().await;
    world.check(crowd::values(&taken)).await;
}

// tikv/pd#4885: a leader that was, was not and is again, asked all the while.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_that_goes_and_comes_back_at_once_lets_no_value_fall() {
    let mut world = World::new().await;
    let first = world.leader().await;
    let second = first % 3 + 1;
    let client = world.client();
    let crowd = Crowd::at(&[world.url(first)], 8);
    for gap_ms in (0..setting("FAILOVER_RETURNS").unwrap_or(4)).map(|round| round * 50 % 250) {
        let led = client.transfer_leader(Some(second)).await.unwrap();
        assert_eq!(led.leader, second);
        wait_between(gap_ms).await;
        let led = client.transfer_leader(Some(first)).await.unwrap();
        assert_eq!(led.leader, first);
        crowd.wait_until_granted(20).await;
    }

    let taken = crowd.leave().await;
    world.check(crowd::values(&taken)).await;
}

/// It is a part of the case, and shows nothing.
async fn wait_between(gap_ms: u64) {
    sleep(Duration::from_millis(gap_ms)).await;
}

// databendlabs/openraft#2080: a leader without a quorum whose heartbeats keep one of a connected majority from voting.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_only_one_node_hears_does_not_keep_that_one_from_electing_another() {
    let mut world = World::with_network(ClusterSize::Five).await;
    let watched = Watched::at_each(&world, 1);
    watched.wait_until_granted(50).await;
    let leader = world.leader().await;
    let others = world.cluster.ids();
    let others: Vec<u64> = others.into_iter().filter(|id| *id != leader).collect();
    let (bridge, a, b) = (others[0], others[1], others[2]);
    let cut = |network: &Network| network.split(&[&[leader, bridge], &[bridge, a, b]]);

    cut(world.network());
    for node in [bridge, a, b] {
        watched.lease_at(&world, node).await;
    }

    assert_ne!(world.leader().await, leader);
    world.network().heal();
    world.all_ready().await;
    watched.leave(&world).await;
}

// hashicorp/raft#502: a follower that is restarted again and again comes back each time, and nobody else has to.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_restarted_again_and_again_comes_back_under_the_same_leader() {
    let mut world = World::new().await;
    let leader = world.leader().await;
    let follower = leader % 3 + 1;
    let term = world.client().cluster().await.unwrap().term;
    let crowd = Crowd::at(&world.cluster.urls_without(follower), 2);
    let restarts = setting("FAILOVER_RESTARTS");
    for round in 0..restarts.unwrap_or(4) {
        if round % 2 == 0 {
            world.cluster.kill(&[follower]).await.unwrap();
        } else {
            world
                .cluster
                .terminate(&[follower], PATIENCE)
                .await
                .unwrap();
        }
        crowd.wait_until_granted(20).await;
        world.restart().await;
    }

    let taken = crowd.leave().await;
    // On a machine that does other things besides, an election is nobody's fault.
    if restarts.is_some() {
        let shown = world.client().cluster().await.unwrap();
        assert_eq!((shown.leader, shown.term), (Some(leader), term));
    }
    world.check(crowd::values(&taken)).await;
}

// etcd-io/etcd#18424: whoever asks again without a key after a lost answer may leave a gap, and gets nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_a_lost_answer_is_a_gap_and_never_a_value_twice() {
    let world = World::new().await;
    let proxy = proxy_before(&world.url(1)).await;
    let answers = &proxy.link().answers;
    answers.set(FlowFault::LoseEvery(NonZeroU64::new(3).unwrap()));
    let mut values = Vec::new();
    while answers.lost() < 20 {
        let mut connection = Connection::open(&proxy.url()).await.unwrap();
        let path = "/v1/sequences/p/leases";
        while let Ok(answer) = connection.ask("POST", path, "").await {
            let grant: GrantBody = serde_json::from_slice(&answer.body).unwrap();
            values.push(grant.first.get().unwrap());
        }
    }

    assert!(values.is_sorted_by(|one, next| one < next), "I1, I2");
    let granted = values.len() as u64 + answers.lost();
    assert_eq!(world.high().await, granted, "nothing else is missing");
}

// Whoever hangs up before the deadline, as a client does whose own patience is shorter, leaves nothing that is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_while_there_is_no_leader_keeps_nobody_from_being_served_later() {
    let mut world = World::new().await;
    let ids = world.cluster.ids();
    let leader = world.leader().await;
    let followers: Vec<u64> = ids.into_iter().filter(|id| *id != leader).collect();
    for node in &followers {
        world.cluster.freeze(*node, PATIENCE).await.unwrap();
    }
    wait_until_not_ready(&world.url(leader)).await;
    for _ in 0..40 {
        let mut connection = Connection::open(&world.url(leader)).await.unwrap();
        let path = "/v1/sequences/p/leases?timeout=300ms";
        connection.send("POST", path, "").await.unwrap();
    }
    // When this one is told that there is no leader, the time of all others is over.
    let mut connection = Connection::open(&world.url(leader)).await.unwrap();
    let path = "/v1/sequences/p/leases?timeout=600ms";
    let last = connection.ask("POST", path, "").await.unwrap();
    assert_eq!(last.status, 503);

    for node in &followers {
        world.cluster.thaw(*node).unwrap();
    }
    let crowd = Crowd::at(&[world.url(leader)], 8);
    crowd.wait_until_granted(50).await;

    crowd.leave().await;
}

// Sessions stand in the log, so that a batch is applied once also where its connection is cut after the commit.
#[tokio::test(flavor = "multi_thread")]
async fn connections_between_nodes_that_are_cut_all_the_time_cost_no_error_and_no_value() {
    let mut world = World::with_network(ClusterSize::Three).await;
    let crowd = Crowd::at(&world.cluster.urls(), 4);
    crowd.wait_until_granted(100).await;
    let every = FlowFault::LoseEvery(NonZeroU64::new(40).unwrap());

    world.network().set_all(every);
    let lost = |world: &World| {
        let flows = world.network().flows();
        flows.iter().map(Flow::lost).sum::<u64>()
    };
    while lost(&world) < setting("FAILOVER_CUT_CONNECTIONS").unwrap_or(50) {
        crowd.wait_until_granted(1).await;
    }
    world.network().heal();
    world.all_ready().await;
    crowd.wait_until_granted(100).await;

    let taken = crowd.leave().await;
    world.check(crowd::values(&taken)).await;
}

/// What a node said last that ended by itself.
async fn wait_until_one_ends(world: &mut World) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Err(HarnessError::Died { last_line, .. }) = world.cluster.check_alive() {
            return last_line;
        }
        assert!(Instant::now() < deadline, "no node has ended");
        sleep(POLL_INTERVAL).await;
    }
}

// It lacks what it had acknowledged, which openraft ends the leader over, and one leader after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_was_rolled_back_is_refused_and_ends_nobody_else() {
    let mut world = World::new().await;
    let leader = world.leader().await;
    let rolled_back = leader % 3 + 1;
    let data = world.cluster.data_dir(rolled_back).unwrap().to_owned();
    let kept = tempfile::tempdir().unwrap();
    let crowd = Crowd::at(&[world.url(rolled_back)], 4);
    crowd.wait_until_granted(200).await;
    let mut values = crowd::values(&crowd.leave().await);
    let down = [rolled_back];
    world.cluster.terminate(&down, PATIENCE).await.unwrap();
    copy(&data, &kept.path().join("old"));
    world.restart().await;
    let crowd = Crowd::at(&world.cluster.urls(), 4);
    crowd.wait_until_granted(500).await;
    values.extend(crowd::values(&crowd.leave().await));

    world.cluster.kill(&down).await.unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    copy(&kept.path().join("old"), &data);
    let others = Crowd::at(&world.cluster.urls_without(rolled_back), 4);
    world.cluster.start_all().unwrap();
    // It is told apart from one that is only behind, ends, and costs nobody else anything.
    let told = wait_until_one_ends(&mut world).await;
    let expected = format!("node {rolled_back} was given an older copy of its data directory");
    assert!(told.contains(&expected), "{told}");
    others.wait_until_granted(500).await;

    values.extend(crowd::values(&others.leave().await));
    world.cluster.check_alive().unwrap();
    world.check_values(values).await;
}
