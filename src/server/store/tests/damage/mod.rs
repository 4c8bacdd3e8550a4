//! Damaged and missing files: refused with the right line, or the data is right. Never is acknowledged data
//! silently gone (I7).

mod bits;
mod gone;
mod harm;
mod mixed;
mod records;
mod tally;

pub(super) use bits::{bits_of, flip};
pub(super) use mixed::raised;
pub(super) use records::with_tree;

use std::path::{Path, PathBuf};

use openraft::storage::{LogState, RaftLogStorage};
use tempfile::TempDir;

use super::fixture::*;
use crate::sequence::Table;
use crate::server::store::error::WAY_OUT;
use crate::server::store::{Store, StoreError};
use crate::server::types::{Entry, Vote};

/// What was acknowledged.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Acknowledged {
    vote: Option<Vote>,
    state: LogState<crate::server::types::TypeConfig>,
    entries: Vec<Entry>,
    table: Table,
}

impl Acknowledged {
    async fn read(store: &mut Store) -> Self {
        Self {
            vote: stored_vote(store).await,
            state: store.log.get_log_state().await.unwrap(),
            entries: entries(store).await,
            table: store.tables.table(),
        }
    }
}

/// A directory with a vote, a purged and truncated log and a snapshot, as a killed process leaves it.
pub(super) async fn template() -> (TempDir, Acknowledged) {
    let (guard, store) = filled().await;
    acknowledged(guard, store).await
}

/// The same, and the journal has nothing of the log.
async fn template_in_database() -> (TempDir, Acknowledged) {
    let (guard, mut store) = filled().await;
    store.log.purge(log_id(8, 70)).await.unwrap();
    acknowledged(guard, store).await
}

async fn filled() -> (TempDir, Store) {
    let (guard, mut store) = new_store();
    for term in 1..=20 {
        store.log.save_vote(&vote(term)).await.unwrap();
        append_grants(&mut store, term, term * 10 - 10..term * 10).await;
    }
    store.log.save_vote(&vote(21)).await.unwrap();
    let all = entries(&mut store).await;
    apply(&mut store, all.into_iter().take(100)).await;
    build(&mut store).await;
    store.log.purge(log_id(7, 69)).await.unwrap();
    store
        .log
        .truncate_after(Some(log_id(19, 189)))
        .await
        .unwrap();
    append_grants(&mut store, 21, 190..196).await;
    (guard, store)
}

async fn acknowledged(guard: TempDir, mut store: Store) -> (TempDir, Acknowledged) {
    settle(&mut store).await;
    let acknowledged = Acknowledged::read(&mut store).await;
    (copy_of(guard.path()), acknowledged)
}

/// What became of a damaged directory.
#[derive(Debug)]
enum Fate {
    Refused(StoreError),
    Right,
}

/// What became of a damaged copy. Whatever opens has to be right.
async fn fate_of(
    opened: Result<Store, StoreError>,
    acknowledged: &Acknowledged,
    damage: &str,
) -> Fate {
    let mut store = match opened {
        Ok(store) => store,
        Err(error) => return Fate::Refused(error),
    };
    let found = Acknowledged::read(&mut store).await;
    assert_eq!(found.vote, acknowledged.vote, "{damage}");
    assert_eq!(found.state, acknowledged.state, "{damage}");
    assert!(found == *acknowledged, "{damage}: data is not what it was");
    close(store).await;
    Fate::Right
}

pub(super) fn snapshot_of(path: &Path) -> PathBuf {
    snapshot_paths(path).into_iter().next().unwrap()
}
