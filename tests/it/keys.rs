//! Request keys: the same request under the same key gets the same answer, whatever happened in between (I4).

use highwater::chaos::LocalCluster;
use serde_json::{Value, json};

use crate::world::{self, Answer, PATIENCE, send, three_nodes, wait_for_one_state};

async fn keyed(url: &str, path: &str, body: &str, key: &str) -> Answer {
    let header = format!("Idempotency-Key: {key}");
    send("POST", &format!("{url}{path}"), body, &[&header]).await
}

/// The same answer as before, and it says so.
fn assert_replayed(again: &Answer, first: &Answer) {
    assert_eq!((again.status, &again.text), (first.status, &first.text));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert!(!first.headers.contains_key("idempotency-replayed"));
}

async fn high(cluster: &LocalCluster) -> Value {
    let url = format!("{}/v1/sequences/p", cluster.urls()[0]);
    send("GET", &url, "", &[]).await.json()["high"].clone()
}

const REQUESTS: [(&str, &str); 3] = [
    ("/v1/sequences/p/leases", r#"{"count":7}"#),
    (
        "/v1/leases",
        r#"[{"sequence":"p","count":2},{"sequence":"p"}]"#,
    ),
    ("/v1/sequences/p/advance", r#"{"to":100}"#),
];

#[tokio::test]
async fn a_request_repeated_with_its_key_at_another_node_gets_the_same_answer() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let urls = cluster.urls();

    let mut first = Vec::new();
    for (path, body) in REQUESTS {
        first.push(keyed(&urls[0], path, body, "k").await);
    }
    let marks = high(&cluster).await;
    for url in &urls {
        for ((path, body), first) in REQUESTS.iter().zip(&first) {
            assert_replayed(&keyed(url, path, body, "k").await, first);
        }
    }

    assert_eq!(marks, 100);
    assert_eq!(high(&cluster).await, marks);
    // In plain text too.
    let headers = ["Idempotency-Key: k", "Accept: text/plain"];
    let leases = format!("{}/v1/sequences/p/leases", urls[1]);
    let text = send("POST", &leases, r#"{"count":7}"#, &headers).await;
    assert_eq!((text.status, text.text.as_str()), (201, "1 7\n"));
    assert_eq!(text.headers["idempotency-replayed"], "true");
}

#[tokio::test]
async fn another_request_under_a_used_key_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let url = cluster.urls().remove(1);
    keyed(&url, "/v1/sequences/p/leases", r#"{"count":7}"#, "k").await;

    let other = keyed(&url, "/v1/sequences/p/leases", r#"{"count":8}"#, "k").await;

    assert_eq!(
        (other.status, other.field("code").as_str()),
        (422, "key_reused")
    );
    assert_eq!(other.field("outcome"), "not_applied");
    assert_eq!(other.field("retryable"), "false");
    assert_eq!(high(&cluster).await, 7);
    // One value, written in two ways, is one request.
    let query = keyed(&url, "/v1/sequences/p/leases?count=7", "", "k").await;
    assert_eq!(query.headers["idempotency-replayed"], "true");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_sent_to_all_nodes_at_once_gets_one_range() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;

    for round in 1..=20 {
        let key = format!("round {round}");
        let mut asked = tokio::task::JoinSet::new();
        for url in cluster.urls() {
            let key = key.clone();
            asked.spawn(async move { keyed(&url, "/v1/sequences/p/leases", "", &key).await });
        }
        let answers = asked.join_all().await;

        for answer in &answers {
            assert_eq!((answer.status, &answer.text), (201, &answers[0].text));
            assert_eq!(answer.json()["first"], json!(round));
        }
        let fresh = answers
            .iter()
            .filter(|answer| !answer.headers.contains_key("idempotency-replayed"));
        assert_eq!(fresh.count(), 1);
    }
}

// I5: what is unknown is found out by sending it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_unknown_outcome_is_resolved_by_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let url = cluster.urls().remove(usize::try_from(leader - 1).unwrap());
    let others: Vec<u64> = cluster
        .ids()
        .into_iter()
        .filter(|id| *id != leader)
        .collect();
    for node in &others {
        cluster.freeze(*node, PATIENCE).await.unwrap();
    }
    let path = "/v1/sequences/p/leases?timeout=100ms";
    let lost = keyed(&url, path, "", "k").await;
    for node in &others {
        cluster.thaw(*node).unwrap();
    }
    cluster.all_ready(PATIENCE).await.unwrap();
    let found = keyed(&cluster.urls()[0], "/v1/sequences/p/leases", "", "k").await;
    let again = keyed(&cluster.urls()[1], "/v1/sequences/p/leases", "", "k").await;

    assert_eq!(
        (lost.status, lost.field("outcome").as_str()),
        (504, "unknown")
    );
    assert_eq!(
        (found.status, found.json()["first"].clone()),
        (201, json!(1))
    );
    assert_eq!((again.status, &again.text), (201, &found.text));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(high(&cluster).await, 1);
}

// shaj13/raft#27, apache/iotdb#11045: what was answered is remembered across leaders, restarts and snapshots.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_outlives_leaders_a_restart_of_all_and_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    cluster.terminate_all(PATIENCE).await.unwrap();
    cluster.serve_with(&["--snapshot-entries", "100"]);
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    world::sequence(&cluster, "p").await;
    let mut first = Vec::new();
    for (path, body) in REQUESTS {
        first.push(keyed(&cluster.urls()[0], path, body, "k").await);
    }
    let check = async |cluster: &LocalCluster| {
        for url in cluster.urls() {
            for ((path, body), first) in REQUESTS.iter().zip(&first) {
                assert_replayed(&keyed(&url, path, body, "k").await, first);
            }
        }
        assert_eq!(high(cluster).await, 100);
    };

    // A node that is away while the log with the key in it goes gets a snapshot.
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let away = leader % 3 + 1;
    cluster.kill(&[away]).await.unwrap();
    let filler = format!("{}/v1/sequences/filler", cluster.urls_without(away)[0]);
    send("PUT", &filler, "", &[]).await;
    for _ in 0..400 {
        assert_eq!(
            send("POST", &format!("{filler}/leases"), "", &[])
                .await
                .status,
            201
        );
    }
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    wait_for_one_state(&cluster.urls()[0]).await;
    let log = std::fs::read_to_string(directory.path().join(format!("node-{away}.log"))).unwrap();
    assert!(log.contains("snapshot received"), "{log}");
    check(&cluster).await;

    cluster.kill(&[leader]).await.unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    check(&cluster).await;

    cluster.kill(&[1, 2, 3]).await.unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    check(&cluster).await;
}
