//! The writer of a simulated machine, which has no threads.

use tokio::sync::mpsc;

use super::{Command, Writer};

impl Writer {
    /// The thread as a task of a simulated machine. A group takes as long as its disk's sync, and is written at the end of
    /// that: where the power is cut before, none of it is there.
    pub(super) async fn run_simulated(mut self, mut queue: mpsc::Receiver<Command>) {
        let written = async {
            if self.promised.last == self.promised.purged {
                self.remove_all()?;
            }
            while let Some(first) = queue.recv().await {
                tokio::time::sleep(self.shared.database.sync_time()).await;
                self.write_group(first, &mut queue)?;
            }
            self.close()
        };
        if let Err(error) = written.await {
            // Whoever waits never hears of it: the power is gone.
            self.failed.send(&error);
            std::future::pending::<()>().await;
        }
    }
}
