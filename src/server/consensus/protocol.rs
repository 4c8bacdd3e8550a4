//! What peers say to each other after the handshake.
//!
//! The layouts are ours: openraft's change between its versions, and the codec is positional. A change of order
//! or type here is a new protocol version. Appends have their own file; they are a stream, not calls.

use bytes::Bytes;
use openraft::raft::{
    TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};

use super::cached::{CachedLease, CachedReply};
use super::level::LevelReply;
use super::member_change::MemberChange;
use super::membership::MemberReply;
use super::status::ClusterView;
use super::transfer::HandOverReply;
use crate::sequence::{Answered, FeatureLevel, StateHash};
use crate::server::formats::{LogIdFormat, VoteFormat};
use crate::server::store::DiskState;
use crate::server::types::{Member, NodeId, TypeConfig};

/// The version of everything on the peer port. Nodes of different versions refuse each other.
pub(crate) const PROTOCOL_VERSION: u16 = 6;

/// A question to a peer that has one answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Raft's RequestVote.
    Vote(VoteCall),
    /// Would you vote for me? Changes nothing at the peer.
    PreVote(VoteCall),
    /// The leader hands its leadership over.
    TransferLeader(TransferLeaderCall),
    /// A batch for the leader, frozen byte for byte by its origin.
    Forward {
        /// One encoded batch.
        batch: Bytes,
        /// Milliseconds that its requests still wait: what is past them is dropped before it is proposed.
        left_ms: u32,
    },
    /// Asks the leader to prove its leadership and say how far a read must wait.
    ReadIndex {
        /// Milliseconds that the reader still waits.
        left_ms: u32,
    },
    /// How far are you?
    Status,
    /// How far is everyone? For the leader, which alone knows.
    Cluster {
        /// Milliseconds that the asker still waits.
        left_ms: u32,
    },
    /// Hand your leadership over. For the leader.
    HandOver {
        /// To whom; to whoever is fit, where nobody is named.
        to: Option<NodeId>,
    },
    /// Change who the members are. For the leader.
    ChangeMember {
        /// How.
        change: MemberChange,
        /// Milliseconds that the asker still waits.
        left_ms: u32,
    },
    /// Have the leader, whom the caller may not find, know where a member is reached.
    Announce {
        /// Which.
        node: NodeId,
        /// Where, and by which incarnation it shows who it is.
        member: Member,
        /// Milliseconds that the asker still waits.
        left_ms: u32,
    },
    /// Do all nodes know this feature level? For the leader.
    AllKnow {
        /// Which.
        level: FeatureLevel,
        /// Milliseconds that the asker still waits.
        left_ms: u32,
    },
    /// Lease from cached sequences. For the leader. Sent from [`FeatureLevel::CACHES`] on, without which there is none.
    LeaseCached {
        /// Which, each by itself.
        leases: Vec<CachedLease>,
        /// Milliseconds that the longest of them still waits.
        left_ms: u32,
    },
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// To [`Call::Vote`].
    Vote(VoteReply),
    /// To [`Call::PreVote`].
    PreVote(VoteReply),
    /// To [`Call::TransferLeader`].
    TransferLeader(TransferLeaderReply),
    /// To [`Call::Forward`].
    Forward(ForwardReply),
    /// To [`Call::ReadIndex`].
    ReadIndex(ReadIndexReply),
    /// To [`Call::Status`].
    Status(NodeStatus),
    /// To [`Call::Cluster`].
    Cluster(ClusterView),
    /// To any call that the node could not carry out: its outcome is unknown.
    Failed {
        /// For the caller's log.
        reason: String,
    },
    /// To [`Call::HandOver`].
    HandOver(HandOverReply),
    /// To [`Call::ChangeMember`].
    ChangeMember(MemberReply),
    /// To [`Call::Announce`].
    Announce {
        /// Whether the leader knows.
        done: bool,
    },
    /// To [`Call::AllKnow`].
    AllKnow(LevelReply),
    /// To [`Call::LeaseCached`]: one for each.
    LeaseCached(Vec<CachedReply>),
}

/// Why leadership stays where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum HandOverRefusal {
    /// The named one is none of the voters.
    #[error("node {to} is no voter of this cluster")]
    NoVoter {
        /// Who was named.
        to: NodeId,
    },
    /// Nobody that may lead is fit to.
    #[error("{reason}")]
    NobodyFit {
        /// In words.
        reason: String,
    },
}

/// What became of a forwarded batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ForwardReply {
    /// Applied, each command by itself, now or when it was sent before.
    Applied(Answered),
    /// Not proposed: this node does not lead, and never forwards again.
    NotLeader {
        /// Who does, as far as it knows.
        leader: Option<NodeId>,
    },
    /// Not proposed: the queue is full.
    Overloaded,
    /// Not proposed: the deadline passed before.
    Expired,
    /// Proposed, and not known whether it will be applied.
    Unknown,
    /// Not proposed: the leader's disk is full, and no other node with room can lead.
    DiskFull,
    /// This send changed nothing: the batch's session is over.
    Stale,
}

/// What a proof of leadership came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReadIndexReply {
    /// It leads: a node that has applied this entry has all that was acknowledged before the question.
    Leads {
        /// The entry to wait for.
        read: LogIdFormat,
    },
    /// It does not lead.
    NotLeader {
        /// Who does, as far as it knows.
        leader: Option<NodeId>,
    },
    /// No quorum confirmed it in time.
    Unproved,
}

/// How far a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    /// The version of its program.
    pub(crate) version: String,
    /// The last entry its table holds.
    pub(crate) applied: Option<LogIdFormat>,
    /// The index of the last entry in its log.
    pub(crate) last_log_index: Option<u64>,
    /// The hash of its table after the entry `applied`.
    pub(crate) state_hash: StateHash,
    /// The same after some earlier entries, which all nodes come to.
    pub(crate) checkpoints: Vec<(u64, StateHash)>,
    /// How its disk is.
    pub(crate) disk: DiskState,
    /// How much log it keeps.
    pub(crate) log: LogStatus,
    /// The latest feature level that it knows.
    pub(crate) level_max: FeatureLevel,
}

/// How much log a node keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogStatus {
    /// Its records.
    pub(crate) entries: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// The bytes of all that were appended since the node started.
    pub(crate) appended_bytes: u64,
    /// The last index in the snapshot that counts.
    pub(crate) snapshot_index: Option<u64>,
}

/// Raft's RequestVote, also as a pre-vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoteCall {
    vote: VoteFormat,
    last_log_id: Option<LogIdFormat>,
    leadership_transfer: bool,
}

impl From<VoteRequest<TypeConfig>> for VoteCall {
    fn from(request: VoteRequest<TypeConfig>) -> Self {
        Self {
            vote: request.vote.into(),
            last_log_id: request.last_log_id.map(Into::into),
            leadership_transfer: request.leadership_transfer,
        }
    }
}

impl From<VoteCall> for VoteRequest<TypeConfig> {
    fn from(call: VoteCall) -> Self {
        // Not by `new`, which sets `leadership_transfer` to false: the voters would wait for the old leader's lease.
        Self {
            vote: call.vote.into(),
            last_log_id: call.last_log_id.map(Into::into),
            leadership_transfer: call.leadership_transfer,
        }
    }
}

/// Raft's answer to RequestVote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoteReply {
    vote: VoteFormat,
    last_log_id: Option<LogIdFormat>,
    granted: bool,
}

impl From<VoteResponse<TypeConfig>> for VoteReply {
    fn from(response: VoteResponse<TypeConfig>) -> Self {
        Self {
            vote: response.vote.into(),
            last_log_id: response.last_log_id.map(Into::into),
            granted: response.vote_granted,
        }
    }
}

impl From<VoteReply> for VoteResponse<TypeConfig> {
    fn from(reply: VoteReply) -> Self {
        Self {
            vote: reply.vote.into(),
            last_log_id: reply.last_log_id.map(Into::into),
            vote_granted: reply.granted,
        }
    }
}

/// The leader hands its leadership over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferLeaderCall {
    from_leader: VoteFormat,
    to: NodeId,
    last_log_id: Option<LogIdFormat>,
}

impl From<TransferLeaderRequest<TypeConfig>> for TransferLeaderCall {
    fn from(request: TransferLeaderRequest<TypeConfig>) -> Self {
        Self {
            from_leader: (*request.from_leader()).into(),
            to: *request.to_node_id(),
            last_log_id: request.last_log_id().copied().map(Into::into),
        }
    }
}

impl From<TransferLeaderCall> for TransferLeaderRequest<TypeConfig> {
    fn from(call: TransferLeaderCall) -> Self {
        Self::new(
            call.from_leader.into(),
            call.to,
            call.last_log_id.map(Into::into),
        )
    }
}

/// Whether the node that shall lead next accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TransferLeaderReply {
    /// It stands for election, or waits for the one who does.
    Accepted,
    /// It has seen another vote since.
    VoteChanged {
        /// The one the leader sent.
        expected: VoteFormat,
        /// The one it has.
        actual: VoteFormat,
    },
    /// Its log does not reach the leader's end.
    LogNotFlushed {
        /// The leader's last entry.
        expected: Option<LogIdFormat>,
        /// Its own.
        actual: Option<LogIdFormat>,
    },
}

impl From<TransferLeaderResponse<TypeConfig>> for TransferLeaderReply {
    fn from(response: TransferLeaderResponse<TypeConfig>) -> Self {
        match response {
            Ok(()) => Self::Accepted,
            Err(TransferLeaderError::VoteChanged { expected, actual }) => Self::VoteChanged {
                expected: expected.into(),
                actual: actual.into(),
            },
            Err(TransferLeaderError::LogNotFlushed { expected, actual }) => Self::LogNotFlushed {
                expected: expected.map(Into::into),
                actual: actual.map(Into::into),
            },
        }
    }
}

impl From<TransferLeaderReply> for TransferLeaderResponse<TypeConfig> {
    fn from(reply: TransferLeaderReply) -> Self {
        match reply {
            TransferLeaderReply::Accepted => Ok(()),
            TransferLeaderReply::VoteChanged { expected, actual } => {
                Err(TransferLeaderError::VoteChanged {
                    expected: expected.into(),
                    actual: actual.into(),
                })
            }
            TransferLeaderReply::LogNotFlushed { expected, actual } => {
                Err(TransferLeaderError::LogNotFlushed {
                    expected: expected.map(Into::into),
                    actual: actual.map(Into::into),
                })
            }
        }
    }
}
