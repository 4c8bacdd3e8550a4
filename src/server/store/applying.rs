//! What an entry does to the state: the same wherever it is applied.

use std::io;

use openraft::EntryPayload;
use openraft::entry::RaftEntry;

use super::snapshot_format::State;
use super::state_machine::cards;
use crate::sequence::{Applied, Batch, Command, EntryId, Position};
use crate::server::codec;
use crate::server::types::{BATCH_BYTES_MAX, Entry, LogId, Membership, Proposal, StoredMembership};

/// An entry whose batches are read: what is done while nobody can read the table is only to apply it.
pub(super) struct Readable {
    log_id: LogId,
    work: Work,
}

enum Work {
    Nothing,
    Batches(Position, Vec<Batch>),
    Members(Membership),
}

impl TryFrom<Entry> for Readable {
    type Error = io::Error;

    fn try_from(entry: Entry) -> io::Result<Self> {
        let log_id = entry.log_id();
        let work = match entry.payload {
            EntryPayload::Blank => Work::Nothing,
            EntryPayload::Normal(proposal) => {
                let position = Position {
                    entry: EntryId {
                        term: log_id.committed_leader_id().term,
                        index: log_id.index(),
                    },
                    elapsed_ms: proposal.elapsed_ms,
                };
                Work::Batches(position, batches(log_id, &proposal)?)
            }
            EntryPayload::Membership(membership) => Work::Members(membership),
        };
        Ok(Self { log_id, work })
    }
}

fn batches(log_id: LogId, proposal: &Proposal) -> io::Result<Vec<Batch>> {
    let batches = proposal
        .batches
        .iter()
        .map(|bytes| codec::decode::<Batch, BATCH_BYTES_MAX>(bytes));
    batches.collect::<Result<_, _>>().map_err(|error| {
        let text = format!("entry {log_id} holds a batch that is none: {error}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

impl Readable {
    /// Whether the feature level may be another after it.
    pub(super) fn may_raise_level(&self) -> bool {
        let Work::Batches(_, batches) = &self.work else {
            return false;
        };
        let mut commands = batches.iter().flat_map(|batch| &batch.commands);
        commands.any(|command| matches!(command, Command::RaiseLevel { .. }))
    }
}

impl State {
    /// Applies the next entry.
    ///
    /// # Errors
    /// Where it is not a later one than the last.
    pub(super) fn apply(&mut self, Readable { log_id, work }: Readable) -> io::Result<Applied> {
        // An entry that is applied twice would grant what no other node grants (I8).
        if let Some(last) = self.meta.last_log_id
            && log_id.index() <= last.index()
        {
            return Err(io::Error::other(format!(
                "I8: entry {log_id} is to be applied after {last}"
            )));
        }
        let applied = match work {
            Work::Nothing => Applied::default(),
            Work::Batches(position, batches) => self.table.apply(position, &batches),
            Work::Members(membership) => {
                self.table.set_members(cards(&membership));
                self.meta.last_membership = StoredMembership::new(Some(log_id), membership);
                Applied::default()
            }
        };
        self.meta.last_log_id = Some(log_id);
        Ok(applied)
    }
}
