//! What an entry does to the state: the same wherever it is applied.

use std::io;

use openraft::EntryPayload;
use openraft::entry::RaftEntry;

use super::snapshot_format::State;
use super::state_machine::cards;
use crate::sequence::{Applied, Batch, EntryId, Position};
use crate::server::codec;
use crate::server::types::{BATCH_BYTES_MAX, Entry, LogId, Proposal, StoredMembership};

impl State {
    /// Applies the next entry.
    ///
    /// # Errors
    /// Where it is not a later one than the last, or holds no batches.
    pub(super) fn apply(&mut self, entry: Entry) -> io::Result<Applied> {
        let log_id = entry.log_id();
        // An entry that is applied twice would grant what no other node grants (I8).
        if let Some(last) = self.meta.last_log_id
            && log_id.index() <= last.index()
        {
            return Err(io::Error::other(format!(
                "I8: entry {log_id} is to be applied after {last}"
            )));
        }
        let applied = match entry.payload {
            EntryPayload::Blank => Applied::default(),
            EntryPayload::Normal(proposal) => self.apply_proposal(log_id, &proposal)?,
            EntryPayload::Membership(membership) => {
                self.table.set_members(cards(&membership));
                self.meta.last_membership = StoredMembership::new(Some(log_id), membership);
                Applied::default()
            }
        };
        self.meta.last_log_id = Some(log_id);
        Ok(applied)
    }

    fn apply_proposal(&mut self, log_id: LogId, proposal: &Proposal) -> io::Result<Applied> {
        let batches = proposal
            .batches
            .iter()
            .map(|bytes| codec::decode::<Batch, BATCH_BYTES_MAX>(bytes))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| {
                let text = format!("entry {log_id} holds a batch that is none: {error}");
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
        let position = Position {
            entry: EntryId {
                term: log_id.committed_leader_id().term,
                index: log_id.index(),
            },
            elapsed_ms: proposal.elapsed_ms,
        };
        Ok(self.table.apply(position, &batches))
    }
}
