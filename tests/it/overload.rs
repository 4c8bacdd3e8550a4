//! More than a node can take, from outside: what is refused is told so at once, costs no memory, and changes nothing (I9).

use std::process::ExitStatus;
use std::time::Duration;

use highwater::RangeCount;
use highwater::chaos::{Connection, LocalCluster, ProcessUse, Program, RawAnswer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::world::{self, PATIENCE, send, three_nodes, three_nodes_of};

/// Requests beyond the batcher's queue of 4,096, which all wait for a quorum.
const CROWD: usize = 5_500;
/// What a node may grow by with a connection and a request of each of them.
const CROWD_MEMORY_MAX: u64 = 192 * 1024 * 1024;

/// A crowd of connections needs as many open files.
fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// The program under test, allowed to open so many files.
fn program_with_files(files: u32) -> Program {
    let script = format!(
        "ulimit -n {files}; exec {} \"$@\"",
        env!("CARGO_BIN_EXE_highwater")
    );
    Program {
        path: "/bin/sh".into(),
        arguments: ["-c", &script, "sh"].map(Into::into).to_vec(),
    }
}

fn url(cluster: &LocalCluster, id: u64) -> String {
    cluster.urls().remove(usize::try_from(id - 1).unwrap())
}

fn field(answer: &RawAnswer, name: &str) -> Value {
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    body[name].clone()
}

async fn high(cluster: &LocalCluster, name: &str) -> u64 {
    let shown = world::client(cluster)
        .sequence(&name.parse().unwrap())
        .await
        .unwrap();
    shown.high.and_then(highwater::wire::Number::get).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_beyond_the_queue_is_refused_before_memory_grows_and_nothing_refused_was_applied() {
    allow_open_files();
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let pid = cluster.pid(leader).unwrap();
    let others: Vec<u64> = cluster
        .ids()
        .into_iter()
        .filter(|id| *id != leader)
        .collect();
    let url = url(&cluster, leader);
    cluster.kill(&others).await.unwrap();
    world::wait_until_it_says(&url, 503, "no leader\n").await;
    let before = ProcessUse::of(pid).unwrap();

    // The first ones are a batch each, so that all others wait in the queue.
    let lease = "/v1/sequences/p/leases?timeout=60s";
    let mut crowd = Vec::new();
    for number in 0..CROWD {
        let mut connection = Connection::open(&url).await.unwrap();
        if number < 10 {
            connection.ask("GET", "/livez", "").await.unwrap();
        }
        connection.send("POST", lease, "").await.unwrap();
        crowd.push(connection);
    }
    let (told, mut answers) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = JoinSet::new();
    for mut connection in crowd {
        let told = told.clone();
        waiting.spawn(async move { told.send(connection.receive().await.unwrap()).unwrap() });
    }
    let mut refused = 0;
    // Those who wait are not answered before there is a quorum.
    while let Ok(Some(answer)) = timeout(Duration::from_secs(1), answers.recv()).await {
        refused += 1;
        assert_overloaded(&answer);
    }
    let during = ProcessUse::of(pid).unwrap();
    assert!(1_000 <= refused, "only {refused} of {CROWD} were refused");
    assert!(
        during.memory < before.memory + CROWD_MEMORY_MAX,
        "from {before:?} to {during:?}"
    );

    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    while waiting.join_next().await.is_some() {}
    let (mut granted, mut unknown) = (Vec::new(), 0);
    while let Ok(answer) = answers.try_recv() {
        match answer.status {
            201 => granted.push(field(&answer, "first").as_u64().unwrap()),
            // Sent to a leader that was replaced on the way.
            504 => unknown += 1,
            _ => assert_overloaded(&answer),
        }
    }

    assert!(!granted.is_empty(), "those who waited are served");
    granted.sort_unstable();
    assert!(granted.windows(2).all(|pair| pair[0] < pair[1]), "I1");
    let all = u64::try_from(granted.len()).unwrap();
    let high = high(&cluster, "p").await;
    assert!(
        (all..=all + unknown).contains(&high),
        "I5: {high} with {all} grants and {unknown} unknown: something refused was applied"
    );
    let after = send("POST", &format!("{url}/v1/sequences/p/leases"), "", &[]).await;
    assert_eq!(
        (after.status, after.json()["first"].as_u64()),
        (201, Some(high + 1))
    );
}

fn assert_overloaded(answer: &RawAnswer) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(field(answer, "code"), "overloaded");
    assert_eq!(field(answer, "outcome"), "not_applied");
    assert_eq!(answer.header("retry-after"), Some("1"));
}

// A stranger's connections, thousands of them, at the ports for workers and for peers.
#[tokio::test(flavor = "multi_thread")]
async fn idle_and_half_open_connections_keep_neither_workers_nor_peers_out() {
    allow_open_files();
    let directory = tempfile::tempdir().unwrap();
    // With 640 files a node has room for 128 API connections.
    let mut cluster = three_nodes_of(directory.path(), program_with_files(640)).await;
    world::sequence(&cluster, "p").await;
    let mut strangers = Vec::new();
    for id in cluster.ids() {
        let api = url(&cluster, id);
        let api = api.strip_prefix("http://").unwrap();
        let peer = cluster.peer_address(id).unwrap();
        for number in 0..700 {
            let mut stream = TcpStream::connect(api).await.unwrap();
            if number % 2 == 1 {
                let half = b"POST /v1/sequences/p/leases HTTP/1.1\r\nhost:";
                // It may have lost its place to a later one already.
                stream.write_all(half).await.ok();
            } else {
                // Served, it keeps its connection for longer than this test waits: only another's need closes it. One that
                // comes at the same moment may take its place before it has said anything.
                let whole = b"GET /livez HTTP/1.1\r\nhost: n\r\n\r\n";
                stream.write_all(whole).await.ok();
                let answered = timeout(PATIENCE, stream.read(&mut [0; 512])).await;
                answered.expect("idle ones make room").ok();
            }
            strangers.push(stream);
            strangers.push(TcpStream::connect(peer).await.unwrap());
        }
    }

    let sequence = "p".parse().unwrap();
    let client = world::client(&cluster);
    for _ in 0..30 {
        client.lease(&sequence, RangeCount::ONE).await.unwrap();
    }
    let oldest = &mut strangers[0];
    let end = timeout(PATIENCE, oldest.read_to_end(&mut Vec::new())).await;
    // An error where it was closed with something unread.
    drop(end.expect("the oldest is closed"));
    // Its peers reach a node that restarts, and it reaches them.
    let leader = cluster.leader(PATIENCE).await.unwrap();
    cluster.kill(&[leader]).await.unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();

    let high = high(&cluster, "p").await;
    assert_eq!(high, 30);
    // Nor do they keep a node from ending in good order.
    let ended = cluster.terminate_all(PATIENCE).await.unwrap();
    assert!(ended.iter().all(ExitStatus::success), "{ended:?}");
    drop(strangers);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_beyond_their_budget_are_refused_unread_and_leases_go_on() {
    allow_open_files();
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    world::sequence(&cluster, "p").await;
    let url = url(&cluster, 1);
    let address = url.strip_prefix("http://").unwrap();
    let head = "POST /v1/sequences/p/leases HTTP/1.1\r\nhost: n\r\ncontent-length: 65536\r\n\r\n";

    // 256 of them fit into 16 MiB, and wait ten seconds for bodies that never come.
    let mut answered = JoinSet::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        answered.spawn(async move {
            let mut answer = vec![0; 4096];
            let read = stream.read(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer[..read]).into_owned()
        });
    }
    let first = timeout(PATIENCE, answered.join_next()).await.unwrap();
    let lease = world::client(&cluster)
        .lease(&"p".parse().unwrap(), RangeCount::ONE)
        .await;

    let refused = first.unwrap().unwrap();
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(
        refused.contains("large bodies of 16777216 bytes are on their way to this node already"),
        "{refused}"
    );
    assert_eq!(lease.unwrap().first(), 1);
}

#[test]
fn a_node_that_may_open_too_few_files_says_so_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let program = program_with_files(500);

    let ended = std::process::Command::new(program.path)
        .args(program.arguments)
        .args(["serve", "--listen", "127.0.0.1:0", "--peer-listen"])
        .args(["127.0.0.1:0", "--data-dir"])
        .arg(&data)
        .output()
        .unwrap();

    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8(ended.stderr).unwrap();
    let expected = "this process may open 500 files at once, and a node needs 576: \
        raise the limit, with ulimit -n or LimitNOFILE";
    assert!(said.contains(expected), "{said}");
    assert!(!data.exists());
}
