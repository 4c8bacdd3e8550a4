//! The layout of a backup: whose it is and when it was taken, how fast its sequences rose, then a snapshot of them.
//!
//! `magic | length, header | length, piece of rises | … | snapshot | checksum`. The checksum is the BLAKE3 of everything
//! before it. It comes last, so that a backup is sent as it is made, and is looked at first, before any of it is believed.

#[cfg(feature = "cli")]
mod reading;

use std::collections::BTreeMap;
use std::io::{self, Write};

#[cfg(feature = "cli")]
pub(crate) use reading::BackupError;
#[cfg(all(feature = "cli", any(fuzzing, test)))]
pub(super) use reading::CHECKSUM_BYTES;

use serde::{Deserialize, Serialize};

use super::hashing::Hashing;
use super::snapshot_format::{self, State, write_piece, write_pieces};
use crate::sequence::{SequenceName, Table};
use crate::server::types::{ClusterId, LogId, SnapshotMeta};

/// The last byte is the format's version.
const MAGIC: &[u8; 8] = b"HWbkup\0\x01";
const PIECE_RISES_MAX: usize = 256;

/// By how much marks rose in some time before the backup was taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rises {
    /// That time; 0 where nothing is known of it.
    pub(crate) window_ms: u64,
    /// Of the sequences that rose at all.
    pub(crate) by_name: BTreeMap<SequenceName, u64>,
}

/// A cluster's sequences as they were at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backup {
    /// Whose they are.
    pub(crate) cluster: ClusterId,
    /// When it was taken, by the wall clock, in milliseconds since 1970.
    pub(crate) taken_ms: u64,
    /// How fast the sequences rose before.
    pub(crate) rises: Rises,
    /// The last entry that is in it.
    pub(crate) last: Option<LogId>,
    /// The sequences, under the epoch in which they were.
    pub(crate) table: Table,
}

#[derive(Serialize, Deserialize)]
struct HeaderFormat {
    cluster: ClusterId,
    taken_ms: u64,
    window_ms: u64,
    rises: u64,
}

impl Backup {
    /// Writes it, holding no more than a piece in memory.
    ///
    /// # Errors
    /// The file's.
    pub(crate) fn write(&self, file: impl Write) -> io::Result<()> {
        let mut file = Hashing::new(file);
        file.write_all(MAGIC)?;
        let header = HeaderFormat {
            cluster: self.cluster,
            taken_ms: self.taken_ms,
            window_ms: self.rises.window_ms,
            rises: self.rises.by_name.len() as u64,
        };
        write_piece(&mut file, &header)?;
        write_pieces(&mut file, self.rises.by_name.iter(), PIECE_RISES_MAX)?;
        // A restore makes its own membership.
        let meta = SnapshotMeta {
            last_log_id: self.last,
            ..SnapshotMeta::default()
        };
        let table = self.table.clone();
        snapshot_format::write(&State { meta, table }, &mut file)?;
        let checksum = file.digest().checksum;
        file.write_all(&checksum)?;
        file.flush()
    }
}
