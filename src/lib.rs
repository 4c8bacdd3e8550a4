//! Highwater: a clustered sequencer.

#[cfg(feature = "cli")]
pub mod chaos;
#[cfg(feature = "cli")]
pub mod cli;
pub mod client;
#[cfg(all(feature = "cli", any(fuzzing, test)))]
pub mod fuzzing;
pub mod history;
#[cfg(feature = "server")]
mod panic_guard;
#[cfg(test)]
mod planted;
mod sequence;
#[cfg(feature = "server")]
mod server;
pub mod wire;

pub use sequence::{
    IMPORT_PARTS_MAX, IdForm, NAME_LENGTH_MAX, NUMBER_SAFE_MAX, NameError, Range, RangeCount,
    RangeError, SequenceName, Settings, SettingsError,
};
