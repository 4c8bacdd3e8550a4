//! What is in the data directory of a node that does not run, and what a start would make of it. Nothing in it changes.
//!
//! sled writes when it opens, so the database is looked at in a private copy. The verdict is the start-up check's own, on
//! that copy. A part that cannot be read is told as such, and the others all the same.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use openraft::entry::RaftEntry;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::database::{Database, MetaKey};
use super::error::{StoreError, whole_line};
use super::identity;
use super::inspection::{
    Inspection, LogView, SnapshotView, Unreadable, Verdict, entry, file_name, identity_view, marks,
    superblock_view, table_view, vote_view,
};
use super::probe::Probe;
use super::snapshot::{COMPLETE_EXTENSION, SnapshotFile};
use super::snapshot_format::{self, State};
use super::startup::{self, Found, Paths};
use super::superblock::{self, Slot};
use super::{DATABASE_NAME, directory};
use crate::sequence::FeatureLevel;
use crate::server::formats::{LogIdFormat, VoteFormat};
use crate::server::types::Vote;

/// Why there is nothing to tell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InspectError {
    /// No data directory.
    #[error("{path} is not a data directory: {what}")]
    NotDataDirectory {
        /// What was to be inspected.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// It is in use, or the operating system refuses it.
    #[error(transparent)]
    Refused(#[from] StoreError),
    /// The copy cannot be made.
    #[error("{path} cannot be copied for a look at it: give TMPDIR a directory with as much space")]
    Copy {
        /// What was to be copied.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Looks at a data directory.
///
/// # Errors
/// [`InspectError`] where there is none, a node runs on it, or it cannot be copied.
pub(crate) fn inspect(path: &Path) -> Result<Inspection, InspectError> {
    let (_copy, paths) = with_private_database(path)?;
    let parts = Arc::new(Mutex::new(Parts::default()));
    let refused = judge(path, &paths, &parts).err();
    if !Parts::lock(&parts).seen && paths.database.exists() {
        look_only(&paths, &parts);
    }
    let found = std::mem::take(&mut *Parts::lock(&parts));
    let inspection = found.into_inspection(path, &paths, refused);
    // A node that was started meanwhile has changed what was read.
    directory::check_unused(path)?;
    Ok(inspection)
}

/// A stopped node's directory with its database in a private copy, which lives as long as the first of the result.
///
/// # Errors
/// [`InspectError`] where it is no data directory, a node runs on it, or it cannot be copied.
pub(super) fn with_private_database(path: &Path) -> Result<(TempDir, Paths), InspectError> {
    check_is_data_directory(path)?;
    directory::check_unused(path)?;
    let database = path.join(DATABASE_NAME);
    let copy = TempDir::with_prefix("highwater-inspect-").map_err(copying(&database))?;
    let paths = Paths {
        database: copy.path().join(DATABASE_NAME),
        ..Paths::of(path)
    };
    copy_tree(&database, &paths.database)?;
    Ok((copy, paths))
}

fn check_is_data_directory(path: &Path) -> Result<(), InspectError> {
    let not = |what| {
        let path = path.to_path_buf();
        Err(InspectError::NotDataDirectory { path, what })
    };
    match fs::metadata(path) {
        Ok(found) if !found.is_dir() => return not("it is a file"),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return not("nothing is there"),
        Err(error) => return Err(StoreError::io("read", path)(error).into()),
    }
    let mut entries = fs::read_dir(path).map_err(StoreError::io("read", path))?;
    let is_empty = entries.next().is_none();
    if is_empty || identity::has_store(path) || path.join(identity::FILE_NAME).exists() {
        return Ok(());
    }
    not("it holds other things than a node's")
}

fn copying(path: &Path) -> impl FnOnce(io::Error) -> InspectError {
    let path = path.to_path_buf();
    move |source| InspectError::Copy { path, source }
}

/// Copies files and directories. What is neither is no part of a database.
fn copy_tree(from: &Path, to: &Path) -> Result<(), InspectError> {
    let entries = match fs::read_dir(from) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::io("read", from)(error).into()),
    };
    fs::create_dir(to).map_err(copying(from))?;
    for entry in entries {
        let entry = entry.map_err(StoreError::io("read", from))?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            copy_tree(&path, &copy)?;
        } else if path.is_file() {
            let mut source = File::open(&path).map_err(StoreError::io("read", &path))?;
            File::create(copy)
                .and_then(|mut copy| io::copy(&mut source, &mut copy))
                .map_err(copying(&path))?;
        }
    }
    Ok(())
}

/// The start-up check, as a start would go through it.
fn judge(path: &Path, paths: &Paths, parts: &Arc<Mutex<Parts>>) -> Result<(), StoreError> {
    let Some((identity, state)) = identity::read(path)? else {
        return Ok(());
    };
    let of_original = |error: StoreError| error.moved(&paths.database, &path.join(DATABASE_NAME));
    if startup::find(paths, state).map_err(of_original)? == Found::NoStore {
        return Ok(());
    }
    let owner = match startup::owner(&identity, path) {
        Ok(owner) => owner,
        Err(_) => startup::unformed_owner(&identity, superblock::read(&paths.superblock)?.owner),
    };
    let (closed, _) = oneshot::channel();
    let seen = Arc::clone(parts);
    let whose = (owner, FeatureLevel::LATEST);
    startup::check(paths, whose, Probe::default(), closed, move |database| {
        look(database, &seen);
    })
    .map(drop)
    .map_err(of_original)
}

/// Looks at a database that the check did not come to.
fn look_only(paths: &Paths, parts: &Arc<Mutex<Parts>>) {
    let (closed, _) = oneshot::channel();
    let seen = Arc::clone(parts);
    let looked = Database::open(&paths.database, Probe::default(), closed, move |database| {
        look(database, &seen);
        Ok(())
    });
    if let Err(error) = looked {
        Parts::lock(parts).unreadable("log", error);
    }
}

/// What is in the database, each as soon as it is read: what comes after may panic.
fn look(database: &Database, parts: &Mutex<Parts>) {
    Parts::lock(parts).seen = true;
    match database.meta::<VoteFormat>(MetaKey::Vote) {
        Ok(vote) => Parts::lock(parts).vote = vote.map(Into::into),
        Err(error) => Parts::lock(parts).unreadable("vote", error),
    }
    let mut log = LogView::default();
    for (key, place) in [
        (MetaKey::Purged, &mut log.purged),
        (MetaKey::Committed, &mut log.committed),
    ] {
        match database.meta::<LogIdFormat>(key) {
            Ok(found) => *place = found.map(|found| entry(found.into())),
            Err(error) => Parts::lock(parts).unreadable("log", error),
        }
    }
    Parts::lock(parts).log = Some(log);
    let first = log
        .purged
        .map_or(0, |purged| purged.index.saturating_add(1));
    for found in database.records(first..) {
        match found {
            Ok((_, record)) => {
                let at = Some(entry(record.entry.log_id()));
                log.first = log.first.or(at);
                log.last = at;
                log.records += 1;
                Parts::lock(parts).log = Some(log);
            }
            Err(error) => {
                let is_one_record = matches!(
                    error,
                    StoreError::RecordDamaged { .. } | StoreError::Later { .. }
                );
                Parts::lock(parts).unreadable("log", error);
                if !is_one_record {
                    break;
                }
            }
        }
    }
}

/// What was read so far.
#[derive(Debug, Default)]
struct Parts {
    /// The database opened.
    seen: bool,
    vote: Option<Vote>,
    log: Option<LogView>,
    unreadable: Vec<(&'static str, StoreError)>,
}

impl Parts {
    fn lock(parts: &Mutex<Self>) -> std::sync::MutexGuard<'_, Self> {
        parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first reason of each part is enough.
    fn unreadable(&mut self, part: &'static str, error: StoreError) {
        if !self.unreadable.iter().any(|(known, _)| *known == part) {
            self.unreadable.push((part, error));
        }
    }

    /// Reads the other parts.
    fn into_inspection(
        mut self,
        path: &Path,
        paths: &Paths,
        refused: Option<StoreError>,
    ) -> Inspection {
        let identity = identity::read(path).unwrap_or_else(|error| {
            self.unreadable("identity", error);
            None
        });
        let slot = if paths.superblock.exists() {
            superblock::read(&paths.superblock)
                .map_err(|error| self.unreadable("superblock", error))
                .ok()
        } else {
            None
        };
        let (snapshot, state) = self.snapshot(paths, slot.as_ref());
        let vote = self.vote.map(VoteFormat::from);
        let promised = slot.as_ref().and_then(|slot| slot.promised.vote);
        let vote = vote.max(promised.map(VoteFormat::from)).map(Vote::from);
        let original = path.join(DATABASE_NAME);
        let unreadable = |(part, error): (&'static str, StoreError)| Unreadable {
            part,
            reason: whole_line(&error.moved(&paths.database, &original)),
        };
        Inspection {
            verdict: match refused {
                Some(_) => Verdict::Refused,
                None => Verdict::Starts,
            },
            reason: refused.map(|error| whole_line(&error)),
            identity: identity.map(|(identity, _)| identity_view(identity)),
            vote: vote.map(vote_view),
            log: self.log,
            snapshot,
            superblock: slot.map(|slot| superblock_view(&slot, &paths.snapshots)),
            table: state.as_ref().map(table_view),
            sequences: state.as_ref().map(marks).unwrap_or_default(),
            unreadable: self.unreadable.into_iter().map(unreadable).collect(),
        }
    }

    fn snapshot(
        &mut self,
        paths: &Paths,
        slot: Option<&Slot>,
    ) -> (Option<SnapshotView>, Option<State>) {
        let Some(slot) = slot else {
            return match newest_in(&paths.snapshots) {
                Some((path, state)) => {
                    let last = state.meta.last_log_id.map(entry);
                    let file = file_name(&path);
                    (Some(SnapshotView { file, last }), Some(state))
                }
                None => (None, None),
            };
        };
        let Some(name) = slot.promised.snapshot else {
            return (None, None);
        };
        let view = SnapshotView {
            file: file_name(&name.path(&paths.snapshots)),
            last: name.last().map(entry),
        };
        match SnapshotFile::recover(&paths.snapshots, name, FeatureLevel::LATEST) {
            Ok((_, state)) => (Some(view), Some(state)),
            Err(error) => {
                self.unreadable("snapshot", error);
                (Some(view), None)
            }
        }
    }
}

/// The newest whole snapshot of a directory, whether it is named or not.
pub(super) fn newest_in(directory: &Path) -> Option<(PathBuf, State)> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == COMPLETE_EXTENSION)
    });
    // The names begin with the index.
    paths.sort();
    paths.into_iter().rev().find_map(|path| {
        let (state, _) = snapshot_format::read(File::open(&path).ok()?).ok()?;
        Some((path, state))
    })
}
