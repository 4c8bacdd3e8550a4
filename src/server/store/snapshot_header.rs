//! The header of a snapshot: what it is of, the nodes, and how much follows. Older ones are read as what they meant.
//!
//! The feature level comes first, and stays there in every later version: whoever does not know that version can tell why. Another
//! layout is written only at the level that came with it, because until then a node may go back to an older program.

use std::io::Read;

use serde::{Deserialize, Serialize};

use super::snapshot_format::{SnapshotError, required};
use super::state_machine::cards;
use crate::sequence::{FeatureLevel, KnownNode, Table, TableHeader};
use crate::server::formats::{LogIdFormat, StoredMembershipFormat};
use crate::server::types::{SnapshotMeta, StoredMembership};

/// The last byte is the format's version.
pub(super) const MAGIC: &[u8; 8] = b"HWsnap\0\x04";
/// The version before feature levels.
const MAGIC_WITHOUT_LEVEL: &[u8; 8] = b"HWsnap\0\x03";
/// The version before admitted nodes: its nodes are the members.
const MAGIC_WITHOUT_NODES: &[u8; 8] = b"HWsnap\0\x02";
/// The version before sessions: its header ends before theirs, and so does the file.
const MAGIC_WITHOUT_SESSIONS: &[u8; 8] = b"HWsnap\0\x01";
/// A membership fits one record; the header is little more.
const HEADER_BYTES_MAX: usize = 128 * 1024;

#[derive(Serialize, Deserialize)]
pub(super) struct HeaderFormat {
    pub(super) level: FeatureLevel,
    pub(super) rest: HeaderWithoutLevel,
}

/// The header of a snapshot without a feature level, and what follows that in a later one.
#[derive(Serialize, Deserialize)]
pub(super) struct HeaderWithoutLevel {
    pub(super) last_log_id: Option<LogIdFormat>,
    pub(super) membership: StoredMembershipFormat,
    pub(super) table: TableFormat,
    pub(super) nodes: NodesFormat,
    pub(super) sequences: u64,
    pub(super) sessions: u64,
    pub(super) keys: u64,
}

/// What the table holds beside its sequences, but for its feature level.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct TableFormat {
    epoch: u64,
    state_time_ms: u64,
}

impl From<TableHeader> for TableFormat {
    fn from(header: TableHeader) -> Self {
        Self {
            epoch: header.epoch,
            state_time_ms: header.state_time_ms,
        }
    }
}

/// The next node id, and who has one.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct NodesFormat {
    pub(super) next: u64,
    pub(super) known: Vec<(u64, KnownNode)>,
}

/// The header of a snapshot without admitted nodes.
#[derive(Deserialize)]
struct HeaderWithoutNodes {
    last_log_id: Option<LogIdFormat>,
    membership: StoredMembershipFormat,
    table: TableFormat,
    sequences: u64,
    sessions: u64,
    keys: u64,
}

/// The header of a snapshot without sessions.
#[derive(Deserialize)]
struct HeaderWithoutSessions {
    last_log_id: Option<LogIdFormat>,
    membership: StoredMembershipFormat,
    table: TableFormat,
    sequences: u64,
}

impl From<HeaderWithoutSessions> for HeaderWithoutNodes {
    fn from(older: HeaderWithoutSessions) -> Self {
        Self {
            last_log_id: older.last_log_id,
            membership: older.membership,
            table: older.table,
            sequences: older.sequences,
            sessions: 0,
            keys: 0,
        }
    }
}

impl TryFrom<HeaderWithoutNodes> for HeaderWithoutLevel {
    type Error = SnapshotError;

    fn try_from(older: HeaderWithoutNodes) -> Result<Self, SnapshotError> {
        Ok(Self {
            last_log_id: older.last_log_id,
            nodes: NodesFormat::of_members(&older.membership)?,
            membership: older.membership,
            table: older.table,
            sequences: older.sequences,
            sessions: older.sessions,
            keys: older.keys,
        })
    }
}

impl NodesFormat {
    pub(super) fn of(table: &Table) -> Self {
        let known = table.nodes().iter();
        Self {
            next: table.nodes().next(),
            known: known.map(|(id, node)| (*id, node.clone())).collect(),
        }
    }

    /// Before nodes were admitted, those of the only membership were all.
    fn of_members(membership: &StoredMembershipFormat) -> Result<Self, SnapshotError> {
        let membership: StoredMembership = membership
            .clone()
            .try_into()
            .map_err(SnapshotError::Membership)?;
        let mut table = Table::default();
        table.set_members(cards(membership.membership()));
        Ok(Self::of(&table))
    }
}

impl From<HeaderWithoutLevel> for HeaderFormat {
    fn from(rest: HeaderWithoutLevel) -> Self {
        Self {
            level: FeatureLevel::FIRST,
            rest,
        }
    }
}

impl HeaderFormat {
    pub(super) fn table(&self) -> TableHeader {
        let TableFormat {
            epoch,
            state_time_ms,
        } = self.rest.table;
        TableHeader {
            epoch,
            state_time_ms,
            level: self.level,
        }
    }

    pub(super) fn into_meta(self) -> Result<SnapshotMeta, SnapshotError> {
        let membership = self.rest.membership.try_into();
        Ok(SnapshotMeta {
            last_log_id: self.rest.last_log_id.map(Into::into),
            last_membership: membership.map_err(SnapshotError::Membership)?,
        })
    }
}

/// The feature level of a snapshot of any version, also of one that this program does not know.
///
/// # Errors
/// [`SnapshotError`] where there is none.
pub(super) fn read_level(file: &mut impl Read) -> Result<FeatureLevel, SnapshotError> {
    let ([kind @ .., known], [found_kind @ .., found]) = (*MAGIC, read_magic(file)?);
    if found_kind != kind {
        return Err(SnapshotError::Format);
    }
    if found < known {
        return Ok(FeatureLevel::FIRST);
    }
    let mut bytes = [0; size_of::<u32>()];
    // The length of the header, and what it begins with.
    file.read_exact(&mut bytes)
        .and_then(|()| file.read_exact(&mut bytes))
        .map_err(SnapshotError::Read)?;
    FeatureLevel::from_number(u32::from_le_bytes(bytes)).ok_or(SnapshotError::Format)
}

/// Reads the header of any version that this program knows.
///
/// # Errors
/// [`SnapshotError`] where there is none, or what follows it may not be known.
pub(super) fn read(file: &mut impl Read) -> Result<HeaderFormat, SnapshotError> {
    let older = match &read_magic(file)? {
        MAGIC => {
            let header: HeaderFormat = required::<_, HEADER_BYTES_MAX>(file)?;
            FeatureLevel::LATEST.check(header.level)?;
            return Ok(header);
        }
        MAGIC_WITHOUT_LEVEL => required::<_, HEADER_BYTES_MAX>(file)?,
        MAGIC_WITHOUT_NODES => {
            HeaderWithoutLevel::try_from(required::<HeaderWithoutNodes, HEADER_BYTES_MAX>(file)?)?
        }
        MAGIC_WITHOUT_SESSIONS => {
            let older = required::<HeaderWithoutSessions, HEADER_BYTES_MAX>(file)?;
            HeaderWithoutNodes::from(older).try_into()?
        }
        _ => return Err(SnapshotError::Format),
    };
    Ok(older.into())
}

fn read_magic(file: &mut impl Read) -> Result<[u8; MAGIC.len()], SnapshotError> {
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic).map_err(SnapshotError::Read)?;
    Ok(magic)
}
