//! Files of another node, of another version, or of another time than those beside them.

use std::fs;

use openraft::storage::RaftLogStorage;

use super::super::fixture::*;
use super::{WAY_OUT, template};
use crate::server::store::Store;

#[tokio::test]
async fn a_store_of_another_node_is_refused() {
    let (template, _) = template().await;
    let (other, dir) = new_directory();
    drop(Store::open(&dir).unwrap());
    let cluster = dir.identity().formation.as_ref().unwrap().cluster;
    drop(dir);
    let copy = copy_of(template.path());
    fs::copy(other.path().join("identity"), copy.path().join("identity")).unwrap();

    let error = open(copy.path()).unwrap_err().to_string();

    let path = copy.path().join("superblock");
    let expected = format!("{} belongs to another cluster (", path.display());
    assert!(error.starts_with(&expected), "{error}");
    let expected = format!("than the identity file beside it ({cluster}): {WAY_OUT}");
    assert!(error.ends_with(&expected), "{error}");
}

#[tokio::test]
async fn an_older_database_beside_a_newer_superblock_is_refused() {
    // A directory put together from two backups: the log goes less far than what was acknowledged.
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..10).await;
    let older = copy_of(guard.path());
    append_grants(&mut store, 1, 10..12).await;
    fs::copy(
        guard.path().join("superblock"),
        older.path().join("superblock"),
    )
    .unwrap();

    let error = open(older.path()).unwrap_err();

    assert_eq!(
        error.to_string(),
        format!(
            "the log ends at {}, but this node acknowledged {}: {WAY_OUT}",
            log_id(1, 9),
            log_id(1, 11)
        )
    );
}

#[tokio::test]
async fn a_purge_marker_that_the_database_forgot_is_missed() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..10).await;
    apply(&mut store, (0..10).map(|index| grant(1, index))).await;
    build(&mut store).await;
    let older = copy_of(guard.path());
    store.log.purge(log_id(1, 5)).await.unwrap();
    settle(&mut store).await;
    fs::copy(
        guard.path().join("superblock"),
        older.path().join("superblock"),
    )
    .unwrap();

    let error = open(older.path()).unwrap_err();

    assert_eq!(
        error.to_string(),
        format!(
            "the log is purged to nothing, but was purged to {} before: {WAY_OUT}",
            log_id(1, 5)
        )
    );
}

#[tokio::test]
async fn a_purged_log_without_the_snapshot_for_it_is_refused() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..10).await;
    store.log.purge(log_id(1, 5)).await.unwrap();
    close(store).await;

    let error = open(guard.path()).unwrap_err();

    assert_eq!(
        error.to_string(),
        format!(
            "the log is purged to {}, but the snapshot ends at nothing: {WAY_OUT}",
            log_id(1, 5)
        )
    );
}

#[tokio::test]
async fn a_vote_that_the_database_forgot_is_in_the_superblock() {
    let (guard, mut store) = new_store();
    store.log.save_vote(&vote(1)).await.unwrap();
    let older = copy_of(guard.path());
    store.log.save_vote(&vote(200)).await.unwrap();
    fs::copy(
        guard.path().join("superblock"),
        older.path().join("superblock"),
    )
    .unwrap();

    let mut reopened = open(older.path()).unwrap();

    assert_eq!(stored_vote(&mut reopened).await, Some(vote(200)));
}

#[tokio::test]
async fn files_of_a_later_version_are_left_alone() {
    use crate::server::store::frame;
    let (template, _) = template().await;
    let mut superblock = frame::seal(b"HWslot\0\x02", &[0; 4084]);
    superblock.resize(8192, 0);
    let identity = frame::seal(b"HWident\x02", b"other");
    for (file, bytes) in [("superblock", superblock), ("identity", identity)] {
        let copy = copy_of(template.path());
        let path = copy.path().join(file);
        fs::write(&path, &bytes).unwrap();

        let error = open(copy.path()).unwrap_err().to_string();

        let expected = format!("{} was written by a later version", path.display());
        assert!(error.starts_with(&expected), "{error}");
        assert_eq!(fs::read(path).unwrap(), bytes);
    }
}
