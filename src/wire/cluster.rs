//! Bodies of what is about the cluster and not about sequences.

use serde::{Deserialize, Serialize};

/// The answer to `GET /v1/cluster`. What is unknown is null.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterBody {
    /// The cluster's id.
    pub cluster: String,
    /// Generation of the cluster's history.
    pub epoch: u64,
    /// The node that answers.
    pub node: u64,
    /// The node that leads.
    pub leader: Option<u64>,
    /// The term of that leader.
    pub term: u64,
    /// All nodes of the membership, by id.
    pub members: Vec<MemberBody>,
    /// How many more voters may be lost before grants stop; null without a leader.
    pub tolerates_loss_of: Option<u64>,
    /// The feature level in use: which commands its log may hold.
    pub feature_level: u32,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberBody {
    /// Its id.
    pub id: u64,
    /// What it is to Raft.
    pub role: MemberRole,
    /// Which data directory it has, 32 hexadecimal digits.
    pub incarnation: String,
    /// Where workers reach it.
    pub api: String,
    /// Where its peers reach it.
    pub peer: String,
    /// Whether it answered the leader just now.
    pub reachable: Option<bool>,
    /// The last log index known to be on its disk.
    pub match_index: Option<u64>,
    /// How many entries it is behind the leader.
    pub lag: Option<u64>,
    /// The version of its program.
    pub version: Option<String>,
    /// The latest feature level that it knows.
    pub feature_level_max: Option<u32>,
    /// The last log index that its state holds.
    pub applied_index: Option<u64>,
    /// The hash of that state, 32 hexadecimal digits: nodes at one index have one hash.
    pub state_hash: Option<String>,
    /// The records in its log.
    pub log_entries: Option<u64>,
    /// Their bytes.
    pub log_bytes: Option<u64>,
    /// The bytes of all records that it appended since it started.
    pub log_bytes_appended: Option<u64>,
    /// The last log index in its snapshot.
    pub snapshot_index: Option<u64>,
}

#[cfg(test)]
impl MemberBody {
    /// One of which nothing more is known.
    pub(crate) fn unknown(id: u64, role: MemberRole) -> Self {
        Self {
            id,
            role,
            incarnation: format!("{id:032x}"),
            api: format!("127.0.0.1:{}", 7100 + id),
            peer: format!("127.0.0.1:{}", 7200 + id),
            reachable: None,
            match_index: None,
            lag: None,
            version: None,
            feature_level_max: None,
            applied_index: None,
            state_hash: None,
            log_entries: None,
            log_bytes: None,
            log_bytes_appended: None,
            snapshot_index: None,
        }
    }
}

/// The body of `POST /v1/cluster/transfer-leader`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct TransferBody {
    /// The voter that is to lead; whichever is fit, where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// The answer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferredBody {
    /// The node that leads now.
    pub leader: u64,
}

/// The answer to `GET /v1/cluster/members`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersBody {
    /// All nodes of the membership, by id.
    pub members: Vec<MemberBody>,
}

/// The body of `POST /v1/cluster/members`, by which a node with an empty data directory asks for an id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct AdmitBody {
    /// Which data directory it has, 32 hexadecimal digits.
    pub incarnation: String,
    /// Where workers reach it, as `host:port`.
    pub api: String,
    /// Where its peers reach it, as `host:port`.
    pub peer: String,
    /// The latest feature level that it knows: the first, where it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_level_max: Option<u32>,
}

/// The answer to it: what a node must know of a cluster to be part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmittedBody {
    /// Its id, for ever.
    pub id: u64,
    /// The cluster's id.
    pub cluster: String,
    /// The members.
    pub members: Vec<AdmittedMemberBody>,
}

/// A member as a node that joins is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmittedMemberBody {
    /// Its id.
    pub id: u64,
    /// Which data directory it has, 32 hexadecimal digits.
    pub incarnation: String,
    /// Where workers reach it.
    pub api: String,
    /// Where its peers reach it.
    pub peer: String,
}

/// The body of `POST /v1/cluster/members/{id}/replace`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct ReplaceBody {
    /// The learner that votes instead.
    pub with: u64,
}

/// The answer to a change of the members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberChangedBody {
    /// Whether anything had to be done.
    pub changed: bool,
}

/// What a node is to Raft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberRole {
    /// Proposes and grants.
    Leader,
    /// Votes and keeps a copy.
    Follower,
    /// Keeps a copy, never votes or leads.
    Learner,
}
