//! A machine's disk and what is to happen to it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::server::store::{MemoryDisk, Probe};

/// What a node says whose power was cut within a write.
pub(super) const CUT: &str = "the power was cut";

/// No cut is to come.
const NEVER: u64 = u64::MAX;

/// The disk below one node's store.
#[derive(Debug, Clone)]
pub(super) struct MachineDisk {
    database: MemoryDisk,
    /// The power is cut at the so-manieth step of a write from now.
    cut_in: Arc<AtomicU64>,
}

impl MachineDisk {
    /// An empty disk for the data directory at this path.
    pub(super) fn put(data_dir: &Path) -> Self {
        Self {
            database: MemoryDisk::put(&data_dir.join("sled")),
            cut_in: Arc::new(AtomicU64::new(NEVER)),
        }
    }

    /// What the store asks before each step of a write.
    pub(super) fn probe(&self) -> Probe {
        let cut_in = Arc::clone(&self.cut_in);
        Probe::new(move |_step| {
            let left = cut_in.load(Ordering::Relaxed);
            if left == NEVER {
                return Ok(());
            }
            cut_in.store(left.saturating_sub(1), Ordering::Relaxed);
            if 0 < left {
                return Ok(());
            }
            Err(io::Error::other(CUT))
        })
    }

    /// The power is cut within a write to come, after so many steps of such.
    pub(super) fn cut_within(&self, steps: u64) {
        self.cut_in.store(steps, Ordering::Relaxed);
    }

    /// No cut is to come any more.
    pub(super) fn keep_power(&self) {
        self.cut_in.store(NEVER, Ordering::Relaxed);
    }

    /// What was not synced is gone.
    pub(super) fn cut_power(&self) {
        self.keep_power();
        self.database.cut_power();
    }

    /// Syncs take at most this long, until the next call.
    pub(super) fn slow_down(&self, sync_time_max: Option<Duration>) {
        match sync_time_max {
            Some(time) => self.database.set_sync_time_max(time),
            None => self.database.reset_sync_time_max(),
        }
    }

    /// The store is gone: another disk was put in its place. What the identity says stays.
    pub(super) fn lose_store(&self, data_dir: &Path) {
        self.database.wipe();
        for name in ["superblock", "sled", "snapshots"] {
            let path = data_dir.join(name);
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap();
            } else if path.exists() {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}
