//! Changes of the members as they are asked for, and why one is not made.

use serde::{Deserialize, Serialize};

use crate::server::types::{Member, NodeId};

/// What is to be different. Each is a state to reach, so asking twice is asking once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MemberChange {
    /// This learner votes.
    Promote {
        /// Which.
        node: NodeId,
    },
    /// This voter is a learner.
    Demote {
        /// Which.
        node: NodeId,
    },
    /// This node is no member.
    Remove {
        /// Which.
        node: NodeId,
    },
    /// A learner votes instead of a voter, which is no member any more.
    Replace {
        /// Who goes.
        old: NodeId,
        /// Who comes.
        new: NodeId,
    },
    /// The same node with the same disks is reached elsewhere.
    Move {
        /// Which.
        node: NodeId,
        /// Where, and by which incarnation it shows who it is.
        member: Member,
    },
}

/// Whether anything had to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MemberDone {
    /// It was so already.
    Unchanged,
    /// It is so now.
    Changed,
}

/// Why the members stay who they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum MemberRefusal {
    /// Nobody has the id.
    #[error("node {node} is no member of this cluster")]
    NoMember {
        /// Which.
        node: NodeId,
    },
    /// It voted once, and its id is gone with it.
    #[error("node {node} has left this cluster, and its id is never used again")]
    HasLeft {
        /// Which.
        node: NodeId,
    },
    /// It has other disks than the membership says.
    #[error("node {node} has another data directory than the one the cluster knows")]
    OtherIncarnation {
        /// Which.
        node: NodeId,
    },
    /// It lacks too many entries.
    #[error("node {node} is to vote, and {} yet", behind(*lag))]
    NotCaughtUp {
        /// Which.
        node: NodeId,
        /// How many; unknown where it does not answer.
        lag: Option<u64>,
    },
    /// Too few would be left.
    #[error("that would leave {}", left(voters, (*answering, *needed), silent))]
    LosesQuorum {
        /// Who would vote.
        voters: Vec<NodeId>,
        /// How many of them answer now.
        answering: u64,
        /// The majority.
        needed: u64,
        /// Those who do not answer.
        silent: Vec<NodeId>,
    },
    /// The leader is to go, and nobody takes over.
    #[error("node {node} leads, and does not hand over: {reason}")]
    Leads {
        /// The leader.
        node: NodeId,
        /// In words.
        reason: String,
    },
    /// Another change is under way.
    #[error("another change of the members is under way")]
    Busy,
}

fn behind(lag: Option<u64>) -> String {
    match lag {
        Some(lag) => format!("lacks {lag} entries"),
        None => "does not answer".to_owned(),
    }
}

fn listed(nodes: &[NodeId]) -> String {
    let ids: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    ids.join(", ")
}

fn left(voters: &[NodeId], (answering, needed): (u64, u64), silent: &[NodeId]) -> String {
    if voters.is_empty() {
        return "no voter, and a cluster has at least one".to_owned();
    }
    let (voters, silent) = (listed(voters), listed(silent));
    format!(
        "voters {voters}, of which {answering} answer now, and {needed} must: start {silent}, or replace it"
    )
}
