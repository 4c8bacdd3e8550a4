//! The pure core: names, ranges, commands and the table they are applied to.
//!
//! Everything here is a function of its arguments. There is no I/O, clock, randomness or async below this
//! line, so that every replica which applies the same log holds the same state (I8). What is Raft, disk or
//! HTTP lives in the layers above.

#[cfg(feature = "server")]
mod batch;
#[cfg(feature = "server")]
mod command;
#[cfg(feature = "server")]
mod import;
#[cfg(feature = "server")]
mod level;
mod name;
#[cfg(feature = "server")]
mod parts;
mod range;
mod settings;
#[cfg(feature = "server")]
mod state_hash;
#[cfg(feature = "server")]
mod table;
#[cfg(feature = "server")]
mod window;

#[cfg(feature = "server")]
pub(crate) use batch::{
    Answered, Applied, Batch, BatchHash, BatchOutcome, EntryId, Origin, SessionId,
};
#[cfg(feature = "server")]
pub(crate) use command::{
    Changes, Command, FixedSetting, Grant, KeyedAnswer, Outcome, Refusal, RequestKey,
};
#[cfg(feature = "server")]
pub(crate) use import::{ImportPart, ImportParts, ImportPartsError, Imported, NamedSettings};
#[cfg(feature = "server")]
pub(crate) use level::{FeatureLevel, LaterLevel};
#[cfg(all(test, feature = "server"))]
pub(crate) use name::comparisons;
pub use name::{NAME_LENGTH_MAX, NameError, SequenceName};
#[cfg(all(test, feature = "server"))]
pub(crate) use parts::GRANT_PARTS_MAX;
#[cfg(feature = "server")]
pub(crate) use parts::{GrantPart, GrantParts, GrantPartsError, Taken, WindowPart, WindowParts};
pub use range::{Range, RangeCount, RangeError};
pub use settings::{IdForm, NUMBER_SAFE_MAX, Settings, SettingsError};
#[cfg(feature = "server")]
pub(crate) use state_hash::StateHash;
#[cfg(feature = "server")]
pub(crate) use table::{
    Answer, Kept, KnownNode, NodeCard, Position, Sequence, Session, Table, TableHeader,
};
#[cfg(feature = "server")]
pub(crate) use window::{Reserved, Window};

/// The most sequences of one import: with the longest names they are half a batch, and less than a request's body.
pub const IMPORT_PARTS_MAX: usize = 128;

/// Batches for the tests of what carries them.
#[cfg(all(test, feature = "server"))]
pub(crate) mod testing {
    use super::{
        Applied, Batch, BatchHash, BatchOutcome, Command, EntryId, Outcome, Position, SessionId,
    };

    /// The place of the entry at this index.
    pub(crate) fn at(index: u64) -> Position {
        Position {
            entry: EntryId { term: 1, index },
            elapsed_ms: 0,
        }
    }

    /// What the commands of each batch were answered: nothing where it is stale.
    pub(crate) fn outcomes(applied: Applied) -> Vec<Vec<Outcome>> {
        let outcomes = |batch| match batch {
            BatchOutcome::Applied(answered) => answered.outcomes,
            BatchOutcome::Stale => Vec::new(),
        };
        applied.batches.into_iter().map(outcomes).collect()
    }

    /// A batch outside any session.
    pub(crate) fn batch(commands: Vec<Command>) -> Batch {
        Batch {
            session: SessionId::NONE,
            number: 1,
            ack: 0,
            hash: BatchHash([0; 16]),
            commands,
        }
    }
}
