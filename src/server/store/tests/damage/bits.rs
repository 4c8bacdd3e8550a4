//! Flipped bits and shortened files.

use std::fs;
use std::path::{Path, PathBuf};

use openraft::storage::RaftLogStorage;

use super::super::fixture::*;
use super::{Fate, fate_of, snapshot_of, template};
use crate::server::store::StoreError;

pub(in super::super) fn flip(file: &Path, bit: u64) {
    let mut bytes = fs::read(file).unwrap();
    let byte = &mut bytes[usize::try_from(bit / 8).unwrap()];
    *byte ^= 1 << (bit % 8);
    fs::write(file, bytes).unwrap();
}

/// Places spread over a file, mostly where there is something.
pub(in super::super) fn bits_of(file: &Path, count: usize) -> Vec<u64> {
    let bytes = fs::read(file).unwrap();
    let used: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    (0..count)
        .map(|number| {
            let at = match number % 8 {
                0 => bytes.len() * number / count,
                _ => used[used.len() * number / count],
            };
            at as u64 * 8 + (number % 8) as u64
        })
        .collect()
}

/// Flips one bit after another, each in a copy of its own, and returns what was refused.
async fn flip_all(file: impl Fn(&Path) -> PathBuf, count: usize) -> Vec<StoreError> {
    let (template, acknowledged) = template().await;
    let mut refused = Vec::new();
    for bit in bits_of(&file(template.path()), count) {
        let copy = copy_of(template.path());
        flip(&file(copy.path()), bit);
        let damage = format!("bit {bit}");
        if let Fate::Refused(error) = fate_of(open(copy.path()), &acknowledged, &damage).await {
            refused.push(error);
        }
    }
    refused
}

#[tokio::test]
async fn a_flipped_bit_in_the_database_never_loses_what_was_acknowledged() {
    let refused = flip_all(|path| path.join("sled/db"), 200).await;

    for error in &refused {
        assert!(
            matches!(
                error,
                StoreError::DatabaseDamaged { .. }
                    | StoreError::DatabaseHangs { .. }
                    | StoreError::ValueDamaged { .. }
                    | StoreError::RecordDamaged { .. }
                    | StoreError::ChainBroken { .. }
                    | StoreError::LogBehind { .. }
                    | StoreError::PurgedBehind { .. }
            ),
            "{error:?}"
        );
    }
    assert!(
        !refused.is_empty(),
        "sled does not find most of this by itself"
    );
}

#[tokio::test]
async fn a_flipped_bit_in_the_superblock_leaves_a_slot_and_the_data() {
    let refused = flip_all(|path| path.join("superblock"), 60).await;

    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test]
async fn neither_slot_promises_what_was_removed_on_purpose() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..10).await;
    for index in 0..2 {
        apply(&mut store, [grant(1, index)]).await;
        build(&mut store).await;
    }
    let replaced = copy_of(guard.path());
    store.log.truncate_after(Some(log_id(1, 6))).await.unwrap();
    let truncated = copy_of(guard.path());

    for (path, last) in [(replaced.path(), 9), (truncated.path(), 6)] {
        for slot in [0, 1] {
            let copy = copy_of(path);
            flip(&copy.path().join("superblock"), slot * 4096 * 8);
            let store = open(copy.path()).unwrap();
            assert_eq!(store.last_log_id, Some(log_id(1, last)), "slot {slot}");
            assert_eq!(store.tables.applied(), Some(log_id(1, 1)));
        }
    }
}

#[tokio::test]
async fn a_flipped_bit_in_the_snapshot_is_refused() {
    let refused = flip_all(snapshot_of, 60).await;

    assert_eq!(refused.len(), 60);
    for error in refused {
        assert!(
            matches!(error, StoreError::SnapshotDamaged { .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_flipped_bit_in_the_identity_is_refused() {
    let refused = flip_all(|path| path.join("identity"), 40).await;

    assert_eq!(refused.len(), 40);
    for error in refused {
        assert!(
            matches!(error, StoreError::IdentityDamaged { .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_flipped_bit_in_sleds_configuration_never_loses_what_was_acknowledged() {
    flip_all(|path| path.join("sled/conf"), 40).await;
}

#[tokio::test]
async fn a_shortened_database_never_loses_what_was_acknowledged() {
    let (template, acknowledged) = template().await;
    let length = fs::metadata(template.path().join("sled/db")).unwrap().len();
    let used = bits_of(&template.path().join("sled/db"), 20);
    let mut refused = 0;

    for cut in used.into_iter().map(|bit| bit / 8).chain([0, length / 2]) {
        let copy = copy_of(template.path());
        let file = fs::File::options()
            .write(true)
            .open(copy.path().join("sled/db"))
            .unwrap();
        file.set_len(cut).unwrap();
        let damage = format!("cut to {cut}");
        if let Fate::Refused(_) = fate_of(open(copy.path()), &acknowledged, &damage).await {
            refused += 1;
        }
    }

    assert!(10 < refused, "{refused}");
}

#[tokio::test]
async fn a_shortened_superblock_is_refused() {
    let (template, _) = template().await;
    for length in [0, 100, 4096, 8191, 8192, 8193, 1024 * 1024] {
        let copy = copy_of(template.path());
        let file = fs::File::options()
            .write(true)
            .open(copy.path().join("superblock"))
            .unwrap();
        file.set_len(length).unwrap();

        let error = open(copy.path()).unwrap_err();

        assert!(
            matches!(error, StoreError::SuperblockDamaged { .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_file_of_zeros_is_refused() {
    let (template, _) = template().await;
    let snapshot = snapshot_of(template.path());
    let snapshot = snapshot.strip_prefix(template.path()).unwrap();
    for (file, text) in [
        ("identity", "FILE is damaged: "),
        (
            "superblock",
            "FILE is damaged, and with it what this node promised: ",
        ),
        ("sled/conf", "sled does not open"),
        ("sled/db", ""),
        (snapshot.to_str().unwrap(), "the snapshot FILE is damaged: "),
    ] {
        let copy = copy_of(template.path());
        let file = copy.path().join(file);
        let length = fs::metadata(&file).unwrap().len();
        fs::write(&file, vec![0; usize::try_from(length).unwrap()]).unwrap();

        let error = open(copy.path()).unwrap_err().to_string();

        let expected = text.replace("FILE", &file.display().to_string());
        assert!(error.contains(&expected), "{error}");
    }
}
