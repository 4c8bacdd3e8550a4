//! What a store keeps when it is opened again: closed in good order, or as a killed process leaves it (I3, I7).

use openraft::storage::{LogState, RaftLogStorage, RaftStateMachine};

use super::fixture::*;
use crate::server::store::DataDir;
use crate::server::store::view::TAIL_BYTES_MAX;

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_kill() {
    let (guard, mut store) = new_store();
    store.log.save_vote(&vote(3)).await.unwrap();
    append_grants(&mut store, 3, 0..100).await;
    let written = entries(&mut store).await;

    let copy = copy_of(guard.path());
    let mut reopened = open(copy.path()).unwrap();

    assert_eq!(written.len(), 100);
    assert_eq!(entries(&mut reopened).await, written);
    assert_eq!(stored_vote(&mut reopened).await, Some(vote(3)));
    assert_eq!(reopened.last_log_id, Some(log_id(3, 99)));
}

#[tokio::test]
async fn a_store_goes_on_where_it_was_closed() {
    let (guard, mut store) = new_store();
    for start in [0, 10, 20] {
        store.log.save_vote(&vote(start + 1)).await.unwrap();
        append_grants(&mut store, 1, start..start + 10).await;
        close(store).await;
        store = open(guard.path()).unwrap();
    }

    let found = entries(&mut store).await;

    let expected: Vec<_> = (0..30).map(|index| grant(1, index)).collect();
    assert_eq!(found, expected);
    assert_eq!(stored_vote(&mut store).await, Some(vote(21)));
}

#[tokio::test]
async fn a_truncated_tail_stays_away() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..50).await;
    store.log.truncate_after(Some(log_id(1, 19))).await.unwrap();

    let cut = copy_of(guard.path());
    append_grants(&mut store, 2, 20..25).await;
    let appended = copy_of(guard.path());

    let mut reopened = open(cut.path()).unwrap();
    let expected: Vec<_> = (0..20).map(|index| grant(1, index)).collect();
    assert_eq!(entries(&mut reopened).await, expected);
    let mut reopened = open(appended.path()).unwrap();
    let expected: Vec<_> = expected
        .into_iter()
        .chain((20..25).map(|index| grant(2, index)))
        .collect();
    assert_eq!(entries(&mut reopened).await, expected);
}

#[tokio::test]
async fn a_purge_outlives_a_later_truncation() {
    // sebadob/hiqlite CHANGELOG v0.12.0: a log store that forgets where it was purged to does not start.
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..50).await;
    apply(&mut store, (0..40).map(|index| grant(1, index))).await;
    build(&mut store).await;
    store.log.purge(log_id(1, 30)).await.unwrap();
    store.log.truncate_after(Some(log_id(1, 44))).await.unwrap();

    let state = LogState {
        last_purged_log_id: Some(log_id(1, 30)),
        last_log_id: Some(log_id(1, 44)),
    };
    assert_eq!(store.log.get_log_state().await.unwrap(), state);
    settle(&mut store).await;
    let killed = copy_of(guard.path());
    close(store).await;

    for path in [killed.path(), guard.path()] {
        let mut reopened = open(path).unwrap();
        let expected: Vec<_> = (31..45).map(|index| grant(1, index)).collect();
        assert_eq!(entries(&mut reopened).await, expected);
        assert_eq!(reopened.log.get_log_state().await.unwrap(), state);
        assert_eq!(reopened.tables.applied(), Some(log_id(1, 39)));
    }
}

#[tokio::test]
async fn a_log_truncated_to_its_purge_marker_starts() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..20).await;
    apply(&mut store, (0..10).map(|index| grant(1, index))).await;
    build(&mut store).await;
    store.log.purge(log_id(1, 9)).await.unwrap();
    store.log.truncate_after(Some(log_id(1, 9))).await.unwrap();
    append_grants(&mut store, 2, 10..12).await;
    settle(&mut store).await;

    let copy = copy_of(guard.path());
    let mut reopened = open(copy.path()).unwrap();

    let expected: Vec<_> = (10..12).map(|index| grant(2, index)).collect();
    assert_eq!(entries(&mut reopened).await, expected);
}

#[tokio::test]
async fn a_purge_beyond_the_last_record_leaves_room_for_what_follows_it() {
    // What an installed snapshot does to a log that ends far before it.
    let (source_guard, mut source) = new_store();
    apply(&mut source, (0..500).map(|index| grant(1, index))).await;
    let sent = build(&mut source).await;
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..450).await;

    let received = receive(&store, &sent).await;
    let meta = received.meta().clone();
    store
        .machine
        .install_snapshot(&meta, received)
        .await
        .unwrap();
    store.log.purge(log_id(1, 499)).await.unwrap();
    append_grants(&mut store, 2, 500..503).await;
    let copy = copy_of(guard.path());
    let mut reopened = open(copy.path()).unwrap();

    let expected: Vec<_> = (500..503).map(|index| grant(2, index)).collect();
    assert_eq!(entries(&mut store).await, expected);
    assert_eq!(entries(&mut reopened).await, expected);
    assert_eq!(reopened.tables.table(), source.tables.table());
    drop(source_guard);
}

#[tokio::test]
async fn what_was_committed_is_never_beyond_the_log() {
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..10).await;
    store.log.save_committed(Some(log_id(1, 8))).await.unwrap();
    close(store).await;

    let mut store = open(guard.path()).unwrap();
    assert_eq!(
        store.log.read_committed().await.unwrap(),
        Some(log_id(1, 8))
    );

    // openraft may commit what this node has not made durable yet.
    store.log.save_committed(Some(log_id(1, 12))).await.unwrap();
    assert_eq!(
        store.log.read_committed().await.unwrap(),
        Some(log_id(1, 9))
    );
    close(store).await;
    let mut store = open(guard.path()).unwrap();
    assert_eq!(
        store.log.read_committed().await.unwrap(),
        Some(log_id(1, 9))
    );
}

#[tokio::test]
async fn a_log_larger_than_memory_keeps_is_read_from_disk() {
    let (guard, mut store) = new_store();
    let all: Vec<_> = (0..900).map(|index| large(1, index, 60_000)).collect();
    for part in all.chunks(20) {
        append(&mut store, part.to_vec()).await;
    }

    assert_eq!(entries(&mut store).await, all);
    assert!(store.log.shared().view().tail_bytes() <= TAIL_BYTES_MAX);
    close(store).await;

    let mut store = open(guard.path()).unwrap();
    assert_eq!(entries(&mut store).await, all);
    assert!(store.log.shared().view().tail_bytes() <= TAIL_BYTES_MAX);
}

#[tokio::test]
async fn a_page_of_what_is_there_is_never_empty_and_never_above_its_bounds() {
    let (_guard, mut store) = new_store();
    let small = (0..100).map(|index| grant(1, index));
    let large = (100..140).map(|index| large(1, index, 60_000));
    append(&mut store, small.chain(large).collect::<Vec<_>>()).await;
    let mut reader = store.log.get_log_reader().await;

    use openraft::RaftLogReader;
    assert_eq!(
        reader.limited_get_log_entries(0, 140).await.unwrap().len(),
        64
    );
    assert_eq!(
        reader.limited_get_log_entries(90, 92).await.unwrap().len(),
        2
    );
    assert_eq!(
        reader
            .limited_get_log_entries(100, 140)
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        reader.limited_get_log_entries(98, 140).await.unwrap().len(),
        3
    );
    assert!(
        reader
            .limited_get_log_entries(5, 5)
            .await
            .unwrap()
            .is_empty()
    );
    // Truncated while a replication to a peer computed its range: no damage, and no reason to end.
    assert!(
        reader
            .limited_get_log_entries(140, 141)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_directory_serves_one_process_at_a_time() {
    let guard = tempfile::tempdir().unwrap();
    let path = guard.path().join("new/data");
    let first = DataDir::open(&path).unwrap();

    let error = DataDir::open(&path).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} is in use by another process: stop it, or choose another data directory",
            path.display()
        )
    );
    let incarnation = first.identity().incarnation;
    drop(first);
    assert_eq!(
        DataDir::open(&path).unwrap().identity().incarnation,
        incarnation
    );
}

#[tokio::test]
async fn a_directory_adopts_one_cluster_for_ever() {
    let guard = tempfile::tempdir().unwrap();
    let mut dir = DataDir::open(guard.path()).unwrap();
    let record = formation_of(&dir);
    let mut of_other_disks = record.clone();
    of_other_disks.members.get_mut(&node()).unwrap().incarnation = Default::default();

    let error = dir.adopt(of_other_disks).unwrap_err().to_string();
    assert!(
        error.starts_with("the formation record expects other disks for node 1"),
        "{error}"
    );
    dir.adopt(record.clone()).unwrap();
    dir.adopt(record.clone()).unwrap();
    let error = dir.adopt(formation_of(&dir)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "this directory belongs to node 1 of cluster {}: use another data directory for another cluster",
            record.cluster
        )
    );
    drop(dir);
    let dir = DataDir::open(guard.path()).unwrap();
    assert_eq!(dir.identity().formation, Some(record));
}
