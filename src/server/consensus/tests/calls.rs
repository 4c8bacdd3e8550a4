//! Calls and the pool of connections.

use bytes::Bytes;
use futures::FutureExt;
use openraft::network::{RPCOption, RaftNetworkV2};
use openraft::raft::TransferLeaderError;

use super::*;
use crate::server::consensus::frame::{
    FRAME_BYTES_MAX, IN_FLIGHT_MAX, Limits, ping, tagged, untag,
};
use crate::server::consensus::handshake::{self, Purpose};
use crate::server::consensus::peers::CallError;
use crate::server::consensus::protocol::{Call, ForwardReply, Reply, TransferLeaderReply};

const READ: Call = Call::ReadIndex { left_ms: 60_000 };

fn status_reply() -> Reply {
    Reply::Status(NodeStatus {
        version: "1.2.3".to_owned(),
        applied: Some(log_id(1, 2, 3).into()),
        last_log_index: None,
        state_hash: StateHash::default(),
        checkpoints: Vec::new(),
        disk: DiskState::Fit,
        log: LogStatus::default(),
        level_max: FeatureLevel::FIRST,
    })
}

impl Caller {
    async fn call(&self, node: &Node, call: Call) -> Result<Reply, CallError> {
        within(self.peers.call(id(NODE), &node.member(), call, deadline())).await
    }
}

#[tokio::test]
async fn calls_of_one_connection_are_answered_as_they_are_done() {
    let node = Node::start().await;
    let caller = Caller::new();
    let mut slow = Box::pin(caller.call(&node, READ));

    tokio::select! {
        biased;
        _ = &mut slow => panic!("nobody has proved anything yet"),
        reply = caller.call(&node, Call::Status) => assert_eq!(reply, Ok(status_reply())),
    }

    node.service.shared.read_permits.add_permits(1);
    let read = log_id(1, 2, 3).into();
    assert_eq!(
        slow.await,
        Ok(Reply::ReadIndex(ReadIndexReply::Leads { read }))
    );
}

#[tokio::test]
async fn a_proof_that_takes_too_long_is_no_proof() {
    let node = Node::start().await;
    let caller = Caller::new();

    let reply = caller.call(&node, Call::ReadIndex { left_ms: 1 }).await;

    assert_eq!(reply, Ok(Reply::ReadIndex(ReadIndexReply::Unproved)));
}

#[tokio::test]
async fn a_forwarded_batch_reaches_the_dispatcher_byte_for_byte() {
    let mut node = Node::start().await;
    let caller = Caller::new();
    let batch = Bytes::from_static(b"frozen");
    let call = Call::Forward {
        batch: batch.clone(),
        left_ms: 10_000,
    };

    let earliest = Instant::now() + Duration::from_secs(10);
    let dispatch = async {
        let forwarded = node.forwarded.recv().await.unwrap();
        assert_eq!(forwarded.batch, batch);
        assert!(earliest <= forwarded.deadline);
        let leader = Some(id(3));
        forwarded
            .reply
            .send(ForwardReply::NotLeader { leader })
            .unwrap();
    };
    let peer = member(NODE, node.address);
    let call = caller.peers.call(id(NODE), &peer, call, deadline());
    let (reply, ()) = tokio::join!(call, within(dispatch));

    let leader = Some(id(3));
    assert_eq!(
        reply,
        Ok(Reply::Forward(ForwardReply::NotLeader { leader }))
    );
}

#[tokio::test]
async fn a_full_dispatcher_is_overloaded_and_a_dropped_reply_unknown() {
    let mut node = Node::start().await;
    let member = node.member();
    let caller = Caller::new();
    let forward = || {
        let call = Call::Forward {
            batch: Bytes::from_static(b"frozen"),
            left_ms: 60_000,
        };
        caller.peers.call(id(NODE), &member, call, deadline())
    };
    let mut first = Box::pin(forward());
    let mut second = Box::pin(forward());
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none());

    let third = tokio::select! {
        _ = &mut first => panic!("nobody has answered"),
        _ = &mut second => panic!("nobody has answered"),
        reply = async {
            wait_until(|| node.service.shared.forwards.capacity() == 0).await;
            forward().await
        } => reply,
    };
    assert_eq!(third, Ok(Reply::Forward(ForwardReply::Overloaded)));

    drop(node.forwarded.try_recv().unwrap());
    drop(node.forwarded.try_recv().unwrap());
    let unknown = Ok(Reply::Forward(ForwardReply::Unknown));
    assert_eq!((first.await, second.await), (unknown.clone(), unknown));
}

#[tokio::test]
async fn a_caller_that_is_gone_is_not_answered_any_more() {
    let mut node = Node::start().await;
    let caller = Caller::new();
    let member = node.member();
    let call = Call::Forward {
        batch: Bytes::from_static(b"frozen"),
        left_ms: 60_000,
    };
    let call = caller.peers.call(id(NODE), &member, call, deadline());
    let mut forwarded = tokio::select! {
        reply = call => panic!("{reply:?}"),
        forwarded = node.forwarded.recv() => forwarded.unwrap(),
    };

    caller.tasks.stop().await;

    // The connection's place is free for others long before the deadline.
    within(forwarded.reply.closed()).await;
}

#[tokio::test]
async fn a_vote_keeps_all_its_fields() {
    let node = Node::start().await;
    let caller = Caller::new();
    let mut client = caller.client_to(&node.member()).await;
    let request = VoteRequest {
        vote: vote(4, 1),
        last_log_id: Some(log_id(3, 2, 8)),
        leadership_transfer: true,
    };

    let option = RPCOption::new(AT_MOST);
    let response = client.vote(request.clone(), option.clone()).await.unwrap();
    let pre_vote = client.pre_vote(request.clone(), option).await.unwrap();

    assert_eq!(*node.service.shared.votes.lock().unwrap(), [request]);
    assert_eq!(
        response,
        VoteResponse::new(vote(4, 1), Some(log_id(1, 3, 9)), true)
    );
    // A peer that does not grant is not one that was not asked.
    assert_eq!(pre_vote, VoteResponse::new(vote(4, 1), None, false));
}

#[tokio::test]
async fn a_refused_transfer_keeps_its_reason() {
    let refusals = [
        Ok(()),
        Err(TransferLeaderError::VoteChanged {
            expected: vote(1, 1),
            actual: vote(2, 3),
        }),
        Err(TransferLeaderError::LogNotFlushed {
            expected: Some(log_id(1, 1, 8)),
            actual: None,
        }),
    ];

    for response in refusals {
        let reply = TransferLeaderReply::from(response.clone());
        assert_eq!(TransferLeaderResponse::from(reply), response);
    }
}

#[tokio::test]
async fn a_dead_peer_is_not_called_and_that_is_known_at_once() {
    let (socket, address) = free_socket().await;
    drop(socket);
    let caller = Caller::new();
    let member = member(NODE, address);

    let call = caller
        .peers
        .call(id(NODE), &member, Call::Status, deadline());
    let error = within(call).await.unwrap_err();

    let CallError::NotSent { to, reason } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*to, id(NODE));
    assert!(reason.contains("refused"), "{reason}");
    assert!(
        error
            .to_string()
            .starts_with("node 2 was not called: no connection: ")
    );
    // Known to be dead, it is not even waited for.
    let again = caller
        .peers
        .call(id(NODE), &member, Call::Status, deadline());
    assert_eq!(again.now_or_never(), Some(Err(error)));
}

#[tokio::test]
async fn a_call_that_a_peer_never_answers_is_lost_by_its_deadline() {
    let (socket, address) = free_socket().await;
    let caller = Caller::new();
    let member = member(NODE, address);
    caller.peers.link(id(NODE), &member);
    let _open = silent_peer(&socket, Purpose::Calls).await;

    let soon = Instant::now() + Duration::from_millis(50);
    let call = caller.peers.call(id(NODE), &member, Call::Status, soon);
    let error = within(call).await.unwrap_err();

    assert_eq!(
        error,
        CallError::Lost {
            to: id(NODE),
            reason: "the deadline passed".to_owned()
        }
    );
    assert_eq!(
        error.to_string(),
        "node 2 was called and did not reply: the deadline passed"
    );
}

#[tokio::test]
async fn a_call_to_a_peer_that_does_not_shake_hands_was_not_sent() {
    let (_socket, address) = free_socket().await;
    let caller = Caller::new();
    let member = member(NODE, address);

    let soon = Instant::now() + Duration::from_millis(50);
    let call = caller.peers.call(id(NODE), &member, Call::Status, soon);
    let error = within(call).await.unwrap_err();

    assert!(matches!(error, CallError::NotSent { .. }), "{error:?}");
}

#[tokio::test]
async fn calls_in_flight_are_lost_with_their_connection() {
    let node = Node::start().await;
    let caller = Caller::new();
    let mut call = Box::pin(caller.call(&node, READ));
    tokio::select! {
        biased;
        _ = &mut call => panic!("nobody has proved anything"),
        reply = caller.call(&node, Call::Status) => assert_eq!(reply, Ok(status_reply())),
    }

    node.tasks.stop().await;

    let error = call.await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "node 2 was called and did not reply: the connection was lost before the answer"
    );
}

#[tokio::test]
async fn a_peer_that_restarts_is_called_again_by_itself() {
    let first = Node::start().await;
    let caller = Caller::new();
    let member = first.member();
    assert_eq!(caller.call(&first, Call::Status).await, Ok(status_reply()));

    first.tasks.stop().await;
    let call = || {
        caller
            .peers
            .call(id(NODE), &member, Call::Status, deadline())
    };
    wait_until_async(async || call().await.is_err()).await;
    let _second = Node::start_on(TcpListener::bind(first.address).await.unwrap());

    wait_until_async(async || call().await == Ok(status_reply())).await;
}

#[tokio::test]
async fn a_silent_connection_is_given_up_and_made_again() {
    let (socket, address) = free_socket().await;
    let limits = Limits {
        ping: Duration::from_millis(5),
        silence: Duration::from_millis(30),
        ..Timing::default().into()
    };
    let caller = Caller::new();
    let link = caller.link_to(address, limits);

    let mut first = silent_peer(&socket, Purpose::Calls).await;
    let call = link
        .channel()
        .await
        .unwrap()
        .send(&Call::Status)
        .await
        .unwrap();

    let _second = silent_peer(&socket, Purpose::Calls).await;
    let error = within(call.receive::<Reply>()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the connection was lost before the answer"
    );
    // It asked before it gave up.
    assert_eq!(first.receive().await.unwrap()[0], 1);
    assert_eq!(first.receive().await.unwrap(), [0; 8].as_slice());
}

#[tokio::test]
async fn a_connection_with_signs_of_life_is_kept_however_late_its_answers() {
    let (socket, address) = free_socket().await;
    let limits = Limits {
        ping: Duration::from_millis(2),
        silence: Duration::from_millis(100),
        ..Timing::default().into()
    };
    let caller = Caller::new();
    let link = caller.link_to(address, limits);
    let mut peer = silent_peer(&socket, Purpose::Calls).await;
    let channel = within(link.channel()).await.unwrap();
    let call = channel.send(&Call::Status).await.unwrap();

    let asked = within(peer.receive()).await.unwrap();
    // One sign of life more than the silence allows to be without.
    for _ in 0..=limits.silence.as_millis() / limits.ping.as_millis() {
        assert_eq!(within(peer.receive()).await.unwrap(), ping());
        peer.send(ping()).await.unwrap();
    }
    let (call_id, _) = untag(asked).unwrap();
    peer.send(tagged(call_id, &status_reply()).unwrap())
        .await
        .unwrap();

    assert_eq!(
        within(call.receive::<Reply>()).await.unwrap(),
        status_reply()
    );
}

#[tokio::test]
async fn a_sign_of_life_is_answered_while_calls_wait() {
    let node = Node::start().await;
    let caller = Caller::new();
    for purpose in [Purpose::Calls, Purpose::Append] {
        let hello = caller.peers.hello(id(NODE), &node.member(), purpose);
        let dialed = handshake::dial(&node.address.into(), hello).await;
        let mut connection = dialed.unwrap();
        if purpose == Purpose::Calls {
            connection.send(tagged(1, &READ).unwrap()).await.unwrap();
        }

        connection.send(ping()).await.unwrap();

        assert_eq!(within(connection.receive()).await.unwrap(), ping());
    }
}

#[tokio::test]
async fn a_caller_that_stops_waiting_leaves_nothing_behind() {
    let node = Node::start().await;
    let caller = Caller::new();
    let link = caller.peers.link(id(NODE), &node.member());
    let channel = within(link.channel()).await.unwrap();

    for _ in 0..IN_FLIGHT_MAX + 1 {
        drop(channel.send(&READ).await.unwrap());
    }
    node.service
        .shared
        .read_permits
        .add_permits(IN_FLIGHT_MAX + 1);

    // Late answers find nobody, and the next call gets its own.
    assert_eq!(caller.call(&node, Call::Status).await, Ok(status_reply()));
}

#[tokio::test]
async fn calls_in_flight_are_bounded() {
    let node = Node::start().await;
    let caller = Caller::new();
    let link = caller.peers.link(id(NODE), &node.member());
    let channel = within(link.channel()).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..IN_FLIGHT_MAX {
        waiting.push(channel.send(&READ).await.unwrap());
    }

    let error = caller.call(&node, Call::Status).await.unwrap_err();

    assert_eq!(
        error.to_string(),
        "node 2 was not called: 256 messages wait for this peer's answers already"
    );
    waiting.pop();
    assert_eq!(caller.call(&node, Call::Status).await, Ok(status_reply()));
}

#[tokio::test]
async fn a_call_above_the_frame_limit_is_not_sent() {
    let node = Node::start().await;
    let caller = Caller::new();
    let batch = Bytes::from(vec![0; FRAME_BYTES_MAX]);

    let call = Call::Forward { batch, left_ms: 9 };
    let error = caller.call(&node, call).await.unwrap_err();

    assert!(matches!(error, CallError::NotSent { .. }));
    assert!(error.to_string().contains("more than the 2097152 allowed"));
}

#[tokio::test]
async fn members_are_kept_connected_and_others_let_go() {
    let node = Node::start().await;
    let caller = Caller::new();
    let members = BTreeMap::from([(id(NODE), node.member()), (id(1), Member::default())]);

    caller.peers.keep(&members);
    let link = caller.peers.link(id(NODE), &node.member());
    within(link.channel()).await.unwrap();
    drop(link);
    caller.peers.keep(&BTreeMap::new());

    let renewed = caller.peers.link(id(NODE), &node.member());
    // A link that starts again is not known to be up.
    assert!(renewed.channel().now_or_never().is_none());
}

#[tokio::test]
async fn a_member_with_another_address_gets_another_connection() {
    let node = Node::start().await;
    let caller = Caller::new();
    let (socket, elsewhere) = free_socket().await;
    drop(socket);

    let moved = member(NODE, elsewhere);
    let call = caller
        .peers
        .call(id(NODE), &moved, Call::Status, deadline());
    assert!(within(call).await.is_err());

    assert_eq!(caller.call(&node, Call::Status).await, Ok(status_reply()));
}

#[tokio::test]
async fn who_waits_for_a_connection_that_nobody_opens_any_more_does_not_spin() {
    let (_socket, address) = free_socket().await;
    let caller = Caller::new();
    let link = caller.link_to(address, Timing::default().into());
    caller.tasks.stop().await;
    let within = Duration::from_millis(50);

    let begun = Instant::now();
    link.channel_within(within).await.unwrap_err();

    assert!(within <= begun.elapsed());
}
