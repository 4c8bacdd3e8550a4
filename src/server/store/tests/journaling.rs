//! What a start finds in the journal: every group that was acknowledged, none that a slot has made needless, and never a gap.

use std::fs;
use std::path::Path;

use openraft::storage::RaftLogStorage;

use super::damage::flip;
use super::fixture::*;
use crate::server::store::StoreError;
use crate::server::store::frame;

const SLOT_BYTES: usize = 4096;
const HALF_BYTES: usize = 1024 * 1024;
/// Where the two copies of a small group are, in bytes.
fn copies(group: usize) -> [usize; 2] {
    let first = 2 * SLOT_BYTES + group * 4096;
    [first, first + HALF_BYTES]
}

fn damage(directory: &Path, at: usize) {
    flip(&directory.join("superblock"), at as u64 * 8 + 100);
}

/// A store with entries 0 to 4, each a group of its own, as a killed process leaves it.
async fn five_groups() -> tempfile::TempDir {
    let (guard, mut store) = new_store();
    for index in 0..5 {
        append(&mut store, [grant(1, index)]).await;
    }
    copy_of(guard.path())
}

async fn entries_in(directory: &Path) -> usize {
    entries(&mut open(directory).unwrap()).await.len()
}

#[tokio::test]
async fn a_group_of_which_one_copy_is_damaged_is_read_from_the_other() {
    let template = five_groups().await;
    for group in 0..5 {
        for copy_at in copies(group) {
            let copy = copy_of(template.path());
            damage(copy.path(), copy_at);
            assert_eq!(entries_in(copy.path()).await, 5, "group {group}");
        }
    }
}

#[tokio::test]
async fn a_group_that_is_missing_before_another_is_refused_and_the_last_one_was_never_whole() {
    let template = five_groups().await;
    for group in 0..5 {
        let copy = copy_of(template.path());
        for copy_at in copies(group) {
            damage(copy.path(), copy_at);
        }

        let opened = open(copy.path());

        if group == 4 {
            // A write that the power cut off looks the same, and was not acknowledged.
            assert_eq!(entries(&mut opened.unwrap()).await.len(), 4);
            continue;
        }
        let error = opened.unwrap_err();
        let is_damaged = matches!(error, StoreError::SuperblockDamaged { .. });
        assert!(is_damaged, "group {group}: {error:?}");
    }
}

#[tokio::test]
async fn what_follows_a_slot_that_was_spoiled_later_is_found_behind_the_one_before() {
    for groups_behind in [0, 3] {
        let (guard, mut store) = new_store();
        append(&mut store, [grant(1, 0)]).await;
        close(store).await;
        let mut store = open(guard.path()).unwrap();
        for index in 1..=groups_behind {
            append(&mut store, [grant(1, index)]).await;
        }

        for slot in 0..2 {
            let copy = copy_of(guard.path());
            damage(copy.path(), slot * SLOT_BYTES);
            let other = |path: &Path| {
                let bytes = fs::read(path.join("superblock")).unwrap();
                let at = (1 - slot) * SLOT_BYTES;
                bytes[at..at + SLOT_BYTES].to_vec()
            };
            let whole = other(copy.path());
            // Killed: the whole slot is there until the spoiled one is written over.
            let started = open(copy.path()).unwrap();
            assert!(other(copy.path()) == whole, "slot {slot}");
            close(started).await;
            let found = entries_in(copy.path()).await as u64;
            assert_eq!(found, 1 + groups_behind, "slot {slot}");
            // And what is written then is behind the new slot, not between old groups.
            let mut reopened = open(copy.path()).unwrap();
            append(&mut reopened, [grant(1, found)]).await;
            let killed = copy_of(copy.path());
            assert_eq!(entries_in(killed.path()).await as u64, found + 1);
        }
    }
}

#[tokio::test]
async fn what_was_truncated_does_not_come_back_from_the_journal() {
    let (guard, mut store) = new_store();
    for index in 0..5 {
        append(&mut store, [grant(1, index)]).await;
    }
    store.log.truncate_after(Some(log_id(1, 1))).await.unwrap();
    let truncated = copy_of(guard.path());
    append(&mut store, [grant(2, 2)]).await;
    let appended = copy_of(guard.path());

    assert_eq!(entries_in(truncated.path()).await, 2);
    let mut store = open(appended.path()).unwrap();
    assert_eq!(
        entries(&mut store).await,
        [grant(1, 0), grant(1, 1), grant(2, 2)]
    );
}

#[tokio::test]
async fn a_superblock_of_the_version_without_a_journal_is_given_one() {
    let template = settled(five_groups().await.path()).await;
    let path = template.path().join("superblock");
    let bytes = fs::read(&path).unwrap();
    let former = bytes[..2 * SLOT_BYTES].chunks(SLOT_BYTES);
    let former: Vec<u8> = former
        .flat_map(|slot| frame::seal(b"HWslot\0\x01", &slot[12..]))
        .collect();
    fs::write(&path, former).unwrap();

    let mut store = open(template.path()).unwrap();
    append(&mut store, [grant(1, 5)]).await;

    let killed = copy_of(template.path());
    assert_eq!(entries_in(killed.path()).await, 6);
    assert_eq!(fs::read(&path).unwrap().len(), bytes.len());
}

#[tokio::test]
async fn the_largest_group_is_read_again() {
    let (guard, mut store) = new_store();
    append(&mut store, (0..4).map(|index| large(1, index, 65_400))).await;

    let killed = copy_of(guard.path());

    assert_eq!(entries_in(killed.path()).await, 4);
}
