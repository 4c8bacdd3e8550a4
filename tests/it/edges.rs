//! Values and counts at the ends of what there is, and two clients at one name.

use std::collections::BTreeSet;

use highwater::chaos::LocalCluster;
use highwater::client::Client;
use highwater::{RangeCount, SequenceName};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::world::{self, PATIENCE, follower, send, three_nodes};

/// 2^53 − 1, and 2^64 − 1.
const MAXIMA: [u64; 2] = [9_007_199_254_740_991, u64::MAX];

// duckdb/duckdb#2692: every start at the end of the number space, every count over it.
#[tokio::test]
async fn the_last_value_is_granted_once_and_a_range_past_it_never() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;

    let mut ends = JoinSet::new();
    for max_value in MAXIMA {
        for back in 0..3 {
            for count in [1, 2, 3, 10, max_value] {
                let end = End {
                    url: format!("{url}/v1/sequences/end.{max_value}.{back}.{count}"),
                    start: max_value - back,
                    max_value,
                };
                ends.spawn(async move { end.granted_exactly(count).await });
            }
        }
    }

    assert_eq!(ends.join_all().await.len(), 30);
}

/// A sequence that begins shortly before its last value.
struct End {
    url: String,
    start: u64,
    max_value: u64,
}

impl End {
    async fn granted_exactly(self, count: u64) {
        let settings = json!({
            "start": self.start.to_string(),
            "max_value": self.max_value.to_string(),
            "max_lease": u32::MAX,
        });
        let created = send("PUT", &self.url, &settings.to_string(), &[]).await;
        assert_eq!(created.status, 201, "{}", created.text);
        let left = self.max_value - self.start + 1;

        let lease = self.lease(count).await;

        let next = if count <= left {
            assert_eq!(lease, Ok((self.start, self.start + (count - 1))));
            count
        } else if u32::try_from(count).is_ok() {
            let text = format!("{count} values do not fit: {left} are left up to max_value");
            assert_eq!(lease, Err((409, text)));
            0
        } else {
            let text = format!("count {count} is not 1 to 4294967295");
            assert_eq!(lease, Err((400, text)));
            0
        };
        for value in (self.start..=self.max_value).skip(usize::try_from(next).unwrap()) {
            assert_eq!(self.lease(1).await, Ok((value, value)));
        }
        let text = "1 values do not fit: 0 are left up to max_value".to_owned();
        assert_eq!(self.lease(1).await, Err((409, text)));
        let shown = send("GET", &self.url, "", &[]).await.json();
        assert_eq!(number(&shown["high"]), self.max_value);
        assert_eq!(shown["next"], json!(null));
        assert_eq!(number(&shown["remaining"]), 0);
    }

    /// The first and the last value, or status and text of the refusal.
    async fn lease(&self, count: u64) -> Result<(u64, u64), (u16, String)> {
        let body = json!({ "count": count }).to_string();
        let answer = send("POST", &format!("{}/leases", self.url), &body, &[]).await;
        if answer.status != 201 {
            return Err((answer.status, answer.field("detail")));
        }
        let grant = answer.json();
        Ok((number(&grant["first"]), number(&grant["last"])))
    }
}

/// A value, which is a number or a string by its sequence's settings.
fn number(value: &Value) -> u64 {
    let text = value.as_str();
    text.map_or_else(|| value.as_u64().unwrap(), |text| text.parse().unwrap())
}

/// A client of one node.
fn client_of(cluster: &LocalCluster, node: usize) -> Client {
    let url = cluster.urls().remove(node);
    Client::builder().nodes([url]).build().unwrap()
}

// matrixorigin/matrixone#25911: inclusive bounds: nothing skipped, nothing shared, and no batch of none.
#[tokio::test]
async fn two_clients_that_alternate_leave_no_value_out_and_share_none() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    let sequence = world::sequence(&cluster, "p").await;
    let clients = [client_of(&cluster, 0), client_of(&cluster, 1)];
    let counts = [1, 2, 3, 7].into_iter().cycle();

    let mut next = 1;
    for (count, client) in counts.clone().zip(clients.iter().cycle()).take(40) {
        let count = RangeCount::constant(count);
        let grant = client.lease(&sequence, count).await.unwrap();
        assert_eq!(grant.first(), next);
        assert_eq!(grant.last(), next + u64::from(count.get()) - 1);
        next = grant.last() + 1;
    }
    let leases = format!("{}/v1/sequences/p/leases?count=0", cluster.urls()[2]);
    let none = send("POST", &leases, "", &[]).await;
    let mut together = JoinSet::new();
    for client in clients {
        let (counts, sequence) = (counts.clone().take(40), sequence.clone());
        together.spawn(async move { values_of(&client, &sequence, counts).await });
    }
    let values: Vec<u64> = together.join_all().await.into_iter().flatten().collect();

    assert_eq!(
        (none.status, none.field("code").as_str()),
        (400, "invalid_count")
    );
    let different: BTreeSet<u64> = values.iter().copied().collect();
    assert_eq!(different.len(), values.len(), "I1");
    let all = next..next + 2 * 10 * (1 + 2 + 3 + 7);
    assert_eq!(different, all.collect(), "dense");
}

/// All values of these leases, one after the other.
async fn values_of(
    client: &Client,
    sequence: &SequenceName,
    counts: impl Iterator<Item = u32>,
) -> Vec<u64> {
    let mut values = Vec::new();
    for count in counts {
        let count = RangeCount::constant(count);
        let grant = client.lease(sequence, count).await.unwrap();
        values.extend(grant.first()..=grant.last());
    }
    values
}

// yugabyte/yugabyte-db#26657: changed options take no value away.
#[tokio::test]
async fn an_altered_option_leaves_the_next_value_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let five = format!("{}/v1/sequences/five", follower(&mut cluster).await);
    send("PUT", &five, r#"{"max_value":5}"#, &[]).await;
    let lease = async || {
        let answer = send(
            "POST",
            &format!("{five}/leases"),
            "",
            &["accept: text/plain"],
        )
        .await;
        answer.text
    };

    let mut granted = vec![lease().await];
    for body in [
        r#"{"max_lease":2}"#,
        r#"{"cache":0}"#,
        r#"{"max_value":6}"#,
        r#"{"max_lease":"9"}"#,
    ] {
        let altered = send("PATCH", &five, body, &[]).await;
        assert_eq!(altered.status, 200, "{}", altered.text);
        assert_eq!(altered.json()["next"], json!(granted.len() + 1));
        granted.push(lease().await);
    }
    granted.push(lease().await);

    let expected: Vec<String> = (1..=6).map(|value| format!("{value} {value}\n")).collect();
    assert_eq!(granted, expected);
    let none = send("POST", &format!("{five}/leases"), "", &[]).await;
    assert_eq!(
        (none.status, none.field("code").as_str()),
        (409, "exhausted")
    );
}

// Meituan-Dianping/Leaf#143: a small step and a crowd: all are served, or told to come again.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_of_one_cold_name_are_served_or_told_to_come_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = LocalCluster::create(
        directory.path(),
        highwater::chaos::ClusterSize::Three,
        world::program(),
    )
    .unwrap();
    cluster.serve_with(&["--auto-create"]);
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();

    let mut crowd = JoinSet::new();
    for url in cluster.urls().into_iter().cycle().take(1_000) {
        let leases = format!("{url}/v1/sequences/cold/leases?timeout=30s");
        crowd.spawn(lease_at_last(http.clone(), leases));
    }
    let values = crowd.join_all().await;

    let different: BTreeSet<u64> = values.into_iter().collect();
    assert_eq!(different, (1..=1_000).collect());
}

/// Leases one value, and does as it is told where it is not served.
async fn lease_at_last(http: reqwest::Client, leases: String) -> u64 {
    loop {
        let answer = http.post(&leases).send().await.unwrap();
        let status = answer.status().as_u16();
        let again = answer.headers().contains_key("retry-after");
        let body: Value = answer.json().await.unwrap();
        match status {
            201 => return body["first"].as_u64().unwrap(),
            503 => assert!(again && body["retryable"] == json!(true), "{body}"),
            _ => panic!("{status}: {body}"),
        }
    }
}
