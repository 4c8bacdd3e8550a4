//! The node's tasks: started here, told to stop together, and waited for. No task is ever detached.

use std::future::Future;
use std::pin::pin;

use futures::future::{Either, select};
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often a task that serves many at once lets all others run before it begins.
const TURNS_MAX: usize = 16;

/// Lets those come who travel together with one that has come: as often as there were of them last time, the tasks that are ready
/// run and the sockets are looked at.
///
/// Who was just answered asks again in a moment. Where the next round began at once, two crowds would take turns, each waiting
/// for the other's round. A lone one waits for a turn of some microseconds, which no timer could measure.
pub(crate) async fn gather(crowd: usize) {
    for _ in 0..crowd.clamp(1, TURNS_MAX) {
        yield_now().await;
    }
}

/// Runs what never ends until it waits for something else than others to run.
#[cfg(test)]
pub(crate) async fn run_until_it_waits(mut task: std::pin::Pin<&mut impl Future<Output = ()>>) {
    for _ in 0..=TURNS_MAX {
        assert!(futures::poll!(task.as_mut()).is_pending());
    }
}

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

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn a_crowd_is_waited_for_as_many_turns_as_it_had_heads_but_not_for_ever() {
        for (crowd, expected) in [(0, 1), (1, 1), (7, 7), (1_000, TURNS_MAX)] {
            let mut turns = 0;
            let mut gathering = pin!(gather(crowd));
            while poll!(&mut gathering).is_pending() {
                turns += 1;
            }

            assert_eq!(turns, expected, "{crowd}");
        }
    }
}
