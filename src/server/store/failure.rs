//! Why a store cannot go on, on its way to whoever ends the process.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::sequence::{FeatureLevel, LaterLevel};

/// Why the store must not go on.
#[derive(Debug)]
pub(crate) enum StoreFailure {
    /// The disk failed.
    Disk(io::Error),
    /// The log, or a snapshot, holds what this node does not know.
    Level(LaterLevel),
}

/// Takes failures after which the store must not go on. The first one counts. Clones report to the same place.
#[derive(Debug, Clone)]
pub(super) struct FailureReport(Arc<Mutex<Option<oneshot::Sender<StoreFailure>>>>);

/// Resolves once the store cannot go on, after which the process has to end.
#[derive(Debug)]
pub(crate) struct StoreFailed(oneshot::Receiver<StoreFailure>);

/// A report and where it arrives.
pub(super) fn channel() -> (FailureReport, StoreFailed) {
    let (sender, receiver) = oneshot::channel();
    let report = FailureReport(Arc::new(Mutex::new(Some(sender))));
    (report, StoreFailed(receiver))
}

impl FailureReport {
    /// The disk failed with this error.
    pub(super) fn send(&self, error: &io::Error) {
        self.send_first(StoreFailure::Disk(copy(error)));
    }

    /// Sees that the node knows the level of what it is given, and reports where it does not.
    pub(super) fn check(&self, known: FeatureLevel, found: FeatureLevel) -> io::Result<()> {
        known.check(found).map_err(|later| {
            self.send_first(StoreFailure::Level(later));
            io::Error::other(later)
        })
    }

    fn send_first(&self, failure: StoreFailure) {
        let first = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(first) = first {
            // Where nobody listens the process is ending already.
            first.send(failure).ok();
        }
    }
}

impl StoreFailed {
    /// What has failed already.
    pub(crate) fn now(&mut self) -> Option<StoreFailure> {
        self.0.try_recv().ok()
    }

    /// Waits for what ends the store; for ever where nothing does.
    pub(crate) async fn wait(self) -> StoreFailure {
        match self.0.await {
            Ok(failure) => failure,
            // Closed in good order.
            Err(_) => std::future::pending().await,
        }
    }
}

/// What ended the writing, told to everybody from then on.
#[derive(Debug, Clone, thiserror::Error)]
#[error("nothing is written any more since the disk failed: {reason}")]
pub(super) struct Failed {
    reason: String,
}

impl From<&io::Error> for Failed {
    fn from(error: &io::Error) -> Self {
        Self {
            reason: error.to_string(),
        }
    }
}

fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
