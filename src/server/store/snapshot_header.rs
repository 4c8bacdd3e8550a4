//! The header of a snapshot: what it is of, the nodes, and how much follows. Older ones are read as what they meant.

use std::io::Read;

use serde::{Deserialize, Serialize};

use super::snapshot_format::{SnapshotError, required};
use super::state_machine::cards;
use crate::sequence::{KnownNode, Table, TableHeader};
use crate::server::formats::{LogIdFormat, StoredMembershipFormat};
use crate::server::types::{SnapshotMeta, StoredMembership};

/// The last byte is the format's version.
pub(super) const MAGIC: &[u8; 8] = b"HWsnap\0\x03";
/// The version before admitted nodes: its nodes are the members.
const MAGIC_WITHOUT_NODES: &[u8; 8] = b"HWsnap\0\x02";
/// The version before sessions: its header ends before theirs, and so does the file.
const MAGIC_WITHOUT_SESSIONS: &[u8; 8] = b"HWsnap\0\x01";
/// A membership fits one record; the header is little more.
const HEADER_BYTES_MAX: usize = 128 * 1024;

#[derive(Serialize, Deserialize)]
pub(super) struct HeaderFormat {
    pub(super) last_log_id: Option<LogIdFormat>,
    pub(super) membership: StoredMembershipFormat,
    pub(super) table: TableHeader,
    pub(super) nodes: NodesFormat,
    pub(super) sequences: u64,
    pub(super) sessions: u64,
    pub(super) keys: u64,
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
    table: TableHeader,
    sequences: u64,
    sessions: u64,
    keys: u64,
}

/// The header of a snapshot without sessions.
#[derive(Deserialize)]
struct HeaderWithoutSessions {
    last_log_id: Option<LogIdFormat>,
    membership: StoredMembershipFormat,
    table: TableHeader,
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

impl TryFrom<HeaderWithoutNodes> for HeaderFormat {
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

impl HeaderFormat {
    pub(super) fn into_meta(self) -> Result<SnapshotMeta, SnapshotError> {
        Ok(SnapshotMeta {
            last_log_id: self.last_log_id.map(Into::into),
            last_membership: self
                .membership
                .try_into()
                .map_err(SnapshotError::Membership)?,
        })
    }
}

/// Reads the header of any version.
///
/// # Errors
/// [`SnapshotError`] where there is none.
pub(super) fn read(file: &mut impl Read) -> Result<HeaderFormat, SnapshotError> {
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic).map_err(SnapshotError::Read)?;
    if magic == *MAGIC_WITHOUT_SESSIONS {
        let older = required::<HeaderWithoutSessions, HEADER_BYTES_MAX>(file)?;
        return HeaderWithoutNodes::from(older).try_into();
    }
    if magic == *MAGIC_WITHOUT_NODES {
        return required::<HeaderWithoutNodes, HEADER_BYTES_MAX>(file)?.try_into();
    }
    if magic != *MAGIC {
        return Err(SnapshotError::Format);
    }
    required::<_, HEADER_BYTES_MAX>(file)
}
