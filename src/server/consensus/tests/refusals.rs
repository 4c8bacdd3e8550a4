//! Who is let in, and who is told why not (I12).

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::server::consensus::handshake::{
    self, Answer, HandshakeError, Party, PeerHello, Purpose, Refusal,
};
use crate::server::consensus::listener::{CONNECTIONS_MAX, HANDSHAKES_MAX};
use crate::server::consensus::probe::{Probe, ProbeError, ProbeReply, probe};
use crate::server::consensus::protocol::{Call, Reply, VoteCall};

fn hello() -> PeerHello {
    PeerHello {
        purpose: Purpose::Calls,
        cluster: cluster_id(),
        from: Party {
            node: id(1),
            incarnation: incarnation(1),
        },
        to: Party {
            node: id(NODE),
            incarnation: incarnation(NODE),
        },
        beginning: Beginning::default(),
    }
}

async fn refusal(node: &Node, hello: PeerHello) -> Refusal {
    let dialed = within(handshake::dial(&node.address.into(), hello)).await;
    match dialed {
        Err(HandshakeError::Refused(refusal)) => refusal,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was let in"),
    }
}

fn a_vote() -> Call {
    Call::Vote(VoteCall::from(VoteRequest::new(vote(9, 1), None)))
}

#[tokio::test]
async fn who_is_of_another_cluster_is_refused() {
    let node = Node::start().await;

    let hello = PeerHello {
        cluster: fixed(0xc2),
        ..hello()
    };
    let refusal = refusal(&node, hello).await;

    assert_eq!(
        refusal,
        Refusal::OtherCluster {
            theirs: fixed(0xc1),
            yours: fixed(0xc2)
        }
    );
    assert_eq!(
        refusal.to_string(),
        "it belongs to cluster 000000000000000000000000000000c1, this node to \
         000000000000000000000000000000c2: check the peer addresses"
    );
}

#[tokio::test]
async fn who_asks_for_another_node_is_refused() {
    let node = Node::start().await;

    let mut hello = hello();
    hello.to.node = id(3);
    let refusal = refusal(&node, hello).await;

    let (theirs, asked) = (id(2), id(3));
    assert_eq!(refusal, Refusal::OtherNode { theirs, asked });
    assert_eq!(
        refusal.to_string(),
        "node 2 answers where node 3 was asked for: check the peer addresses"
    );
}

#[tokio::test]
async fn who_has_the_nodes_own_id_is_refused() {
    let node = Node::start().await;

    let mut hello = hello();
    hello.from.node = id(NODE);
    let refusal = refusal(&node, hello).await;

    assert_eq!(refusal, Refusal::SameNode { node: id(2) });
    assert_eq!(
        refusal.to_string(),
        "it is node 2 too: two nodes run with one id, or a peer address leads to the node itself"
    );
}

#[tokio::test]
async fn who_lost_its_data_is_refused() {
    let node = Node::start().await;

    let mut hello = hello();
    hello.from.incarnation = fixed(0xbad);
    let refusal = refusal(&node, hello).await;

    assert_eq!(
        refusal,
        Refusal::OtherIncarnation {
            node: id(1),
            known: fixed(0xa1),
            given: fixed(0xbad)
        }
    );
    assert_eq!(
        refusal.to_string(),
        "node 1 is known with the data directory 000000000000000000000000000000a1, not \
         00000000000000000000000000000bad: a node that lost its data cannot come back under its id"
    );
}

#[tokio::test]
async fn who_takes_the_node_for_one_that_lost_its_data_is_refused() {
    let node = Node::start().await;

    let mut hello = hello();
    hello.to.incarnation = fixed(0xbad);
    let refusal = refusal(&node, hello).await;

    assert_eq!(
        refusal,
        Refusal::OtherIncarnation {
            node: id(2),
            known: fixed(0xa2),
            given: fixed(0xbad)
        }
    );
}

#[tokio::test]
async fn who_speaks_another_version_is_told_both() {
    let node = Node::start().await;
    let mut stream = TcpStream::connect(node.address).await.unwrap();
    // What a later version says behind its version is not known here.
    let from_the_future = b"\0\0\0\x0ehighwatr\x07\0abcd";

    stream.write_all(from_the_future).await.unwrap();
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.unwrap();

    assert_eq!(answer[4..14], *b"highwatr\x06\0");
    let told = crate::server::codec::decode::<Answer, 64>(&answer[14..]).unwrap();
    let refusal = Refusal::OtherVersion {
        theirs: 6,
        yours: 7,
    };
    assert_eq!(told, Answer::Refused(refusal));
    assert_eq!(
        refusal.to_string(),
        "it speaks peer protocol 6, this node 7: run the same version of highwater on both"
    );
}

#[tokio::test]
async fn a_peer_of_another_version_is_not_understood() {
    let (socket, address) = free_socket().await;
    let answer = async {
        let (mut stream, _) = socket.accept().await.unwrap();
        stream
            .write_all(b"\0\0\0\x0ehighwatr\x07\0abcd")
            .await
            .unwrap();
        stream
    };

    let address = address.into();
    let (dialed, _stream) = tokio::join!(within(handshake::dial(&address, hello())), answer);

    let Err(HandshakeError::Refused(refusal)) = dialed else {
        panic!("it was understood");
    };
    assert_eq!(
        refusal,
        Refusal::OtherVersion {
            theirs: 7,
            yours: 6
        }
    );
}

#[tokio::test]
async fn a_peer_that_is_no_node_is_named_so() {
    let (socket, address) = free_socket().await;
    let answer = async {
        let (mut stream, _) = socket.accept().await.unwrap();
        stream.write_all(b"\0\0\0\x08HTTP/1.1").await.unwrap();
        stream
    };

    let address = address.into();
    let (dialed, _stream) = tokio::join!(within(handshake::dial(&address, hello())), answer);

    assert_eq!(
        dialed.unwrap_err().to_string(),
        "the other end is not a highwater node"
    );
}

#[tokio::test]
async fn a_node_without_a_cluster_or_without_raft_says_so() {
    let node = Node::start().await;

    node.running.send(None).unwrap();
    let starting = refusal(&node, hello()).await;
    node.identity
        .send_modify(|identity| identity.formation = None);
    let not_formed = refusal(&node, hello()).await;

    assert_eq!(starting, Refusal::Starting);
    assert_eq!(starting.to_string(), "it is starting");
    assert_eq!(not_formed, Refusal::NotFormed);
    assert_eq!(not_formed.to_string(), "it is not part of a cluster yet");
}

#[tokio::test]
async fn an_id_that_the_log_does_not_name_yet_is_let_in() {
    let node = Node::start().await;

    let mut hello = hello();
    hello.from = Party {
        node: id(9),
        incarnation: fixed(0x99),
    };

    within(handshake::dial(&node.address.into(), hello))
        .await
        .unwrap();
}

#[tokio::test]
async fn the_refused_node_learns_the_reason_from_its_call() {
    let node = Node::start().await;
    let tasks = Tasks::default();
    let wiped = LocalNode {
        incarnation: fixed(0xbad),
        ..local(1)
    };
    let peers = Peers::new(wiped, Timing::default(), tasks);

    let member = node.member();
    let call = peers.call(id(NODE), &member, a_vote(), deadline());
    let error = within(call).await.unwrap_err().to_string();

    assert!(error.starts_with("node 2 was not called: no connection: node 1 is known with"));
    assert_eq!(node.service.shared.votes(), 0, "I12: raft heard of it");
}

#[tokio::test]
async fn a_vote_does_not_reach_raft_once_its_id_is_known_with_other_disks() {
    let node = Node::start().await;
    node.service.shared.roster.lock().unwrap().clear();
    let caller = Caller::new();
    let member = node.member();
    let call = || caller.peers.call(id(NODE), &member, a_vote(), deadline());
    assert!(matches!(within(call()).await, Ok(Reply::Vote(_))));

    let roster = || node.service.shared.roster.lock().unwrap();
    roster().insert(id(1), fixed(0xbad));
    let reply = within(call()).await.unwrap();

    let reason = "node 1 is another data directory now".to_owned();
    assert_eq!(reply, Reply::Failed { reason });
    assert_eq!(node.service.shared.votes(), 1, "I12: raft heard of it");
}

/// A node that waits for minutes before it gives up on anyone.
async fn patient_node() -> Node {
    let (socket, _) = free_socket().await;
    Node::start_with(socket, Timing::from_heartbeat_ms(10_000).unwrap())
}

#[tokio::test]
async fn those_who_say_nothing_do_not_keep_peers_out() {
    let node = patient_node().await;
    let mut idle = Vec::new();
    for _ in 0..5 * HANDSHAKES_MAX {
        idle.push(TcpStream::connect(node.address).await.unwrap());
    }

    let dialed = within(handshake::dial(&node.address.into(), hello())).await;

    dialed.unwrap();
    // The oldest lost their places, the newest wait for their time-out.
    within(idle[0].read_to_end(&mut Vec::new())).await.unwrap();
    let newest = idle.last_mut().unwrap();
    assert!(newest.try_read(&mut [0]).is_err(), "it was closed as well");
}

#[tokio::test]
async fn peers_have_a_bounded_number_of_connections_and_a_further_one_is_refused() {
    let node = patient_node().await;
    let address = Address::from(node.address);
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        connections.push(handshake::dial(&address, hello()).await.unwrap());
    }

    let error = handshake::dial(&address, hello()).await.unwrap_err();

    assert!(matches!(
        error,
        HandshakeError::Refused(Refusal::TooManyConnections)
    ));
    assert_eq!(
        error.to_string(),
        "it has 128 peer connections already: look for what keeps them open"
    );
    connections.pop();
    wait_until_async(async || handshake::dial(&address, hello()).await.is_ok()).await;
}

/// Takes what is logged in this thread, at warn and above.
#[cfg(feature = "cli")]
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

#[cfg(feature = "cli")]
impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(feature = "cli")]
#[tokio::test]
async fn a_refusal_is_logged_when_it_changes_and_not_at_each_attempt() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let node = Node::start().await;
    let roster = || node.service.shared.roster.lock().unwrap();
    let logged = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let attempts = async |count: usize| {
        let asked = || node.service.shared.roster_asked.load(Ordering::Relaxed);
        let before = asked();
        wait_until(|| before + count <= asked()).await;
    };

    roster().insert(id(1), fixed(0xb1));
    let caller = Caller::new();
    caller.peers.link(id(NODE), &node.member());
    attempts(4).await;
    assert_eq!(
        logged().matches("peer unreachable").count(),
        1,
        "{}",
        logged()
    );
    assert!(logged().contains("WARN"), "{}", logged());
    assert!(logged().contains("b1, not 000000000000000000000000000000a1"));

    roster().insert(id(1), fixed(0xb2));
    attempts(4).await;
    assert_eq!(
        logged().matches("peer unreachable").count(),
        2,
        "{}",
        logged()
    );
}

#[tokio::test]
async fn a_half_open_connection_is_closed_in_time() {
    let node = Node::start().await;
    let mut stream = TcpStream::connect(node.address).await.unwrap();
    stream.write_all(b"\0\0\0\x0ehighw").await.unwrap();

    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.unwrap();

    assert!(answer.is_empty());
}

#[tokio::test]
async fn a_connection_that_was_let_in_and_falls_silent_is_closed() {
    let node = Node::start().await;
    for purpose in [Purpose::Calls, Purpose::Append] {
        let hello = PeerHello { purpose, ..hello() };
        let dialed = handshake::dial(&node.address.into(), hello).await;

        let end = within(dialed.unwrap().receive()).await.unwrap_err();

        assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}

#[tokio::test]
async fn a_probe_is_answered_before_raft_runs() {
    let node = Node::start().await;
    node.running.send(None).unwrap();
    node.identity
        .send_modify(|identity| identity.formation = None);
    let question = Probe {
        from: id(1),
        to: id(2),
        incarnation: incarnation(1),
        file: FILE,
    };

    let reply = probe(&node.address.into(), question, AT_MOST)
        .await
        .unwrap();

    let mut expected = ProbeReply {
        node: id(2),
        incarnation: incarnation(2),
        file: FILE,
        record: None,
    };
    assert_eq!(reply, expected);

    node.identity.send(identity(2)).unwrap();
    let reply = probe(&node.address.into(), question, AT_MOST)
        .await
        .unwrap();
    expected.record = identity(2).formation;
    assert_eq!(reply, expected);
}

#[tokio::test]
async fn a_probe_to_the_wrong_node_is_refused() {
    let node = Node::start().await;
    let peer = Address::from(node.address);
    let question = |from, to| Probe {
        from: id(from),
        to: id(to),
        incarnation: incarnation(1),
        file: FILE,
    };

    let other = probe(&peer, question(1, 3), AT_MOST).await.unwrap_err();
    let same = probe(&peer, question(2, 2), AT_MOST).await.unwrap_err();

    assert_eq!(
        other.to_string(),
        format!("{peer}: node 2 answers where node 3 was asked for: check the peer addresses")
    );
    assert!(matches!(same, ProbeError::Refused { .. }));
    assert!(same.to_string().contains("it is node 2 too"));
}

#[tokio::test(start_paused = true)]
async fn a_probe_ends_by_its_deadline() {
    let (_socket, address) = free_socket().await;
    let question = Probe {
        from: id(1),
        to: id(2),
        incarnation: incarnation(1),
        file: FILE,
    };

    let within = Duration::from_millis(30);
    let begun = Instant::now();
    let error = probe(&address.into(), question, within).await.unwrap_err();

    assert_eq!(begun.elapsed(), within);
    assert_eq!(
        error.to_string(),
        format!("no answer from {address} within 30ms")
    );
}
