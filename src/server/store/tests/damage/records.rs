//! Records that the database forgot, brought back or exchanged.

use std::path::Path;

use openraft::storage::RaftLogStorage;

use super::super::fixture::*;
use super::{Acknowledged, WAY_OUT, template};
use crate::server::store::StoreError;

/// Changes the log behind the store's back.
fn with_log(path: &Path, change: impl FnOnce(&sled::Tree)) {
    with_tree(path, "log", change);
}

pub(in super::super) fn with_tree(path: &Path, tree: &str, change: impl FnOnce(&sled::Tree)) {
    let database = sled::Config::new()
        .path(path.join("sled"))
        .segment_size(8 * 1024 * 1024)
        .flush_every_ms(None)
        .open()
        .unwrap();
    change(&database.open_tree(tree).unwrap());
    database.flush().unwrap();
}

fn key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

#[tokio::test]
async fn records_that_the_database_forgot_are_missed_wherever_they_were() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..10).await;
    let template = settled(guard.path()).await;
    let first = "the log record at index 3 does not follow nothing: records are missing".to_owned();
    let between = format!(
        "the log record at index 6 does not follow {}: records are missing",
        log_id(1, 3)
    );
    let last = format!(
        "the log ends at {}, but this node acknowledged {}",
        log_id(1, 7),
        log_id(1, 9)
    );
    let all = format!(
        "the log ends at nothing, but this node acknowledged {}",
        log_id(1, 9)
    );
    for (forgotten, text) in [(0..3, first), (4..6, between), (8..10, last), (0..10, all)] {
        let copy = copy_of(template.path());
        with_log(copy.path(), |log| {
            for index in forgotten {
                log.remove(key(index)).unwrap().unwrap();
            }
        });

        let error = open(copy.path()).unwrap_err();

        assert_eq!(
            error.to_string(),
            format!(
                "{text}{}",
                match error {
                    StoreError::ChainBroken { .. } => format!("; {WAY_OUT}"),
                    _ => format!(": {WAY_OUT}"),
                }
            )
        );
    }
}

#[tokio::test]
async fn a_truncated_record_that_comes_back_is_no_part_of_the_log() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..10).await;
    let before = settled(guard.path()).await;
    store.log.truncate_after(Some(log_id(1, 4))).await.unwrap();
    append_grants(&mut store, 1, 5..6).await;
    store.log.truncate_after(Some(log_id(1, 4))).await.unwrap();
    append_grants(&mut store, 2, 5..7).await;
    let after = settled(guard.path()).await;

    let mut old = None;
    with_log(before.path(), |log| old = log.get(key(7)).unwrap());
    // Of a greater term, so that the order of log ids alone does not show it.
    let forged = crate::server::store::record::encode(&grant(3, 7), Some(log_id(1, 6))).unwrap();
    for returned in [old.unwrap().to_vec(), forged] {
        let copy = copy_of(after.path());
        with_log(copy.path(), |log| {
            log.insert(key(7), returned).unwrap();
        });

        let error = open(copy.path()).unwrap_err();

        assert!(
            matches!(error, StoreError::ChainBroken { index: 7, .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_record_in_the_place_of_another_is_refused() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..10).await;
    let copy = settled(guard.path()).await;
    with_log(copy.path(), |log| {
        let other = log.get(key(4)).unwrap().unwrap();
        log.insert(key(5), other).unwrap();
    });

    let error = open(copy.path()).unwrap_err();

    assert!(
        matches!(error, StoreError::RecordDamaged { index: 5, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_damaged_value_beside_the_log_is_refused_by_name() {
    let (template, _) = template().await;
    let template = settled(template.path()).await;
    for what in ["vote", "purged", "committed"] {
        let copy = copy_of(template.path());
        with_tree(copy.path(), "meta", |meta| {
            let mut value = meta
                .get(what)
                .unwrap()
                .map_or(vec![1; 9], |value| value.to_vec());
            *value.last_mut().unwrap() ^= 1;
            meta.insert(what, value).unwrap();
        });

        let error = open(copy.path()).unwrap_err();

        assert!(
            matches!(error, StoreError::ValueDamaged { .. }),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            format!("the stored {what} is damaged: {WAY_OUT}")
        );
    }
}

#[tokio::test]
async fn what_is_damaged_below_the_purge_marker_is_removed_with_the_rest() {
    let (template, acknowledged) = template().await;
    let purged = acknowledged.state.last_purged_log_id.unwrap().index();
    with_log(template.path(), |log| {
        log.insert(key(purged), "no record").unwrap();
    });

    let mut store = open(template.path()).unwrap();
    settle(&mut store).await;

    assert_eq!(Acknowledged::read(&mut store).await, acknowledged);
    assert!(!store.log.shared().database.has_records(..=purged));
}
