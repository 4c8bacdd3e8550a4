//! The snapshot that counts: how one is built beside the state machine, and how the superblock comes to name it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::RaftSnapshotBuilder;
use openraft::storage::Snapshot;
use openraft::type_config::alias::SnapshotOf;
use tokio::sync::{mpsc, oneshot};

use super::failure::FailureReport;
use super::snapshot::{SnapshotDirectory, SnapshotFile};
use super::snapshot_format::State;
use super::writer::Command;
use crate::server::host;
use crate::server::types::{LogId, TypeConfig};

/// How much less of the processor a build gets: about a tenth of what anybody else does who wants it at that time. It has
/// to end, because the log grows until then.
const NICENESS: i32 = 10;

/// Writes the state of one moment to a file, while the state machine goes on.
#[derive(Debug)]
pub(crate) struct SnapshotBuilder {
    state: State,
    snapshots: Snapshots,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotFile>> {
        // Moved: what it alone holds is freed where it is written.
        let state = std::mem::take(&mut self.state);
        let directory = self.snapshots.directory.clone();
        let file = in_background(move || directory.build(&state))
            .await
            .inspect_err(|error| self.snapshots.failed.send(error))?;
        Ok(described(self.snapshots.name(file).await?))
    }
}

/// Does what takes long on a thread of its own, which leaves the processor to those for whom somebody waits.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if host::is_simulated() {
        return work();
    }
    let (done, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("snapshot".to_owned());
    thread.spawn(move || {
        // Linux counts it for the thread alone. Where it is not allowed the thread only takes more.
        rustix::process::nice(NICENESS).ok();
        done.send(work()).ok();
    })?;
    result.await.map_err(io::Error::other)?
}

/// The snapshot that the superblock names, and how it comes to name another. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Snapshots {
    directory: SnapshotDirectory,
    queue: mpsc::Sender<Command>,
    current: CurrentSnapshot,
    /// One at a time, so that an older one never replaces a newer.
    naming: Arc<tokio::sync::Mutex<()>>,
    pub(super) failed: FailureReport,
}

impl Snapshots {
    pub(super) fn new(
        directory: SnapshotDirectory,
        current: Option<SnapshotFile>,
        queue: mpsc::Sender<Command>,
        failed: FailureReport,
    ) -> Self {
        Self {
            directory,
            queue,
            current: CurrentSnapshot(Arc::new(Mutex::new(current))),
            naming: Arc::default(),
            failed,
        }
    }

    /// Builds one of this state.
    pub(super) fn builder(&self, state: State) -> SnapshotBuilder {
        SnapshotBuilder {
            state,
            snapshots: self.clone(),
        }
    }

    /// Shows which one counts, also later.
    pub(super) fn current(&self) -> CurrentSnapshot {
        self.current.clone()
    }

    /// Makes a snapshot the one that counts, durably, unless a newer one does: a build that took long may end
    /// after an installation. Returns the one that counts.
    pub(super) async fn name(&self, file: SnapshotFile) -> io::Result<SnapshotFile> {
        let _one_at_a_time = self.naming.lock().await;
        if let Some(current) = self.current.file()
            && file.name().last() <= current.name().last()
        {
            return Ok(current);
        }
        let ended = || io::Error::other("the store's writer has ended");
        let (done, answer) = oneshot::channel();
        // Kept from here on: if the answer is lost, the superblock may name it.
        file.keep();
        let command = Command::NameSnapshot {
            name: file.name(),
            done,
        };
        self.queue.send(command).await.map_err(|_closed| ended())?;
        answer.await.map_err(|_closed| ended())??;
        let before = self.current.lock().replace(file.clone());
        if let Some(before) = before {
            before.release();
        }
        Ok(file)
    }
}

/// The snapshot that the superblock names, as it is now.
#[derive(Debug, Clone)]
pub(super) struct CurrentSnapshot(Arc<Mutex<Option<SnapshotFile>>>);

impl CurrentSnapshot {
    /// The last entry in it.
    pub(super) fn last(&self) -> Option<LogId> {
        self.lock().as_ref().and_then(|file| file.name().last())
    }

    /// Its bytes.
    pub(super) fn length(&self) -> u64 {
        self.lock().as_ref().map_or(0, SnapshotFile::length)
    }

    pub(super) fn file(&self) -> Option<SnapshotFile> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<SnapshotFile>> {
        // Nothing panics while it is changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As openraft sees it.
pub(super) fn described(file: SnapshotFile) -> SnapshotOf<TypeConfig, SnapshotFile> {
    Snapshot {
        meta: file.meta().clone(),
        snapshot: file,
    }
}
