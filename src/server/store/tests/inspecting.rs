//! What `inspect` tells is what a start finds, and it leaves no trace.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::damage::{bits_of, flip, raised, snapshot_of, template, with_tree};
use super::fixture::*;
use crate::sequence::FeatureLevel;
use crate::server::store::error::whole_line;
use crate::server::store::{
    DataDir, InspectError, Inspection, Store, StoreError, Verdict, inspect,
};

/// Every name below a directory, and every byte.
fn tree(path: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut open = vec![path.to_path_buf()];
    while let Some(at) = open.pop() {
        if at.is_dir() {
            open.extend(
                fs::read_dir(&at)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            found.insert(at, None);
        } else {
            let bytes = fs::read(&at).unwrap();
            found.insert(at, Some(bytes));
        }
    }
    found
}

/// Inspects, and asserts that nothing has changed, and that a start agrees.
async fn inspected(path: &Path, damage: &str) -> Inspection {
    let before = tree(path);
    let inspection = inspect(path).unwrap();
    assert!(
        tree(path) == before,
        "inspecting changed the directory: {damage}"
    );

    let started = DataDir::open(path).and_then(|dir| Store::open(&dir, FeatureLevel::LATEST));
    match started {
        Ok(store) => {
            close(store).await;
            assert_eq!(inspection.verdict, Verdict::Starts, "{damage}");
            assert_eq!(inspection.reason, None, "{damage}");
        }
        Err(refused) => {
            assert_eq!(inspection.verdict, Verdict::Refused, "{damage}");
            assert_eq!(inspection.reason, Some(whole_line(&refused)), "{damage}");
        }
    }
    inspection
}

fn json(inspection: &Inspection) -> serde_json::Value {
    serde_json::to_value(inspection).unwrap()
}

#[tokio::test]
async fn every_part_of_a_whole_directory_is_told() {
    let (template, _) = template().await;
    let file = snapshot_of(template.path());

    let inspection = inspected(template.path(), "none").await;

    let at = |term: u64, index: u64| serde_json::json!({"index": index, "term": term, "node": 1});
    let told = json(&inspection);
    assert_eq!(told["verdict"], "starts");
    assert_eq!(told["identity"]["node"], 1);
    assert_eq!(told["identity"]["cluster"], told["superblock"]["cluster"]);
    assert_eq!(
        told["vote"],
        serde_json::json!({"term": 21, "node": 1, "committed": true})
    );
    assert_eq!(told["log"]["first"], at(8, 70));
    assert_eq!(told["log"]["last"], at(21, 195));
    assert_eq!(told["log"]["purged"], at(7, 69));
    assert_eq!(told["log"]["records"], 126);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert_eq!(
        told["snapshot"],
        serde_json::json!({"file": name, "index": 99, "term": 10, "node": 1})
    );
    assert_eq!(told["superblock"]["snapshot"], name);
    assert_eq!(told["superblock"]["last"], at(21, 195));
    assert_eq!(told["superblock"]["purged"], at(7, 69));
    assert_eq!(
        told["table"],
        serde_json::json!({"sequences": 1, "epoch": 1, "state_time_ms": 100})
    );
    assert_eq!(told["unreadable"], serde_json::json!([]));
    let [mark] = &inspection.sequences[..] else {
        panic!("one sequence: {:?}", inspection.sequences)
    };
    // Created at index 0, and three values at each index up to 99.
    assert_eq!((mark.name.as_str(), mark.high), ("s", Some(297)));
    assert_eq!((mark.next, mark.retired), (Some(298), false));
}

/// What is unreadable, part by part.
fn unreadable(inspection: &Inspection) -> Vec<&'static str> {
    inspection
        .unreadable
        .iter()
        .map(|unreadable| unreadable.part)
        .collect()
}

#[tokio::test]
async fn what_is_still_whole_of_a_damaged_directory_is_told() {
    let (template, _) = template().await;
    let snapshot = snapshot_of(template.path());
    let snapshot = snapshot.strip_prefix(template.path()).unwrap();

    for (file, parts) in [
        (Path::new("identity"), &["identity"][..]),
        (Path::new("superblock"), &["superblock"]),
        (snapshot, &["snapshot"]),
        (Path::new("sled/conf"), &["log"]),
    ] {
        let copy = copy_of(template.path());
        fs::write(copy.path().join(file), [7; 8192]).unwrap();

        let found = inspected(copy.path(), &format!("{file:?} overwritten")).await;

        assert_eq!(found.verdict, Verdict::Refused);
        assert_eq!(unreadable(&found), parts, "{file:?}");
        assert_eq!(found.identity.is_some(), !parts.contains(&"identity"));
        assert_eq!(found.superblock.is_some(), !parts.contains(&"superblock"));
        assert_eq!(found.sequences.is_empty(), parts.contains(&"snapshot"));
        assert_eq!(found.log.is_some(), !parts.contains(&"log"));
        // The superblock has it as well.
        assert!(found.vote.is_some());
        let name = snapshot.file_name().unwrap().to_str().unwrap();
        assert_eq!(found.snapshot.unwrap().file, name, "{file:?}");
    }
}

#[tokio::test]
async fn a_damaged_record_and_a_damaged_vote_hide_nothing_else() {
    let (template, _) = template().await;
    let template = settled(template.path()).await;
    for (tree, key, part) in [
        ("log", &100_u64.to_be_bytes()[..], "log"),
        ("meta", b"vote", "vote"),
    ] {
        let copy = copy_of(template.path());
        with_tree(copy.path(), tree, |tree| {
            tree.insert(key, "damaged").unwrap();
        });

        let found = inspected(copy.path(), part).await;

        assert_eq!(unreadable(&found), [part]);
        assert_eq!(Some(&found.unreadable[0].reason), found.reason.as_ref());
        let log = found.log.unwrap();
        assert_eq!(log.records, if part == "log" { 125 } else { 126 });
        assert_eq!(log.last.unwrap().index, 195);
        assert_eq!(found.vote.unwrap().term, 21);
    }
}

#[tokio::test]
async fn the_verdict_on_whatever_is_missing_or_later_is_the_starts() {
    let (template, _) = template().await;
    let snapshot = snapshot_of(template.path());
    let snapshot = snapshot.strip_prefix(template.path()).unwrap();
    let files = ["identity", "superblock", "sled/db", "sled/conf", "sled"];
    for file in files.map(Path::new).into_iter().chain([snapshot]) {
        let copy = copy_of(template.path());
        let path = copy.path().join(file);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }

        let found = inspected(copy.path(), &format!("{file:?} removed")).await;

        assert_eq!(found.verdict, Verdict::Refused);
    }
    for file in ["identity", "superblock"] {
        let copy = copy_of(template.path());
        let path = copy.path().join(file);
        let bytes = fs::read(&path).unwrap();
        let (frame, rest) = bytes.split_at(bytes.len().min(4096));
        fs::write(&path, [&raised(frame, 8), rest].concat()).unwrap();

        let found = inspected(copy.path(), &format!("{file} later")).await;

        assert!(found.reason.unwrap().contains("written by a later version"));
    }
}

#[tokio::test]
async fn the_verdict_on_a_superblock_of_another_directory_is_the_starts() {
    let (template, _) = template().await;
    let (other, store) = new_store();
    close(store).await;
    let copy = copy_of(template.path());
    let superblock = copy.path().join("superblock");
    fs::copy(other.path().join("superblock"), &superblock).unwrap();

    let found = inspected(copy.path(), "another directory's superblock").await;

    let text = format!("{} belongs to another cluster (", superblock.display());
    let reason = found.reason.unwrap();
    assert!(reason.starts_with(&text), "{reason}");
}

#[tokio::test]
async fn a_store_of_other_disks_would_be_refused_before_formation() {
    let (template, _) = template().await;
    let unformed = tempfile::tempdir().unwrap();
    drop(DataDir::open(unformed.path()).unwrap());
    let identity = fs::read(unformed.path().join("identity")).unwrap();
    copy_into(template.path(), unformed.path());
    fs::write(unformed.path().join("identity"), identity).unwrap();
    let before = tree(unformed.path());

    let found = inspect(unformed.path()).unwrap();
    let dir = DataDir::open(unformed.path()).unwrap();
    let refused = Store::refuse_orphan(&dir).unwrap_err();

    assert!(matches!(
        refused,
        StoreError::Foreign {
            what: "incarnation",
            ..
        }
    ));
    assert_eq!(found.reason, Some(whole_line(&refused)));
    assert!(
        tree(unformed.path()) == before,
        "a refusal changed the directory"
    );
}

#[tokio::test]
async fn the_verdict_on_flipped_bits_is_the_starts() {
    let (template, _) = template().await;
    let mut refused = 0;
    for (file, count) in [("sled/db", 24), ("sled/conf", 6), ("superblock", 4)] {
        for bit in bits_of(&template.path().join(file), count) {
            let copy = copy_of(template.path());
            flip(&copy.path().join(file), bit);

            let found = inspected(copy.path(), &format!("bit {bit} of {file}")).await;

            refused += u32::from(found.verdict == Verdict::Refused);
        }
    }
    assert!(10 < refused, "{refused}");
}

#[tokio::test]
async fn a_directory_before_its_first_promise_would_start() {
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(inspect(empty.path()).unwrap().identity, None);
    assert_eq!(tree(empty.path()).len(), 1);

    let (unformed, formed) = (tempfile::tempdir().unwrap(), new_directory());
    drop(DataDir::open(unformed.path()).unwrap());
    let (formed, dir) = formed;
    drop(dir);
    // A crash before the superblock.
    let (torn, dir) = new_directory();
    drop(dir);
    let (made, _store) = new_store();
    copy_into(&made.path().join("sled"), &torn.path().join("sled"));
    fs::write(torn.path().join("sled/conf"), "torn").unwrap();

    for (path, is_formed) in [
        (unformed.path(), false),
        (formed.path(), true),
        (torn.path(), true),
    ] {
        let before = tree(path);
        let found = inspect(path).unwrap();
        assert!(tree(path) == before, "inspecting changed the directory");
        assert_eq!(found.verdict, Verdict::Starts, "{:?}", found.reason);
        assert_eq!(found.identity.unwrap().cluster.is_some(), is_formed);
    }
    open(torn.path()).unwrap();
}

#[tokio::test]
async fn a_database_without_its_superblock_would_be_refused_before_and_after_formation() {
    let (template, _) = template().await;
    let template = settled(template.path()).await;
    let (formed, dir) = new_directory();
    drop(dir);
    let unformed = tempfile::tempdir().unwrap();
    drop(DataDir::open(unformed.path()).unwrap());
    for path in [formed.path(), unformed.path()] {
        copy_into(&template.path().join("sled"), &path.join("sled"));
        let before = tree(path);

        let found = inspect(path).unwrap();

        assert!(tree(path) == before, "inspecting changed the directory");
        assert_eq!(
            found.reason.unwrap(),
            format!(
                "{} holds a vote or a log, but its superblock is missing: {}",
                path.join("sled").display(),
                crate::server::store::error::WAY_OUT
            )
        );
        assert_eq!(found.log.unwrap().records, 126);
        let dir = DataDir::open(path).unwrap();
        let started = Store::refuse_orphan(&dir)
            .and_then(|()| Store::open(&dir, FeatureLevel::LATEST).map(drop));
        assert!(started.is_err());
    }
}

#[tokio::test]
async fn what_is_no_data_directory_or_in_use_is_refused() {
    let guard = tempfile::tempdir().unwrap();
    let (file, missing) = (guard.path().join("file"), guard.path().join("missing"));
    fs::write(&file, "").unwrap();
    for (path, what) in [
        (file.as_path(), "it is a file"),
        (&missing, "nothing is there"),
        (guard.path(), "it holds other things than a node's"),
    ] {
        let refused = inspect(path).unwrap_err();
        assert!(matches!(refused, InspectError::NotDataDirectory { .. }));
        assert_eq!(
            refused.to_string(),
            format!("{} is not a data directory: {what}", path.display())
        );
    }

    let (used, dir) = new_directory();
    let refused = inspect(used.path()).unwrap_err().to_string();
    drop(dir);

    assert_eq!(
        refused,
        format!(
            "{} is in use by another process: stop it, or choose another data directory",
            used.path().display()
        )
    );
    assert!(inspect(used.path()).is_ok());
}

#[test]
fn what_was_read_while_a_node_started_is_not_told() {
    let (guard, dir) = new_directory();
    drop(dir);
    let file = guard.path().join("identity");
    let (identity, whole) = (fs::read(&file).unwrap(), guard.path().join("whole"));
    fs::rename(&file, &whole).unwrap();
    // A pipe: who opens it waits for the other end, so both know how far the other is.
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, &file, FileType::Fifo, mode, 0).unwrap();
    let path = guard.path().to_path_buf();
    let inspecting = std::thread::spawn(move || inspect(&path));

    let mut pipe = fs::File::options().write(true).open(&file).unwrap();
    let started = fs::File::open(guard.path()).unwrap();
    started.try_lock().unwrap();
    fs::rename(&whole, &file).unwrap();
    pipe.write_all(&identity).unwrap();
    drop(pipe);

    let refused = inspecting.join().unwrap().unwrap_err().to_string();
    assert_eq!(
        refused,
        format!(
            "{} is in use by another process: stop it, or choose another data directory",
            guard.path().display()
        )
    );
}
