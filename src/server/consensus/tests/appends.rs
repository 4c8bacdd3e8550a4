//! The append stream.

use openraft::entry::RaftEntry;
use openraft::errors::RPCError;
use openraft::network::{RPCOption, RaftNetworkV2};

use super::*;
use crate::server::consensus::append::{Append, Appended};
use crate::server::consensus::frame::{FRAME_BYTES_MAX, PING, tagged, untag};
use crate::server::consensus::handshake::{self, Purpose};
use crate::server::consensus::network::PeerClient;
use crate::server::types::{Entry, Payload, Proposal};

/// An append of one entry behind this index.
fn append_behind(prev: u64) -> AppendEntriesRequest<TypeConfig> {
    append_of(prev, 100)
}

fn append_of(prev: u64, bytes: usize) -> AppendEntriesRequest<TypeConfig> {
    let proposal = Proposal {
        elapsed_ms: 1,
        batches: vec![bytes::Bytes::from(vec![7; bytes])],
    };
    AppendEntriesRequest {
        vote: Vote::from_leader_id(Leadership::new(1, id(1)), true),
        prev_log_id: Some(log_id(1, 1, prev)),
        entries: vec![Entry::new(
            log_id(1, 1, prev + 1),
            Payload::Normal(proposal),
        )],
        leader_commit: Some(log_id(1, 1, prev)),
    }
}

type Results = Vec<Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>;

/// Sends these as one stream, and reads at most so many results.
async fn append(
    client: &mut PeerClient,
    prevs: impl Iterator<Item = u64> + Send + Unpin + 'static,
    results_max: usize,
) -> Results {
    let requests = stream::iter(prevs.map(append_behind));
    let option = RPCOption::new(Duration::from_millis(40));
    let results = within(client.stream_append(requests, option))
        .await
        .unwrap();
    within(results.take(results_max).collect()).await
}

fn matching(indexes: impl Iterator<Item = u64>) -> Results {
    indexes
        .map(|index| Ok(Ok(Some(log_id(1, 1, index)))))
        .collect()
}

#[tokio::test]
async fn appends_reach_raft_in_their_order_and_are_answered_in_it() {
    let node = Node::start().await;
    let mut client = Caller::new().client_to(&node.member()).await;

    let results = append(&mut client, 0..300, usize::MAX).await;

    assert_eq!(results, matching(1..301));
    assert_eq!(node.service.shared.appended(), (0..300).collect::<Vec<_>>());
    let received = node.service.shared.appends.lock().unwrap();
    let (sent, received) = (append_behind(7), &received[7]);
    assert_eq!(received.vote, sent.vote);
    assert_eq!(received.entries, sent.entries);
    assert_eq!(received.leader_commit, sent.leader_commit);
}

/// Sends appends of this size while none is answered, and then answers them all.
async fn most_in_flight(size: usize, expected: usize) -> usize {
    let node = Node::start().await;
    let shared = &node.service.shared;
    shared.append_permits.forget_permits(usize::MAX);
    let mut client = Caller::new().client_to(&node.member()).await;
    let requests = stream::iter((0..100).map(move |prev| append_of(prev, size)));
    let option = RPCOption::new(Duration::from_millis(40));

    let results = within(client.stream_append(requests, option))
        .await
        .unwrap();
    let mut results = Box::pin(results.collect::<Results>());
    tokio::select! {
        _ = &mut results => panic!("nothing was answered"),
        () = wait_until(|| shared.append_count.load(Ordering::Relaxed) == expected) => {}
    }
    shared.append_permits.add_permits(100);
    assert_eq!(within(results).await, matching(1..101));
    shared.append_count_peak.load(Ordering::Relaxed)
}

#[tokio::test]
async fn many_appends_are_sent_before_the_first_answer() {
    assert_eq!(most_in_flight(100, 64).await, 64);
}

#[tokio::test]
async fn large_appends_in_flight_are_bounded_in_bytes() {
    assert_eq!(most_in_flight(1024 * 1024, 16).await, 16);
}

#[tokio::test]
async fn a_stream_that_is_dropped_midway_leaves_the_next_one_clean() {
    let node = Node::start().await;
    node.service
        .shared
        .append_permits
        .forget_permits(usize::MAX);
    let mut client = Caller::new().client_to(&node.member()).await;

    for round in 0..20 {
        let from = round * 1000;
        node.service.shared.append_permits.add_permits(3);
        // Heartbeats are dropped so: the follower has more requests than were answered.
        let results = append(&mut client, from..from + 50, 3).await;
        assert_eq!(results, matching(from + 1..from + 4));
        node.service.shared.append_permits.add_permits(47);
    }
    node.service.shared.append_permits.add_permits(10);
    let results = append(&mut client, 90_000..90_010, usize::MAX).await;

    assert_eq!(results, matching(90_001..90_011));
    let appended = node.service.shared.appended();
    assert!(appended.is_sorted(), "{appended:?}");
}

#[tokio::test]
async fn a_stream_ends_where_raft_refuses_and_the_next_one_goes_on() {
    let node = Node::start().await;
    *node.service.shared.conflict_at.lock().unwrap() = Some(9);
    let mut client = Caller::new().client_to(&node.member()).await;

    let results = append(&mut client, (0..5).chain(9..300), usize::MAX).await;

    let mut expected = matching(1..6);
    expected.push(Ok(Err(StreamAppendError::Conflict(log_id(1, 1, 9)))));
    assert_eq!(results, expected);

    let results = append(&mut client, 400..410, usize::MAX).await;
    assert_eq!(results, matching(401..411));
    let appended = node.service.shared.appended();
    assert_eq!(
        appended[appended.len() - 10..],
        (400..410).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn what_follows_a_refusal_in_its_stream_is_not_handed_to_raft() {
    let node = Node::start().await;
    *node.service.shared.conflict_at.lock().unwrap() = Some(5);
    let hello = Caller::new()
        .peers
        .hello(id(NODE), &node.member(), Purpose::Append);
    let dialed = handshake::dial(&node.address.into(), hello).await;
    let mut connection = dialed.unwrap();
    let mut ask = async |message_id: u64, stream: u64, prev: u64| {
        let append = Append::new(stream, &append_behind(prev));
        let frame = tagged(message_id, &append).unwrap();
        connection.send(frame).await.unwrap();
        let (answered, body) = untag(within(connection.receive()).await.unwrap()).unwrap();
        assert_eq!(answered, message_id);
        crate::server::codec::decode::<Appended, FRAME_BYTES_MAX>(&body).unwrap()
    };

    let refused = ask(1, 1, 5).await;
    let after = ask(2, 1, 6).await;
    let next_stream = ask(3, 2, 7).await;

    assert_eq!(refused, Appended::Conflict(log_id(1, 1, 5).into()));
    assert_eq!(after, Appended::Stopped);
    assert_eq!(
        next_stream,
        Appended::Matching(Some(log_id(1, 1, 8).into()))
    );
    assert_eq!(node.service.shared.appended(), [5, 7]);
}

#[tokio::test]
async fn a_lost_connection_is_an_error_in_the_stream() {
    let node = Node::start().await;
    node.service
        .shared
        .append_permits
        .forget_permits(usize::MAX);
    node.service.shared.append_permits.add_permits(2);
    let mut client = Caller::new().client_to(&node.member()).await;

    let mut results = Box::pin(append(&mut client, 0..300, usize::MAX));
    tokio::select! {
        _ = &mut results => panic!("nothing was answered"),
        () = wait_until(|| node.service.shared.append_permits.available_permits() == 0) => {}
    }
    node.tasks.stop().await;

    let results = results.await;
    let (last, before) = results.split_last().unwrap();
    assert!(before.len() <= 2);
    assert!(matches!(last, Err(RPCError::Network(_))), "{last:?}");
}

#[tokio::test]
async fn a_stream_to_a_dead_peer_is_unreachable() {
    let (socket, address) = free_socket().await;
    drop(socket);
    let mut client = Caller::new().client_to(&member(NODE, address)).await;

    let option = RPCOption::new(Duration::from_millis(40));
    let requests = stream::iter([append_behind(1)]);
    let opened = within(client.stream_append(requests, option)).await;

    let error = opened.err().unwrap();
    assert!(matches!(error, RPCError::Unreachable(_)), "{error:?}");
    let pauses: Vec<_> = client.backoff().unwrap().take(6).collect();
    assert!(pauses[0] <= Duration::from_millis(20), "{pauses:?}");
    assert!(pauses[5] <= Duration::from_millis(200), "{pauses:?}");
}

// openraft pauses only between the requests of a stream, and of a peer that is away it asks for stream after stream.
#[tokio::test]
async fn streams_to_a_peer_that_is_away_are_refused_no_faster_than_it_is_dialed() {
    let (socket, address) = free_socket().await;
    drop(socket);
    let caller = Caller::new();
    let mut client = caller.client_to(&member(NODE, address)).await;
    tokio::time::pause();

    for _ in 0..3 {
        let asked = Instant::now();
        let requests = stream::iter([append_behind(1)]);
        let opened = client.stream_append(requests, RPCOption::new(Duration::from_millis(40)));
        let refused = opened.await.err().unwrap();
        assert!(matches!(refused, RPCError::Unreachable(_)), "{refused:?}");
        assert!(caller.peers.limits().retry_max <= asked.elapsed());
    }
}

#[tokio::test]
async fn a_stream_begins_as_soon_as_its_peer_is_there() {
    let (socket, address) = free_socket().await;
    drop(socket);
    let mut client = Caller::new().client_to(&member(NODE, address)).await;
    let option = || RPCOption::new(Duration::from_millis(40));
    let requests = || stream::iter([append_behind(1)]);
    assert!(client.stream_append(requests(), option()).await.is_err());

    let socket = TcpListener::bind(address).await.unwrap();
    let _node = Node::start_with(socket, Timing::default());

    let begins = async { while client.stream_append(requests(), option()).await.is_err() {} };
    within(begins).await;
}

#[tokio::test]
async fn an_append_with_a_gap_ends_the_connection_and_not_the_process() {
    let node = Node::start().await;
    let mut client = Caller::new().client_to(&node.member()).await;
    let mut request = append_behind(1);
    request.entries[0].log_id = log_id(1, 1, 3);

    let option = RPCOption::new(Duration::from_millis(40));
    let sent = within(client.append_entries(request, option.clone())).await;

    assert!(matches!(sent, Err(RPCError::Network(_))), "{sent:?}");
    assert!(node.service.shared.appended().is_empty());
    wait_until_async(async || {
        client
            .append_entries(append_behind(1), option.clone())
            .await
            .is_ok()
    })
    .await;
}

#[tokio::test]
async fn answers_that_come_in_another_order_are_results_in_the_requests_order() {
    let (socket, address) = free_socket().await;
    let mut client = Caller::new().client_to(&member(NODE, address)).await;
    // Raft answers in order; what a peer sends is not for its caller to trust.
    let peer = async {
        let mut peer = silent_peer(&socket, Purpose::Append).await;
        let mut ids = Vec::new();
        while ids.len() < 3 {
            let (id, _) = untag(peer.receive().await.unwrap()).unwrap();
            ids.extend(Some(id).filter(|id| *id != PING));
        }
        for (id, index) in ids.into_iter().zip([1, 2, 3]).rev() {
            let matching = Appended::Matching(Some(log_id(1, 1, index).into()));
            peer.send(tagged(id, &matching).unwrap()).await.unwrap();
        }
        peer
    };

    let (results, _peer) = tokio::join!(append(&mut client, 0..3, 3), within(peer));

    assert_eq!(results, matching(1..4));
}

#[tokio::test]
async fn a_new_stream_is_not_taken_once_its_leader_is_known_with_other_disks() {
    let node = Node::start().await;
    node.service.shared.roster.lock().unwrap().clear();
    let mut client = Caller::new().client_to(&node.member()).await;
    assert_eq!(append(&mut client, 0..1, 1).await, matching(1..2));

    let roster = || node.service.shared.roster.lock().unwrap();
    roster().insert(id(1), fixed(0xbad));
    let results = append(&mut client, 1..2, 1).await;

    assert!(
        matches!(results[..], [Err(RPCError::Network(_))]),
        "{results:?}"
    );
    assert_eq!(node.service.shared.appended(), [0], "I12: raft heard of it");
}
