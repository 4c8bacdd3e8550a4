//! What is missing, and what never was there.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::fixture::*;
use super::{Fate, WAY_OUT, fate_of, snapshot_of, template};
use crate::sequence::FeatureLevel;
use crate::server::store::{DataDir, Store, StoreError};

#[tokio::test]
async fn whatever_is_deleted_is_missed_by_name() {
    let (template, _) = template().await;
    let snapshot = snapshot_of(template.path());
    let snapshot = snapshot.strip_prefix(template.path()).unwrap();
    let snapshot = snapshot.to_str().unwrap();
    for (deleted, text) in [
        ("identity", "FILE is missing beside a store: WAY_OUT"),
        (
            "superblock",
            "FILE is missing, and with it what this node promised: WAY_OUT",
        ),
        (
            "sled",
            "FILE is missing, and with it this node's log: WAY_OUT",
        ),
        (
            "sled/db",
            "FILE is missing, and with it this node's log: WAY_OUT",
        ),
        (
            "sled/conf",
            "FILE is missing, and with it this node's log: WAY_OUT",
        ),
        (snapshot, "the snapshot FILE is missing: WAY_OUT"),
    ] {
        let copy = copy_of(template.path());
        let file = copy.path().join(deleted);
        if file.is_dir() {
            fs::remove_dir_all(&file).unwrap();
        } else {
            fs::remove_file(&file).unwrap();
        }
        let before = listing(copy.path());

        let error = open(copy.path()).unwrap_err();

        let expected = text
            .replace("FILE", &file.display().to_string())
            .replace("WAY_OUT", WAY_OUT);
        assert_eq!(error.to_string(), expected);
        assert_eq!(listing(copy.path()), before, "a refusal changes nothing");
    }
}

fn listing(path: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn a_store_whose_database_and_superblock_are_both_gone_is_not_made_anew() {
    let (template, _) = template().await;
    fs::remove_dir_all(template.path().join("sled")).unwrap();
    fs::remove_file(template.path().join("superblock")).unwrap();

    let error = open(template.path()).unwrap_err();

    assert!(
        matches!(error, StoreError::SuperblockMissing { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_store_in_the_making_is_made_anew() {
    // A crash before the superblock: nothing was promised, whatever is there of the database.
    for torn in ["sled/db", "sled/conf"] {
        let (guard, dir) = new_directory();
        drop(dir);
        let (made, _store) = new_store();
        copy_into(&made.path().join("sled"), &guard.path().join("sled"));
        fs::write(guard.path().join(torn), "torn").unwrap();

        let mut store = open(guard.path()).unwrap();

        assert!(entries(&mut store).await.is_empty());
    }
}

#[tokio::test]
async fn a_database_with_a_log_is_never_taken_for_one_in_the_making() {
    let (template, _) = template().await;
    let (guard, dir) = new_directory();
    drop(dir);
    copy_into(&template.path().join("sled"), &guard.path().join("sled"));

    let error = open(guard.path()).unwrap_err();

    assert!(
        matches!(error, StoreError::DatabaseOrphaned { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_store_opens_only_after_adoption() {
    let guard = tempfile::tempdir().unwrap();
    let dir = DataDir::open(guard.path()).unwrap();

    let error = Store::open(&dir, FeatureLevel::LATEST).unwrap_err();

    assert_eq!(
        error.to_string(),
        format!(
            "{} belongs to no cluster yet: form or join one first",
            guard.path().display()
        )
    );
}

#[tokio::test]
async fn a_directory_that_is_none_is_refused_by_name() {
    // spacejam/sled#823: an operator's mistake is told, and is no panic.
    let guard = tempfile::tempdir().unwrap();
    let file = guard.path().join("file");
    fs::write(&file, "").unwrap();
    let link = guard.path().join("link");
    let target = guard.path().join("not-mounted");
    std::os::unix::fs::symlink(&target, &link).unwrap();

    for (path, at) in [
        (file.clone(), &file),
        (file.join("below"), &file),
        (link.clone(), &link),
        (link.join("below"), &link),
    ] {
        let error = DataDir::open(&path).unwrap_err().to_string();

        let at = at.display();
        let what = if path.starts_with(&file) {
            format!("{at} is not a directory: move it away, or ")
        } else {
            let target = target.display();
            format!("{at} is a link to {target}, where nothing is: mount or make that, or ")
        };
        assert_eq!(error, format!("{what}choose another data directory"));
    }
    assert!(!target.exists());
}

#[tokio::test]
async fn what_every_start_makes_anew_may_be_missing_and_what_is_left_over_goes() {
    let (template, acknowledged) = template().await;
    let stale = template
        .path()
        .join("snapshots/00000000000000000001-0.snapshot");
    fs::remove_dir(template.path().join("sled/blobs")).unwrap();
    fs::write(&stale, "an older one, that a crash left").unwrap();

    let fate = fate_of(open(template.path()), &acknowledged, "no blobs").await;

    assert!(matches!(fate, Fate::Right), "{fate:?}");
    assert!(!stale.exists());
}

#[tokio::test]
async fn a_database_without_its_own_snapshot_never_loses_what_was_acknowledged() {
    // sled writes one at every open, and goes on from it at the next.
    let (killed, acknowledged) = template().await;
    close(open(killed.path()).unwrap()).await;
    for entry in fs::read_dir(killed.path().join("sled")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_str().unwrap().starts_with("snap.") {
            fs::remove_file(entry.path()).unwrap();
        }
    }

    let fate = fate_of(open(killed.path()), &acknowledged, "no snap").await;

    match fate {
        Fate::Right
        | Fate::Refused(StoreError::PurgedBehind { .. } | StoreError::LogBehind { .. }) => {}
        Fate::Refused(other) => panic!("{other:?}"),
    }
}
