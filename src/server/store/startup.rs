//! What every start checks before this node takes part again (I7).
//!
//! The database forgets without an error what damage makes unreadable. So the superblock says what must be
//! there, the chain of records says whether anything is missing between, and where they disagree the start ends
//! with what is missing and the way out. Nothing is repaired here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::database::{Database, MetaKey};
use super::error::{StoreError, or_nothing};
use super::identity::{DataDir, Identity, StoreState};
use super::probe::Probe;
use super::snapshot::{SnapshotDirectory, SnapshotFile};
use super::snapshot_format::State;
use super::superblock::{self, Owner, Promised, Slot, Superblock};
use super::view::{Shared, View};
use super::{DATABASE_NAME, SNAPSHOTS_NAME, SUPERBLOCK_NAME, files};
#[cfg(test)]
use crate::planted::Bug;
use crate::sequence::FeatureLevel;
use crate::server::formats::{LogIdFormat, VoteFormat};
use crate::server::types::{LogId, Vote};
use openraft::entry::RaftEntry;

/// A store that passed.
pub(super) struct Recovered {
    pub(super) shared: Arc<Shared>,
    pub(super) superblock: Superblock,
    pub(super) promised: Promised,
    pub(super) directory: SnapshotDirectory,
    pub(super) snapshot: Option<SnapshotFile>,
    pub(super) state: State,
}

/// Where the parts of a store are. `inspect` has the database in a copy.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    pub(super) superblock: PathBuf,
    pub(super) database: PathBuf,
    pub(super) snapshots: PathBuf,
}

impl Paths {
    /// Those of a data directory.
    pub(super) fn of(directory: &Path) -> Self {
        Self {
            superblock: directory.join(SUPERBLOCK_NAME),
            database: directory.join(DATABASE_NAME),
            snapshots: directory.join(SNAPSHOTS_NAME),
        }
    }
}

/// Opens a directory's store, or makes it where there never was one.
pub(super) fn recover(
    dir: &DataDir,
    level_max: FeatureLevel,
    probe: Probe,
    closed: oneshot::Sender<()>,
) -> Result<Recovered, StoreError> {
    let owner = owner(dir.identity(), dir.path())?;
    let paths = Paths::of(dir.path());
    prepare(dir, &paths, owner)?;
    let Checked {
        slot,
        database,
        view,
        snapshot,
        state,
    } = check(&paths, (owner, level_max), probe.clone(), closed, |_| {})?;

    let mut superblock = Superblock::open(&paths.superblock, &slot, probe)?;
    let directory = SnapshotDirectory::open(&paths.snapshots, slot.promised.snapshot)?;
    let promised = Promised {
        vote: view.vote,
        last: view.last,
        purged: view.purged,
        snapshot: slot.promised.snapshot,
    };
    // An unacknowledged tail is kept, so from now on it is promised. The database has what the journal had.
    superblock
        .write(&promised)
        .map_err(StoreError::io("write", &paths.superblock))?;
    Ok(Recovered {
        shared: Arc::new(Shared::new(view, Arc::new(database))),
        superblock,
        promised,
        directory,
        snapshot,
        state,
    })
}

/// Whose promises a directory's store must hold.
pub(super) fn owner(identity: &Identity, directory: &Path) -> Result<Owner, StoreError> {
    let Some(record) = &identity.formation else {
        return Err(StoreError::NotAdopted {
            path: directory.to_path_buf(),
        });
    };
    Ok(Owner {
        cluster: record.cluster,
        node: record.node,
        incarnation: identity.incarnation,
    })
}

/// Refuses what is there of a store beside an identity that is in no cluster: a database that holds something, or the
/// superblock of other disks. Told before a cluster is joined, because that changes the identity.
pub(super) fn refuse_orphan(dir: &DataDir) -> Result<(), StoreError> {
    let paths = Paths::of(dir.path());
    if dir.identity().formation.is_some() || find(&paths, dir.store_state())? == Found::NoStore {
        return Ok(());
    }
    let found = superblock::read(&paths.superblock)?.owner;
    let here = unformed_owner(dir.identity(), found);
    superblock::check_owner(&paths.superblock, found, here)
}

/// Whose promises a store must hold beside an identity that is in no cluster: the cluster is not known, its disks are.
pub(super) fn unformed_owner(identity: &Identity, found: Owner) -> Owner {
    Owner {
        incarnation: identity.incarnation,
        ..found
    }
}

/// Makes a store where there never was one: database, then superblock, then the mark in the identity, each
/// durable before the next. Nothing is promised before the last.
fn prepare(dir: &DataDir, paths: &Paths, owner: Owner) -> Result<(), StoreError> {
    let made = dir.store_state() == StoreState::Made;
    #[cfg(test)]
    let made = made && (!Bug::WipedNodeVotes.is_planted() || paths.superblock.exists());
    if made {
        return Ok(());
    }
    if find(paths, StoreState::Never)? == Found::NoStore {
        remove_unfinished_creation(&paths.database)?;
        Database::create(&paths.database)?;
        Superblock::create(&paths.superblock, owner, &Promised::default())?;
    }
    dir.mark_store_made()
}

/// Whether there is a store to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Store,
    /// None came to be, whatever is there of a database in the making.
    NoStore,
}

/// Tells a store from one that was never finished. Where none was, a database that holds anything was not in the making.
pub(super) fn find(paths: &Paths, state: StoreState) -> Result<Found, StoreError> {
    if state == StoreState::Made || paths.superblock.exists() {
        return Ok(Found::Store);
    }
    let path = &paths.database;
    if !path.exists() {
        return Ok(Found::NoStore);
    }
    let (closed, _) = oneshot::channel();
    let found = Database::open(path, Probe::default(), closed, |database| {
        let vote = database.meta::<VoteFormat>(MetaKey::Vote)?;
        Ok(vote.is_some() || database.has_records(..))
    });
    let holds_something = match &found {
        Ok((_, holds)) => *holds,
        Err(
            StoreError::ValueDamaged { .. }
            | StoreError::RecordDamaged { .. }
            | StoreError::Later { .. },
        ) => true,
        // Whether it holds anything is not known.
        Err(StoreError::Io { source, .. }) if source.kind() != io::ErrorKind::NotFound => {
            return found.map(|_| Found::Store);
        }
        Err(StoreError::DatabaseHangs { .. }) => return found.map(|_| Found::Store),
        Err(_) => false,
    };
    if holds_something {
        return Err(StoreError::DatabaseOrphaned { path: path.clone() });
    }
    Ok(Found::NoStore)
}

/// Removes what a crash left of a database in the making.
fn remove_unfinished_creation(path: &Path) -> Result<(), StoreError> {
    if !path.exists() {
        return Ok(());
    }
    fs::remove_dir_all(path).map_err(StoreError::io("remove", path))?;
    match path.parent() {
        Some(parent) => files::sync_directory(parent).map_err(StoreError::io("sync", parent)),
        None => Ok(()),
    }
}

/// A store in which nothing is missing.
pub(super) struct Checked {
    pub(super) slot: Slot,
    pub(super) database: Database,
    pub(super) view: View,
    pub(super) snapshot: Option<SnapshotFile>,
    pub(super) state: State,
}

/// The check: whatever was promised is there. What can be told without opening the database comes first, because sled
/// writes when it opens. `look` sees the database before it is judged.
pub(super) fn check(
    paths: &Paths,
    (owner, level_max): (Owner, FeatureLevel),
    probe: Probe,
    closed: oneshot::Sender<()>,
    look: impl FnOnce(&Database) + Send + 'static,
) -> Result<Checked, StoreError> {
    let mut slot = superblock::read(&paths.superblock)?;
    superblock::check_owner(&paths.superblock, slot.owner, owner)?;
    let promised = probe.heard(slot.promised);
    let (snapshot, state) = match promised.snapshot {
        Some(name) => {
            let (file, state) = SnapshotFile::recover(&paths.snapshots, name, level_max)?;
            (Some(file), state)
        }
        None => (None, State::default()),
    };
    let groups = std::mem::take(&mut slot.groups);
    let (database, view) = Database::open(&paths.database, probe, closed, move |database| {
        database.replay(groups)?;
        look(database);
        check_log(database, promised)
    })?;
    check_ends(promised, &view, state.meta.last_log_id)?;
    Ok(Checked {
        slot,
        database,
        view,
        snapshot,
        state,
    })
}

/// Reads everything above the purge marker: each record whole, each naming the one before it.
fn check_log(database: &Database, slot: Promised) -> Result<View, StoreError> {
    let purged = database
        .meta::<LogIdFormat>(MetaKey::Purged)?
        .map(LogId::from);
    if purged < slot.purged
        && let Some(promised) = slot.purged
    {
        return Err(StoreError::PurgedBehind {
            found: or_nothing(purged),
            promised,
        });
    }
    let mut view = View::purged_to(purged);
    view.vote = greater_vote(database.meta(MetaKey::Vote)?, slot.vote);
    view.committed = database
        .meta::<LogIdFormat>(MetaKey::Committed)?
        .map(Into::into);
    for found in database.records(view.first()..) {
        let (bytes, record) = found?;
        let index = record.entry.index();
        let broken = StoreError::ChainBroken {
            index,
            before: or_nothing(view.last),
        };
        if record.previous != view.last {
            return Err(broken);
        }
        view.append(record.entry, bytes).map_err(|_hole| broken)?;
        view.flushed_all();
    }
    Ok(view)
}

fn greater_vote(stored: Option<VoteFormat>, promised: Option<Vote>) -> Option<Vote> {
    stored.max(promised.map(Into::into)).map(Into::into)
}

/// Whether all that was promised is there: as records, as purged, or in the snapshot.
fn check_ends(slot: Promised, view: &View, snapshot: Option<LogId>) -> Result<(), StoreError> {
    if snapshot < view.purged
        && let Some(purged) = view.purged
    {
        return Err(StoreError::SnapshotBehind {
            purged,
            snapshot: or_nothing(snapshot),
        });
    }
    let found = view.last.max(snapshot);
    if found < slot.last
        && let Some(promised) = slot.last
    {
        return Err(StoreError::LogBehind {
            found: or_nothing(found),
            promised,
        });
    }
    Ok(())
}
