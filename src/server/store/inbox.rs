//! Where snapshots from the leader are received: checked against what the leader said, and made durable, before anybody
//! sees them.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::FailureReport;
use super::hashing::Digest;
use super::snapshot::{SnapshotDirectory, SnapshotFile, Temporary};
use super::snapshot_format::{self, SNAPSHOT_BYTES_MAX, SnapshotError};
use crate::sequence::FeatureLevel;
use crate::server::host;

/// How many snapshots may be received at once: the one that counts, and one whose sender fell silent.
const INCOMING_MAX: usize = 2;

/// Where snapshots from the leader are received.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotInbox {
    directory: SnapshotDirectory,
    level_max: FeatureLevel,
    failed: FailureReport,
    pub(super) places: Arc<Semaphore>,
}

impl SnapshotInbox {
    /// For a node that knows levels up to this one: a snapshot of a later one is reported.
    pub(super) fn new(
        directory: SnapshotDirectory,
        level_max: FeatureLevel,
        failed: FailureReport,
    ) -> Self {
        Self {
            directory,
            level_max,
            failed,
            places: Arc::new(Semaphore::new(INCOMING_MAX)),
        }
    }

    /// Makes room for one snapshot.
    ///
    /// # Errors
    /// Where too many are being received, or the disk's.
    pub(crate) async fn begin(&self) -> io::Result<IncomingSnapshot> {
        let place = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_full| {
                io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    format!("{INCOMING_MAX} snapshots are being received already"),
                )
            })?;
        let temporary = self.directory.temporary();
        let path = temporary.path.clone();
        let file = host::blocking(move || File::create(path)).await??;
        Ok(IncomingSnapshot {
            inbox: self.clone(),
            temporary,
            file: Arc::new(file),
            hasher: blake3::Hasher::new(),
            length: 0,
            _place: place,
        })
    }
}

/// A snapshot on its way in. Dropped before its end, it leaves nothing.
#[derive(Debug)]
pub(crate) struct IncomingSnapshot {
    inbox: SnapshotInbox,
    temporary: Temporary,
    file: Arc<File>,
    hasher: blake3::Hasher,
    pub(super) length: u64,
    _place: OwnedSemaphorePermit,
}

impl IncomingSnapshot {
    /// Adds the next bytes.
    ///
    /// # Errors
    /// Where it grows beyond all bounds, or the disk's.
    pub(crate) async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.length = self.length.saturating_add(bytes.len() as u64);
        if SNAPSHOT_BYTES_MAX < self.length {
            return Err(invalid(format!(
                "a snapshot of {} bytes is too large: the limit is {SNAPSHOT_BYTES_MAX}",
                self.length
            )));
        }
        self.hasher.update(&bytes);
        let file = Arc::clone(&self.file);
        host::blocking(move || file.as_ref().write_all(&bytes)).await?
    }

    /// Checks that it is what the leader sent, and makes it durable.
    ///
    /// # Errors
    /// Where it is something else, or the disk's.
    pub(crate) async fn finish(self, length: u64, checksum: [u8; 32]) -> io::Result<SnapshotFile> {
        let digest = Digest {
            length: self.length,
            checksum: self.hasher.finalize().into(),
        };
        if digest != (Digest { length, checksum }) {
            return Err(invalid(format!(
                "the snapshot received ({} bytes) is not the one sent ({length} bytes)",
                self.length
            )));
        }
        let (inbox, temporary, file) = (self.inbox, self.temporary, self.file);
        host::blocking(move || {
            file.sync_all()?;
            let unreadable =
                |error: SnapshotError| io::Error::new(io::ErrorKind::InvalidData, error);
            let received = || File::open(&temporary.path);
            let level = snapshot_format::read_level(received()?).map_err(unreadable)?;
            inbox.failed.check(inbox.level_max, level)?;
            let meta = snapshot_format::read_meta(received()?).map_err(unreadable)?;
            inbox.directory.publish(temporary, digest, meta)
        })
        .await?
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
