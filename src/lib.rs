//! Highwater: a clustered sequencer.

mod sequence;
#[cfg(feature = "server")]
mod server;
pub mod wire;

pub use sequence::{
    IdForm, NAME_LENGTH_MAX, NUMBER_SAFE_MAX, NameError, Range, RangeCount, RangeError,
    SequenceName, Settings, SettingsError,
};
