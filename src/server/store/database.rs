//! The sled database under the sync rules: what it takes for sled to keep what it was given.
//!
//! sled's `flush` hands pages to the operating system but does not make them durable (sled#1452), so every
//! change is followed by `flush` and then by `sync_data` on our own handle of its file. Between two of these the
//! changes are few against a segment, because sled reuses segments on the strength of its own barrier. A value
//! is never so large that sled moves it to a file of its own. `flush_every_ms` is off: only the writer flushes. It does so
//! for many groups at once, which `journal` keeps until then.

use std::fs;
use std::io;
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::error::StoreError;
use super::files;
use super::frame::{self, FrameError};
#[cfg(test)]
use super::medium::Value;
use super::medium::{Medium, SEGMENT_BYTES};
use super::probe::{Probe, Step};
use super::record::{self, Record, RecordError};
use super::sled_guard::{CHECK_TIME_MAX, OPEN_TIME_MAX, guarded, wait_until_unlocked};
use crate::server::codec;

/// The most bytes of changes between two syncs, counted as key + value + [`OPERATION_BYTES`].
pub(super) const CHANGES_BYTES_MAX: usize = SEGMENT_BYTES / 32;
/// The most keys touched between two syncs.
pub(super) const CHANGES_OPERATIONS_MAX: usize = 400;
/// What sled adds to a key and its value.
const OPERATION_BYTES: usize = 64;
const KEY_BYTES: usize = 8;

const META_FORMAT: &[u8] = &[1];
/// The most bytes of one of them.
pub(super) const META_BYTES_MAX: usize = 256;

/// The values beside the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetaKey {
    Vote,
    Purged,
    Committed,
}

impl MetaKey {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Vote => "vote",
            Self::Purged => "purged",
            Self::Committed => "committed",
        }
    }

    /// What stands for it in the journal.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Vote => 0,
            Self::Purged => 1,
            Self::Committed => 2,
        }
    }

    /// The one that a code stands for.
    pub(super) fn of(code: u8) -> Option<Self> {
        let all = [Self::Vote, Self::Purged, Self::Committed];
        all.into_iter().find(|key| key.code() == code)
    }
}

/// The open database. It is closed when the last clone of its `Arc` is dropped, which then shows at `closed`.
pub(super) struct Database {
    path: PathBuf,
    medium: Medium,
    probe: Probe,
    /// Dropped last, after sled has let go of its files.
    _closed: oneshot::Sender<()>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Database")
    }
}

/// Changes that fit between two syncs.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Records that are written, or removed.
    pub(super) log: Vec<(u64, Option<Bytes>)>,
    pub(super) meta: Vec<(MetaKey, Bytes)>,
    operations: usize,
    cost: usize,
}

impl Changes {
    /// Whether a value of this many bytes can still be written or removed, and one beside the log after it.
    pub(super) fn has_room(&self, value_bytes: usize) -> bool {
        let with_it = self.cost + cost(value_bytes) + cost(META_BYTES_MAX);
        self.operations + 2 <= CHANGES_OPERATIONS_MAX && with_it <= CHANGES_BYTES_MAX
    }

    /// Whether these may follow in the same sync.
    pub(super) fn has_room_for(&self, later: &Self) -> bool {
        self.operations + later.operations <= CHANGES_OPERATIONS_MAX
            && self.cost + later.cost <= CHANGES_BYTES_MAX
    }

    /// Adds what follows. Of a value beside the log only the latest counts.
    pub(super) fn extend(&mut self, later: Self) {
        self.log.extend(later.log);
        self.operations += later.operations;
        self.cost += later.cost;
        for (key, value) in later.meta {
            if let Some(at) = self.meta.iter().position(|(earlier, _)| *earlier == key) {
                let (_, earlier) = self.meta.swap_remove(at);
                self.operations -= 1;
                self.cost -= cost(earlier.len());
            }
            self.meta.push((key, value));
        }
    }

    /// How many keys they touch.
    pub(super) fn operations(&self) -> usize {
        self.operations
    }

    /// Their bytes, as the sync rules count them.
    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations == 0
    }

    pub(super) fn put_record(&mut self, index: u64, record: Bytes) {
        self.count(record.len());
        self.log.push((index, Some(record)));
    }

    pub(super) fn put_meta<T: serde::Serialize>(&mut self, key: MetaKey, value: &T) {
        self.put_framed(key, frame::seal(META_FORMAT, &codec::encode(value)).into());
    }

    /// A value beside the log as it is stored.
    pub(super) fn put_framed(&mut self, key: MetaKey, framed: Bytes) {
        self.count(framed.len());
        self.meta.push((key, framed));
    }

    fn remove_record(&mut self, index: u64, record: &[u8]) {
        self.count(record.len());
        self.log.push((index, None));
    }

    fn count(&mut self, value_bytes: usize) {
        self.operations += 1;
        self.cost += cost(value_bytes);
    }
}

fn cost(value_bytes: usize) -> usize {
    KEY_BYTES + value_bytes + OPERATION_BYTES
}

/// From which end records are removed: whichever leaves no hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Front,
    Back,
}

impl Database {
    /// Makes an empty database. Durable before this returns, in the order that sled needs.
    pub(super) fn create(path: &Path) -> Result<(), StoreError> {
        files::create_directory(path).map_err(StoreError::io("create", path))?;
        let (closed, _) = oneshot::channel();
        let database = Self::start(path, Probe::default(), closed)?;
        guarded(path, CHECK_TIME_MAX, move || database.sync_all())?;
        match path.parent() {
            Some(parent) => files::sync_directory(parent).map_err(StoreError::io("sync", parent)),
            None => Ok(()),
        }
    }

    /// Opens the database and gives it to `check` before anything is relied on, both without a panic and in
    /// bounded time.
    pub(super) fn open<T: Send + 'static>(
        path: &Path,
        probe: Probe,
        closed: oneshot::Sender<()>,
        check: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<(Self, T), StoreError> {
        Medium::check_files(path)?;
        remove_unfinished(path)?;
        let database = Self::start(path, probe, closed)?;
        guarded(path, CHECK_TIME_MAX, move || {
            database.sync_all()?;
            let checked = check(&database)?;
            Ok((database, checked))
        })
    }

    fn start(path: &Path, probe: Probe, closed: oneshot::Sender<()>) -> Result<Self, StoreError> {
        let path = path.to_path_buf();
        guarded(&path.clone(), OPEN_TIME_MAX, move || {
            wait_until_unlocked(&path.join("db"));
            Ok(Self {
                medium: Medium::open(&path)?,
                path,
                probe,
                _closed: closed,
            })
        })
    }

    /// What every start syncs before anything read from it may be relied on.
    fn sync_all(&self) -> Result<(), StoreError> {
        self.medium.sync_all(&self.path)
    }

    /// Makes changes durable.
    ///
    /// # Errors
    /// sled's or the disk's; after it nothing may be written any more, and nothing tried again: the kernel may
    /// have dropped the pages that it could not write.
    pub(super) fn commit(&self, changes: Changes) -> io::Result<()> {
        let (operations, cost) = (changes.operations, changes.cost);
        debug_assert!(Changes::default().has_room_for(&changes));
        let _asked = self.probe.ask();
        self.medium.apply(changes).map_err(told)?;
        self.probe.before(Step::Database { operations, cost })?;
        self.medium.sync()
    }

    /// Makes the journal's groups durable here. Those that are here already change nothing.
    ///
    /// # Errors
    /// [`StoreError`] where the disk takes them not.
    pub(super) fn replay(&self, groups: Vec<Changes>) -> Result<(), StoreError> {
        let commit = |changes| {
            let committed = self.commit(changes);
            committed.map_err(StoreError::io("write", &self.path))
        };
        let mut together = Changes::default();
        for group in groups {
            if !together.has_room_for(&group) {
                commit(std::mem::take(&mut together))?;
            }
            together.extend(group);
        }
        if together.is_empty() {
            return Ok(());
        }
        commit(together)
    }

    /// Wakes a `commit` that sleeps although sled has an error for it. Writes nothing that it would not write.
    pub(super) fn wake(&self) {
        self.medium.wake();
    }

    /// The value beside the log, or `None` where it was never written.
    pub(super) fn meta<T: serde::de::DeserializeOwned>(
        &self,
        key: MetaKey,
    ) -> Result<Option<T>, StoreError> {
        let what = key.name();
        let found = self.medium.meta(key);
        let Some(bytes) = found.map_err(|error| StoreError::sled(&self.path, &error))? else {
            return Ok(None);
        };
        if frame::is_later(META_FORMAT, &bytes) {
            return Err(self.later());
        }
        let damaged = |source| StoreError::ValueDamaged { what, source };
        let body = frame::open(META_FORMAT, &bytes).map_err(damaged)?;
        codec::decode::<T, META_BYTES_MAX>(body)
            .map(Some)
            .map_err(|source| damaged(FrameError::Content(source)))
    }

    /// How long the next sync of a simulated disk takes.
    #[cfg(test)]
    pub(super) fn sync_time(&self) -> std::time::Duration {
        self.medium.sync_time()
    }

    /// For tests of its layout.
    #[cfg(test)]
    pub(super) fn raw_meta(&self, key: MetaKey) -> Option<Value> {
        self.medium.meta(key).ok()?
    }

    /// The records of a range in order, each with its size.
    pub(super) fn records(
        &self,
        range: impl RangeBounds<u64>,
    ) -> impl Iterator<Item = Result<(usize, Record), StoreError>> {
        self.medium.scan(range).map(|found| {
            let (key, value) = found.map_err(|error| StoreError::sled(&self.path, &error))?;
            if record::is_later(&value) {
                return Err(self.later());
            }
            decode(&key, &value)
                .map(|record| (value.len(), record))
                .map_err(|(index, source)| StoreError::RecordDamaged { index, source })
        })
    }

    fn later(&self) -> StoreError {
        StoreError::Later {
            path: self.path.clone(),
        }
    }

    /// Whether there is a record in a range.
    pub(super) fn has_records(&self, range: impl RangeBounds<u64>) -> bool {
        self.medium.scan(range).next().is_some()
    }

    /// As many removals of records of a range as fit between two syncs; none where there are no records.
    pub(super) fn removals(&self, range: impl RangeBounds<u64>, end: End) -> io::Result<Changes> {
        let mut changes = Changes::default();
        let mut scan = self.medium.scan(range);
        while let Some(found) = match end {
            End::Front => scan.next(),
            End::Back => scan.next_back(),
        } {
            let (key, value) = found.map_err(told)?;
            if !changes.has_room(value.len()) {
                break;
            }
            changes.remove_record(index_of(&key), &value);
        }
        Ok(changes)
    }
}

/// The system's error, where that is what sled tells.
fn told(error: sled::Error) -> io::Error {
    match error {
        sled::Error::Io(error) => original(error),
        other => io::Error::other(other),
    }
}

/// sled keeps the first error and gives out copies of it, of which only the text has the system's number.
fn original(error: io::Error) -> io::Error {
    let text = error.to_string();
    let number = text
        .strip_prefix("Os { code: ")
        .and_then(|rest| rest.split(',').next()?.parse().ok());
    match (error.raw_os_error(), number) {
        (None, Some(number)) => io::Error::from_raw_os_error(number),
        _ => error,
    }
}

fn decode(key: &[u8], value: &[u8]) -> Result<Record, (u64, RecordError)> {
    let index = index_of(key);
    let record = record::decode(value).map_err(|source| (index, source))?;
    let found = record.entry.log_id.index();
    if key.len() != KEY_BYTES || found != index {
        return Err((
            index,
            FrameError::Invalid {
                reason: format!("it is the record of index {found}"),
            },
        ));
    }
    Ok(record)
}

/// The index that a record is kept at.
fn index_of(key: &[u8]) -> u64 {
    key.try_into().map(u64::from_be_bytes).unwrap_or_default()
}

/// A snapshot of sled's own that was not finished makes the next open fail (sled#1527).
fn remove_unfinished(path: &Path) -> Result<(), StoreError> {
    let mut entries = fs::read_dir(path).map_err(StoreError::io("read", path))?;
    entries
        .try_for_each(|entry| {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("snap.") && name.ends_with(".generating") {
                fs::remove_file(entry.path())?;
            }
            Ok(())
        })
        .and_then(|()| files::sync_directory(path))
        .map_err(StoreError::io("clean", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_is_told_as_the_system_told_it_also_where_sled_copied_it() {
        let system = sled::Error::Io(io::Error::from_raw_os_error(28));
        let copied = system.clone();
        let own = sled::Error::Io(io::Error::new(io::ErrorKind::InvalidData, "damaged"));

        for error in [system, copied] {
            assert_eq!(told(error).raw_os_error(), Some(28));
        }
        assert_eq!(told(own).to_string(), "damaged");
    }
}
