//! Snapshot files beside the database: built here or received from the leader, then named in the superblock.
//!
//! A file is written under a temporary name, checked, made durable, given its own name, and only then named by
//! the superblock. A file that is not named, or no longer, is removed when nobody uses it any more; what a
//! crash leaves behind is removed at the next start.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::files;
use super::hashing::Digest;
use super::snapshot_format::{self, SnapshotError, State};
use crate::sequence::FeatureLevel;
use crate::server::formats::LogIdFormat;
use crate::server::host;
use crate::server::types::{LogId, SnapshotMeta};

/// After so many bytes of a file that is built the disk is given them, and the build rests.
const STRETCH_BYTES: u64 = 1024 * 1024;
/// How long it rests: a stretch takes a tenth of that where nothing else is to do, and a full table ten seconds.
const REST: Duration = Duration::from_millis(100);

pub(super) const COMPLETE_EXTENSION: &str = "snapshot";
const TEMPORARY_EXTENSION: &str = "new";

/// Which snapshot the superblock means: its file's name and content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotName {
    last: Option<LogIdFormat>,
    /// Random: a file of the same log position received again is another file.
    id: u64,
    checksum: [u8; 32],
}

impl SnapshotName {
    /// The last entry in it.
    pub(super) fn last(&self) -> Option<LogId> {
        self.last.map(Into::into)
    }

    /// The file, with the log index in front so that a listing is in order.
    pub(super) fn path(&self, directory: &Path) -> PathBuf {
        let index = self.last().map_or(0, |last| last.index());
        directory.join(format!("{index:020}-{:016x}.{COMPLETE_EXTENSION}", self.id))
    }
}

/// A complete, checked and durable snapshot. It never changes, and lives as long as it is named or in use.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotFile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    name: SnapshotName,
    meta: SnapshotMeta,
    length: u64,
    named: AtomicBool,
    /// How many transfers of it there are.
    sent: AtomicUsize,
}

/// A transfer of a snapshot to another node, as long as it lasts.
#[derive(Debug)]
pub(crate) struct Transfer {
    file: SnapshotFile,
}

/// Reads a snapshot piece by piece.
#[derive(Debug)]
pub(crate) struct SnapshotReader(Arc<File>);

impl SnapshotReader {
    /// The next so many bytes.
    ///
    /// # Errors
    /// The disk's, or `UnexpectedEof` where there are fewer.
    pub(crate) async fn next(&mut self, bytes: usize) -> io::Result<Bytes> {
        let file = Arc::clone(&self.0);
        let read = move || {
            let mut piece = BytesMut::zeroed(bytes);
            file.as_ref().read_exact(&mut piece)?;
            Ok(piece.freeze())
        };
        host::blocking(read).await?
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.file.inner.sent.fetch_sub(1, Ordering::Release);
    }
}

impl SnapshotFile {
    /// Its size in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.inner.length
    }

    /// The BLAKE3 of its content.
    pub(crate) fn checksum(&self) -> [u8; 32] {
        self.inner.name.checksum
    }

    /// What openraft knows of it, read from the file itself.
    pub(crate) fn meta(&self) -> &SnapshotMeta {
        &self.inner.meta
    }

    /// Opens it for reading, from its first byte.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) async fn open(&self) -> io::Result<SnapshotReader> {
        let path = self.inner.path.clone();
        let file = host::blocking(move || File::open(path)).await??;
        Ok(SnapshotReader(Arc::new(file)))
    }

    /// It is being sent from now on, until that is dropped.
    pub(crate) fn transfer(&self) -> Transfer {
        self.inner.sent.fetch_add(1, Ordering::Release);
        Transfer { file: self.clone() }
    }

    /// Whether it is being sent.
    pub(super) fn is_being_sent(&self) -> bool {
        0 < self.inner.sent.load(Ordering::Acquire)
    }

    pub(super) fn name(&self) -> SnapshotName {
        self.inner.name
    }

    /// Reads it whole and checks it.
    pub(super) fn read(&self) -> Result<State, SnapshotError> {
        let file = File::open(&self.inner.path).map_err(SnapshotError::Read)?;
        read_checked(file, self.inner.name)
    }

    /// The superblock names it: from now on it stays.
    pub(super) fn keep(&self) {
        self.inner.named.store(true, Ordering::Release);
    }

    /// The superblock names another: it goes when nobody reads it any more.
    pub(super) fn release(&self) {
        self.inner.named.store(false, Ordering::Release);
    }

    /// The snapshot that the superblock names, and the state in it, for a node that knows levels up to this one.
    pub(super) fn recover(
        directory: &Path,
        name: SnapshotName,
        level_max: FeatureLevel,
    ) -> Result<(Self, State), StoreError> {
        let path = name.path(directory);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::SnapshotMissing { path });
            }
            Err(error) => return Err(StoreError::io("open", path)(error)),
        };
        let length = file
            .metadata()
            .map_err(StoreError::io("read", &path))?
            .len();
        let state = match read_checked(file, name) {
            Ok(state) => state,
            Err(source) => {
                // What is whole is what was written, by whichever version.
                let whole = snapshot_format::level_of_whole(&path, name.checksum);
                whole.map_or(Ok(()), |level| level_max.check(level))?;
                return Err(match (whole, source) {
                    (Some(_), SnapshotError::Format) => StoreError::Later { path },
                    (_, source) => StoreError::SnapshotDamaged { path, source },
                });
            }
        };
        level_max.check(state.table.header().level)?;
        let file = Self {
            inner: Arc::new(Inner {
                path,
                name,
                meta: state.meta.clone(),
                length,
                named: AtomicBool::new(true),
                sent: AtomicUsize::new(0),
            }),
        };
        Ok((file, state))
    }
}

fn read_checked(file: File, name: SnapshotName) -> Result<State, SnapshotError> {
    let (state, digest) = snapshot_format::read(file)?;
    if digest.checksum != name.checksum {
        return Err(SnapshotError::Checksum);
    }
    if state.meta.last_log_id != name.last() {
        return Err(SnapshotError::Other);
    }
    Ok(state)
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.named.load(Ordering::Acquire) {
            // What stays behind is removed at the next start.
            fs::remove_file(&self.path).ok();
        }
    }
}

/// The directory of snapshots, made and cleaned.
#[derive(Debug, Clone)]
pub(super) struct SnapshotDirectory {
    path: Arc<Path>,
}

impl SnapshotDirectory {
    /// Makes the directory and removes all snapshots in it, whole or not, but the one that is named.
    pub(super) fn open(path: &Path, named: Option<SnapshotName>) -> Result<Self, StoreError> {
        files::create_directory(path).map_err(StoreError::io("create", path))?;
        let keep = named.map(|name| name.path(path));
        fs::read_dir(path)
            .and_then(|mut entries| {
                entries.try_for_each(|entry| {
                    let found = entry?.path();
                    let ours = found.extension().is_some_and(|extension| {
                        extension == COMPLETE_EXTENSION || extension == TEMPORARY_EXTENSION
                    });
                    if !ours || Some(&found) == keep.as_ref() {
                        return Ok(());
                    }
                    fs::remove_file(found)
                })
            })
            .map_err(StoreError::io("clean", path))?;
        Ok(Self { path: path.into() })
    }

    /// Writes a state. The file is durable when this returns; nobody names it yet.
    pub(super) fn build(&self, state: &State) -> io::Result<SnapshotFile> {
        let temporary = self.temporary();
        let file = File::create(&temporary.path)?;
        let digest = snapshot_format::write(state, Paced::new(&file, thread::sleep))?;
        file.sync_all()?;
        self.publish(temporary, digest, state.meta.clone())
    }

    pub(super) fn temporary(&self) -> Temporary {
        Temporary {
            path: self
                .path
                .join(format!("{:016x}.new", rand::random::<u64>())),
        }
    }

    pub(super) fn publish(
        &self,
        temporary: Temporary,
        digest: Digest,
        meta: SnapshotMeta,
    ) -> io::Result<SnapshotFile> {
        let name = SnapshotName {
            last: meta.last_log_id.map(Into::into),
            id: rand::random(),
            checksum: digest.checksum,
        };
        let path = name.path(&self.path);
        files::publish(&temporary.path, &path)?;
        Ok(SnapshotFile {
            inner: Arc::new(Inner {
                path,
                name,
                meta,
                length: digest.length,
                named: AtomicBool::new(false),
                sent: AtomicUsize::new(0),
            }),
        })
    }
}

/// A file that grows a stretch at a time: all at once it would hold up whoever waits for a grant.
struct Paced<'a, R> {
    file: &'a File,
    rest: R,
    begin: u64,
    end: u64,
}

impl<'a, R: FnMut(Duration)> Paced<'a, R> {
    fn new(file: &'a File, rest: R) -> Self {
        Self {
            file,
            rest,
            begin: 0,
            end: 0,
        }
    }
}

impl<R: FnMut(Duration)> Write for Paced<'_, R> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.end += written as u64;
        let stretch = NonZeroU64::new(self.end - self.begin);
        if let Some(stretch) = stretch.filter(|stretch| STRETCH_BYTES <= stretch.get()) {
            // Linux begins to write it to the disk. A sync would be waited for, by the log's syncs too, and comes at the end.
            fadvise(self.file, self.begin, Some(stretch), Advice::DontNeed).ok();
            (self.rest)(REST);
            self.begin = self.end;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file that is removed where it does not get its final name.
#[derive(Debug)]
pub(super) struct Temporary {
    pub(super) path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // It is gone already where it was given its final name.
        fs::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grows_rests_after_each_stretch() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("f")).unwrap();
        let mut rests = 0;
        let mut paced = Paced::new(&file, |_| rests += 1);

        for _ in 0..7 {
            paced.write_all(&[1; 512 * 1024]).unwrap();
        }

        assert_eq!(rests, 3);
    }
}

/// Snapshots for the tests of what carries them.
#[cfg(test)]
pub(crate) mod testing {
    use super::super::failure;
    use super::super::inbox::SnapshotInbox;
    use super::*;
    use crate::sequence::{Command, Settings, Table, testing};
    use crate::server::types::SnapshotMeta;

    /// What one sequence adds to a snapshot at least.
    const SEQUENCE_BYTES_MIN: usize = 128;

    fn snapshots(directory: &Path) -> SnapshotDirectory {
        SnapshotDirectory {
            path: directory.into(),
        }
    }

    /// An inbox in this directory.
    pub(crate) fn inbox(directory: &Path) -> SnapshotInbox {
        let (failed, _) = failure::channel();
        SnapshotInbox::new(snapshots(directory), FeatureLevel::LATEST, failed)
    }

    /// How many snapshots it would still take. Looking takes no place from one that comes at that moment.
    pub(crate) fn places_left(inbox: &SnapshotInbox) -> usize {
        inbox.places.available_permits()
    }

    /// A snapshot in this directory, of at least so many bytes.
    pub(crate) fn snapshot(
        directory: &Path,
        meta: &SnapshotMeta,
        bytes_min: usize,
    ) -> SnapshotFile {
        let commands = (0..bytes_min.div_ceil(SEQUENCE_BYTES_MIN)).map(|number| Command::Create {
            sequence: format!("{number:0>128}").parse().unwrap(),
            settings: Settings::default(),
        });
        let mut table = Table::default();
        table.apply(testing::at(1), &[testing::batch(commands.collect())]);
        let meta = meta.clone();
        snapshots(directory).build(&State { meta, table }).unwrap()
    }
}
