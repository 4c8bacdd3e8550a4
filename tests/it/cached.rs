//! Cached sequences: granted from memory, and as strictly ordered as any other.

use highwater::RangeCount;
use highwater::chaos::LocalCluster;
use serde_json::{Value, json};

use crate::world::{self, Answer, PATIENCE, follower, send, three_nodes, wait_for_one_state};

/// The sequence `p` with a cache of so many values.
async fn cached(cluster: &LocalCluster, cache: u64) {
    let url = format!("{}/v1/sequences/p", cluster.urls()[0]);
    let body = json!({"cache": cache}).to_string();
    let created = send("PUT", &url, &body, &[]).await;
    assert_eq!(created.status, 201, "{}", created.text);
    // All nodes know it when the last one does.
    for url in cluster.urls() {
        wait_until_cached(&url, cache).await;
    }
}

/// Waits until this node itself knows that the sequence has this cache.
async fn wait_until_cached(url: &str, cache: u64) {
    let deadline = std::time::Instant::now() + PATIENCE;
    let url = format!("{url}/v1/sequences/p?consistency=local");
    loop {
        let shown = send("GET", &url, "", &[]).await;
        if shown.status == 200 && shown.json()["cache"] == cache {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{}", shown.text);
        tokio::time::sleep(world::POLL_INTERVAL).await;
    }
}

async fn post(url: &str, path: &str, body: &Value, headers: &[&str]) -> Answer {
    let answer = send("POST", &format!("{url}{path}"), &body.to_string(), headers).await;
    assert!(answer.status < 300, "{}", answer.text);
    answer
}

/// First and last of a lease of so many values, of one node.
async fn lease(url: &str, count: u64) -> (u64, u64) {
    let answer = post(url, "/v1/sequences/p/leases", &json!({"count": count}), &[]).await;
    values(&answer.json())
}

fn values(grant: &Value) -> (u64, u64) {
    assert_eq!(grant["cached"], true);
    (
        grant["first"].as_u64().unwrap(),
        grant["last"].as_u64().unwrap(),
    )
}

/// The mark, and the entry that last raised it.
async fn shown(url: &str) -> (u64, u64) {
    let shown = send("GET", &format!("{url}/v1/sequences/p"), "", &[])
        .await
        .json();
    (
        shown["high"].as_u64().unwrap(),
        shown["index"].as_u64().unwrap(),
    )
}

#[tokio::test]
async fn leases_of_a_cached_sequence_at_all_nodes_are_contiguous_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    cached(&cluster, 2_000).await;

    let urls = cluster.urls();
    let mut next = 1;
    for (url, count) in urls
        .iter()
        .cycle()
        .zip([1, 2, 3, 7, 100].into_iter().cycle())
        .take(60)
    {
        let (first, last) = lease(url, count).await;
        assert_eq!((first, last), (next, next + count - 1), "I2");
        next = last + 1;
    }

    let (high, _) = shown(&urls[0]).await;
    assert!(
        next <= high && high.is_multiple_of(2_000),
        "{high}: whole windows are reserved"
    );
    wait_for_one_state(&urls[0]).await;
}

#[tokio::test]
async fn a_crowd_at_all_nodes_shares_windows_that_are_smaller_than_it() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    cached(&cluster, 200).await;
    let client = std::sync::Arc::new(world::client(&cluster));
    let sequence: highwater::SequenceName = "p".parse().unwrap();

    let mut leases = tokio::task::JoinSet::new();
    for _ in 0..600 {
        let (client, sequence) = (std::sync::Arc::clone(&client), sequence.clone());
        leases.spawn(async move { client.lease(&sequence, RangeCount::constant(3)).await });
    }
    let mut firsts: Vec<u64> = leases
        .join_all()
        .await
        .into_iter()
        .map(|grant| grant.unwrap().first())
        .collect();

    firsts.sort_unstable();
    assert_eq!(firsts.len(), 600);
    assert!(
        firsts.windows(2).all(|pair| pair[0] + 3 <= pair[1]),
        "I1: {firsts:?}"
    );
}

#[tokio::test]
async fn an_advance_within_a_window_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    cached(&cluster, 1_000).await;
    let url = follower(&mut cluster).await;
    assert_eq!(lease(&url, 10).await, (1, 10));

    let advanced = post(&url, "/v1/sequences/p/advance", &json!({"to": 500}), &[]).await;
    assert_eq!(advanced.json()["changed"], false, "the mark was above");

    let (first, _) = lease(&url, 1).await;
    assert!(
        500 < first,
        "nothing up to 500 is granted after that, but {first} was"
    );
}

#[tokio::test]
async fn a_key_gets_one_range_of_a_window_and_leaves_the_rest_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    cached(&cluster, 1_000).await;
    let url = follower(&mut cluster).await;
    assert_eq!(lease(&url, 10).await, (1, 10));

    let keyed = async |url: &str| {
        let key = &["Idempotency-Key: k"];
        post(url, "/v1/sequences/p/leases", &json!({"count": 5}), key).await
    };
    let first = keyed(&url).await;
    assert_eq!(values(&first.json()), (11, 15));
    for url in cluster.urls() {
        assert_eq!(keyed(&url).await.text, first.text, "I4");
    }

    let (next, _) = lease(&url, 1).await;
    assert!(
        15 < next && next <= 1_000,
        "I2: {next} is of the same window"
    );
}

#[tokio::test]
async fn several_leases_touch_cached_and_other_sequences_in_one_commit() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    cached(&cluster, 1_000).await;
    world::sequence(&cluster, "q").await;
    let url = follower(&mut cluster).await;

    let body =
        json!([{"sequence": "p", "count": 2}, {"sequence": "q"}, {"sequence": "p", "count": 3}]);
    for round in 0..3 {
        let answer = post(&url, "/v1/leases", &body, &[]).await.json();
        let grants = answer["grants"].as_array().unwrap();
        assert_eq!(values(&grants[0]), (5 * round + 1, 5 * round + 2));
        assert_eq!(values(&grants[2]), (5 * round + 3, 5 * round + 5));
        assert_eq!(
            (&grants[1]["first"], &grants[1]["cached"]),
            (&json!(round + 1), &Value::Null)
        );
    }
    assert_eq!(shown(&url).await.0, 1_000);
}

#[tokio::test]
async fn a_cache_is_altered_while_it_serves_and_order_stays() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    cached(&cluster, 100).await;
    let urls = cluster.urls();
    let mut highest = 0;
    for (round, cache) in [0, 7, 1_000, 0, 1].into_iter().enumerate() {
        let alter = format!("{}/v1/sequences/p", urls[round % 3]);
        let altered = send("PATCH", &alter, &json!({"cache": cache}).to_string(), &[]).await;
        assert_eq!(altered.json()["cache"], cache, "{}", altered.text);
        for url in urls.iter().cycle().take(9) {
            let body = json!({"count": 2});
            let answer = post(url, "/v1/sequences/p/leases", &body, &[]).await.json();
            let first = answer["first"].as_u64().unwrap();
            assert!(highest < first, "I2: {first} comes after {highest}");
            highest = answer["last"].as_u64().unwrap();
        }
    }
}

#[tokio::test]
async fn a_lease_that_does_not_fit_is_refused_as_any_and_the_window_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let body = r#"{"cache":10,"max_value":25,"max_lease":20}"#;
    send("PUT", &format!("{url}/v1/sequences/p"), body, &[]).await;
    for url in cluster.urls() {
        wait_until_cached(&url, 10).await;
    }
    assert_eq!(lease(&url, 3).await, (1, 3));

    let leases = format!("{url}/v1/sequences/p/leases");
    let large = send("POST", &leases, r#"{"count":21}"#, &[]).await;
    assert_eq!(
        (large.status, large.field("code").as_str()),
        (400, "invalid_count")
    );
    assert_eq!(lease(&url, 2).await, (4, 5));
    assert_eq!(lease(&url, 10).await, (11, 20));
    let left = send("POST", &leases, r#"{"count":6}"#, &[]).await;
    assert_eq!(
        (left.status, left.field("code").as_str()),
        (409, "exhausted")
    );
    assert_eq!(lease(&url, 5).await, (21, 25));
    let gone = send("POST", &leases, "", &[]).await;
    assert_eq!(
        (gone.status, gone.field("code").as_str()),
        (409, "exhausted")
    );
}

// Of a window that its leader did not use up nothing is given by the next one.
#[tokio::test]
async fn after_a_leaders_death_values_go_on_above_its_window() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    cached(&cluster, 1_000).await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let url = follower(&mut cluster).await;
    assert_eq!(lease(&url, 10).await, (1, 10));

    cluster.kill(&[leader]).await.unwrap();

    let (first, _) = lease(&url, 1).await;
    assert_eq!(first, 1_001, "I1");
}

// I11, and what was taken from a window without a proof is lost.
#[tokio::test]
async fn a_leader_without_a_quorum_grants_nothing_from_its_window() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    cached(&cluster, 1_000).await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let url = cluster.urls().remove(usize::try_from(leader - 1).unwrap());
    assert_eq!(lease(&url, 10).await, (1, 10));
    let others: Vec<u64> = cluster
        .ids()
        .into_iter()
        .filter(|id| *id != leader)
        .collect();
    cluster.kill(&others).await.unwrap();

    for _ in 0..3 {
        let leases = format!("{url}/v1/sequences/p/leases?timeout=300ms");
        let answer = send("POST", &leases, "", &[]).await;
        assert!(matches!(answer.status, 503 | 504), "I11: {}", answer.text);
    }

    cluster.start(&others).unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let (first, _) = lease(&url, 1).await;
    assert!(10 < first);
}
