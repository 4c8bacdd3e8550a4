//! Where the store tells that it asks the disk for something. Tests look into its syncs here, stall them and make them
//! fail.

use std::io;

use super::disk::{Asked, Pulse};

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
}

#[cfg(test)]
type Hook = std::sync::Arc<dyn Fn(Step) -> io::Result<()> + Send + Sync>;

/// The pulse, and a test's hook.
#[derive(Clone, Default)]
pub(crate) struct Probe {
    pulse: Pulse,
    #[cfg(test)]
    hook: Option<Hook>,
}

impl Probe {
    /// Calls the hook at each step, on the thread that takes it.
    #[cfg(test)]
    pub(crate) fn new(hook: impl Fn(Step) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self {
            pulse: Pulse::default(),
            hook: Some(std::sync::Arc::new(hook)),
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
