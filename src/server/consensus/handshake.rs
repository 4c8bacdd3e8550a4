//! The first frame each way on a peer connection: who calls whom, for what, or why not (I12).
//!
//! The frame begins with a mark and the protocol version, which are read before anything is decoded. Only the
//! frame's layout up to there is the same in every version.

use std::io;
use std::net::SocketAddr;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::frame::Connection;
use super::listener::CONNECTIONS_MAX;
use super::probe::{Probe, ProbeReply};
use super::promises::{Beginning, Promise};
use super::protocol::PROTOCOL_VERSION;
use crate::server::codec::{self, DecodeError};
use crate::server::host::Socket;
use crate::server::store::Identity;
use crate::server::types::{Address, ClusterId, Incarnation, NodeId};

/// The most bytes of the first frame to a listener: nobody is known yet, so nobody gets more memory.
pub(super) const HELLO_BYTES_MAX: usize = 4 * 1024;
/// The most bytes of its answer, which may hold a formation record.
pub(super) const ANSWER_BYTES_MAX: usize = 64 * 1024;

const MARK: [u8; 8] = *b"highwatr";

/// A node and its disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Party {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Purpose {
    /// Calls and their replies, in any order.
    Calls,
    /// The leader's appends, in order.
    Append,
    /// One snapshot.
    Snapshot,
}

/// What a node of the cluster says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PeerHello {
    pub(super) purpose: Purpose,
    pub(super) cluster: ClusterId,
    pub(super) from: Party,
    pub(super) to: Party,
    /// With what the caller's process began.
    pub(super) beginning: Beginning,
}

/// The first frame to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Hello {
    /// From a node of the same cluster.
    Peer(PeerHello),
    /// From a node that has none yet.
    Probe(Probe),
}

/// The listener's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Go on. With what the listener's process began.
    Welcome(Beginning),
    /// The connection ends here.
    Refused(Refusal),
    /// To a probe; the connection ends here.
    Probed(ProbeReply),
}

/// Why a node does not talk to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refusal {
    /// The programs are of different versions.
    #[error(
        "it speaks peer protocol {theirs}, this node {yours}: run the same version of highwater on both"
    )]
    OtherVersion {
        /// The refusing node's.
        theirs: u16,
        /// The refused node's.
        yours: u16,
    },
    /// It has not adopted a formation record yet.
    #[error("it is not part of a cluster yet")]
    NotFormed,
    /// It has, but Raft does not run yet.
    #[error("it is starting")]
    Starting,
    /// The two belong to different clusters.
    #[error("it belongs to cluster {theirs}, this node to {yours}: check the peer addresses")]
    OtherCluster {
        /// The refusing node's.
        theirs: ClusterId,
        /// The refused node's.
        yours: ClusterId,
    },
    /// Another node listens there.
    #[error("node {theirs} answers where node {asked} was asked for: check the peer addresses")]
    OtherNode {
        /// The refusing node.
        theirs: NodeId,
        /// The node asked for.
        asked: NodeId,
    },
    /// The caller has the listener's own id.
    #[error(
        "it is node {node} too: two nodes run with one id, or a peer address leads to the node itself"
    )]
    SameNode {
        /// The id of both.
        node: NodeId,
    },
    /// A node's data directory is not the one its cluster knows: its votes are lost.
    #[error(
        "node {node} is known with the data directory {known}, not {given}: a node that lost its data cannot \
         come back under its id"
    )]
    OtherIncarnation {
        /// Whose.
        node: NodeId,
        /// The incarnation that the refusing node knows.
        known: Incarnation,
        /// The incarnation that the refused node sent.
        given: Incarnation,
    },
    /// It serves as many connections as it can.
    #[error("it has {CONNECTIONS_MAX} peer connections already: look for what keeps them open")]
    TooManyConnections,
    /// A node's data directory has promised more than it holds: it is an older copy, or there are two.
    #[error(
        "node {node} was given an older copy of its data directory: it has promised {promised}"
    )]
    RolledBack {
        /// Whose.
        node: NodeId,
        /// What the refusing node was told.
        promised: Promise,
    },
    /// It was a member once.
    #[error("node {node} was removed from the cluster, and its id is never used again")]
    Removed {
        /// Which.
        node: NodeId,
    },
    /// Another process of this node is connected.
    #[error(
        "node {node} runs already, at {running}: the process at {given} has the same data directory or a copy of it"
    )]
    Twice {
        /// Whose.
        node: NodeId,
        /// Where the process is that the refusing node is connected to.
        running: SocketAddr,
        /// Where the refused one is.
        given: SocketAddr,
    },
}

impl Refusal {
    /// The same as the node says it that is on the other side.
    pub(super) fn reversed(self) -> Self {
        match self {
            Self::OtherVersion { theirs, yours } => Self::OtherVersion {
                theirs: yours,
                yours: theirs,
            },
            Self::OtherCluster { theirs, yours } => Self::OtherCluster {
                theirs: yours,
                yours: theirs,
            },
            same => same,
        }
    }
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    /// Nothing came.
    #[error("no answer in time")]
    TimedOut,
    /// The connection broke.
    #[error(transparent)]
    Connection(#[from] io::Error),
    /// What came is not from a node.
    #[error("the other end is not a highwater node")]
    Foreign,
    /// What came is from a node, and damaged.
    #[error("the handshake is damaged")]
    Layout(#[from] DecodeError),
    /// The node does not want to.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The node answered something else.
    #[error("the answer is to another question")]
    Unexpected,
}

/// Connects to a node as its peer.
pub(super) async fn dial(
    address: &Address,
    hello: PeerHello,
) -> Result<Connection, HandshakeError> {
    Ok(meet(address, hello).await?.0)
}

/// Connects to a node as its peer, which tells with what its process began.
pub(super) async fn meet(
    address: &Address,
    hello: PeerHello,
) -> Result<(Connection, Beginning), HandshakeError> {
    let (connection, answer) = ask(address, &Hello::Peer(hello)).await?;
    match answer {
        Answer::Welcome(beginning) => Ok((connection.admit(), beginning)),
        Answer::Refused(refusal) => Err(refusal.into()),
        Answer::Probed(_) => Err(HandshakeError::Unexpected),
    }
}

/// Connects, says the first frame, and reads its answer.
pub(super) async fn ask(
    address: &Address,
    hello: &Hello,
) -> Result<(Connection, Answer), HandshakeError> {
    let socket = Socket::connect(address).await?;
    let mut connection = Connection::new(socket, ANSWER_BYTES_MAX);
    connection.send(with_preamble(hello)).await?;
    let answer = connection.receive().await?;
    let body = without_preamble(answer)?;
    let answer = codec::decode::<Answer, ANSWER_BYTES_MAX>(&body)?;
    Ok((connection, answer))
}

/// Reads the first frame of whoever connected. Of another version there is nothing but the version.
pub(super) async fn receive(connection: &mut Connection) -> Result<Hello, HandshakeError> {
    let body = without_preamble(connection.receive().await?)?;
    Ok(codec::decode::<Hello, HELLO_BYTES_MAX>(&body)?)
}

/// Answers the first frame.
pub(super) async fn answer(connection: &mut Connection, answer: &Answer) -> io::Result<()> {
    connection.send(with_preamble(answer)).await
}

/// Whether a node with this identity lets the caller in. `known` tells the incarnation that the membership has
/// for an id; an id that it does not name may be newer than this node's log.
pub(super) fn check(
    hello: &PeerHello,
    mine: &Identity,
    known: impl Fn(NodeId) -> Option<Incarnation>,
) -> Result<(), Refusal> {
    let Some(formation) = &mine.formation else {
        return Err(Refusal::NotFormed);
    };
    if hello.cluster != formation.cluster {
        return Err(Refusal::OtherCluster {
            theirs: formation.cluster,
            yours: hello.cluster,
        });
    }
    if hello.to.node != formation.node {
        return Err(Refusal::OtherNode {
            theirs: formation.node,
            asked: hello.to.node,
        });
    }
    if hello.from.node == formation.node {
        return Err(Refusal::SameNode {
            node: formation.node,
        });
    }
    let same = |party: Party, known: Incarnation| {
        if party.incarnation == known {
            return Ok(());
        }
        Err(Refusal::OtherIncarnation {
            node: party.node,
            known,
            given: party.incarnation,
        })
    };
    same(hello.to, mine.incarnation)?;
    known(hello.from.node).map_or(Ok(()), |known| same(hello.from, known))
}

fn with_preamble<T: Serialize>(message: &T) -> Bytes {
    let body = codec::encode(message);
    let mut frame = BytesMut::with_capacity(MARK.len() + 2 + body.len());
    frame.put_slice(&MARK);
    frame.put_u16_le(PROTOCOL_VERSION);
    frame.put_slice(&body);
    frame.freeze()
}

fn without_preamble(mut frame: Bytes) -> Result<Bytes, HandshakeError> {
    if !frame.starts_with(&MARK) {
        return Err(HandshakeError::Foreign);
    }
    frame.advance(MARK.len());
    let version = frame
        .try_get_u16_le()
        .map_err(|_short| HandshakeError::Foreign)?;
    if version != PROTOCOL_VERSION {
        return Err(HandshakeError::Refused(Refusal::OtherVersion {
            theirs: version,
            yours: PROTOCOL_VERSION,
        }));
    }
    Ok(frame)
}
