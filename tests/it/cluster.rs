//! Three nodes that work: order across nodes, and what a lost quorum means.

use std::process::ExitStatus;
use std::time::Duration;

use highwater::RangeCount;
use highwater::chaos::{ClusterSize, Connection, LocalCluster};
use highwater::wire::ProblemOutcome;
use tokio::time::timeout;

use crate::world::{self, PATIENCE, program, send, three_nodes};

// matrixorigin/matrixone#25911: inclusive bounds, nothing skipped, nothing shared.
#[tokio::test]
async fn three_hundred_leases_over_all_nodes_are_contiguous_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    let sequence = world::sequence(&cluster, "photos").await;
    let client = world::client(&cluster);

    let mut next = 1;
    let mut nodes = std::collections::BTreeSet::new();
    for count in [1, 2, 3, 7, 100, 4].into_iter().cycle().take(300) {
        let grant = client
            .lease(&sequence, RangeCount::constant(count))
            .await
            .unwrap();

        assert_eq!(
            grant.first(),
            next,
            "I2: no value is skipped and none comes late"
        );
        assert_eq!(grant.count(), count);
        next = grant.last() + 1;
        nodes.insert(grant.node());
    }

    assert_eq!(nodes.len(), 3, "every node was asked");
}

// Meituan-Dianping/Leaf#143: a crowd on one cold name.
#[tokio::test]
async fn a_thousand_leases_at_once_are_all_served_and_share_no_value() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    let sequence = world::sequence(&cluster, "cold").await;
    let client = std::sync::Arc::new(world::client(&cluster));

    let mut leases = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        let (client, sequence) = (std::sync::Arc::clone(&client), sequence.clone());
        leases.spawn(async move { client.lease(&sequence, RangeCount::ONE).await });
    }
    let mut values: Vec<u64> = leases
        .join_all()
        .await
        .into_iter()
        .map(|grant| grant.unwrap().first())
        .collect();

    values.sort_unstable();
    assert_eq!(values, (1..=1_000).collect::<Vec<u64>>());
}

// apache/hugegraph#3183: readiness is honest; I11: who reaches no quorum grants nothing.
#[tokio::test]
async fn a_node_without_a_quorum_grants_nothing_until_the_others_return() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let sequence = world::sequence(&cluster, "p").await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let others: Vec<u64> = cluster
        .ids()
        .into_iter()
        .filter(|id| *id != leader)
        .collect();
    let url = cluster.urls().remove(usize::try_from(leader - 1).unwrap());
    let before = world::client(&cluster)
        .lease(&sequence, RangeCount::ONE)
        .await
        .unwrap();

    cluster.kill(&others).await.unwrap();
    let leases = format!("{url}/v1/sequences/p/leases?timeout=1s");
    let alone = send("POST", &leases, "", &[]).await;
    world::wait_until_it_says(&url, 503, "no leader\n").await;
    let later = send("POST", &leases, "", &[]).await;
    let read = send(
        "GET",
        &format!("{url}/v1/sequences/p?timeout=500ms"),
        "",
        &[],
    )
    .await;

    // The first may have been proposed while it still led; later ones never are.
    assert!([503, 504].contains(&alone.status), "{}", alone.text);
    assert_eq!(later.status, 503, "{}", later.text);
    assert_eq!(later.field("outcome"), "not_applied");
    assert_eq!(
        (read.status, read.field("code").as_str()),
        (503, "no_leader")
    );

    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let after = world::client(&cluster)
        .lease(&sequence, RangeCount::ONE)
        .await
        .unwrap();
    assert!(before.last() < after.first(), "I1, I2");
    assert!(
        after.first() <= before.last() + 2,
        "only the one unknown lease may be a gap"
    );
}

// I5, KanishJebaMathewM/Truxify#10682: what a leader without a quorum cannot have proposed is not `unknown`, also in a crowd of all deadlines.
#[tokio::test]
async fn a_crowd_at_a_leader_without_a_quorum_is_told_that_nothing_happened() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let others: Vec<u64> = cluster
        .ids()
        .into_iter()
        .filter(|id| *id != leader)
        .collect();
    let url = cluster.urls().remove(usize::try_from(leader - 1).unwrap());
    cluster.kill(&others).await.unwrap();
    world::wait_until_it_says(&url, 503, "no leader\n").await;

    let mut crowd = tokio::task::JoinSet::new();
    for number in 0..60 {
        let timeout = 100 + number * 17;
        let leases = format!("{url}/v1/sequences/p/leases?timeout={timeout}ms");
        crowd.spawn(async move { send("POST", &leases, "", &[]).await });
    }

    for answer in crowd.join_all().await {
        assert_eq!(
            (answer.status, answer.field("code").as_str()),
            (503, "no_leader")
        );
        assert_eq!(answer.field("outcome"), "not_applied");
    }
}

// databendlabs/openraft#1357, scylladb/scylladb#16682: SIGTERM ends a node in good order, with a quorum and without.
#[tokio::test]
async fn nodes_that_are_asked_to_stop_end_by_themselves_and_continue_later() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let sequence = world::sequence(&cluster, "p").await;
    let before = world::client(&cluster)
        .lease(&sequence, RangeCount::constant(5))
        .await
        .unwrap();

    let ended = cluster.terminate_all(PATIENCE).await.unwrap();

    assert!(ended.iter().all(|status| status.success()), "{ended:?}");
    for id in cluster.ids() {
        let log = std::fs::read_to_string(directory.path().join(format!("node-{id}.log"))).unwrap();
        assert!(!log.contains("ERROR"), "{log}");
    }
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let after = world::client(&cluster)
        .lease(&sequence, RangeCount::ONE)
        .await
        .unwrap();
    assert_eq!(
        after.first(),
        before.last() + 1,
        "clockworklabs/SpacetimeDB#158: continues, and without a gap"
    );
}

#[tokio::test]
async fn five_nodes_serve_with_two_of_them_lost() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = LocalCluster::create(directory.path(), ClusterSize::Five, program()).unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let sequence = world::sequence(&cluster, "p").await;
    let client = world::client(&cluster);
    let before = client
        .lease(&sequence, RangeCount::constant(3))
        .await
        .unwrap();
    let leader = cluster.leader(PATIENCE).await.unwrap();

    cluster.kill(&[leader, leader % 5 + 1]).await.unwrap();
    let after = loop {
        // A lease that the killed leader may have taken is unknown, and is not repeated by the client.
        match client.lease(&sequence, RangeCount::constant(3)).await {
            Ok(grant) => break grant,
            Err(error) if error.outcome() == ProblemOutcome::Unknown => {}
            Err(error) => panic!("{error}"),
        }
    };

    assert!(before.last() < after.first());
}

#[tokio::test]
async fn a_member_that_does_not_answer_is_shown_as_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster =
        LocalCluster::create(directory.path(), ClusterSize::Three, program()).unwrap();
    // A connection that falls silent is cut after 24 of these.
    cluster.serve_with(&["--heartbeat-ms", "1000"]);
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let silent = leader % 3 + 1;
    cluster.freeze(silent, PATIENCE).await.unwrap();
    let url = cluster.urls().remove(usize::try_from(leader - 1).unwrap());

    let reachable = async || {
        let url = format!("{url}/v1/cluster?timeout=60s");
        let shown = send("GET", &url, "", &[]).await.json();
        let members = shown["members"].as_array().unwrap().clone();
        let of = |id| members.iter().find(|member| member["id"] == id).unwrap();
        (
            of(leader)["reachable"].clone(),
            of(silent)["reachable"].clone(),
        )
    };

    // Its connection is still open, so only the survey's own time-out ends the waiting.
    let shown = timeout(Duration::from_secs(15), reachable()).await;
    assert_eq!(
        shown.expect("nobody is waited for so long"),
        (true.into(), false.into())
    );
}

#[tokio::test]
async fn a_node_that_is_told_to_stop_does_not_wait_for_what_nobody_serves() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
    cluster.kill(&others).await.unwrap();
    let url = cluster.urls().remove(usize::try_from(leader - 1).unwrap());
    let mut waiting = Connection::open(&url).await.unwrap();
    waiting.ask("GET", "/livez", "").await.unwrap();
    let lease = "/v1/sequences/p/leases?timeout=60s";
    waiting.send("POST", lease, "").await.unwrap();
    // By now it has arrived.
    assert_eq!(
        send("GET", &format!("{url}/livez"), "", &[]).await.status,
        200
    );

    let within = Duration::from_secs(30);
    let ended = cluster.terminate(&[leader], within).await;

    let ended = ended.expect("it waits for the request");
    assert!(ended.iter().all(ExitStatus::success), "{ended:?}");
}

fn can_stop(cluster: &LocalCluster, node: &str) -> (i32, String) {
    let url = cluster.urls().join(",");
    let said = crate::cli::highwater(&["cluster", "status", "--can-stop", node, "--url", &url]);
    (said.exit, format!("{}{}", said.out, said.err))
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_a_node_can_be_stopped_is_the_exit_code_with_the_arithmetic() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    world::wait_until_all_have_the_log(&cluster.urls()[0]).await;
    assert_eq!(can_stop(&cluster, "2").0, 0);
    assert_eq!(can_stop(&cluster, "9").0, 3);

    cluster.kill(&[3]).await.unwrap();
    cluster.leader(PATIENCE).await.unwrap();

    let (exit, text) = can_stop(&cluster, "2");
    assert_eq!(exit, 8, "{text}");
    let told = "node 2 cannot be stopped: of 3 voters 1 would serve on, and 2 must; node 3 does not answer\n";
    assert_eq!(text, told);
    assert_eq!(can_stop(&cluster, "3").0, 0);
}
