//! Where tests look into the store's syncs, stall them and make them fail. Outside tests it is nothing.

use std::io;

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

/// A test's hook, or nothing.
#[derive(Clone, Default)]
pub(crate) struct Probe {
    #[cfg(test)]
    hook: Option<Hook>,
}

impl Probe {
    /// Calls the hook at each step, on the thread that takes it.
    #[cfg(test)]
    pub(crate) fn new(hook: impl Fn(Step) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self {
            hook: Some(std::sync::Arc::new(hook)),
        }
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
