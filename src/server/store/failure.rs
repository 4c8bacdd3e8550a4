//! The first error of a disk, on its way to whoever ends the process.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// Takes errors after which the store must not go on. The first one counts. Clones report to the same place.
#[derive(Debug, Clone)]
pub(super) struct FailureReport(Arc<Mutex<Option<oneshot::Sender<io::Error>>>>);

/// Resolves once the store cannot write any more, after which the process has to end.
#[derive(Debug)]
pub(crate) struct StoreFailed(oneshot::Receiver<io::Error>);

/// A report and where it arrives.
pub(super) fn channel() -> (FailureReport, StoreFailed) {
    let (sender, receiver) = oneshot::channel();
    let report = FailureReport(Arc::new(Mutex::new(Some(sender))));
    (report, StoreFailed(receiver))
}

impl FailureReport {
    /// The disk failed with this error.
    pub(super) fn send(&self, error: &io::Error) {
        let first = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(first) = first {
            // Where nobody listens the process is ending already.
            first.send(copy(error)).ok();
        }
    }
}

impl StoreFailed {
    /// Waits for the error that ended the writing; for ever where there is none.
    pub(crate) async fn wait(self) -> io::Error {
        match self.0.await {
            Ok(error) => error,
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
