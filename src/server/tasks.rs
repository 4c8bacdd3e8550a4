//! The node's tasks: started here, told to stop together, and waited for. No task is ever detached.

use std::future::Future;
use std::pin::pin;

use futures::future::{Either, select};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A group of tasks with one end. Clones stand for the same group.
///
/// A panic in a task is not caught here: the process's panic hook ends the process (I10).
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// Starts a task that runs until it ends by itself or the group is stopped, where it is dropped at its
    /// next await.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            match select(pin!(stop.cancelled()), pin!(task)).await {
                Either::Left(((), _)) | Either::Right(((), _)) => {}
            }
        });
    }

    /// Waits until all tasks have ended by themselves.
    pub(crate) async fn finish(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Tells all tasks to stop and waits until they have.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.finish().await;
    }
}
