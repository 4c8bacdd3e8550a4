//! How a run is told to end before its time.

use tokio::signal::unix::{SignalKind, signal};

/// Resolves when someone asks this process to end.
pub(super) async fn interrupted() {
    let (interrupt, terminate) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    );
    // Without handlers a signal ends the process at once; the nodes end with it.
    if let (Ok(mut interrupt), Ok(mut terminate)) = (interrupt, terminate) {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    } else {
        std::future::pending::<()>().await;
    }
}
