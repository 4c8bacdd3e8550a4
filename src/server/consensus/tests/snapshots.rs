//! Snapshots on their way.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::pending;
use openraft::errors::{ReplicationClosed, StreamingError};
use openraft::network::{RPCOption, RaftNetworkV2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::*;
use crate::server::consensus::handshake::{self, Purpose};
use crate::server::consensus::network::PeerClient;
use crate::server::consensus::snapshot::{self, SnapshotHeader};
use crate::server::types::{SnapshotMeta, StoredMembership};

const BYTES_MIN: usize = 3 * 1024 * 1024 + 5;

/// A snapshot of node 1, up to this entry.
async fn snapshot_in(directory: &tempfile::TempDir, last: LogId) -> Snapshot {
    let meta = SnapshotMeta {
        last_log_id: Some(last),
        last_membership: StoredMembership::default(),
    };
    let file = testing::snapshot(directory.path(), &meta, BYTES_MIN);
    Snapshot {
        meta,
        snapshot: file,
    }
}

fn leader() -> Vote {
    Vote::from_leader_id(Leadership::new(5, id(1)), true)
}

async fn send(
    client: &mut PeerClient,
    snapshot: &Snapshot,
) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
    let sent = client.full_snapshot(
        leader(),
        snapshot.clone(),
        pending(),
        RPCOption::new(AT_MOST),
    );
    within(sent).await
}

async fn content(snapshot: &Snapshot) -> Vec<u8> {
    let length = snapshot.snapshot.length().try_into().unwrap();
    let mut file = snapshot.snapshot.open().await.unwrap();
    let content = file.next(length).await.unwrap().to_vec();
    assert!(BYTES_MIN <= content.len());
    content
}

fn installed(node: &Node) -> Vec<Snapshot> {
    node.service.shared.installed.lock().unwrap().clone()
}

/// It was installed once, as it was sent.
async fn is_installed(node: &Node, sent: &Snapshot) {
    let installed = installed(node);
    let [received] = installed.as_slice() else {
        panic!("{installed:?}");
    };
    assert_eq!(received.meta, sent.meta);
    assert!(content(received).await == content(sent).await);
}

/// Passes bytes on to the node, but flips one bit of the byte at this place of the first connection that has so many.
async fn damage_once(socket: TcpListener, node: SocketAddr, place: u64, tasks: Tasks) {
    let place = Arc::new(AtomicU64::new(place));
    loop {
        let (from, _) = socket.accept().await.unwrap();
        let to = TcpStream::connect(node).await.unwrap();
        let place = Arc::clone(&place);
        tasks.spawn(async move {
            let (from_read, mut from_write) = from.into_split();
            let (mut to_read, to_write) = to.into_split();
            let there = pass_on(from_read, to_write, &place);
            let back = tokio::io::copy(&mut to_read, &mut from_write);
            // Whichever end closes first, both are closed.
            tokio::select! {
                () = there => {}
                _ = back => {}
            }
        });
    }
}

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, place: &AtomicU64) {
    let mut seen = 0_u64;
    let mut bytes = vec![0; 8192];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        let next = seen + u64::try_from(read).unwrap();
        let at = place.load(Ordering::Relaxed);
        if seen <= at && at < next {
            bytes[usize::try_from(at - seen).unwrap()] ^= 1;
            place.store(u64::MAX, Ordering::Relaxed);
        }
        seen = next;
        if to.write_all(&bytes[..read]).await.is_err() {
            break;
        }
    }
}

#[tokio::test]
async fn a_snapshot_arrives_as_it_was_sent() {
    let node = Node::start().await;
    let mut client = Caller::new().client_to(&node.member()).await;
    let directory = tempfile::tempdir().unwrap();
    let snapshot = snapshot_in(&directory, log_id(4, 3, 1000)).await;

    let response = send(&mut client, &snapshot).await.unwrap();

    assert_eq!(response.vote, leader());
    is_installed(&node, &snapshot).await;
}

#[tokio::test]
async fn one_flipped_bit_is_refused_and_sent_again() {
    let node = Node::start().await;
    let (socket, proxy) = free_socket().await;
    let caller = Caller::new();
    caller.tasks.spawn(damage_once(
        socket,
        node.address,
        2 * 1024 * 1024,
        caller.tasks.clone(),
    ));
    let mut client = caller.client_to(&member(NODE, proxy)).await;
    let directory = tempfile::tempdir().unwrap();
    let snapshot = snapshot_in(&directory, log_id(4, 3, 1000)).await;

    let error = send(&mut client, &snapshot).await.unwrap_err();

    assert!(matches!(error, StreamingError::Unreachable(_)), "{error:?}");
    assert!(error.to_string().contains("it was not kept"), "{error}");
    assert!(installed(&node).is_empty());

    send(&mut client, &snapshot).await.unwrap();
    is_installed(&node, &snapshot).await;
}

#[tokio::test]
async fn a_snapshot_is_let_go_when_openraft_cancels_it() {
    let (socket, address) = free_socket().await;
    let mut client = Caller::new().client_to(&member(NODE, address)).await;
    let directory = tempfile::tempdir().unwrap();
    let snapshot = snapshot_in(&directory, log_id(4, 3, 1000)).await;

    let cancel = async move {
        socket.accept().await.unwrap();
        ReplicationClosed::new("the leader is gone")
    };
    let sent = client.full_snapshot(leader(), snapshot, cancel, RPCOption::new(AT_MOST));

    let error = within(sent).await.unwrap_err();
    assert_eq!(
        error,
        StreamingError::Closed(ReplicationClosed::new("the leader is gone"))
    );
}

#[tokio::test]
async fn a_snapshot_that_a_newer_one_replaced_is_asked_for_again() {
    let node = Node::start().await;
    let mut client = Caller::new().client_to(&node.member()).await;
    let directory = tempfile::tempdir().unwrap();
    let snapshot = snapshot_in(&directory, log_id(4, 3, 1000)).await;
    drop(directory);

    let error = send(&mut client, &snapshot).await.unwrap_err();

    assert!(matches!(error, StreamingError::Network(_)), "{error:?}");
}

#[tokio::test]
async fn a_snapshot_above_its_leaders_vote_never_reaches_raft() {
    let node = Node::start().await;
    let mut client = Caller::new().client_to(&node.member()).await;
    let directory = tempfile::tempdir().unwrap();
    let snapshot = snapshot_in(&directory, log_id(6, 1, 1000)).await;

    let error = send(&mut client, &snapshot).await.unwrap_err();

    assert!(
        error
            .to_string()
            .contains("a later leadership than its sender")
    );
    assert!(installed(&node).is_empty());
}

#[tokio::test]
async fn a_snapshot_longer_than_announced_is_refused() {
    let node = Node::start().await;
    let directory = tempfile::tempdir().unwrap();
    let snapshot = snapshot_in(&directory, log_id(4, 3, 1000)).await;
    let hello = Caller::new()
        .peers
        .hello(id(NODE), &node.member(), Purpose::Snapshot);
    let mut connection = handshake::dial(&node.address.into(), hello).await.unwrap();
    let header = SnapshotHeader::new(leader(), &snapshot);
    let header = crate::server::codec::encode(&header).into();

    connection.send(header).await.unwrap();
    let length = snapshot.snapshot.length();
    for _ in 0..=length / (1024 * 1024) {
        let piece = vec![0; 1024 * 1024].into();
        connection.send(piece).await.unwrap();
    }

    let reply = within(snapshot::read_reply(connection.reader))
        .await
        .unwrap();
    assert_eq!(
        reply,
        snapshot::SnapshotReply::Refused {
            reason: format!("it is longer than the {length} bytes announced")
        }
    );
    assert!(installed(&node).is_empty());
}
