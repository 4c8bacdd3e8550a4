//! What a log entry asks of the table, and what the table answers.
//!
//! These types are stored and sent with a positional codec: a change of order or type is a change of format.

use serde::{Deserialize, Serialize};

use super::{IdForm, Range, RangeCount, Sequence, SequenceName, Settings};

/// The identity under which a node's batches are counted: the index of the entry that opened it, 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct SessionId(u64);

impl SessionId {
    /// A batch outside any session: applied as often as it is committed, so its origin never sends it twice.
    pub(crate) const NONE: Self = Self(0);
}

/// BLAKE3 of a batch's encoded commands, cut to 128 bits: the same number must mean the same commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct BatchHash(pub(crate) [u8; 16]);

/// What one node collected while its previous batch was in flight. Once sent it is frozen byte for byte.
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

/// One change of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Give the next `count` values.
    Grant {
        /// Of which sequence.
        sequence: SequenceName,
        /// How many.
        count: RangeCount,
    },
    /// Make a sequence, or find it there with the same settings.
    Create {
        /// Its name.
        sequence: SequenceName,
        /// Its settings for ever, but for those that can be altered.
        settings: Settings,
    },
    /// Raise the mark to at least `to`; never lower it.
    Advance {
        /// Of which sequence.
        sequence: SequenceName,
        /// No value up to this one is granted afterwards.
        to: u64,
    },
}

/// The table's answer to one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The range given.
    Granted {
        /// Its values.
        range: Range,
        /// How the sequence's values are written in JSON.
        id_form: IdForm,
    },
    /// The sequence is there, with the settings asked for.
    Created {
        /// False where it was there before.
        fresh: bool,
        /// What it is now.
        sequence: Sequence,
    },
    /// The mark is at least where it was asked to be.
    Advanced {
        /// The mark before.
        previous: Option<u64>,
        /// The mark now.
        high: Option<u64>,
        /// How the sequence's values are written in JSON.
        id_form: IdForm,
    },
    /// Nothing changed (I5).
    Refused(Refusal),
}

/// Why the table did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refusal {
    /// A name that was never created: a typing error must not start a second number space.
    #[error("no such sequence: create it first")]
    UnknownSequence,
    /// The name is there with other settings.
    #[error("the sequence exists with other settings")]
    SequenceExists,
    /// The count is above the sequence's `max_lease`.
    #[error("a lease of {asked} values is too large: lease at most {limit} at once")]
    LeaseTooLarge {
        /// The count asked for.
        asked: RangeCount,
        /// The sequence's `max_lease`.
        limit: RangeCount,
    },
    /// The whole range does not fit below `max_value`.
    #[error("{asked} values do not fit: {left} are left up to max_value")]
    Exhausted {
        /// The count asked for.
        asked: RangeCount,
        /// How many could still be granted.
        left: u32,
    },
    /// The mark asked for is above `max_value`.
    #[error("cannot advance to {to}: max_value is {max_value}")]
    AboveMaximum {
        /// The mark asked for.
        to: u64,
        /// The sequence's bound.
        max_value: u64,
    },
}

/// The outcomes of one entry: for each of its batches, one for each command, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Parallel to the entry's batches.
    pub(crate) batches: Vec<Vec<Outcome>>,
}
