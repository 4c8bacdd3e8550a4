//! A node that is told to join what it cannot join: it says so soon, and waits, because that may change.

use std::path::Path;
use std::{fs, io};

use highwater::chaos::ClaimedPort;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::node::{Node, ended, serve, serve_at, started, wait_until, wait_until_ready, with};
use crate::world::send;

/// Answers with these bytes whoever has said something, and then keeps the connection.
async fn answering(listener: TcpListener, bytes: Vec<u8>) {
    let mut open = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        open.spawn(answer(stream, bytes.clone()));
    }
}

async fn answer(mut stream: TcpStream, bytes: Vec<u8>) -> io::Result<()> {
    let mut read = [0; 4096];
    while 0 < stream.read(&mut read).await? {
        stream.write_all(&bytes).await?;
    }
    Ok(())
}

/// An HTTP answer with this body.
fn http(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// The first frame of a node that speaks this peer protocol.
fn of_protocol(version: u16) -> Vec<u8> {
    let body = [&b"highwatr"[..], &version.to_le_bytes(), &[0; 8]].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[..], &body].concat()
}

/// A server of this machine that answers so, and where it listens.
async fn server(servers: &mut JoinSet<()>, bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    servers.spawn(answering(listener, bytes));
    address
}

/// A node that is told to join this.
fn joins(directory: &Path, name: &str, address: &str) -> Node {
    let arguments = with(serve(&directory.join(name)), &["--join", address]);
    Node::start(&directory.join(format!("{name}.log")), arguments)
}

/// A cluster of one, where it is, and which it is.
async fn alone(directory: &Path, name: &str) -> (Node, String, String) {
    let log = directory.join(format!("{name}.log"));
    let node = Node::start(&log, serve(&directory.join(name)));
    let url = wait_until_ready(&directory.join(name)).await;
    let shown = send("GET", &format!("{url}/v1/cluster"), "", &[]).await;
    (node, url, shown.field("cluster"))
}

#[tokio::test]
async fn a_node_that_is_to_join_what_is_no_cluster_says_what_is_there_instead() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut servers = JoinSet::new();
    let page = server(&mut servers, http("404 Not Found", "<html>")).await;
    let mute = server(&mut servers, Vec::new()).await;
    let ports = ClaimedPort::claim(2).unwrap();
    let _other = serve_at(&ports, &path.join("other.log"), &path.join("other"));
    let peer = ports[1].address().to_string();
    wait_until_ready(&path.join("other")).await;

    let waiting = [
        (
            joins(path, "page", &page),
            "answered 404 in a way that no Highwater node does",
        ),
        (joins(path, "mute", &mute), "gave no answer in time"),
        (joins(path, "peer", &peer), "lost the connection ("),
    ];

    for (node, expected) in &waiting {
        let line = "waiting for the cluster to admit this node";
        node.wait_until_said(line, 1).await;
        assert!(node.said().contains(expected), "{}", node.said());
    }
    for (node, _) in waiting {
        assert!(node.terminate().await.success());
    }
}

// An id is given over HTTP, and by then nobody has seen the other's frames: the leader calls the node that it has admitted.
#[tokio::test]
async fn a_node_that_is_admitted_by_a_cluster_of_another_peer_protocol_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let mut servers = JoinSet::new();
    for (name, version) in [("older", 1), ("newer", 60_000)] {
        let member = json!({
            "id": 1,
            "incarnation": format!("{:032x}", 1),
            "api": "127.0.0.1:9",
            "peer": "127.0.0.1:9",
        });
        let cluster = format!("{:032x}", 7);
        let admitted = json!({ "id": 2, "cluster": cluster, "members": [member] });
        let api = server(&mut servers, http("200 OK", &admitted.to_string())).await;
        let node = joins(directory.path(), name, &api);
        let ready = directory.path().join(name).join("ready.json");
        wait_until("it has its id", async || ready.exists()).await;
        let ready: Value = serde_json::from_slice(&fs::read(ready).unwrap()).unwrap();

        let mut leader = TcpStream::connect(ready["peer"].as_str().unwrap())
            .await
            .unwrap();
        leader.write_all(&of_protocol(version)).await.unwrap();

        let line = format!("it speaks peer protocol {version}, this node ");
        node.wait_until_said(&line, 1).await;
        let way_out = ": run the same version of highwater on both";
        assert!(node.said().contains(way_out), "{}", node.said());
        assert!(node.terminate().await.success());
    }
}

// Whoever restored a backup has a new cluster, and old members with the same flag.
#[tokio::test]
async fn a_member_that_is_told_to_join_another_cluster_is_refused_and_starts_again_at_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (_own, own_url, own) = alone(path, "own").await;
    let (_other, other_url, other) = alone(path, "other").await;
    let member = joins(path, "2", &own_url);
    wait_until_ready(&path.join("2")).await;
    assert!(member.terminate().await.success());

    let arguments = with(serve(&path.join("2")), &["--join", &other_url]);
    let refused = ended(started(arguments)).await;

    let said = String::from_utf8(refused.stderr).unwrap();
    let line = format!(
        "highwater: this directory belongs to cluster {own}, but the nodes given by --join to cluster {other}: give the node its own data \
         directory, or name nodes of its own cluster\n"
    );
    assert!(said.ends_with(&line), "{said}");
    assert_eq!(refused.status.code(), Some(1));
    let again = joins(path, "2", &own_url);
    wait_until_ready(&path.join("2")).await;
    assert!(again.terminate().await.success());
}
