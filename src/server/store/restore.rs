//! A data directory made of a backup: the only member of a new cluster, which goes on above the old one's values.
//!
//! Its parts come in the order of their use, each durable before the next, and the identity last: without it every start
//! refuses what is there, so a restore that was interrupted is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use openraft::vote::{RaftLeaderId, RaftVote};
use tokio::sync::oneshot;

use super::backup::Backup;
use super::database::{Changes, Database, MetaKey};
use super::error::StoreError;
use super::identity::{self, FormationRecord, Identity, StoreState};
use super::probe::Probe;
use super::raise::{Raise, RaiseError};
use super::snapshot::SnapshotDirectory;
use super::snapshot_format::State;
use super::startup::Paths;
use super::superblock::{Owner, Promised, Superblock};
use super::{directory, files};
use crate::sequence::Table;
use crate::server::formats::{LogIdFormat, VoteFormat};
use crate::server::types::{
    Address, ClusterId, Incarnation, Leadership, LogId, Member, Membership, NodeId, SnapshotMeta,
    StoredMembership, Vote,
};

/// The only thing that a fresh disk may hold.
const LOST_AND_FOUND: &str = "lost+found";

/// Why nothing is restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// What is there may be somebody's promises.
    #[error(
        "{} is not empty: restore into an empty directory; remove this one only if all in it is what an interrupted restore left",
        path.display()
    )]
    NotEmpty {
        /// The data directory.
        path: PathBuf,
    },
    /// The sequences cannot be raised so.
    #[error(transparent)]
    Raise(#[from] RaiseError),
    /// The directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was made.
#[derive(Debug)]
pub(crate) struct Restored {
    /// The new cluster.
    pub(crate) cluster: ClusterId,
    /// Its sequences, with its epoch.
    pub(crate) table: Table,
}

/// Makes a data directory of a backup's sequences, raised: node 1 of a cluster of one, to be reached at these addresses.
///
/// # Errors
/// [`RestoreError`] where the directory is not empty or cannot be written, or the sequences cannot be raised so.
pub(crate) fn restore(
    path: &Path,
    backup: &Backup,
    raise: &Raise,
    (api, peer): (Address, Address),
) -> Result<Restored, RestoreError> {
    let epoch = next_epoch(backup.table.header().epoch, SystemTime::now());
    let mut table = raise.apply(&backup.table.restored(epoch))?;
    let _lock = directory::claim(path)?;
    refuse_content(path)?;

    let incarnation = Incarnation::generate();
    let node = NodeId::from(1);
    let member = Member {
        api,
        peer,
        incarnation,
    };
    // No other node ever had an id here.
    table.set_members([(node.get(), (&member).into())].into());
    let members = BTreeMap::from([(node, member)]);
    let cluster = ClusterId::generate();
    let owner = Owner {
        cluster,
        node,
        incarnation,
    };
    make_store(&Paths::of(path), owner, backup.last, (&table, &members))?;

    let file = path.join(identity::FILE_NAME);
    let identity = Identity {
        incarnation,
        formation: Some(FormationRecord {
            cluster,
            node,
            members,
        }),
    };
    let bytes = identity::encode(&identity, StoreState::Made);
    files::replace(&file, &bytes).map_err(StoreError::io("write", &file))?;
    Ok(Restored { cluster, table })
}

/// Above the old one, and above that of every other restore of the same backup, unless two are made in one second.
fn next_epoch(old: u64, now: SystemTime) -> u64 {
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since_1970.map_or(0, |since| since.as_secs());
    old.saturating_add(1).max(seconds)
}

fn refuse_content(path: &Path) -> Result<(), RestoreError> {
    let unreadable = |error: io::Error| StoreError::io("read", path)(error);
    for entry in fs::read_dir(path).map_err(unreadable)? {
        if entry.map_err(unreadable)?.file_name() != LOST_AND_FOUND {
            return Err(RestoreError::NotEmpty {
                path: path.to_path_buf(),
            });
        }
    }
    Ok(())
}

/// A store in which this node has led, its membership is committed, and the log is purged to that: as if the table had
/// always been its own.
fn make_store(
    paths: &Paths,
    owner: Owner,
    old_last: Option<LogId>,
    (table, members): (&Table, &BTreeMap<NodeId, Member>),
) -> Result<(), StoreError> {
    // Above all that the backup has, so that log ids go on rising.
    let old_term = old_last.map_or(0, |last| last.committed_leader_id().term);
    let leadership = Leadership::new(old_term.saturating_add(1), owner.node);
    let index = old_last.map_or(0, |last| last.index().saturating_add(1));
    let last = LogId::new(leadership, index);
    let vote = Vote::from_leader_id(leadership, true);
    let voters = vec![BTreeSet::from([owner.node])];
    let membership = Membership::new(voters, members.clone())
        .map_err(|error| io::Error::other(error.to_string()))
        .map_err(StoreError::io("make", &paths.snapshots))?;
    let state = State {
        meta: SnapshotMeta {
            last_log_id: Some(last),
            last_membership: StoredMembership::new(Some(last), membership),
        },
        table: table.clone(),
    };
    let snapshot = SnapshotDirectory::open(&paths.snapshots, None)?
        .build(&state)
        .map_err(StoreError::io("write", &paths.snapshots))?;
    snapshot.keep();

    Database::create(&paths.database)?;
    let mut changes = Changes::default();
    changes.put_meta(MetaKey::Vote, &VoteFormat::from(vote));
    changes.put_meta(MetaKey::Purged, &LogIdFormat::from(last));
    changes.put_meta(MetaKey::Committed, &LogIdFormat::from(last));
    let (closing, closed) = oneshot::channel();
    let path = paths.database.clone();
    let (database, ()) = Database::open(
        &paths.database,
        Probe::default(),
        closing,
        move |database| {
            database
                .commit(changes)
                .map_err(StoreError::io("write", path))
        },
    )?;
    drop(database);
    // The sender is only ever dropped.
    closed.blocking_recv().ok();

    let promised = Promised {
        vote: Some(vote),
        last: Some(last),
        purged: Some(last),
        snapshot: Some(snapshot.name()),
    };
    Superblock::create(&paths.superblock, owner, &promised)
}
