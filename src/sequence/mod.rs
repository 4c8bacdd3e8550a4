//! The pure core: names, ranges, commands and the table they are applied to.
//!
//! Everything here is a function of its arguments. There is no I/O, clock, randomness or async below this
//! line, so that every replica which applies the same log holds the same state (I8). What is Raft, disk or
//! HTTP lives in the layers above.

#[cfg(feature = "server")]
mod command;
mod name;
mod range;
mod settings;
#[cfg(feature = "server")]
mod state_hash;
#[cfg(feature = "server")]
mod table;

#[cfg(all(test, feature = "server"))]
pub(crate) use command::GRANT_PARTS_MAX;
#[cfg(feature = "server")]
pub(crate) use command::{
    Applied, Batch, BatchHash, Changes, Command, FixedSetting, Grant, GrantPart, GrantParts,
    GrantPartsError, Outcome, Refusal, SessionId,
};
pub use name::{NAME_LENGTH_MAX, NameError, SequenceName};
pub use range::{Range, RangeCount, RangeError};
pub use settings::{IdForm, NUMBER_SAFE_MAX, Settings, SettingsError};
#[cfg(feature = "server")]
pub(crate) use state_hash::StateHash;
#[cfg(feature = "server")]
pub(crate) use table::{Position, Sequence, Table, TableHeader};

/// Batches for the tests of what carries them.
#[cfg(all(test, feature = "server"))]
pub(crate) mod testing {
    use super::{Batch, BatchHash, Command, SessionId};

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
