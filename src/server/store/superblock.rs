//! What this node promised, in a file of its own: the witness against a database that forgets (I7).
//!
//! Two slots of one page are written in turn, so a torn write spoils at most the slot that was not yet relied
//! on. The slot is written after the database where something rises and before it where something falls: a
//! crash leaves the database ahead of the slot, never behind it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::probe::{Probe, Step};
use super::snapshot::SnapshotName;
use super::{files, frame};
use crate::server::codec;
use crate::server::formats::{LogIdFormat, VoteFormat};
use crate::server::types::{ClusterId, Incarnation, LogId, NodeId, Vote};

/// The last byte is the format's version.
const MAGIC: &[u8] = b"HWslot\0\x01";
/// One page of every disk and file system in use.
const SLOT_BYTES: usize = 4096;
const SLOT_BODY_BYTES: usize = SLOT_BYTES - MAGIC.len() - 4;
const FILE_BYTES: usize = 2 * SLOT_BYTES;

/// Whose promises these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
}

/// What was promised: nothing of it may be missing after a start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Promised {
    /// The greatest vote.
    pub(super) vote: Option<Vote>,
    /// The last entry, or where the log is purged to if none follows.
    pub(super) last: Option<LogId>,
    /// Where the log is purged to.
    pub(super) purged: Option<LogId>,
    /// The snapshot that stands for what is purged.
    pub(super) snapshot: Option<SnapshotName>,
}

/// What the newest whole slot says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) owner: Owner,
    pub(super) promised: Promised,
    counter: u64,
}

/// A slot's content. Each slot is written with a greater counter than the other has.
#[derive(Serialize, Deserialize)]
struct SlotFormat {
    counter: u64,
    cluster: ClusterId,
    node: NodeId,
    incarnation: Incarnation,
    vote: Option<VoteFormat>,
    last: Option<LogIdFormat>,
    purged: Option<LogIdFormat>,
    snapshot: Option<SnapshotName>,
}

/// The open file.
#[derive(Debug)]
pub(super) struct Superblock {
    file: File,
    owner: Owner,
    counter: u64,
    probe: Probe,
}

impl Superblock {
    /// Makes the file. Durable before this returns.
    pub(super) fn create(path: &Path, owner: Owner, promised: &Promised) -> Result<(), StoreError> {
        let mut bytes = slot(0, owner, promised);
        bytes.resize(FILE_BYTES, 0);
        files::replace(path, &bytes).map_err(StoreError::io("write", path))
    }

    /// Opens the file for writing what follows this slot.
    ///
    /// # Errors
    /// [`StoreError`] where it cannot be written.
    pub(super) fn open(path: &Path, newest: &Slot, probe: Probe) -> Result<Self, StoreError> {
        let file = File::options()
            .write(true)
            .open(path)
            .map_err(StoreError::io("open", path))?;
        Ok(Self {
            file,
            owner: newest.owner,
            counter: newest.counter,
            probe,
        })
    }

    /// Writes the older slot. Durable before this returns.
    ///
    /// # Errors
    /// The disk's; after it nothing may be written any more.
    pub(super) fn write(&mut self, promised: &Promised) -> io::Result<()> {
        let _asked = self.probe.ask();
        self.probe.before(Step::Superblock)?;
        // 2^64 slots outlast the disk.
        self.counter = self.counter.saturating_add(1);
        let at = if self.counter.is_multiple_of(2) {
            0
        } else {
            SLOT_BYTES as u64
        };
        self.file
            .write_all_at(&slot(self.counter, self.owner, promised), at)?;
        self.file.sync_data()
    }
}

pub(super) fn slot(counter: u64, owner: Owner, promised: &Promised) -> Vec<u8> {
    let mut body = codec::encode(&SlotFormat {
        counter,
        cluster: owner.cluster,
        node: owner.node,
        incarnation: owner.incarnation,
        vote: promised.vote.map(Into::into),
        last: promised.last.map(Into::into),
        purged: promised.purged.map(Into::into),
        snapshot: promised.snapshot,
    });
    // The length stands first, so that the rest of the page is no part of the value.
    let mut padded = u16::try_from(body.len())
        .unwrap_or(u16::MAX)
        .to_le_bytes()
        .to_vec();
    padded.append(&mut body);
    padded.resize(SLOT_BODY_BYTES, 0);
    frame::seal(MAGIC, &padded)
}

/// The newest whole slot.
///
/// # Errors
/// [`StoreError`] where there is none.
pub(super) fn read(path: &Path) -> Result<Slot, StoreError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::SuperblockMissing {
                path: path.to_path_buf(),
            });
        }
        Err(error) => return Err(StoreError::io("read", path)(error)),
    };
    let newest = newest(path, &bytes)?;
    Ok(Slot {
        owner: Owner {
            cluster: newest.cluster,
            node: newest.node,
            incarnation: newest.incarnation,
        },
        promised: Promised {
            vote: newest.vote.map(Into::into),
            last: newest.last.map(Into::into),
            purged: newest.purged.map(Into::into),
            snapshot: newest.snapshot,
        },
        counter: newest.counter,
    })
}

fn newest(path: &Path, bytes: &[u8]) -> Result<SlotFormat, StoreError> {
    let damaged = || StoreError::SuperblockDamaged {
        path: path.to_path_buf(),
    };
    if bytes.len() != FILE_BYTES {
        return Err(damaged());
    }
    let (first, second) = bytes.split_at(SLOT_BYTES);
    if [first, second]
        .iter()
        .any(|slot| frame::is_later(MAGIC, slot))
    {
        return Err(StoreError::Later {
            path: path.to_path_buf(),
        });
    }
    [first, second]
        .into_iter()
        .filter_map(decode)
        .max_by_key(|slot| slot.counter)
        .ok_or_else(damaged)
}

fn decode(slot: &[u8]) -> Option<SlotFormat> {
    let body = frame::open(MAGIC, slot).ok()?;
    let (length, rest) = body.split_first_chunk::<2>()?;
    let value = rest.get(..usize::from(u16::from_le_bytes(*length)))?;
    codec::decode::<SlotFormat, SLOT_BODY_BYTES>(value).ok()
}

/// Whether a slot is of the node that the identity names.
///
/// # Errors
/// [`StoreError`] with what differs.
pub(super) fn check_owner(path: &Path, found: Owner, expected: Owner) -> Result<(), StoreError> {
    let differs = |what, found: String, expected: String| {
        if found == expected {
            return Ok(());
        }
        Err(StoreError::Foreign {
            path: path.to_path_buf(),
            what,
            found,
            expected,
        })
    };
    differs(
        "cluster",
        found.cluster.to_string(),
        expected.cluster.to_string(),
    )?;
    differs("node", found.node.to_string(), expected.node.to_string())?;
    differs(
        "incarnation",
        found.incarnation.to_string(),
        expected.incarnation.to_string(),
    )
}
