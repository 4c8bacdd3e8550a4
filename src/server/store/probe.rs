//! Where the store tells that it asks the disk for something. Tests look into its syncs here, stall them and make them
//! fail, and stop its ears.

use std::io;

use super::disk::{Asked, Pulse};
use super::superblock::Promised;

/// A moment at which the store asks the disk for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The database's changes are about to be made durable.
    Database {
        /// How many keys they touch.
        operations: usize,
        /// Their bytes, as the sync rules count them.
        cost: usize,
    },
    /// A superblock slot is about to be written.
    Superblock,
    /// A group is about to be written into the journal.
    Group {
        /// How many keys of the database it touches.
        operations: usize,
    },
}

#[cfg(test)]
type Hook = std::sync::Arc<dyn Fn(Step) -> io::Result<()> + Send + Sync>;

/// Whether a start hears what the superblock says against the database.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Witness {
    #[default]
    Heard,
    Unheard,
}

/// The pulse, and a test's hook.
#[derive(Clone, Default)]
pub(crate) struct Probe {
    pulse: Pulse,
    #[cfg(test)]
    hook: Option<Hook>,
    #[cfg(test)]
    witness: Witness,
}

impl Probe {
    /// Calls the hook at each step, on the thread that takes it.
    #[cfg(test)]
    pub(crate) fn new(hook: impl Fn(Step) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self {
            pulse: Pulse::default(),
            hook: Some(std::sync::Arc::new(hook)),
            witness: Witness::Heard,
        }
    }

    /// Since when the disk has not answered.
    pub(super) fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// The disk is asked from now until what this returns is dropped.
    pub(super) fn ask(&self) -> Asked<'_> {
        self.pulse.ask()
    }

    /// Lets a start hear the superblock, or not.
    #[cfg(test)]
    pub(super) fn hearing(witness: Witness) -> Self {
        Self {
            witness,
            ..Self::default()
        }
    }

    /// What the superblock is heard to have promised. The snapshot's name is always heard: nothing else has it.
    #[cfg(test)]
    pub(super) fn heard(&self, promised: Promised) -> Promised {
        match self.witness {
            Witness::Heard => promised,
            Witness::Unheard => Promised {
                snapshot: promised.snapshot,
                ..Promised::default()
            },
        }
    }

    #[cfg(not(test))]
    pub(super) fn heard(&self, promised: Promised) -> Promised {
        promised
    }

    /// The step is about to be taken.
    ///
    /// # Errors
    /// What a test plants.
    #[cfg(test)]
    pub(super) fn before(&self, step: Step) -> io::Result<()> {
        self.hook.as_ref().map_or(Ok(()), |hook| hook(step))
    }

    #[cfg(not(test))]
    pub(super) fn before(&self, _step: Step) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probe")
    }
}
