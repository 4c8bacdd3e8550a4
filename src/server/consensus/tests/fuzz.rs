//! Whatever comes over the peer port, the node answers its peers afterwards, and Raft has heard of nothing.

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::server::consensus::handshake::{self, Purpose};
use crate::server::consensus::protocol::{Call, Reply};
use crate::server::host::{Reads, Writes};

/// Sends these bytes, waits until the node closes, and asks it how it is.
async fn survives(node: &Node, (mut reads, mut writes): (impl Reads, impl Writes), bytes: &[u8]) {
    // The node may close before it has read everything.
    writes.write_all(bytes).await.ok();
    writes.shutdown().await.ok();
    let mut answer = Vec::new();
    within(reads.read_to_end(&mut answer)).await.ok();
    is_well(node).await;
}

async fn is_well(node: &Node) {
    let caller = Caller::new();
    let member = node.member();
    let call = caller
        .peers
        .call(id(NODE), &member, Call::Status, deadline());
    let reply = within(call).await;
    assert!(matches!(reply, Ok(Reply::Status(_))), "{reply:?}");
    assert_eq!(node.service.shared.votes(), 0);
    assert!(node.service.shared.appended().is_empty());
    assert!(node.service.shared.installed.lock().unwrap().is_empty());
}

fn with_length(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [&length.to_be_bytes(), body].concat()
}

/// Bytes, a frame of bytes, or a frame that begins as a hello does.
fn first_bytes() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || vec(any::<u8>(), 0..200);
    prop_oneof![
        bytes(),
        bytes().prop_map(|body| with_length(&body)),
        bytes().prop_map(|body| with_length(&[b"highwatr\x01\0".as_slice(), &body].concat())),
        (any::<u32>(), bytes())
            .prop_map(|(length, body)| [&length.to_be_bytes()[..], &body].concat()),
    ]
}

/// Frames for a connection that was let in: with an id, and now and then with the number of a message.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let body = (any::<u64>(), 0..8_u32, vec(any::<u8>(), 0..200)).prop_map(|(id, tag, rest)| {
        let id = id.to_le_bytes();
        [&id[..], &tag.to_le_bytes(), &rest].concat()
    });
    let frame = prop_oneof![vec(any::<u8>(), 0..20), body];
    vec(frame.prop_map(|body| with_length(&body)), 1..5).prop_map(|frames| frames.concat())
}

fn run<S: Strategy>(cases: u32, inputs: S, test: impl AsyncFn(&Node, S::Value)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let node = runtime.block_on(Node::start());
    let mut runner = prop::test_runner::TestRunner::new(ProptestConfig::with_cases(cases));
    runner
        .run(&inputs, |input| {
            runtime.block_on(test(&node, input));
            Ok(())
        })
        .unwrap();
}

#[test]
fn no_first_bytes_hurt_a_node() {
    run(300, first_bytes(), async |node, bytes| {
        let stream = TcpStream::connect(node.address).await.unwrap();
        survives(node, stream.into_split(), &bytes).await;
    });
}

#[test]
fn no_frames_of_a_peer_hurt_a_node() {
    let purposes = prop::sample::select(vec![Purpose::Calls, Purpose::Append, Purpose::Snapshot]);
    run(300, (purposes, frames()), async |node, (purpose, bytes)| {
        let hello = Caller::new().peers.hello(id(NODE), &node.member(), purpose);
        let connection = handshake::dial(&node.address.into(), hello).await.unwrap();
        let socket = (
            connection.reader.into_inner(),
            connection.writer.into_inner(),
        );
        survives(node, socket, &bytes).await;
    });
}

#[tokio::test]
async fn a_frame_above_the_limit_ends_its_connection_only() {
    // Patient: nothing else ends a connection here before the test gives up.
    let (socket, _) = free_socket().await;
    let node = Node::start_with(socket, Timing::from_heartbeat_ms(10_000).unwrap());
    let too_long = 4097_u32.to_be_bytes();

    let mut stream = TcpStream::connect(node.address).await.unwrap();
    stream.write_all(&too_long).await.unwrap();
    assert_eq!(within(stream.read(&mut [0])).await.unwrap(), 0);
    is_well(&node).await;

    let hello = Caller::new()
        .peers
        .hello(id(NODE), &node.member(), Purpose::Calls);
    let mut connection = handshake::dial(&node.address.into(), hello).await.unwrap();
    let too_long = (2 * 1024 * 1024 + 1_u32).to_be_bytes();
    connection
        .writer
        .get_mut()
        .write_all(&too_long)
        .await
        .unwrap();
    let end = within(connection.receive()).await.unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof);
    is_well(&node).await;
}
