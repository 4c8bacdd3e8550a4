//! A directory made of a backup is one that a start accepts, or none; a backup of a directory has all that its log has.

use std::fs;
use std::path::Path;

use openraft::storage::{RaftLogStorage, RaftStateMachine};

use super::fixture::*;
use crate::sequence::{Command, FeatureLevel, Origin};
use crate::server::store::backup::{Backup, Rises};
use crate::server::store::error::whole_line;
use crate::server::store::{
    DataDir, InspectError, Raise, RestoreError, Restored, Store, restore, salvage,
};
use crate::server::types::{Address, ClusterId, NodeId};

/// Of a sequence that granted up to 27, in an entry of term 2.
async fn backup() -> Backup {
    let (_guard, mut store) = new_store();
    let origin = Origin { node: 1, nonce: 2 };
    let open = entry_of(2, 10, vec![Command::OpenSession { origin }]);
    apply(
        &mut store,
        (0..10).map(|index| grant(1, index)).chain([open]),
    )
    .await;
    let (table, last) = store.tables.table_at();
    assert_eq!(table.sessions().len(), 1);
    Backup {
        cluster: ClusterId::generate(),
        taken_ms: 1,
        rises: Rises::default(),
        last,
        table,
    }
}

fn addresses() -> (Address, Address) {
    let address = |text: &str| text.parse().unwrap();
    (address("127.0.0.1:7101"), address("127.0.0.1:7201"))
}

fn restored(path: &Path, backup: &Backup, by: u64) -> Result<Restored, RestoreError> {
    let raise = Raise {
        by: Some(by),
        ..Raise::default()
    };
    // As a thread of its own would: it waits for the database to close.
    tokio::task::block_in_place(|| restore(path, backup, &raise, addresses()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_directory_is_the_only_member_of_a_new_cluster_and_goes_on_above_the_old_one() {
    let guard = tempfile::tempdir().unwrap();
    let path = guard.path().join("made/for/it");
    let backup = backup().await;

    let made = restored(&path, &backup, 100).unwrap();

    let dir = DataDir::open(&path).unwrap();
    let record = dir.identity().formation.clone().unwrap();
    assert_eq!(record.cluster, made.cluster);
    assert_ne!(record.cluster, backup.cluster);
    let (ids, members): (Vec<NodeId>, Vec<_>) = record.members.into_iter().unzip();
    assert_eq!(ids, [node()]);
    assert_eq!(members[0].incarnation, dir.identity().incarnation);
    let mut store = Store::open(&dir, FeatureLevel::LATEST).unwrap();
    let (table, last) = store.tables.table_at();
    assert_eq!(table, made.table);
    assert_eq!(table.get(&name("s")).unwrap().high, Some(127));
    assert_eq!((table.sessions().len(), table.keys().len()), (0, 0));
    let epoch = table.header().epoch;
    assert!(1_700_000_000 < epoch, "the seconds since 1970: {epoch}");
    // As if node 1 had led once more, and committed its membership.
    assert_eq!(last, Some(log_id(3, 11)));
    assert_eq!(stored_vote(&mut store).await, Some(vote(3)));
    let state = store.log.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (last, last));
    assert_eq!(store.log.read_committed().await.unwrap(), last);
    let (applied, membership) = store.machine.applied_state().await.unwrap();
    assert_eq!((applied, *membership.log_id()), (last, last));
    assert!(membership.voter_ids().eq([node()]));
    close(store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_rises_also_where_the_clock_is_behind() {
    let guard = tempfile::tempdir().unwrap();
    let mut backup = backup().await;
    backup.table = backup.table.restored(u64::MAX - 1);

    let made = restored(guard.path(), &backup, 0).unwrap();

    assert_eq!(made.table.header().epoch, u64::MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_was_interrupted_is_refused_by_a_start_and_by_another_restore() {
    let guard = tempfile::tempdir().unwrap();
    let backup = backup().await;
    restored(guard.path(), &backup, 0).unwrap();

    // In the order of their making: each is durable before the next is begun.
    let parts = ["snapshots", "sled", "superblock"];
    for made in 1..=parts.len() {
        let left = tempfile::tempdir().unwrap();
        for part in &parts[..made] {
            let (from, to) = (guard.path().join(part), left.path().join(part));
            if from.is_dir() {
                copy_into(&from, &to);
            } else {
                fs::copy(from, to).unwrap();
            }
        }
        let refused = DataDir::open(left.path()).unwrap_err();
        assert!(
            whole_line(&refused).contains("identity is missing beside a store"),
            "{refused}"
        );
        let again = restored(left.path(), &backup, 0).unwrap_err();
        assert!(matches!(again, RestoreError::NotEmpty { .. }), "{again}");
    }
    let complete = restored(guard.path(), &backup, 0).unwrap_err();
    assert!(
        matches!(complete, RestoreError::NotEmpty { .. }),
        "{complete}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_disk_is_empty_and_any_other_content_is_somebodys() {
    let guard = tempfile::tempdir().unwrap();
    let backup = backup().await;
    fs::create_dir(guard.path().join("lost+found")).unwrap();
    let other = guard.path().join("notes");
    fs::write(&other, "").unwrap();

    let refused = restored(guard.path(), &backup, 0).unwrap_err();
    fs::remove_file(other).unwrap();

    assert_eq!(
        refused.to_string(),
        format!(
            "{} is not empty: restore into an empty directory; remove this one only if all in it is what an interrupted restore left",
            guard.path().display()
        )
    );
    restored(guard.path(), &backup, 0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_raised_leaves_no_directory() {
    let guard = tempfile::tempdir().unwrap();
    let path = guard.path().join("data");
    let backup = backup().await;

    let refused = restore(&path, &backup, &Raise::default(), addresses());

    assert!(
        matches!(refused, Err(RestoreError::Raise(_))),
        "{refused:?}"
    );
    assert!(!path.exists());
}

// The entries after the snapshot were appended here and nowhere known to be committed.
#[tokio::test]
async fn a_backup_of_a_directory_has_every_entry_of_its_log_committed_or_not() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..10).await;
    apply(&mut store, (0..5).map(|index| grant(1, index))).await;
    build(&mut store).await;
    store.log.purge(log_id(1, 3)).await.unwrap();
    settle(&mut store).await;
    append_grants(&mut store, 2, 10..12).await;
    close(store).await;
    let dir = DataDir::open(guard.path()).unwrap();
    let cluster = dir.identity().formation.as_ref().unwrap().cluster;
    drop(dir);
    let before = copy_of(guard.path());

    let backup = salvage(guard.path()).unwrap();

    assert_eq!(backup.cluster, cluster);
    assert_eq!(backup.last, Some(log_id(2, 11)));
    assert_eq!(backup.table.get(&name("s")).unwrap().high, Some(33));
    assert_eq!(backup.rises, Rises::default());
    let written = fs::metadata(guard.path().join("superblock")).unwrap();
    let written = written.modified().unwrap().elapsed().unwrap();
    assert!(0 < backup.taken_ms && written.as_secs() < 60);
    for file in ["superblock", "sled/db", "identity"] {
        let read = |path: &Path| fs::read(path.join(file)).unwrap();
        assert_eq!(read(guard.path()), read(before.path()), "{file}");
    }
}

#[tokio::test]
async fn a_directory_that_no_node_could_start_from_gives_no_backup() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..3).await;
    close(store).await;
    let empty = tempfile::tempdir().unwrap();

    let in_none = salvage(empty.path()).unwrap_err();
    fs::remove_file(guard.path().join("superblock")).unwrap();
    let refused = salvage(guard.path()).unwrap_err();

    let nothing = "is not a data directory: nothing was ever stored in it";
    assert!(in_none.to_string().contains(nothing), "{in_none}");
    assert!(matches!(refused, InspectError::Refused(_)), "{refused}");
    assert!(
        refused.to_string().contains("superblock is missing"),
        "{refused}"
    );
}
