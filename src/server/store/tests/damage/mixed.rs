//! Files of another node, of another version, or of another time than those beside them.

use std::fs;

use openraft::storage::RaftLogStorage;

use super::super::fixture::*;
use std::path::Path;

use super::records::with_tree;
use super::{WAY_OUT, snapshot_of, template};
use crate::sequence::FeatureLevel;
use crate::server::store::{Store, StoreError};

#[tokio::test]
async fn a_store_of_another_node_is_refused() {
    let (template, _) = template().await;
    let (other, dir) = new_directory();
    drop(Store::open(&dir, FeatureLevel::LATEST).unwrap());
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
    let older = settled(guard.path()).await;
    append_grants(&mut store, 1, 10..12).await;
    let newer = settled(guard.path()).await;
    fs::copy(
        newer.path().join("superblock"),
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
    let newer = settled(guard.path()).await;
    fs::copy(
        newer.path().join("superblock"),
        older.path().join("superblock"),
    )
    .unwrap();

    let mut reopened = open(older.path()).unwrap();

    assert_eq!(stored_vote(&mut reopened).await, Some(vote(200)));
}

/// A frame of the version after its own, whole.
pub(in super::super) fn raised(frame: &[u8], magic_length: usize) -> Vec<u8> {
    use crate::server::store::frame;
    let (magic, rest) = frame.split_at(magic_length);
    let mut magic = magic.to_vec();
    *magic.last_mut().unwrap() += 1;
    frame::seal(&magic, &rest[4..])
}

#[tokio::test]
async fn files_of_a_later_version_are_left_alone() {
    let (template, _) = template().await;
    let slots = fs::read(template.path().join("superblock")).unwrap();
    let superblock = [raised(&slots[..4096], 8), slots[4096..].to_vec()].concat();
    let identity = raised(&fs::read(template.path().join("identity")).unwrap(), 8);
    for (file, bytes) in [("superblock", superblock), ("identity", identity)] {
        let copy = copy_of(template.path());
        let path = copy.path().join(file);
        fs::write(&path, &bytes).unwrap();

        let error = open(copy.path()).unwrap_err().to_string();

        assert_eq!(error, later(&path));
        assert_eq!(fs::read(path).unwrap(), bytes);
    }
}

fn later(path: &Path) -> String {
    format!(
        "{} was written by a later version: start that version, or {WAY_OUT}",
        path.display()
    )
}

#[tokio::test]
async fn a_value_or_a_record_of_a_later_version_is_no_damage() {
    let (template, _) = template().await;
    let template = settled(template.path()).await;
    for tree in ["log", "meta"] {
        let copy = copy_of(template.path());
        with_tree(copy.path(), tree, |tree| {
            let (key, value) = tree.last().unwrap().unwrap();
            tree.insert(key, raised(&value, 1)).unwrap();
        });

        let error = open(copy.path()).unwrap_err().to_string();

        assert_eq!(error, later(&copy.path().join("sled")));
    }
}

#[tokio::test]
async fn a_snapshot_of_a_later_version_is_no_damage() {
    let (template, _) = template().await;
    let template = settled(template.path()).await;
    let snapshot = snapshot_of(template.path());
    let mut bytes = fs::read(&snapshot).unwrap();
    bytes[7] += 1;
    let (now, then) = (
        blake3::hash(&fs::read(&snapshot).unwrap()),
        blake3::hash(&bytes),
    );
    fs::write(&snapshot, &bytes).unwrap();

    // With the checksum of another file it is damage.
    let error = open(template.path()).unwrap_err();
    assert!(
        matches!(error, StoreError::SnapshotDamaged { .. }),
        "{error:?}"
    );

    let superblock = template.path().join("superblock");
    let slots = fs::read(&superblock).unwrap();
    let (slots, journal) = slots.split_at(2 * 4096);
    let slots: Vec<u8> = slots
        .chunks(4096)
        .flat_map(|slot| {
            let at = slot.windows(32).position(|bytes| bytes == now.as_bytes());
            let at = at.expect("every slot names the snapshot");
            let mut body = slot[12..].to_vec();
            body[at - 12..at + 20].copy_from_slice(then.as_bytes());
            crate::server::store::frame::seal(&slot[..8], &body)
        })
        .collect();
    fs::write(&superblock, [&slots, journal].concat()).unwrap();
    assert_eq!(
        open(template.path()).unwrap_err().to_string(),
        later(&snapshot)
    );
}
