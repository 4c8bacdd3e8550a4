//! What `inspect` found, in words and numbers for whoever shows it.

use std::path::Path;

use serde::Serialize;

use super::identity::Identity;
use super::snapshot_format::State;
use super::superblock::Slot;
use crate::sequence::{IdForm, Sequence, SequenceName};
use crate::server::types::{LogId, Vote};

/// What was found.
#[derive(Debug, Serialize)]
pub(crate) struct Inspection {
    /// What a start would do.
    pub(crate) verdict: Verdict,
    /// Why it would be refused: the line with which it would end.
    pub(crate) reason: Option<String>,
    /// Whose directory it is; none in a new one.
    pub(crate) identity: Option<IdentityView>,
    /// The greater of the votes in the database and in the superblock.
    pub(crate) vote: Option<VoteView>,
    /// The log above the purge marker.
    pub(crate) log: Option<LogView>,
    /// The snapshot that the superblock names; the newest file where no superblock can be read.
    pub(crate) snapshot: Option<SnapshotView>,
    /// What was promised.
    pub(crate) superblock: Option<SuperblockView>,
    /// What the snapshot holds beside its sequences.
    pub(crate) table: Option<TableView>,
    /// The marks in the snapshot, by name. What was granted after it is in the log.
    #[serde(skip)]
    pub(crate) sequences: Vec<MarkView>,
    /// What is there and cannot be read.
    pub(crate) unreadable: Vec<Unreadable>,
}

/// What a start would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// Go on from what is there.
    Starts,
    /// End with the reason.
    Refused,
}

/// Whose directory it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct IdentityView {
    /// None before the cluster is formed.
    pub(crate) cluster: Option<String>,
    /// None before the cluster is formed.
    pub(crate) node: Option<u64>,
    pub(crate) incarnation: String,
    /// Those of the formation.
    pub(crate) members: Vec<MemberView>,
}

/// A member at formation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MemberView {
    pub(crate) id: u64,
    pub(crate) api: String,
    pub(crate) peer: String,
}

/// For whom this node voted last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct VoteView {
    pub(crate) term: u64,
    pub(crate) node: u64,
    /// Whether a quorum did.
    pub(crate) committed: bool,
}

/// Where an entry stands in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct EntryView {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) node: u64,
}

/// The log above the purge marker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LogView {
    pub(crate) first: Option<EntryView>,
    pub(crate) last: Option<EntryView>,
    pub(crate) purged: Option<EntryView>,
    /// Up to where it is known to be committed.
    pub(crate) committed: Option<EntryView>,
    /// How many whole records there are.
    pub(crate) records: u64,
}

/// A snapshot's file and its last entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SnapshotView {
    pub(crate) file: String,
    #[serde(flatten)]
    pub(crate) last: Option<EntryView>,
}

/// The newest whole slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SuperblockView {
    pub(crate) cluster: String,
    pub(crate) node: u64,
    pub(crate) incarnation: String,
    pub(crate) vote: Option<VoteView>,
    pub(crate) last: Option<EntryView>,
    pub(crate) purged: Option<EntryView>,
    /// The file it names.
    pub(crate) snapshot: Option<String>,
}

/// A snapshot's table, less its sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct TableView {
    pub(crate) sequences: usize,
    pub(crate) epoch: u64,
    pub(crate) state_time_ms: u64,
}

/// A sequence's high-water mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MarkView {
    pub(crate) name: SequenceName,
    pub(crate) high: Option<u64>,
    /// The value that would be granted next, if there is one left.
    pub(crate) next: Option<u64>,
    pub(crate) retired: bool,
    /// How its values are written.
    pub(crate) form: IdForm,
}

/// A part that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Unreadable {
    pub(crate) part: &'static str,
    pub(crate) reason: String,
}

pub(super) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

pub(super) fn entry(log_id: LogId) -> EntryView {
    let leadership = log_id.committed_leader_id();
    EntryView {
        index: log_id.index(),
        term: leadership.term,
        node: leadership.node_id.get(),
    }
}

pub(super) fn vote_view(vote: Vote) -> VoteView {
    VoteView {
        term: vote.leader_id().term,
        node: vote.leader_id().node_id.get(),
        committed: vote.is_committed(),
    }
}

pub(super) fn identity_view(identity: Identity) -> IdentityView {
    let members = identity.formation.iter().flat_map(|record| &record.members);
    IdentityView {
        members: members
            .map(|(id, member)| MemberView {
                id: id.get(),
                api: member.api.to_string(),
                peer: member.peer.to_string(),
            })
            .collect(),
        cluster: identity
            .formation
            .as_ref()
            .map(|record| record.cluster.to_string()),
        node: identity.formation.as_ref().map(|record| record.node.get()),
        incarnation: identity.incarnation.to_string(),
    }
}

pub(super) fn superblock_view(slot: &Slot, snapshots: &Path) -> SuperblockView {
    let snapshot = slot.promised.snapshot;
    SuperblockView {
        cluster: slot.owner.cluster.to_string(),
        node: slot.owner.node.get(),
        incarnation: slot.owner.incarnation.to_string(),
        vote: slot.promised.vote.map(vote_view),
        last: slot.promised.last.map(entry),
        purged: slot.promised.purged.map(entry),
        snapshot: snapshot.map(|name| file_name(&name.path(snapshots))),
    }
}

pub(super) fn table_view(state: &State) -> TableView {
    let header = state.table.header();
    TableView {
        sequences: state.table.len(),
        epoch: header.epoch,
        state_time_ms: header.state_time_ms,
    }
}

pub(super) fn marks(state: &State) -> Vec<MarkView> {
    let mark = |(name, sequence): (&SequenceName, &Sequence)| {
        let settings = &sequence.settings;
        MarkView {
            name: name.clone(),
            high: sequence.high,
            next: settings
                .next_above(sequence.high)
                .filter(|_| !sequence.retired),
            retired: sequence.retired,
            form: settings.id_form(),
        }
    };
    state.table.iter().map(mark).collect()
}
