//! The newest bytes of the database, cut off at every one of them, as a torn write or a short file leaves it.

use std::fs;
use std::ops::Range;
use std::path::Path;

use openraft::storage::RaftLogStorage;
use tempfile::TempDir;

use super::fixture::*;
use crate::server::store::{StoreError, superblock};
use crate::server::types::Entry;

/// How many entries were acknowledged before the last record.
const BEFORE: u64 = 10;

/// Where the database's bytes are others than before.
fn written(before: &Path, after: &Path) -> Range<usize> {
    let read = |path: &Path| fs::read(path.join("sled/db")).unwrap();
    let (before, after) = (read(before), read(after));
    let changed = |at: &usize| before.get(*at) != after.get(*at);
    let first = (0..after.len()).find(changed).unwrap();
    let last = (0..after.len()).rfind(changed).unwrap();
    first..last + 1
}

/// What follows the cut is gone: from the file, or from its bytes.
#[derive(Debug, Clone, Copy)]
enum Cut {
    Short(usize),
    Zeroed(usize),
}

/// A copy of a directory with its database cut.
fn cut(path: &Path, cut: Cut) -> TempDir {
    let database = fs::read(path.join("sled/db")).unwrap();
    let length = database.len();
    let copy = tempfile::tempdir().unwrap();
    for name in ["identity", "superblock", "sled/conf"] {
        let to = copy.path().join(name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(path.join(name), to).unwrap();
    }
    for entry in fs::read_dir(path.join("sled")).unwrap() {
        let name = entry.unwrap().file_name();
        if name.to_string_lossy().starts_with("snap.") {
            fs::copy(
                path.join("sled").join(&name),
                copy.path().join("sled").join(&name),
            )
            .unwrap();
        }
    }
    fs::create_dir_all(copy.path().join("sled/blobs")).unwrap();
    let mut database = database;
    match cut {
        Cut::Short(at) => database.truncate(at),
        Cut::Zeroed(at) => {
            database.truncate(at);
            database.resize(length, 0);
        }
    }
    fs::write(copy.path().join("sled/db"), database).unwrap();
    copy
}

fn cuts(places: Range<usize>) -> impl Iterator<Item = Cut> {
    let zeroed = places.clone().step_by(5).map(Cut::Zeroed);
    places.map(Cut::Short).chain(zeroed)
}

async fn opened(path: &Path) -> Result<Vec<Entry>, StoreError> {
    let mut store = open(path)?;
    let found = entries(&mut store).await;
    close(store).await;
    Ok(found)
}

fn grants(count: u64) -> Vec<Entry> {
    (0..count).map(|index| grant(1, index)).collect()
}

// rabbitmq/ra#170, canonical/dqlite#190: refuses when acknowledged data is missing.
#[tokio::test]
async fn the_last_acknowledged_record_cut_at_any_byte_is_missed() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..BEFORE).await;
    let before = settled(guard.path()).await;
    let after = copy_of(before.path());
    let mut store = open(after.path()).unwrap();
    append_grants(&mut store, 1, BEFORE..BEFORE + 1).await;
    close(store).await;
    let places = written(before.path(), after.path());
    assert!(50 < places.len(), "{places:?}");

    let mut refused = 0;
    for place in cuts(places.clone()) {
        let copy = cut(after.path(), place);
        match opened(copy.path()).await {
            // What is cut there was not needed.
            Ok(found) => assert_eq!(found, grants(BEFORE + 1), "{place:?} of {places:?}"),
            Err(StoreError::LogBehind { found, promised }) => {
                assert_eq!(promised, log_id(1, BEFORE), "{place:?}");
                assert_eq!(found, log_id(1, BEFORE - 1).to_string(), "{place:?}");
                refused += 1;
            }
            Err(error) => panic!("{place:?} of {places:?}: {error}"),
        }
    }

    assert!(50 < refused, "{refused} of {places:?}");
}

#[tokio::test]
async fn what_the_journal_has_may_be_cut_from_the_database_at_any_byte() {
    let disk = Disk::default();
    let (guard, mut store) = new_store_with(disk.probe());
    append_grants(&mut store, 1, 0..BEFORE).await;
    let before = copy_of(guard.path());
    // It is on its way from the journal to the database, and the superblock does not promise yet that it is there.
    disk.hold_after(1);
    let truncating = store.log.truncate_after(Some(log_id(1, 0)));
    let mut truncating = std::pin::pin!(truncating);
    assert!(futures::poll!(&mut truncating).is_pending());
    until("the superblock is about to be written", || disk.is_busy()).await;
    let after = copy_of(guard.path());
    disk.release();
    truncating.await.unwrap();
    let places = written(before.path(), after.path());
    assert!(50 < places.len(), "{places:?}");

    for place in cuts(places.start..places.end + 1).step_by(7) {
        let copy = cut(after.path(), place);
        let found = opened(copy.path()).await.unwrap();
        assert_eq!(found, grants(BEFORE), "{place:?} of {places:?}");
    }
}

// rabbitmq/ra#170, canonical/dqlite#190: starts when only an unacknowledged tail is cut.
#[tokio::test]
async fn a_group_that_was_never_acknowledged_may_be_cut_at_any_byte() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..BEFORE).await;
    let read = || fs::read(guard.path().join("superblock")).unwrap();
    let before = read();
    append_grants(&mut store, 1, BEFORE..BEFORE + 1).await;
    let after = read();
    let template = copy_of(guard.path());
    let changed: Vec<usize> = (0..after.len())
        .filter(|at| before[*at] != after[*at])
        .collect();

    let mut kept = 0;
    for count in 0..=changed.len() {
        let mut bytes = before.clone();
        for at in &changed[..count] {
            bytes[*at] = after[*at];
        }
        fs::write(template.path().join("superblock"), bytes).unwrap();
        let found = superblock::read(&template.path().join("superblock")).unwrap();
        let last = found.promised.last.unwrap().index();

        assert!([BEFORE - 1, BEFORE].contains(&last), "{count}: {last}");
        kept += usize::from(last == BEFORE);
    }

    assert_eq!(kept, changed.len() / 2 + 1, "one whole copy is enough");
}
