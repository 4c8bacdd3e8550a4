//! Snapshots: built, sent, installed, and found again after a restart.

use std::fs;

use openraft::RaftSnapshotBuilder;
use openraft::storage::{RaftLogStorage, RaftStateMachine};

use super::fixture::*;
use crate::sequence::{Command, Origin, Settings, Table};
use crate::server::store::Store;
use crate::server::store::snapshot_format::SNAPSHOT_BYTES_MAX;
use crate::server::types::{Membership, StoredMembership};

/// Creates this many sequences in entries of 200.
fn many_sequences(count: u64) -> Vec<crate::server::types::Entry> {
    let numbers: Vec<_> = (0..count).collect();
    let create = |number: &u64| Command::Create {
        sequence: name(&format!("sequence-{number}")),
        settings: Settings::default(),
    };
    let entry =
        |(index, part): (u64, &[u64])| entry_of(1, index, part.iter().map(create).collect());
    (0..).zip(numbers.chunks(200)).map(entry).collect()
}

fn granted(table: &Table) -> Option<u64> {
    table.get(&name("s")).and_then(|sequence| sequence.high)
}

#[tokio::test]
async fn a_snapshot_built_installed_and_restarted_is_the_same_table() {
    let (_source_guard, mut source) = new_store();
    apply(&mut source, many_sequences(3000)).await;
    let sent = build(&mut source).await;
    let (guard, mut store) = new_store();

    let received = receive(&store, &sent).await;
    let meta = received.meta().clone();
    store
        .machine
        .install_snapshot(&meta, received)
        .await
        .unwrap();

    assert_eq!(store.tables.table(), source.tables.table());
    assert_eq!(store.tables.table().len(), 3000);
    let killed = copy_of(guard.path());
    close(store).await;
    for path in [killed.path(), guard.path()] {
        let mut reopened = open(path).unwrap();
        assert_eq!(reopened.tables.table(), source.tables.table());
        assert_eq!(
            reopened.machine.applied_state().await.unwrap(),
            source.machine.applied_state().await.unwrap()
        );
        let current = reopened
            .machine
            .get_current_snapshot()
            .await
            .unwrap()
            .unwrap();
        assert_eq!(current.meta, *sent.meta());
        assert_eq!(current.snapshot.checksum(), sent.checksum());
    }
}

#[tokio::test]
async fn entries_are_applied_once_through_twenty_restarts() {
    // shaj13/raft#27: what was in the snapshot is not granted a second time.
    let (guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..20).await;
    apply(&mut store, (0..10).map(|index| grant(1, index))).await;
    build(&mut store).await;

    for round in 0..20 {
        let applied = store.tables.applied().unwrap().index();
        let logged = entries(&mut store).await;
        let next = logged
            .into_iter()
            .skip(usize::try_from(applied).unwrap() + 1);
        apply(&mut store, next.take(1)).await;
        if round % 3 == 0 {
            build(&mut store).await;
        }
        close(store).await;
        store = open(guard.path()).unwrap();
    }
    let applied = store.tables.applied().unwrap().index();

    assert_eq!(granted(&store.tables.table()), Some(applied * 3));
}

#[tokio::test]
async fn a_build_that_ends_after_an_installation_never_replaces_it() {
    // rqlite/rqlite#2759: a snapshot is being built while a newer one is installed.
    let (_source_guard, mut source) = new_store();
    apply(&mut source, (0..50).map(|index| grant(1, index))).await;
    let sent = build(&mut source).await;
    let (guard, mut store) = new_store();
    apply(&mut store, (0..20).map(|index| grant(1, index))).await;
    let mut builder = store.machine.get_snapshot_builder().await;

    let received = receive(&store, &sent).await;
    let meta = received.meta().clone();
    store
        .machine
        .install_snapshot(&meta, received)
        .await
        .unwrap();
    let built = builder.build_snapshot().await.unwrap();

    assert_eq!(built.meta, meta);
    drop((builder, built));
    close(store).await;
    let store = open(guard.path()).unwrap();
    assert_eq!(store.tables.table(), source.tables.table());
}

#[tokio::test]
async fn builds_and_installations_at_once_end_with_the_newest_state() {
    // rqlite/rqlite#2759, in many rounds and in any order.
    let (_source_guard, mut source) = new_store();
    let (guard, mut store) = new_store();
    for round in 0..40_u64 {
        let (from, to) = (round * 10, round * 10 + 10);
        let next = |from, to| (from..to).map(|index| grant(1, index)).collect::<Vec<_>>();
        apply(&mut source, next(from, to)).await;
        apply(&mut store, next(from, to - 5)).await;
        let sent = build(&mut source).await;
        let received = receive(&store, &sent).await;
        let meta = received.meta().clone();
        let mut builder = store.machine.get_snapshot_builder().await;

        let (built, installed) = tokio::join!(
            builder.build_snapshot(),
            store.machine.install_snapshot(&meta, received)
        );
        drop((built.unwrap(), builder));
        installed.unwrap();

        assert_eq!(store.tables.table(), source.tables.table());
        if round % 10 == 9 {
            close(store).await;
            store = open(guard.path()).unwrap();
            assert_eq!(store.tables.table(), source.tables.table());
        }
    }
    assert_eq!(snapshot_paths(guard.path()).len(), 1);
}

#[tokio::test]
async fn a_replaced_snapshot_goes_when_nobody_reads_it_any_more() {
    let (guard, mut store) = new_store();
    apply(&mut store, [grant(1, 0)]).await;
    let first = build(&mut store).await;
    apply(&mut store, [grant(1, 1)]).await;

    let second = build(&mut store).await;

    assert_eq!(snapshot_paths(guard.path()).len(), 2);
    first.open().await.unwrap();
    drop(first);
    assert_eq!(snapshot_paths(guard.path()).len(), 1);
    second.open().await.unwrap();
}

// openraft#1706: the log above a snapshot is what whoever is sent it needs next.
#[tokio::test]
async fn while_a_snapshot_is_sent_no_other_is_built_until_the_log_above_it_is_too_large() {
    let (_guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..10).await;
    apply(&mut store, (0..10).map(|index| grant(1, index))).await;
    let sent = build(&mut store).await;
    let above = |store: &Store| store.log_size.above(Some(log_id(1, 9))).bytes;
    append_grants(&mut store, 1, 10..20).await;
    let log_size = store.log_size.clone();
    let bytes_max = above(&store) + 1;
    store.machine.hold_log_for_transfers(log_size, bytes_max);
    let builds = async |store: &mut Store, force| {
        let builder = store.machine.try_create_snapshot_builder(force).await;
        builder.is_some()
    };

    let (first, second) = (sent.transfer(), sent.transfer());
    assert!(!builds(&mut store, false).await);
    assert!(builds(&mut store, true).await, "Raft cannot do without");
    drop(first);
    assert!(!builds(&mut store, false).await);
    drop(second);
    assert!(builds(&mut store, false).await);

    let _transfer = sent.transfer();
    append_grants(&mut store, 1, 20..21).await;
    assert!(bytes_max <= above(&store));
    assert!(builds(&mut store, false).await, "I9");
}

#[tokio::test]
async fn what_a_crash_leaves_of_a_snapshot_is_removed() {
    let (guard, mut store) = new_store();
    apply(&mut store, [grant(1, 0)]).await;
    build(&mut store).await;
    let copy = copy_of(guard.path());
    let named = snapshot_paths(copy.path());
    let directory = copy.path().join("snapshots");
    fs::write(directory.join("0123456789abcdef.new"), "half").unwrap();
    fs::write(
        directory.join("00000000000000000009-0123456789abcdef.snapshot"),
        "whole",
    )
    .unwrap();
    fs::write(directory.join("note.txt"), "an operator's").unwrap();

    open(copy.path()).unwrap();

    assert_eq!(
        snapshot_paths(copy.path()),
        [named, vec![directory.join("note.txt")]].concat()
    );
}

#[tokio::test]
async fn a_snapshot_that_is_not_what_was_sent_is_refused_and_leaves_nothing() {
    let (_source_guard, mut source) = new_store();
    apply(&mut source, many_sequences(300)).await;
    let sent = build(&mut source).await;
    let (guard, store) = new_store();
    let bytes = fs::read(&snapshot_paths(_source_guard.path())[0]).unwrap();

    let refused = async |store: &Store, bytes: &[u8], checksum| {
        let mut incoming = store.snapshots.begin().await.unwrap();
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        incoming.write(bytes).await.unwrap();
        incoming
            .finish(sent.length(), checksum)
            .await
            .unwrap_err()
            .to_string()
    };
    let mut flipped = bytes.clone();
    flipped[500] ^= 1;
    let not_sent = format!(
        "the snapshot received ({0} bytes) is not the one sent ({0} bytes)",
        bytes.len()
    );
    assert_eq!(refused(&store, &flipped, sent.checksum()).await, not_sent);
    refused(&store, &bytes[1..], sent.checksum()).await;
    // Whole, but of a format that this version does not know.
    let mut later = bytes.clone();
    later[7] += 1;
    let checksum = blake3::hash(&later).into();
    assert_eq!(refused(&store, &later, checksum).await, "unknown format");
    // Given up midway.
    let mut incoming = store.snapshots.begin().await.unwrap();
    incoming.write(bytes[..100].to_vec().into()).await.unwrap();
    drop(incoming);

    assert!(snapshot_paths(guard.path()).is_empty());
}

#[tokio::test]
async fn only_two_snapshots_are_received_at_once() {
    let (_guard, store) = new_store();
    let first = store.snapshots.begin().await.unwrap();
    let _second = store.snapshots.begin().await.unwrap();

    let error = store.snapshots.begin().await.unwrap_err();

    assert_eq!(error.to_string(), "2 snapshots are being received already");
    drop(first);
    store.snapshots.begin().await.unwrap();
}

#[tokio::test]
async fn a_snapshot_keeps_the_membership() {
    let (guard, mut store) = new_store();
    let membership = Membership::new_with_defaults(vec![[node()].into()], []);
    let entry = openraft::entry::RaftEntry::new(
        log_id(1, 0),
        openraft::EntryPayload::Membership(membership.clone()),
    );
    apply(&mut store, [entry, grant(1, 1)]).await;
    build(&mut store).await;
    close(store).await;

    let mut store = open(guard.path()).unwrap();

    let expected = StoredMembership::new(Some(log_id(1, 0)), membership);
    assert_eq!(
        store.machine.applied_state().await.unwrap(),
        (Some(log_id(1, 1)), expected)
    );
    drop(store.log.get_log_reader().await);
}

#[tokio::test]
async fn a_node_that_leaves_the_membership_takes_its_sessions_with_it() {
    let (_guard, mut store) = new_store();
    let open = |index, node| {
        let origin = Origin { node, nonce: 1 };
        entry_of(1, index, vec![Command::OpenSession { origin }])
    };
    let members = |index| {
        let membership = Membership::new_with_defaults(vec![[node()].into()], []);
        openraft::entry::RaftEntry::new(
            log_id(1, index),
            openraft::EntryPayload::Membership(membership),
        )
    };
    let left = node().get() + 1;

    apply(
        &mut store,
        [open(0, node().get()), open(1, left), members(2)],
    )
    .await;

    let table = store.tables.table();
    let nodes = table.sessions().iter().map(|(_, of)| of.origin.node);
    assert_eq!(nodes.collect::<Vec<_>>(), [node().get()]);
}

#[tokio::test]
async fn an_older_snapshot_never_takes_the_state_back() {
    let (_source_guard, mut source) = new_store();
    apply(&mut source, [grant(1, 0)]).await;
    let sent = build(&mut source).await;
    let (_guard, mut store) = new_store();
    apply(&mut store, (0..5).map(|index| grant(1, index))).await;

    let received = receive(&store, &sent).await;
    let meta = received.meta().clone();
    let error = store
        .machine
        .install_snapshot(&meta, received)
        .await
        .unwrap_err();

    assert!(
        error
            .to_string()
            .starts_with("I1: the state would fall from"),
        "{error}"
    );
    assert_eq!(store.tables.applied(), Some(log_id(1, 4)));
}

#[tokio::test]
async fn a_batch_that_does_not_decode_ends_the_state_machine() {
    let (_guard, mut store) = new_store();

    let entry = large(1, 0, 10);
    let error = store
        .machine
        .apply(futures::stream::iter([Ok((entry, None))]))
        .await
        .unwrap_err();

    let expected = format!("entry {} holds a batch that is none", log_id(1, 0));
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_eq!(store.tables.applied(), None);
}

#[tokio::test]
async fn a_snapshot_that_grows_beyond_all_bounds_is_refused_and_leaves_nothing() {
    let (guard, store) = new_store();
    let mut incoming = store.snapshots.begin().await.unwrap();
    incoming.length = SNAPSHOT_BYTES_MAX;

    let error = incoming.write(vec![1].into()).await.unwrap_err();

    assert_eq!(
        error.to_string(),
        "a snapshot of 17179869185 bytes is too large: the limit is 17179869184"
    );
    drop(incoming);
    assert!(snapshot_paths(guard.path()).is_empty());
}
