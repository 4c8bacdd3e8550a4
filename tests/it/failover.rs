//! A leader that dies or stands still costs those who ask other nodes some time, and nothing else: what may have been
//! appended is sent again, and applied once.

use highwater::chaos::LocalCluster;
use highwater::wire::Number;
use rustix::process::Signal;
use serde_json::json;

use crate::crowd::{Crowd, Taken};
use crate::world::{self, PATIENCE, send, three_nodes, wait_for_one_state};

/// How often a leader goes; `HIGHWATER_TEST_FAILOVERS` asks for more.
fn rounds() -> u64 {
    world::rounds("HIGHWATER_TEST_FAILOVERS", 3)
}

/// Each request was granted one value, and no value was lost.
async fn check(cluster: &LocalCluster, taken: Vec<Taken>) {
    let mut values: Vec<u64> = taken.into_iter().map(|(value, _)| value).collect();
    values.sort_unstable();
    let granted = values.len() as u64;
    assert_eq!(values, (1..=granted).collect::<Vec<_>>(), "I1, and dense");
    let name = "p".parse().unwrap();
    let shown = world::client(cluster).sequence(&name).await.unwrap();
    assert_eq!(shown.high.and_then(Number::get), Some(granted));
    wait_for_one_state(&cluster.urls()[0]).await;
}

// KanishJebaMathewM/Truxify#10682: what may have been appended is sent again, and applied once.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_costs_those_at_other_nodes_no_error_and_no_value() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let mut taken = Vec::new();

    for _ in 0..rounds() {
        let leader = cluster.leader(PATIENCE).await.unwrap();
        let crowd = Crowd::at(&cluster.urls_without(leader), 8);
        crowd.wait_until_granted(100).await;
        cluster.kill(&[leader]).await.unwrap();
        crowd.wait_until_granted(100).await;
        taken.extend(crowd.leave().await);
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
    }

    check(&cluster, taken).await;
}

// A leader that does not know that it is none any more: what it had proposed is answered by its successor.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stands_still_costs_nobody_an_error_or_a_value_not_even_those_at_itself() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let crowd = Crowd::at(&cluster.urls(), 6);

    for _ in 0..2 * rounds() {
        let leader = cluster.leader(PATIENCE).await.unwrap();
        crowd.wait_until_granted(100).await;
        cluster.signal(leader, Signal::STOP).unwrap();
        crowd.wait_until_granted(100).await;
        cluster.signal(leader, Signal::CONT).unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
    }

    let taken = crowd.leave().await;
    check(&cluster, taken).await;
}

/// What the node says of itself.
async fn leader_of(url: &str) -> u64 {
    let shown = send("GET", &format!("{url}/v1/cluster"), "", &[]).await;
    shown.json()["leader"].as_u64().unwrap()
}

fn log_of(directory: &std::path::Path, node: u64) -> String {
    std::fs::read_to_string(directory.join(format!("node-{node}.log"))).unwrap()
}

// rqlite/rqlite#1132, tikv/pd#3734: who is asked to end hands over first.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_asked_to_stop_hands_over_first_and_costs_no_error_and_no_value() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let mut taken = Vec::new();

    for _ in 0..rounds() {
        let leader = cluster.leader(PATIENCE).await.unwrap();
        let crowd = Crowd::at(&cluster.urls_without(leader), 8);
        crowd.wait_until_granted(100).await;
        let before = log_of(directory.path(), leader).len();

        let ended = cluster.terminate(&[leader], PATIENCE).await.unwrap();

        assert!(ended.iter().all(std::process::ExitStatus::success));
        let said = log_of(directory.path(), leader).split_off(before);
        assert!(
            said.contains("leadership handed over before this node ends"),
            "{said}"
        );
        crowd.wait_until_granted(100).await;
        taken.extend(crowd.leave().await);
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
    }

    check(&cluster, taken).await;
}

// tikv/pd#3303: leadership goes round, and values only rise.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_goes_to_whom_it_is_asked_to_go_under_load_whichever_node_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let urls = cluster.urls();
    let crowd = Crowd::at(&urls, 4);
    let transfer = async |url: &str, body: &str| {
        let path = format!("{url}/v1/cluster/transfer-leader");
        send("POST", &path, body, &[]).await
    };

    for round in 0..4 * rounds() {
        crowd.wait_until_granted(20).await;
        let (asked, to) = (&urls[usize::try_from(round % 2).unwrap()], round % 3 + 1);
        let answer = transfer(asked, &format!("{{\"to\":{to}}}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.json(), json!({ "leader": to }));
        assert_eq!(cluster.leader(PATIENCE).await.unwrap(), to);
    }
    let before = cluster.leader(PATIENCE).await.unwrap();
    let anybody = transfer(&urls[0], "").await;
    let now = anybody.json()["leader"].as_u64().unwrap();
    assert_ne!(now, before);
    assert_eq!(leader_of(&urls[0]).await, now);

    let nobody = transfer(&urls[0], r#"{"to":9}"#).await;
    assert_eq!(
        (nobody.status, nobody.field("code").as_str()),
        (404, "unknown_voter")
    );
    assert_eq!(nobody.field("outcome"), "not_applied");
    let taken = crowd.leave().await;
    check(&cluster, taken).await;
}

// openraft's own transfer mutes a leader whose successor does not come: ours leads on.
#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_to_a_node_that_does_not_answer_leaves_the_leader_at_work() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let stopped = leader % 3 + 1;
    let url = cluster.urls().remove(usize::try_from(leader - 1).unwrap());
    cluster.signal(stopped, Signal::STOP).unwrap();
    world::wait_until_stopped(&cluster, stopped).await;
    let crowd = Crowd::at(std::slice::from_ref(&url), 4);
    crowd.wait_until_granted(20).await;

    let path = format!("{url}/v1/cluster/transfer-leader");
    let refused = send("POST", &path, &format!("{{\"to\":{stopped}}}"), &[]).await;

    assert_eq!(
        (refused.status, refused.field("code").as_str()),
        (503, "no_successor")
    );
    assert_eq!(
        refused.field("detail"),
        format!("no other voter is fit to lead: node {stopped} does not answer")
    );
    crowd.wait_until_granted(100).await;
    assert_eq!(leader_of(&url).await, leader);
    cluster.signal(stopped, Signal::CONT).unwrap();
    let taken = crowd.leave().await;
    check(&cluster, taken).await;
}
