//! What a peer connection holds at most, at both ends, and what happens beyond (I9).

use bytes::Bytes;
use openraft::network::{RPCOption, RaftNetworkV2};
use tokio::time::timeout;

use super::*;
use crate::server::consensus::append::Append;
use crate::server::consensus::frame::{IN_FLIGHT_MAX, tagged};
use crate::server::consensus::handshake::{ANSWER_BYTES_MAX, PeerHello};
use crate::server::consensus::protocol::Call;
use crate::server::consensus::{append, calls, channel, snapshot};
use crate::server::types::{Entry, Payload, Proposal, SnapshotMeta};

const READ: Call = Call::ReadIndex { left_ms: 60_000 };

/// A node that is in no hurry to find anyone silent, and node 1's connection to it.
async fn dialed(purpose: Purpose) -> (Node, Connection) {
    let (socket, _) = free_socket().await;
    let node = Node::start_with(socket, Timing::from_heartbeat_ms(10_000).unwrap());
    let hello = Caller::new().peers.hello(id(NODE), &node.member(), purpose);
    let connection = handshake::dial(&node.address.into(), hello).await.unwrap();
    (node, connection)
}

#[tokio::test]
async fn calls_of_a_peer_beyond_the_bound_are_not_even_read() {
    let (node, mut connection) = dialed(Purpose::Calls).await;
    let asked = || node.service.shared.roster_asked.load(Ordering::Relaxed);
    let before = asked();
    for number in 1..=2 * calls::SERVED_MAX as u64 {
        connection
            .send(tagged(number, &READ).unwrap())
            .await
            .unwrap();
    }

    // Each call that is carried out asks first who it is from.
    wait_until(|| asked() == before + calls::SERVED_MAX).await;
    node.service.shared.read_permits.add_permits(1);
    within(connection.receive()).await.unwrap();
    wait_until(|| before + calls::SERVED_MAX < asked()).await;

    assert_eq!(asked(), before + calls::SERVED_MAX + 1);
    const { assert!(IN_FLIGHT_MAX < calls::SERVED_MAX) };
}

/// How many appends of this size reach Raft while it answers none.
async fn appends_taken(size: usize, expected: usize) -> usize {
    let (node, mut connection) = dialed(Purpose::Append).await;
    let shared = &node.service.shared;
    shared.append_permits.forget_permits(usize::MAX);
    let request = |prev: u64| {
        let proposal = Proposal {
            elapsed_ms: 1,
            batches: vec![Bytes::from(vec![7; size])],
        };
        let log_id = log_id(1, 1, prev + 1);
        let entry: Entry = openraft::entry::RaftEntry::new(log_id, Payload::Normal(proposal));
        AppendEntriesRequest {
            vote: vote(1, 1),
            prev_log_id: Some(LogId::new(*log_id.committed_leader_id(), prev)),
            entries: vec![entry],
            leader_commit: None,
        }
    };
    let sends = async {
        for prev in 0.. {
            let frame = tagged(prev + 1, &Append::new(1, &request(prev))).unwrap();
            connection.send(frame).await.unwrap();
        }
    };
    tokio::select! {
        () = sends => {}
        () = wait_until(|| expected <= shared.append_count.load(Ordering::Relaxed)) => {}
    }
    // What is read beyond it would be there with the next answer.
    shared.append_permits.add_permits(1);
    wait_until(|| shared.append_permits.available_permits() == 0).await;
    shared.append_count_peak.load(Ordering::Relaxed)
}

#[tokio::test]
async fn appends_of_a_peer_beyond_the_bound_are_not_even_read() {
    let most = append::SERVED_MAX;
    assert_eq!(appends_taken(10, most).await, most);
}

#[tokio::test]
async fn appends_of_a_peer_beyond_their_bytes_are_not_even_read() {
    let size = 1024 * 1024;
    let most = append::SERVED_BYTES_MAX / size;
    assert_eq!(appends_taken(size, most).await, most);
}

#[tokio::test]
async fn what_a_slow_peer_does_not_take_makes_its_senders_wait() {
    let (socket, address) = free_socket().await;
    let caller = Caller::new();
    let link = caller.peers.link(id(NODE), &member(NODE, address));
    let _peer = silent_peer(&socket, Purpose::Calls).await;
    let open = within(link.channel()).await.unwrap();

    let call = Call::Forward {
        batch: Bytes::from(vec![0; 1024 * 1024]),
        left_ms: 60_000,
    };
    let mut waiting = Vec::new();
    while let Ok(sent) = timeout(Duration::from_millis(200), open.send(&call)).await {
        waiting.push(sent.unwrap());
    }

    // Beside those that wait there is what the two sockets and the writer hold.
    assert!(channel::QUEUE_MAX <= waiting.len());
    assert!(waiting.len() < channel::QUEUE_MAX + 16, "{}", waiting.len());
}

#[tokio::test]
async fn an_answer_to_a_handshake_above_its_limit_is_not_read() {
    let (socket, address) = free_socket().await;
    let hello: PeerHello =
        Caller::new()
            .peers
            .hello(id(NODE), &member(NODE, address), Purpose::Calls);
    let answer = async {
        let (mut stream, _) = socket.accept().await.unwrap();
        let length = u32::try_from(ANSWER_BYTES_MAX + 1).unwrap();
        let length = length.to_be_bytes();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &length)
            .await
            .unwrap();
        stream
    };

    let address = address.into();
    let (dialed, _stream) = tokio::join!(within(handshake::dial(&address, hello)), answer);

    let error = dialed.map(drop).unwrap_err();
    assert_eq!(error.to_string(), "frame size too big");
}

fn a_snapshot(directory: &tempfile::TempDir) -> Snapshot {
    let meta = SnapshotMeta {
        last_log_id: Some(log_id(1, 1, 9)),
        ..SnapshotMeta::default()
    };
    let snapshot = testing::snapshot(directory.path(), &meta, 3 * snapshot::PIECE_BYTES_MAX);
    Snapshot { meta, snapshot }
}

#[tokio::test]
async fn a_snapshot_goes_in_pieces_and_one_whose_sender_falls_silent_leaves_its_place() {
    let (node, mut connection) = dialed(Purpose::Snapshot).await;
    let places_left = || testing::places_left(&node.service.shared.inbox);
    let before = places_left();
    let directory = tempfile::tempdir().unwrap();
    let header = snapshot::SnapshotHeader::new(vote(5, 1), &a_snapshot(&directory));
    let header = crate::server::codec::encode(&header);
    connection.send(header.into()).await.unwrap();
    let piece = Bytes::from(vec![0; snapshot::PIECE_BYTES_MAX]);
    connection.send(piece).await.unwrap();
    wait_until(|| places_left() == before - 1).await;

    tokio::time::pause();
    let ended = within(connection.receive()).await;

    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    wait_until(|| places_left() == before).await;
}

#[tokio::test]
async fn no_piece_of_a_snapshot_is_larger_than_its_bound() {
    let (socket, address) = free_socket().await;
    let mut client = Caller::new().client_to(&member(NODE, address)).await;
    let directory = tempfile::tempdir().unwrap();
    let sent = a_snapshot(&directory);
    let length = usize::try_from(sent.snapshot.length()).unwrap();
    let received = async {
        let mut peer = silent_peer(&socket, Purpose::Snapshot).await;
        let _header = peer.receive().await.unwrap();
        let mut pieces = Vec::new();
        while pieces.iter().sum::<usize>() < length {
            pieces.push(peer.receive().await.unwrap().len());
        }
        pieces
    };

    let never = futures::future::pending();
    let option = RPCOption::new(AT_MOST);
    let sending = client.full_snapshot(vote(5, 1), sent, never, option);
    let pieces = tokio::select! {
        ended = sending => panic!("it has no answer: {ended:?}"),
        pieces = within(received) => pieces,
    };

    let (last, others) = pieces.split_last().unwrap();
    let largest = snapshot::PIECE_BYTES_MAX;
    assert!(!others.is_empty() && *last <= largest, "{pieces:?}");
    assert!(others.iter().all(|piece| *piece == largest), "{pieces:?}");
}

#[tokio::test]
async fn a_snapshot_whose_receiver_falls_silent_is_given_up_after_a_step() {
    let (socket, address) = free_socket().await;
    let caller = Caller::new();
    let mut client = caller.client_to(&member(NODE, address)).await;
    let directory = tempfile::tempdir().unwrap();
    let option = RPCOption::new(Duration::from_millis(100));

    let never = futures::future::pending();
    let sent = client.full_snapshot(vote(5, 1), a_snapshot(&directory), never, option);
    let (sent, _peer) = tokio::join!(within(sent), silent_peer(&socket, Purpose::Snapshot));

    let error = sent.unwrap_err().to_string();
    assert!(
        error.contains("a step of the snapshot took longer than"),
        "{error}"
    );
}

#[tokio::test]
async fn a_peer_that_takes_no_replies_is_not_read_any_more() {
    let (_node, mut connection) = dialed(Purpose::Calls).await;
    let mut sent = 0_u64;
    let stalls = async {
        loop {
            let frame = tagged(sent + 1, &Call::Status).unwrap();
            // As many frames as fill every buffer between the two ends.
            let flushed = timeout(Duration::from_millis(300), connection.send(frame)).await;
            if flushed.is_err() {
                return;
            }
            sent += 1;
        }
    };

    within(stalls).await;

    assert!(64 < sent);
}
