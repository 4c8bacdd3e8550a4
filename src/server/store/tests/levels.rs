//! Feature levels: what a node does not know never becomes its state.

use std::fs;

use openraft::RaftSnapshotBuilder as _;
use openraft::storage::RaftStateMachine as _;

use super::fixture::*;
use crate::sequence::{Command, FeatureLevel, LaterLevel};
use crate::server::store::probe::Probe;
use crate::server::store::{DataDir, Store, StoreError, StoreFailure};
use crate::server::types::Entry;

fn level(number: u32) -> FeatureLevel {
    FeatureLevel::from_number(number).unwrap()
}

const LATER: &str = "the cluster is at feature level 2, and this node knows levels up to 1: start the version that the other nodes \
                     run, without --feature-level-max";

fn raise(index: u64, to: u32) -> Entry {
    let to = level(to);
    entry_of(1, index, vec![Command::RaiseLevel { to }])
}

/// A store that knows levels up to this one.
fn opened(dir: &DataDir, level_max: u32) -> Result<Store, StoreError> {
    Store::open_with(dir, level(level_max), Probe::default())
}

/// What the store reported.
async fn reported(store: &mut Store) -> LaterLevel {
    let failed = std::mem::replace(&mut store.failed, new_store().1.failed);
    match failed.wait().await {
        StoreFailure::Level(later) => later,
        StoreFailure::Disk(error) => panic!("{error}"),
    }
}

/// A directory with a snapshot at level 2.
async fn at_level_2() -> (tempfile::TempDir, Store) {
    let (guard, dir) = new_directory();
    let mut store = opened(&dir, 2).unwrap();
    apply(&mut store, [grant(1, 0), grant(1, 1), raise(2, 2)]).await;
    let mut builder = store.machine.get_snapshot_builder().await;
    builder.build_snapshot().await.unwrap();
    (guard, store)
}

#[tokio::test]
async fn what_raises_the_level_above_what_a_node_knows_is_not_applied_and_ends_it() {
    let (_guard, dir) = new_directory();
    let mut store = opened(&dir, 1).unwrap();
    apply(&mut store, [grant(1, 0), raise(1, 1)]).await;
    assert_eq!(store.tables.level(), level(1));

    let entries = [grant(1, 2), raise(3, 2), grant(1, 4)];
    let error = try_apply(&mut store, entries).await.unwrap_err();

    assert_eq!(error.to_string(), LATER);
    assert_eq!(store.tables.level(), level(1), "it is seen by nobody");
    let later = reported(&mut store).await;
    assert_eq!((later.found, later.known), (level(2), level(1)));
}

#[tokio::test]
async fn a_store_at_a_later_level_is_not_opened_by_a_node_that_does_not_know_it() {
    let (guard, store) = at_level_2().await;
    let before = store.tables.table();
    close(store).await;
    let dir = || DataDir::open(guard.path()).unwrap();

    let error = opened(&dir(), 1).unwrap_err();

    assert!(matches!(error, StoreError::Level(_)), "{error:?}");
    assert_eq!(error.to_string(), LATER);
    let again = opened(&dir(), 2).unwrap();
    assert_eq!(again.tables.table(), before);
}

#[tokio::test]
async fn a_snapshot_of_a_later_level_is_not_received_and_ends_the_node() {
    let (guard, store) = at_level_2().await;
    let snapshot = fs::read_dir(guard.path().join("snapshots")).unwrap();
    let bytes = fs::read(snapshot.map(Result::unwrap).next().unwrap().path()).unwrap();
    // A version that is not known says its level in the same place.
    let mut unknown = bytes.clone();
    unknown[7] = u8::MAX;
    unknown.truncate(40);
    drop(store);

    for bytes in [bytes, unknown] {
        let (_guard, dir) = new_directory();
        let mut held_back = opened(&dir, 1).unwrap();
        let mut incoming = held_back.snapshots.begin().await.unwrap();
        incoming.write(bytes.clone().into()).await.unwrap();
        let checksum = *blake3::hash(&bytes).as_bytes();
        let length = u64::try_from(bytes.len()).unwrap();

        let error = incoming.finish(length, checksum).await.unwrap_err();

        assert_eq!(error.to_string(), LATER);
        assert_eq!(reported(&mut held_back).await.found, level(2));
    }
}
