//! What this node promised, in a file of its own: the witness against a database that forgets (I7).
//!
//! Two slots of one page are written in turn, so a torn write spoils at most the slot that was not yet relied
//! on. The slot is written after the database where something rises and before it where something falls: a
//! crash leaves the database ahead of the slot, never behind it. Behind the slots is the `journal`: the groups that
//! were made durable since, with what was promised by each.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};

use super::database::Changes;
use super::error::StoreError;
use super::journal::{self, Groups, HALF_BYTES, JOURNAL_BYTES, Place};
use super::probe::{Probe, Step};
use super::snapshot::SnapshotName;
use super::{files, frame};
use crate::server::codec;
use crate::server::formats::{LogIdFormat, VoteFormat};
use crate::server::types::{ClusterId, Incarnation, LogId, NodeId, Vote};

/// The last byte is the format's version.
const MAGIC: &[u8] = b"HWslot\0\x02";
/// The same without a journal behind the slots.
const MAGIC_1: &[u8] = b"HWslot\0\x01";
/// One page of every disk and file system in use.
const SLOT_BYTES: usize = 4096;
const SLOT_BODY_BYTES: usize = SLOT_BYTES - MAGIC.len() - 4;
const SLOTS_BYTES: usize = 2 * SLOT_BYTES;
const FILE_BYTES: usize = SLOTS_BYTES + JOURNAL_BYTES;

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

/// What the file says: the newest whole slot, and the groups behind it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) owner: Owner,
    /// By the last group, or by the slot where none follows.
    pub(super) promised: Promised,
    /// What the database may lack, in the order in which it was written.
    pub(super) groups: Vec<Changes>,
    /// The next slot's is greater.
    counter: u64,
}

/// A slot's content. Each slot is written with a greater counter than the other has.
#[derive(Serialize, Deserialize)]
struct SlotFormat {
    counter: u64,
    cluster: ClusterId,
    node: NodeId,
    incarnation: Incarnation,
    promised: PromisedFormat,
}

/// The layout of what was promised.
#[derive(Serialize, Deserialize)]
pub(super) struct PromisedFormat {
    vote: Option<VoteFormat>,
    last: Option<LogIdFormat>,
    purged: Option<LogIdFormat>,
    snapshot: Option<SnapshotName>,
}

impl From<Promised> for PromisedFormat {
    fn from(promised: Promised) -> Self {
        Self {
            vote: promised.vote.map(Into::into),
            last: promised.last.map(Into::into),
            purged: promised.purged.map(Into::into),
            snapshot: promised.snapshot,
        }
    }
}

impl From<PromisedFormat> for Promised {
    fn from(format: PromisedFormat) -> Self {
        Self {
            vote: format.vote.map(Into::into),
            last: format.last.map(Into::into),
            purged: format.purged.map(Into::into),
            snapshot: format.snapshot,
        }
    }
}

/// The open file.
#[derive(Debug)]
pub(super) struct Superblock {
    file: File,
    owner: Owner,
    counter: u64,
    /// The next group's.
    place: Place,
    probe: Probe,
}

impl Superblock {
    /// Makes the file. Durable before this returns.
    pub(super) fn create(path: &Path, owner: Owner, promised: &Promised) -> Result<(), StoreError> {
        let mut bytes = slot(0, owner, promised);
        bytes.resize(FILE_BYTES, 0);
        files::replace(path, &bytes).map_err(StoreError::io("write", path))
    }

    /// Opens the file for writing what follows what was read of it. A slot has to come first.
    ///
    /// # Errors
    /// [`StoreError`] where it cannot be written.
    pub(super) fn open(path: &Path, read: &Slot, probe: Probe) -> Result<Self, StoreError> {
        let opened = || {
            if fs::metadata(path)?.len() == SLOTS_BYTES as u64 {
                // As a whole: a file that a crash left between the two lengths would be damage.
                let mut bytes = fs::read(path)?;
                bytes.resize(FILE_BYTES, 0);
                files::replace(path, &bytes)?;
            }
            let file = File::options().write(true).open(path)?;
            // Groups of some pages are written into it. Where the kernel caches it in large pieces, as it does what is written or
            // read as a whole, it looks through all pages of a piece for each group: a third of what a group costs.
            fadvise(&file, 0, None, Advice::DontNeed)?;
            Ok(file)
        };
        Ok(Self {
            file: opened().map_err(StoreError::io("open", path))?,
            owner: read.owner,
            counter: read.counter,
            place: Place::first(read.counter),
            probe,
        })
    }

    /// Writes the older slot. Durable before this returns. The database has what the groups so far have: they are
    /// written over from now on.
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
        self.file.sync_data()?;
        self.place = Place::first(self.counter);
        Ok(())
    }

    /// Whether a group of these changes fits before the next slot.
    pub(super) fn has_room(&self, changes: &Changes) -> bool {
        self.place.has_room(changes)
    }

    /// Writes a group, for which there is room, and what is promised with it. Durable before this returns.
    ///
    /// # Errors
    /// The disk's; after it nothing may be written any more.
    pub(super) fn write_group(&mut self, promised: &Promised, changes: &Changes) -> io::Result<()> {
        let _asked = self.probe.ask();
        let operations = changes.operations();
        self.probe.before(Step::Group { operations })?;
        let group = self.place.group(promised, changes);
        let at = SLOTS_BYTES + self.place.offset;
        for half in [at, at + HALF_BYTES] {
            self.file.write_all_at(&group, half as u64)?;
        }
        self.file.sync_data()?;
        self.place = self.place.after(group.len());
        Ok(())
    }
}

pub(super) fn slot(counter: u64, owner: Owner, promised: &Promised) -> Vec<u8> {
    let mut body = codec::encode(&SlotFormat {
        counter,
        cluster: owner.cluster,
        node: owner.node,
        incarnation: owner.incarnation,
        promised: (*promised).into(),
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

/// The newest whole slot, and the groups behind it.
///
/// # Errors
/// [`StoreError`] where there is no slot, or a group is missing.
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
    let damaged = || StoreError::SuperblockDamaged {
        path: path.to_path_buf(),
    };
    if ![SLOTS_BYTES, FILE_BYTES].contains(&bytes.len()) {
        return Err(damaged());
    }
    let (slots, journal) = bytes.split_at(SLOTS_BYTES);
    let (newest, version) = newest(path, slots)?;
    if journal.is_empty() && version == MAGIC {
        return Err(damaged());
    }
    let Groups {
        slot,
        promised,
        changes,
    } = journal::read(journal, newest.counter).map_err(|_gap| damaged())?;
    Ok(Slot {
        owner: Owner {
            cluster: newest.cluster,
            node: newest.node,
            incarnation: newest.incarnation,
        },
        promised: promised.unwrap_or_else(|| newest.promised.into()),
        groups: changes,
        // Where the newest slot is spoiled, the next takes its place, and not that of the only whole one.
        counter: match slot {
            Some(spoiled) if newest.counter < spoiled => spoiled.saturating_add(1),
            _ => newest.counter,
        },
    })
}

/// The newest whole slot with its magic.
fn newest(path: &Path, slots: &[u8]) -> Result<(SlotFormat, &'static [u8]), StoreError> {
    let (first, second) = slots.split_at(SLOT_BYTES);
    if [first, second]
        .iter()
        .any(|slot| frame::is_later(MAGIC, slot))
    {
        return Err(StoreError::Later {
            path: path.to_path_buf(),
        });
    }
    let both = [first, second].into_iter();
    both.flat_map(|slot| [MAGIC, MAGIC_1].map(|magic| Some((decode(magic, slot)?, magic))))
        .flatten()
        .max_by_key(|(slot, _)| slot.counter)
        .ok_or_else(|| StoreError::SuperblockDamaged {
            path: path.to_path_buf(),
        })
}

fn decode(magic: &[u8], slot: &[u8]) -> Option<SlotFormat> {
    let body = frame::open(magic, slot).ok()?;
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
