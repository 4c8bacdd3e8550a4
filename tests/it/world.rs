//! What the tests share: clusters of real processes, and plain HTTP.

use std::path::Path;
use std::time::Duration;

use highwater::SequenceName;
use highwater::chaos::{ClusterSize, HarnessError, LocalCluster, Program};
use highwater::client::Client;
use highwater::wire::CreateBody;
use serde_json::Value;

/// Longer than anything takes on a busy machine: what is late for it does not come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is looked at again.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The binary under test: a script names the release build.
pub(crate) fn program() -> Program {
    let named = std::env::var_os("HIGHWATER_TEST_PROGRAM");
    Program {
        path: named.map_or_else(|| env!("CARGO_BIN_EXE_highwater").into(), Into::into),
        arguments: Vec::new(),
    }
}

/// How often a test does its work: this often, or as this variable says.
pub(crate) fn rounds(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

/// A cluster of three in this directory, ready.
pub(crate) async fn three_nodes(directory: &Path) -> LocalCluster {
    three_nodes_of(directory, program()).await
}

/// A cluster of three nodes that are started by this program.
pub(crate) async fn three_nodes_of(directory: &Path, program: Program) -> LocalCluster {
    let mut cluster = LocalCluster::create(directory, ClusterSize::Three, program).unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    cluster
}

/// A follower's URL: what holds there holds at the leader too, and takes the longer way.
pub(crate) async fn follower(cluster: &mut LocalCluster) -> String {
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let at = usize::try_from(leader % 3).unwrap();
    cluster.urls().remove(at)
}

/// Waits until all nodes have applied the same entries, and returns the hash of the state that all of them hold then.
pub(crate) async fn wait_for_one_state(url: &str) -> String {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let body = send("GET", &format!("{url}/v1/cluster"), "", &[])
            .await
            .json();
        let members = body["members"].as_array().unwrap();
        let all =
            |field: &str| -> Vec<&Value> { members.iter().map(|member| &member[field]).collect() };
        let (applied, hashes) = (all("applied_index"), all("state_hash"));
        if applied[0].is_u64() && applied.iter().all(|index| *index == applied[0]) {
            let same = hashes.iter().all(|hash| *hash == hashes[0]);
            assert!(same, "I8: {body:#}");
            return hashes[0].as_str().unwrap().to_owned();
        }
        assert!(std::time::Instant::now() < deadline, "{body:#}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// A client of all nodes that asks them in turn.
pub(crate) fn client(cluster: &LocalCluster) -> Client {
    Client::builder()
        .nodes(cluster.urls())
        .spread(highwater::client::Spread::RoundRobin)
        .build()
        .unwrap()
}

/// The sequence of this name, created with the defaults.
pub(crate) async fn sequence(cluster: &LocalCluster, name: &str) -> SequenceName {
    let name: SequenceName = name.parse().unwrap();
    client(cluster)
        .create_sequence(&name, &CreateBody::default())
        .await
        .unwrap();
    name
}

/// An answer as curl would show it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// A field of the body, as text.
    pub(crate) fn field(&self, name: &str) -> String {
        match &self.json()[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

/// Sends a request with a body and headers, each `name: value`.
pub(crate) async fn send(method: &str, url: &str, body: &str, headers: &[&str]) -> Answer {
    let http = reqwest::Client::builder()
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .unwrap();
    let method = method.parse().unwrap();
    let mut request = http.request(method, url).body(body.to_owned());
    for header in headers {
        let (name, value) = header.split_once(": ").unwrap();
        request = request.header(name, value);
    }
    let answer = request.send().await.unwrap();
    Answer {
        status: answer.status().as_u16(),
        headers: answer.headers().clone(),
        text: answer.text().await.unwrap(),
    }
}

/// Waits until a node says this of its readiness.
pub(crate) async fn wait_until_it_says(url: &str, status: u16, text: &str) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let said = send("GET", &format!("{url}/readyz"), "", &[]).await;
        if (said.status, said.text.as_str()) == (status, text) {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "{url} says {}",
            said.text
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until the last entry is on every disk: a grant needs two of three.
pub(crate) async fn wait_until_all_have_the_log(url: &str) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let shown = send("GET", &format!("{url}/v1/cluster"), "", &[]).await;
        let members = shown.json()["members"].clone();
        let mut members = members.as_array().unwrap().iter();
        if members.all(|member| member["lag"] == 0) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{}", shown.text);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until another node leads than this one.
pub(crate) async fn wait_until_led_by_another(cluster: &mut LocalCluster, node: u64) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while cluster.leader(PATIENCE).await.unwrap() == node {
        assert!(std::time::Instant::now() < deadline, "node {node} leads on");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// A node that ended by itself.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) node: u64,
    pub(crate) code: Option<i32>,
    pub(crate) last_line: String,
}

/// Waits until a node has ended by itself.
pub(crate) async fn wait_until_one_ends(cluster: &mut LocalCluster) -> Ended {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match cluster.check_alive() {
            Ok(()) => {}
            Err(HarnessError::Died {
                node,
                status,
                last_line,
                ..
            }) => {
                return Ended {
                    node,
                    code: status.code(),
                    last_line,
                };
            }
            Err(error) => panic!("{error}"),
        }
        assert!(
            std::time::Instant::now() < deadline,
            "no node has ended by itself"
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
