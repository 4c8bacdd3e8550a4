//! Batches: what one node sends to the leader as one, and what becomes of it.
//!
//! These types are stored and sent with a positional codec: a change of order or type is a change of format.

use serde::{Deserialize, Serialize};

use super::{Command, Outcome};

/// The identity under which a node's batches are counted: the index of the entry that opened it, 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct SessionId(u64);

impl SessionId {
    /// A batch outside any session: applied as often as it is committed.
    pub(crate) const NONE: Self = Self(0);

    /// The session that the entry at this index opens.
    pub(crate) fn opened_at(index: u64) -> Self {
        Self(index)
    }

    /// As a number, for what compares tables.
    pub(super) fn get(self) -> u64 {
        self.0
    }
}

/// Who opens a session: a node in one of its lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The node's id.
    pub(crate) node: u64,
    /// Chosen at random by each life.
    pub(crate) nonce: u128,
}

/// Which entry: its log index, and the term of the leadership that proposed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryId {
    /// The term.
    pub(crate) term: u64,
    /// The log index.
    pub(crate) index: u64,
}

/// BLAKE3 of a batch's encoded commands, cut to 128 bits: the same number must mean the same commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct BatchHash(pub(crate) [u8; 16]);

/// What one node collected while its previous batch was in flight. Once it may have been appended it is frozen byte for
/// byte, so that it can be sent again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// Whose counting `number` and `ack` belong to (Raft dissertation §6.3).
    pub(crate) session: SessionId,
    /// Rises by one with each batch of the session.
    pub(crate) number: u64,
    /// All numbers up to this one are answered at the origin: their outcomes may be forgotten.
    pub(crate) ack: u64,
    /// Guards `number` against being used for other commands.
    pub(crate) hash: BatchHash,
    /// Applied in this order, each by itself.
    pub(crate) commands: Vec<Command>,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// It is applied, by this entry or by an earlier one.
    Applied(Answered),
    /// This entry changed nothing: the batch's session is over, or its origin waits for it no more.
    Stale,
}

/// The outcomes of an applied batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answered {
    /// The entry that applied it.
    pub(crate) entry: EntryId,
    /// One for each of its commands, in order.
    pub(crate) outcomes: Vec<Outcome>,
}

/// The outcomes of one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Parallel to the entry's batches.
    pub(crate) batches: Vec<BatchOutcome>,
}
