//! `/metrics`: every value that a node reserved is granted, counted as lost, or can still be granted.

use highwater::chaos::LocalCluster;
use serde_json::{Value, json};

use crate::world::{self, PATIENCE, follower, send, three_nodes};

const RESERVED: &str = "highwater_window_values_reserved_total";

fn lost(reason: &str) -> String {
    format!("highwater_window_values_lost_total{{reason=\"{reason}\"}}")
}

/// What a node shows of itself.
async fn shown(url: &str) -> String {
    let answer = send("GET", &format!("{url}/metrics"), "", &[]).await;
    let kind = answer.headers["content-type"].to_str().unwrap();
    assert_eq!(answer.status, 200);
    assert!(
        kind.starts_with("application/openmetrics-text; version=1.0.0"),
        "{kind}"
    );
    answer.text
}

/// The value of a metric, with its labels as they are written.
async fn counted(url: &str, metric: &str) -> u64 {
    let text = shown(url).await;
    let mut lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let found = lines.find(|(name, _)| *name == metric);
    found
        .unwrap_or_else(|| panic!("{metric}\n{text}"))
        .1
        .parse()
        .unwrap()
}

/// What a node lost, for whatever reasons.
async fn lost_in_all(url: &str) -> u64 {
    let text = shown(url).await;
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let losses = lines.filter(|(name, _)| name.starts_with("highwater_window_values_lost_total{"));
    losses.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
}

/// Waits until so many values were reserved: the next window is reserved while leases go on.
async fn wait_until_reserved(url: &str, values: u64) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while counted(url, RESERVED).await != values {
        assert!(std::time::Instant::now() < deadline, "{}", shown(url).await);
        tokio::time::sleep(world::POLL_INTERVAL).await;
    }
}

async fn post(url: &str, path: &str, body: &Value, headers: &[&str]) -> Value {
    let answer = send("POST", &format!("{url}{path}"), &body.to_string(), headers).await;
    assert!(answer.status < 300, "{}", answer.text);
    answer.json()
}

/// First and last of a lease of so many values of `p`.
async fn lease(url: &str, count: u64) -> (u64, u64) {
    let grant = post(url, "/v1/sequences/p/leases", &json!({"count": count}), &[]).await;
    let end = |name: &str| grant[name].as_u64().unwrap();
    (end("first"), end("last"))
}

/// Where to lease from `p`, which has windows of 1,000 values, and where they are granted.
async fn cached(cluster: &mut LocalCluster) -> (String, String) {
    let url = follower(cluster).await;
    let created = send(
        "PUT",
        &format!("{url}/v1/sequences/p"),
        r#"{"cache":1000}"#,
        &[],
    )
    .await;
    assert_eq!(created.status, 201, "{}", created.text);
    let leader = cluster.leader(PATIENCE).await.unwrap();
    (url, cluster.url(leader).unwrap())
}

#[tokio::test]
async fn every_value_that_was_reserved_is_granted_lost_or_can_still_be_granted() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let (url, leader) = cached(&mut cluster).await;
    assert_eq!(lease(&leader, 10).await, (1, 10));
    assert_eq!(
        (counted(&leader, RESERVED).await, lost_in_all(&leader).await),
        (1_000, 0)
    );

    // 11 to 1,000 end here.
    post(&url, "/v1/sequences/p/advance", &json!({"to": 1}), &[]).await;
    assert_eq!(counted(&leader, &lost("command")).await, 990);

    // So much of a window has the next one reserved.
    assert_eq!(lease(&leader, 600).await, (1_001, 1_600));
    wait_until_reserved(&leader, 3_000).await;
    // 1,901 to 2,000 are below what is granted then.
    assert_eq!(lease(&leader, 300).await, (1_601, 1_900));
    assert_eq!(lease(&leader, 200).await, (2_001, 2_200));
    assert_eq!(counted(&leader, &lost("remainder")).await, 100);

    // Nobody leases from this node any more.
    post(&leader, "/v1/cluster/transfer-leader", &json!({}), &[]).await;
    assert_eq!(counted(&leader, &lost("leadership")).await, 800);

    let granted = 10 + 600 + 300 + 200;
    assert_eq!(
        counted(&leader, RESERVED).await,
        granted + lost_in_all(&leader).await
    );
    let shown = send("GET", &format!("{url}/v1/sequences/p"), "", &[]).await;
    assert_eq!(shown.json()["high"], 3_000, "all that was reserved");
}

#[tokio::test]
async fn what_is_taken_for_a_key_that_was_used_before_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let (_, leader) = cached(&mut cluster).await;
    let key = &["Idempotency-Key: k"];
    let keyed = async || post(&leader, "/v1/sequences/p/leases", &json!({"count": 5}), key).await;
    let first = keyed().await;

    assert_eq!(keyed().await, first, "I4");

    assert_eq!(counted(&leader, RESERVED).await, 1_000);
    assert_eq!(counted(&leader, &lost("refused")).await, 5);
    post(&leader, "/v1/sequences/p/advance", &json!({"to": 1}), &[]).await;
    assert_eq!(counted(&leader, &lost("command")).await, 990);
}

#[tokio::test]
async fn what_a_dead_leader_had_reserved_is_the_gap_that_it_left() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let (url, _) = cached(&mut cluster).await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let (_, highest) = lease(&url, 10).await;

    cluster.kill(&[leader]).await.unwrap();

    // Nobody has counted 11 to 1,000.
    let left = send("GET", &format!("{url}/v1/sequences/p"), "", &[]).await;
    assert_eq!(left.json()["high"].as_u64().unwrap() - highest, 990);
    let (next, _) = lease(&url, 1).await;
    assert_eq!(next - highest - 1, 990);
    let successor = cluster.leader(PATIENCE).await.unwrap();
    let successor = cluster.url(successor).unwrap();
    assert_eq!(
        (
            counted(&successor, RESERVED).await,
            lost_in_all(&successor).await
        ),
        (1_000, 0)
    );
}
