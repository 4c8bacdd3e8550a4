//! Step 4 of the walk: what a node promised, on disk.
//!
//! Read in this order: `directory` (where it is), `identity` (whose it is), `startup` (what a start checks), `database`,
//! `superblock` and `journal` (what is written), `writer` (when it is written), `log` with `view` (what openraft appends and
//! reads) and `sizes` (how much of it there is), `state_machine` (what it applies), `snapshots` with `snapshot`, `inbox`
//! and `snapshot_format` (what replaces a purged log), `backup` with `pace` (the sequences of one moment, for another
//! cluster), `restore` with `raise` (a directory made of them), and `inspect` and `salvage` (all of it, from outside).
//! `record`, `frame`, `hashing`, `files` and `error` serve them; `space`, `disk` and `failure` watch the disk below. Nothing
//! here knows the network or HTTP.

mod applying;
mod backup;
mod database;
mod directory;
mod disk;
mod error;
mod failure;
mod files;
mod frame;
#[cfg(all(feature = "cli", any(fuzzing, test)))]
pub(crate) mod fuzzing;
mod hashing;
mod identity;
mod inbox;
#[cfg(feature = "cli")]
mod inspect;
#[cfg(feature = "cli")]
mod inspection;
mod journal;
mod log;
mod medium;
#[cfg(test)]
mod memory_disk;
mod pace;
mod probe;
#[cfg(feature = "cli")]
mod raise;
mod record;
#[cfg(feature = "cli")]
mod restore;
#[cfg(feature = "cli")]
mod salvage;
mod sizes;
mod sled_guard;
mod snapshot;
mod snapshot_format;
mod snapshot_header;
mod snapshots;
mod space;
mod startup;
mod state_machine;
mod superblock;
#[cfg(test)]
mod tests;
mod view;
mod writer;

pub(crate) use backup::Backup;
#[cfg(feature = "cli")]
pub(crate) use backup::BackupError;
#[cfg(test)]
pub(crate) use backup::Rises;
pub(crate) use disk::{Disk, DiskState, DiskWatch, Pulse};
pub(crate) use error::{StoreError, WAY_OUT};
pub(crate) use failure::{StoreFailed, StoreFailure};
pub(crate) use identity::{DataDir, FormationRecord, Identity};
pub(crate) use inbox::SnapshotInbox;
#[cfg(feature = "cli")]
pub(crate) use inspect::{InspectError, inspect};
#[cfg(feature = "cli")]
pub(crate) use inspection::{EntryView, Inspection, Verdict, VoteView};
pub(crate) use log::LogStore;
#[cfg(test)]
pub(crate) use memory_disk::MemoryDisk;
pub(crate) use pace::Pace;
#[cfg(test)]
pub(crate) use probe::Probe;
#[cfg(feature = "cli")]
pub(crate) use raise::Raise;
#[cfg(feature = "cli")]
pub(crate) use restore::{RestoreError, Restored, restore};
#[cfg(feature = "cli")]
pub(crate) use salvage::salvage;
pub(crate) use sizes::{LogSize, Stretch};
#[cfg(test)]
pub(crate) use snapshot::testing;
pub(crate) use snapshot::{SnapshotFile, SnapshotReader};
pub(crate) use space::Space;
pub(crate) use state_machine::{StateMachine, TableReader};
#[cfg(test)]
pub(crate) use tests::refusals;

use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use self::database::Database;
#[cfg(not(test))]
use self::probe::Probe;
use self::snapshots::Snapshots;
use self::writer::Writer;
use super::types::{LogId, Vote};
use crate::sequence::FeatureLevel;

const SUPERBLOCK_NAME: &str = "superblock";
const DATABASE_NAME: &str = "sled";
const SNAPSHOTS_NAME: &str = "snapshots";

/// An open store: its parts, for openraft and for those beside it.
#[derive(Debug)]
pub(crate) struct Store {
    /// The Raft log.
    pub(crate) log: LogStore,
    /// How much of it there is.
    pub(crate) log_size: LogSize,
    /// What committed entries are applied to.
    pub(crate) machine: StateMachine,
    /// Reads the table beside the state machine.
    pub(crate) tables: TableReader,
    /// Where the leader's snapshots are received.
    pub(crate) snapshots: SnapshotInbox,
    /// The vote found at the start.
    pub(crate) vote: Option<Vote>,
    /// The last entry found at the start: what was promised before is recovered once it is applied.
    pub(crate) last_log_id: Option<LogId>,
    /// Tells when it cannot write any more, whoever waits for a write or nobody.
    pub(crate) failed: StoreFailed,
    /// Tells when everything is written and closed.
    pub(crate) closed: StoreClosed,
    /// Tells since when the disk has not answered.
    pulse: Pulse,
    database: Weak<Database>,
}

/// Resolves once `log`, `machine`, and all readers and builders made of them are dropped and the files closed.
#[derive(Debug)]
pub(crate) struct StoreClosed {
    closed: oneshot::Receiver<()>,
}

impl StoreClosed {
    /// Waits until the store's files are closed.
    pub(crate) async fn wait(self) {
        // The sender is only ever dropped.
        self.closed.await.ok();
    }
}

impl Store {
    /// Opens a directory's store after checking that nothing that was promised is missing, or makes it where
    /// there never was one. Nothing above this feature level is applied. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError`] with what is missing and the way out.
    pub(crate) fn open(dir: &DataDir, level_max: FeatureLevel) -> Result<Self, StoreError> {
        Self::open_with(dir, level_max, Probe::default())
    }

    /// Refuses what is there of another store beside an identity that is in no cluster: before that joins one.
    ///
    /// # Errors
    /// [`StoreError`] where there is something, or it cannot be told.
    pub(crate) fn refuse_orphan(dir: &DataDir) -> Result<(), StoreError> {
        startup::refuse_orphan(dir)
    }

    /// The same, with a probe that looks into the syncs.
    pub(crate) fn open_with(
        dir: &DataDir,
        level_max: FeatureLevel,
        probe: Probe,
    ) -> Result<Self, StoreError> {
        let (closing, closed) = oneshot::channel();
        let pulse = probe.pulse().clone();
        let recovered = startup::recover(dir, level_max, probe, closing)?;
        let last_log_id = recovered
            .promised
            .last
            .max(recovered.state.meta.last_log_id);
        let vote = recovered.promised.vote;
        let shared = recovered.shared;
        let database = Arc::downgrade(&shared.database);
        let (failing, failed) = failure::channel();
        let writer = Writer::new(
            Arc::clone(&shared),
            recovered.superblock,
            recovered.promised,
            failing.clone(),
        );
        let queue = writer
            .start()
            .map_err(StoreError::io("start a thread for", dir.path()))?;
        let snapshots = Snapshots::new(
            recovered.directory.clone(),
            recovered.snapshot,
            queue.clone(),
            failing.clone(),
        );
        let log_size = LogSize::new(&shared, snapshots.current());
        let machine = StateMachine::new(recovered.state, snapshots, level_max);
        Ok(Self {
            log_size,
            log: LogStore::new(shared, queue),
            tables: machine.reader(),
            machine,
            snapshots: SnapshotInbox::new(recovered.directory, level_max, failing),
            vote,
            last_log_id,
            failed,
            closed: StoreClosed { closed },
            pulse,
            database,
        })
    }

    /// The disk below, with a floor in bytes, and what looks after it.
    pub(crate) fn disk(&self, space: Space, floor: u64) -> (Disk, DiskWatch) {
        let disk = Disk::new(space, floor, self.pulse.clone());
        let watch = DiskWatch::new(disk.clone(), Weak::clone(&self.database));
        (disk, watch)
    }
}
