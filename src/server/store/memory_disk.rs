//! The disk of a simulated machine: what was synced survives a power cut, the rest does not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rand::Rng;

use super::database::{Changes, MetaKey};
use super::medium::Value;

/// How long a sync takes at most, where nobody has said otherwise: a little more than a good disk's.
const SYNC_TIME: Duration = Duration::from_millis(3);

thread_local! {
    static DISKS: RefCell<BTreeMap<PathBuf, MemoryDisk>> = const { RefCell::new(BTreeMap::new()) };
}

/// One database's disk. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct MemoryDisk(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    seen: Content,
    synced: Content,
    sync_time_max: Duration,
    syncs: u64,
}

#[derive(Debug, Clone, Default)]
struct Content {
    log: BTreeMap<u64, Bytes>,
    meta: BTreeMap<&'static str, Bytes>,
}

impl MemoryDisk {
    /// Puts an empty one at the place of a database: whoever opens that, on this thread, has this disk.
    pub(crate) fn put(path: &Path) -> Self {
        let disk = Self(Arc::new(Mutex::new(Inner {
            seen: Content::default(),
            synced: Content::default(),
            sync_time_max: SYNC_TIME,
            syncs: 0,
        })));
        DISKS.with_borrow_mut(|disks| disks.insert(path.to_owned(), disk.clone()));
        disk
    }

    pub(super) fn at(path: &Path) -> Option<Self> {
        DISKS.with_borrow(|disks| disks.get(path).cloned())
    }

    /// The power is cut.
    pub(crate) fn cut_power(&self) {
        self.with(|inner| inner.seen = inner.synced.clone());
    }

    /// Everything on it is gone.
    pub(crate) fn wipe(&self) {
        self.with(|inner| {
            inner.seen = Content::default();
            inner.synced = Content::default();
        });
    }

    /// How long a sync takes at most from now on.
    pub(crate) fn set_sync_time_max(&self, time: Duration) {
        self.with(|inner| inner.sync_time_max = time);
    }

    pub(crate) fn reset_sync_time_max(&self) {
        self.set_sync_time_max(SYNC_TIME);
    }

    /// How long the next sync takes.
    pub(super) fn sync_time(&self) -> Duration {
        let longest = self.with(|inner| inner.sync_time_max);
        rand::rng().random_range(Duration::ZERO..=longest)
    }

    pub(super) fn apply(&self, changes: Changes) {
        self.with(|inner| {
            for (index, record) in changes.log {
                match record {
                    Some(record) => inner.seen.log.insert(index, record),
                    None => inner.seen.log.remove(&index),
                };
            }
            for (key, value) in changes.meta {
                inner.seen.meta.insert(key.name(), value);
            }
        });
    }

    pub(super) fn sync(&self) {
        self.with(|inner| {
            inner.syncs += 1;
            inner.synced = inner.seen.clone();
        });
    }

    pub(super) fn meta(&self, key: MetaKey) -> Option<Value> {
        self.with(|inner| {
            inner
                .seen
                .meta
                .get(key.name())
                .map(|value| value[..].into())
        })
    }

    pub(super) fn records(&self, range: impl RangeBounds<u64>) -> Vec<(Value, Value)> {
        self.with(|inner| {
            let records = inner.seen.log.range(range);
            let bytes = |(index, record): (&u64, &Bytes)| {
                (index.to_be_bytes().as_slice().into(), record[..].into())
            };
            records.map(bytes).collect()
        })
    }

    fn with<T>(&self, look: impl FnOnce(&mut Inner) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }
}
