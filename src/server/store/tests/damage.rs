//! Damaged and missing files: refused with the right line, or the data is right. Never is acknowledged data
//! silently gone (I7).

use std::fs;
use std::path::{Path, PathBuf};

use openraft::storage::{LogState, RaftLogStorage};
use tempfile::TempDir;

use super::fixture::*;
use crate::sequence::Table;
use crate::server::store::error::WAY_OUT;
use crate::server::store::{DataDir, Store, StoreError};
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

/// Opens a damaged copy. Whatever opens has to be right.
async fn fate_of(path: &Path, acknowledged: &Acknowledged, damage: &str) -> Fate {
    let mut store = match open(path) {
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

pub(super) fn flip(file: &Path, bit: u64) {
    let mut bytes = fs::read(file).unwrap();
    let byte = &mut bytes[usize::try_from(bit / 8).unwrap()];
    *byte ^= 1 << (bit % 8);
    fs::write(file, bytes).unwrap();
}

/// Places spread over a file, mostly where there is something.
pub(super) fn bits_of(file: &Path, count: usize) -> Vec<u64> {
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

pub(super) fn snapshot_of(path: &Path) -> PathBuf {
    snapshot_paths(path).into_iter().next().unwrap()
}

/// Flips one bit after another, each in a copy of its own, and returns what was refused.
async fn flip_all(file: impl Fn(&Path) -> PathBuf, count: usize) -> Vec<StoreError> {
    let (template, acknowledged) = template().await;
    let mut refused = Vec::new();
    for bit in bits_of(&file(template.path()), count) {
        let copy = copy_of(template.path());
        flip(&file(copy.path()), bit);
        let damage = format!("bit {bit}");
        if let Fate::Refused(error) = fate_of(copy.path(), &acknowledged, &damage).await {
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
        if let Fate::Refused(_) = fate_of(copy.path(), &acknowledged, &damage).await {
            refused += 1;
        }
    }

    assert!(10 < refused, "{refused}");
}

#[tokio::test]
async fn a_shortened_superblock_is_refused() {
    let (template, _) = template().await;
    for length in [0, 100, 4096, 8191] {
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

/// Changes the log behind the store's back.
fn with_log(path: &Path, change: impl FnOnce(&sled::Tree)) {
    with_tree(path, "log", change);
}

pub(super) fn with_tree(path: &Path, tree: &str, change: impl FnOnce(&sled::Tree)) {
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
        let copy = copy_of(guard.path());
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
    let before = copy_of(guard.path());
    store.log.truncate_after(Some(log_id(1, 4))).await.unwrap();
    append_grants(&mut store, 1, 5..6).await;
    store.log.truncate_after(Some(log_id(1, 4))).await.unwrap();
    append_grants(&mut store, 2, 5..7).await;
    let after = copy_of(guard.path());

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
    let copy = copy_of(guard.path());
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

/// A frame of the version after its own, whole.
pub(super) fn raised(frame: &[u8], magic_length: usize) -> Vec<u8> {
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
    fs::write(&superblock, slots).unwrap();
    assert_eq!(
        open(template.path()).unwrap_err().to_string(),
        later(&snapshot)
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

    let error = Store::open(&dir).unwrap_err();

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
