//! Whose data directory this is: the file that comes before any contact with a peer (I12).
//!
//! The incarnation is made with the directory. The formation record is adopted once and never changes. The
//! third field says that a store was made here, so that a store which is gone is told from one that never was.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::frame::{self, FrameError};
use super::{DATABASE_NAME, SNAPSHOTS_NAME, SUPERBLOCK_NAME, directory, files};
use crate::server::codec;
use crate::server::types::{ClusterId, Incarnation, Member, NodeId};

pub(super) const FILE_NAME: &str = "identity";
/// The last byte is the format's version.
const MAGIC: &[u8] = b"HWident\x01";
/// Room for some hundred members with the longest host names.
const BYTES_MAX: usize = 256 * 1024;

/// Who a data directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Made with the directory.
    pub(crate) incarnation: Incarnation,
    /// What it is in a cluster, once it is in one.
    pub(crate) formation: Option<FormationRecord>,
}

/// A cluster as it was formed, and which of its members this directory is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FormationRecord {
    /// The cluster.
    pub(crate) cluster: ClusterId,
    /// This node.
    pub(crate) node: NodeId,
    /// All members at formation.
    pub(crate) members: BTreeMap<NodeId, Member>,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct IdentityFormat {
    incarnation: Incarnation,
    formation: Option<FormationRecord>,
    store_made: bool,
}

/// Whether a store was ever made in a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreState {
    /// Nothing was ever promised from here.
    Never,
    /// There must be a store.
    Made,
}

/// A data directory, locked for as long as this value lives.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    identity: Identity,
    store_made: AtomicBool,
    /// Holds the lock.
    _lock: File,
}

impl DataDir {
    /// Opens a data directory, and makes it and its identity where there is none.
    ///
    /// # Errors
    /// [`StoreError`] where it cannot be made or locked, or its identity is missing beside a store or damaged.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let lock = directory::claim(path)?;
        let (identity, store) = match read(path)? {
            Some(found) => found,
            None => make(path)?,
        };
        Ok(Self {
            path: path.to_path_buf(),
            identity,
            store_made: AtomicBool::new(store == StoreState::Made),
            _lock: lock,
        })
    }

    /// Who it is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Becomes a member of a cluster, durably before this returns. The same record again changes nothing.
    ///
    /// # Errors
    /// [`StoreError`] where another record was adopted, the record is of other disks, or it cannot be written.
    pub(crate) fn adopt(&mut self, record: FormationRecord) -> Result<(), StoreError> {
        if let Some(adopted) = &self.identity.formation {
            if *adopted == record {
                return Ok(());
            }
            return Err(StoreError::AdoptedOther {
                node: adopted.node,
                cluster: adopted.cluster.to_string(),
            });
        }
        let ours = self.identity.incarnation;
        if record
            .members
            .get(&record.node)
            .is_some_and(|member| member.incarnation != ours)
        {
            return Err(StoreError::RecordOfOther {
                node: record.node,
                path: self.path.clone(),
            });
        }
        let adopted = Identity {
            incarnation: ours,
            formation: Some(record),
        };
        self.write(&adopted, self.store_state())?;
        self.identity = adopted;
        Ok(())
    }

    /// Whether a store was ever made here.
    pub(super) fn store_state(&self) -> StoreState {
        if self.store_made.load(Ordering::Acquire) {
            StoreState::Made
        } else {
            StoreState::Never
        }
    }

    /// From now on a directory without its store is refused. Durable before this returns.
    pub(super) fn mark_store_made(&self) -> Result<(), StoreError> {
        self.write(&self.identity, StoreState::Made)?;
        self.store_made.store(true, Ordering::Release);
        Ok(())
    }

    fn write(&self, identity: &Identity, store: StoreState) -> Result<(), StoreError> {
        let file = self.path.join(FILE_NAME);
        let bytes = encode(identity, store);
        files::replace(&file, &bytes).map_err(StoreError::io("write", &file))
    }
}

/// Who a directory is, and whether there must be a store; `None` where it is nobody yet.
///
/// # Errors
/// [`StoreError`] where the file is missing beside a store, cannot be read, or is damaged.
pub(super) fn read(path: &Path) -> Result<Option<(Identity, StoreState)>, StoreError> {
    let file = path.join(FILE_NAME);
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A new identity beside a store would be another node's.
            return if has_store(path) {
                Err(StoreError::IdentityMissing { path: file })
            } else {
                Ok(None)
            };
        }
        Err(error) => return Err(StoreError::io("read", &file)(error)),
    };
    let content = decode(&bytes).map_err(|source| damaged(&file, &bytes, source))?;
    let store = if content.store_made {
        StoreState::Made
    } else {
        StoreState::Never
    };
    let identity = Identity {
        incarnation: content.incarnation,
        formation: content.formation,
    };
    Ok(Some((identity, store)))
}

/// Whether there is anything of a store.
pub(super) fn has_store(path: &Path) -> bool {
    [SUPERBLOCK_NAME, DATABASE_NAME, SNAPSHOTS_NAME]
        .iter()
        .any(|name| path.join(name).exists())
}

/// A new directory's identity.
fn make(path: &Path) -> Result<(Identity, StoreState), StoreError> {
    let file = path.join(FILE_NAME);
    let identity = Identity {
        incarnation: Incarnation::generate(),
        formation: None,
    };
    files::replace(&file, &encode(&identity, StoreState::Never))
        .map_err(StoreError::io("write", &file))?;
    Ok((identity, StoreState::Never))
}

pub(super) fn encode(identity: &Identity, store: StoreState) -> Vec<u8> {
    let content = IdentityFormat {
        incarnation: identity.incarnation,
        formation: identity.formation.clone(),
        store_made: store == StoreState::Made,
    };
    frame::seal(MAGIC, &codec::encode(&content))
}

fn decode(bytes: &[u8]) -> Result<IdentityFormat, FrameError> {
    let body = frame::open(MAGIC, bytes)?;
    codec::decode::<IdentityFormat, BYTES_MAX>(body).map_err(FrameError::Content)
}

fn damaged(file: &Path, bytes: &[u8], source: FrameError) -> StoreError {
    let path = file.to_path_buf();
    if frame::is_later(MAGIC, bytes) {
        return StoreError::Later { path };
    }
    StoreError::IdentityDamaged { path, source }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::server::types::{ADDRESS_BYTES_MAX, Address, ClusterId, Member};

    #[test]
    fn the_longest_formation_record_fits_and_more_than_its_bound_is_not_read() {
        let longest: Address = format!("{}:1", "a".repeat(ADDRESS_BYTES_MAX - 2))
            .parse()
            .unwrap();
        let member = Member {
            api: longest.clone(),
            peer: longest,
            ..Member::default()
        };
        let of = |members: u64| Identity {
            incarnation: Incarnation::generate(),
            formation: Some(FormationRecord {
                cluster: ClusterId::generate(),
                node: 1.into(),
                members: (1..=members)
                    .map(|id| (id.into(), member.clone()))
                    .collect::<BTreeMap<_, _>>(),
            }),
        };

        let read = decode(&encode(&of(9), StoreState::Made)).unwrap();
        let too_long = decode(&encode(&of(1_000), StoreState::Made));

        assert_eq!(read.formation.unwrap().members.len(), 9);
        assert!(matches!(too_long, Err(FrameError::Content(_))));
    }
}
