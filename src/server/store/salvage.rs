//! A backup of a stopped node's directory, for the day on which so many nodes are lost that no quorum comes back.
//!
//! Every entry of its log is applied, committed or not: one that was not may be granted or not, and marks only rise by it.
//! The directory passes the check of a start first, and nothing in it changes.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use openraft::entry::RaftEntry;
use tokio::sync::oneshot;

use super::applying::Readable;
use super::backup::{Backup, Rises};
use super::error::StoreError;
use super::frame::FrameError;
use super::inspect::{InspectError, with_private_database};
use super::probe::Probe;
use super::snapshot_format::State;
use super::startup::{self, Found, Paths};
use super::{DATABASE_NAME, directory, identity};
use crate::sequence::FeatureLevel;
use crate::server::types::ClusterId;

/// The sequences of a stopped node, as far as its log goes.
///
/// # Errors
/// [`InspectError`] where it is no data directory of a cluster's member, a node runs on it, or a start would be refused.
pub(crate) fn salvage(path: &Path) -> Result<Backup, InspectError> {
    let taken_ms = last_write_ms(&Paths::of(path));
    let (_copy, paths) = with_private_database(path)?;
    let original = path.join(DATABASE_NAME);
    let of_original = |error: StoreError| error.moved(&paths.database, &original);
    let Some((identity, store)) = identity::read(path)? else {
        return Err(nothing_in(path));
    };
    if startup::find(&paths, store).map_err(of_original)? == Found::NoStore {
        return Err(nothing_in(path));
    }
    let owner = startup::owner(&identity, path)?;
    let (closed, _) = oneshot::channel();
    let whose = (owner, FeatureLevel::LATEST);
    let checked = startup::check(&paths, whose, Probe::default(), closed, |_| {});
    let checked = checked.map_err(of_original)?;
    let mut state = checked.state;
    let first = state
        .meta
        .last_log_id
        .map_or(0, |last| last.index().saturating_add(1));
    for found in checked.database.records(first..) {
        let (_, record) = found.map_err(of_original)?;
        let index = record.entry.index();
        Readable::try_from(record.entry)
            .and_then(|entry| state.apply(entry))
            .map_err(|error| not_applied(index, &error))?;
        FeatureLevel::LATEST
            .check(state.table.header().level)
            .map_err(StoreError::from)?;
    }
    // A node that was started meanwhile has changed what was read.
    directory::check_unused(path)?;
    Ok(of(owner.cluster, taken_ms, state))
}

fn of(cluster: ClusterId, taken_ms: u64, state: State) -> Backup {
    Backup {
        cluster,
        taken_ms,
        // A log does not tell when its entries were made.
        rises: Rises::default(),
        last: state.meta.last_log_id,
        table: state.table.restored(state.table.header().epoch),
    }
}

fn nothing_in(path: &Path) -> InspectError {
    InspectError::NotDataDirectory {
        path: path.to_path_buf(),
        what: "nothing was ever stored in it",
    }
}

fn not_applied(index: u64, error: &io::Error) -> StoreError {
    let reason = error.to_string();
    let source = FrameError::Invalid { reason };
    StoreError::RecordDamaged { index, source }
}

/// When the node wrote for the last time: what others granted later is not in its directory.
fn last_write_ms(paths: &Paths) -> u64 {
    let files = [paths.superblock.clone(), paths.database.join("db")];
    let written = files.iter().filter_map(|file| {
        let modified = fs::metadata(file).ok()?.modified().ok()?;
        let since_1970 = modified.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        u64::try_from(since_1970.as_millis()).ok()
    });
    written.max().unwrap_or_default()
}
