//! What keeps the database's bytes: sled, or the memory disk of a simulated machine.

use std::fs::{self, File};
use std::io;
use std::ops::RangeBounds;
use std::path::Path;

use super::database::{Changes, MetaKey};
use super::error::StoreError;
use super::files;
#[cfg(test)]
use super::memory_disk::MemoryDisk;

/// Fixed for ever at creation; the bounds of what goes between two syncs follow from it.
pub(super) const SEGMENT_BYTES: usize = 8 * 1024 * 1024;
/// sled's page cache; its default is a gigabyte.
const CACHE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The bytes of a record, or of a value beside the log.
pub(super) type Value = sled::IVec;

/// An open database's bytes.
pub(super) enum Medium {
    Sled {
        db: sled::Db,
        log: sled::Tree,
        meta: sled::Tree,
        file: File,
    },
    #[cfg(test)]
    Memory(MemoryDisk),
}

impl Medium {
    /// Opens it, or makes it where there is none. sled may panic or hang on damage.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        #[cfg(test)]
        if let Some(disk) = MemoryDisk::at(path) {
            return Ok(Self::Memory(disk));
        }
        let damaged = |error: sled::Error| StoreError::sled(path, &error);
        let db = sled::Config::new()
            .path(path)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(CACHE_BYTES_MAX)
            .flush_every_ms(None)
            .open()
            .map_err(damaged)?;
        let file = path.join("db");
        Ok(Self::Sled {
            log: db.open_tree("log").map_err(damaged)?,
            meta: db.open_tree("meta").map_err(damaged)?,
            file: File::open(&file).map_err(StoreError::io("open", &file))?,
            db,
        })
    }

    /// What has to be there of a database that was made.
    pub(super) fn check_files(path: &Path) -> Result<(), StoreError> {
        #[cfg(test)]
        if MemoryDisk::at(path).is_some() {
            return Ok(());
        }
        for needed in [path.to_path_buf(), path.join("db"), path.join("conf")] {
            if !needed.exists() {
                return Err(StoreError::DatabaseMissing { path: needed });
            }
        }
        Ok(())
    }

    /// What every start syncs before anything read from it may be relied on.
    pub(super) fn sync_all(&self, path: &Path) -> Result<(), StoreError> {
        let db = match self {
            Self::Sled { db, .. } => db,
            #[cfg(test)]
            Self::Memory(_) => return Ok(()),
        };
        db.flush().map_err(|error| StoreError::sled(path, &error))?;
        for name in ["db", "conf", "blobs"] {
            let file = path.join(name);
            File::open(&file)
                .and_then(|file| file.sync_all())
                .map_err(StoreError::io("sync", &file))?;
        }
        files::sync_directory(path).map_err(StoreError::io("sync", path))?;
        let blobs = path.join("blobs");
        let mut entries = fs::read_dir(&blobs).map_err(StoreError::io("read", &blobs))?;
        if entries.next().is_some() {
            return Err(StoreError::Blobs { path: blobs });
        }
        Ok(())
    }

    /// Makes changes visible, not durable.
    pub(super) fn apply(&self, changes: Changes) -> sled::Result<()> {
        match self {
            Self::Sled { db, log, meta, .. } => {
                let mut batch = sled::Batch::default();
                for (index, record) in changes.log {
                    let key = &index.to_be_bytes();
                    match record {
                        Some(record) => batch.insert(key, &record[..]),
                        None => batch.remove(key),
                    }
                }
                log.apply_batch(batch)?;
                let mut batch = sled::Batch::default();
                for (key, value) in changes.meta {
                    batch.insert(key.name(), &value[..]);
                }
                meta.apply_batch(batch)?;
                db.flush().map(drop)
            }
            #[cfg(test)]
            Self::Memory(disk) => {
                disk.apply(changes);
                Ok(())
            }
        }
    }

    /// Makes what was applied durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        match self {
            Self::Sled { file, .. } => file.sync_data(),
            #[cfg(test)]
            Self::Memory(disk) => {
                disk.sync();
                Ok(())
            }
        }
    }

    /// How long the next sync of a simulated disk takes.
    #[cfg(test)]
    pub(super) fn sync_time(&self) -> std::time::Duration {
        match self {
            Self::Sled { .. } => std::time::Duration::ZERO,
            Self::Memory(disk) => disk.sync_time(),
        }
    }

    /// Wakes whoever sleeps although sled has an error for him. Writes nothing that would not be written.
    pub(super) fn wake(&self) {
        match self {
            // The one who sleeps gets the error as well.
            Self::Sled { db, .. } => drop(db.flush()),
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// A value beside the log.
    pub(super) fn meta(&self, key: MetaKey) -> sled::Result<Option<Value>> {
        match self {
            Self::Sled { meta, .. } => meta.get(key.name()),
            #[cfg(test)]
            Self::Memory(disk) => Ok(disk.meta(key)),
        }
    }

    /// The records of a range with their keys, in order.
    pub(super) fn scan(
        &self,
        range: impl RangeBounds<u64>,
    ) -> Box<dyn DoubleEndedIterator<Item = sled::Result<(Value, Value)>>> {
        match self {
            Self::Sled { log, .. } => {
                let bound = |index: &u64| index.to_be_bytes();
                let range = (range.start_bound().map(bound), range.end_bound().map(bound));
                Box::new(log.range(range))
            }
            #[cfg(test)]
            Self::Memory(disk) => Box::new(disk.records(range).into_iter().map(Ok)),
        }
    }
}
