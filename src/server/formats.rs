//! Layouts of what openraft keeps in our store and sends between our nodes.
//!
//! They are ours, so that openraft's may change between its versions. The codec is positional: a change of
//! order or type here is a new format version with a test that reads the old bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::vote::{RaftLeaderId, RaftVote};
use serde::{Deserialize, Serialize};

use super::types::{
    Entry, Leadership, LogId, Member, Membership, NodeId, Payload, Proposal, StoredMembership, Vote,
};

/// A leadership: a term and the node that leads in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct LeadershipFormat {
    term: u64,
    node: NodeId,
}

/// As in a log id: `T3-N2` is node 2 in term 3.
impl fmt::Display for LeadershipFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}-N{}", self.term, self.node)
    }
}

impl From<Leadership> for LeadershipFormat {
    fn from(leadership: Leadership) -> Self {
        Self {
            term: leadership.term,
            node: leadership.node_id,
        }
    }
}

impl From<LeadershipFormat> for Leadership {
    fn from(format: LeadershipFormat) -> Self {
        Self::new(format.term, format.node)
    }
}

/// A log id, ordered as Raft orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct LogIdFormat {
    leadership: LeadershipFormat,
    index: u64,
}

impl From<LogId> for LogIdFormat {
    fn from(log_id: LogId) -> Self {
        Self {
            leadership: (*log_id.committed_leader_id()).into(),
            index: log_id.index(),
        }
    }
}

impl From<LogIdFormat> for LogId {
    fn from(format: LogIdFormat) -> Self {
        Self::new(format.leadership.into(), format.index)
    }
}

/// A vote: for whom, and whether a quorum granted it. Ordered as Raft orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct VoteFormat {
    leadership: LeadershipFormat,
    committed: bool,
}

impl From<Vote> for VoteFormat {
    fn from(vote: Vote) -> Self {
        Self {
            leadership: (*vote.leader_id()).into(),
            committed: vote.is_committed(),
        }
    }
}

impl From<VoteFormat> for Vote {
    fn from(format: VoteFormat) -> Self {
        Self::from_leader_id(format.leadership.into(), format.committed)
    }
}

/// A membership: one set of voters, or two while it changes, and every node's description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MembershipFormat {
    voters: Vec<BTreeSet<NodeId>>,
    nodes: BTreeMap<NodeId, Member>,
}

impl From<&Membership> for MembershipFormat {
    fn from(membership: &Membership) -> Self {
        Self {
            voters: membership.get_joint_config().clone(),
            nodes: membership
                .nodes()
                .map(|(id, member)| (*id, member.clone()))
                .collect(),
        }
    }
}

impl TryFrom<MembershipFormat> for Membership {
    type Error = MembershipFormatError;

    fn try_from(format: MembershipFormat) -> Result<Self, MembershipFormatError> {
        if format.voters.is_empty() && format.nodes.is_empty() {
            return Ok(Self::default());
        }
        Self::new(format.voters, format.nodes).map_err(|error| MembershipFormatError {
            reason: error.to_string(),
        })
    }
}

/// A stored or sent membership that openraft does not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the membership is not valid: {reason}")]
pub(crate) struct MembershipFormatError {
    reason: String,
}

/// A membership and the entry that holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredMembershipFormat {
    log_id: Option<LogIdFormat>,
    membership: MembershipFormat,
}

impl From<&StoredMembership> for StoredMembershipFormat {
    fn from(stored: &StoredMembership) -> Self {
        Self {
            log_id: stored.log_id().map(Into::into),
            membership: stored.membership().into(),
        }
    }
}

impl TryFrom<StoredMembershipFormat> for StoredMembership {
    type Error = MembershipFormatError;

    fn try_from(format: StoredMembershipFormat) -> Result<Self, MembershipFormatError> {
        Ok(Self::new(
            format.log_id.map(Into::into),
            format.membership.try_into()?,
        ))
    }
}

/// What an entry carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PayloadFormat {
    /// Nothing: a new leader's first entry.
    Blank,
    /// Workers' batches.
    Proposal(Proposal),
    /// A new membership.
    Membership(MembershipFormat),
}

impl From<&Payload> for PayloadFormat {
    fn from(payload: &Payload) -> Self {
        match payload {
            EntryPayload::Blank => Self::Blank,
            EntryPayload::Normal(proposal) => Self::Proposal(proposal.clone()),
            EntryPayload::Membership(membership) => Self::Membership(membership.into()),
        }
    }
}

/// A log entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryFormat {
    pub(crate) log_id: LogIdFormat,
    pub(crate) payload: PayloadFormat,
}

impl From<&Entry> for EntryFormat {
    fn from(entry: &Entry) -> Self {
        Self {
            log_id: entry.log_id().into(),
            payload: (&entry.payload).into(),
        }
    }
}

impl TryFrom<EntryFormat> for Entry {
    type Error = MembershipFormatError;

    fn try_from(format: EntryFormat) -> Result<Self, MembershipFormatError> {
        let payload = match format.payload {
            PayloadFormat::Blank => EntryPayload::Blank,
            PayloadFormat::Proposal(proposal) => EntryPayload::Normal(proposal),
            PayloadFormat::Membership(membership) => {
                EntryPayload::Membership(membership.try_into()?)
            }
        };
        Ok(Self::new(format.log_id.into(), payload))
    }
}
