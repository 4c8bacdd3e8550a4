//! When the writer syncs, in which order, and what it does when a sync fails.

use futures::StreamExt;
use openraft::RaftLogReader;
use openraft::entry::RaftEntry;
use openraft::storage::{RaftLogStorage, RaftStateMachine};

use super::fixture::*;
use crate::server::store::StoreFailure;
use crate::server::store::database::{CHANGES_BYTES_MAX, CHANGES_OPERATIONS_MAX};
use crate::server::store::probe::Step;

/// The database's syncs among the steps, as (operations, bytes).
fn syncs(steps: &[Step]) -> Vec<(usize, usize)> {
    let database = |step: &Step| match *step {
        Step::Database { operations, cost } => Some((operations, cost)),
        Step::Superblock | Step::Group { .. } => None,
    };
    steps.iter().filter_map(database).collect()
}

/// The groups among the steps, as how many keys each touches.
fn groups(steps: &[Step]) -> Vec<usize> {
    let group = |step: &Step| match *step {
        Step::Group { operations } => Some(operations),
        Step::Superblock | Step::Database { .. } => None,
    };
    steps.iter().filter_map(group).collect()
}

#[tokio::test]
async fn what_waits_while_the_disk_is_busy_becomes_one_group() {
    let disk = Disk::default();
    let (_guard, mut store) = new_store_with(disk.probe());
    disk.steps();
    disk.hold();
    let mut answers = vec![start_append(&mut store, [grant(1, 0)]).await];
    until("the first group is at its sync", || disk.is_busy()).await;

    for index in 1..=10 {
        answers.push(start_append(&mut store, [grant(1, index)]).await);
    }
    disk.release();
    for answer in answers {
        answer.await.unwrap().unwrap();
    }

    let steps = disk.steps();
    assert_eq!(groups(&steps), [1, 10]);
    assert_eq!(steps.len(), 2, "each group is one write");
}

#[tokio::test]
async fn nothing_is_acknowledged_before_its_group_is_durable() {
    let disk = Disk::default();
    let (guard, mut store) = new_store_with(disk.probe());
    disk.steps();
    disk.hold();
    let mut answer = start_append(&mut store, [grant(1, 0)]).await;
    until("the group is about to be written", || disk.is_busy()).await;

    // Readable at once, but not acknowledged.
    assert_eq!(entries(&mut store).await, [grant(1, 0)]);
    assert!(futures::poll!(&mut answer).is_pending());

    disk.release();
    answer.await.unwrap().unwrap();
    assert_eq!(disk.steps(), [Step::Group { operations: 1 }]);
    drop(guard);
}

#[tokio::test]
async fn a_group_above_the_budget_is_split_and_told_once_all_of_it_is_durable() {
    let disk = Disk::default();
    let (_guard, mut store) = new_store_with(disk.probe());
    disk.steps();

    append(
        &mut store,
        (0..10)
            .map(|index| large(1, index, 60_000))
            .collect::<Vec<_>>(),
    )
    .await;
    let of_large = disk.steps();
    append(
        &mut store,
        (10..1010).map(|index| grant(1, index)).collect::<Vec<_>>(),
    )
    .await;
    let of_many = disk.steps();

    assert_eq!(groups(&of_large), [4, 4, 2]);
    assert_eq!(groups(&of_many).iter().sum::<usize>(), 1000);
    assert_eq!(groups(&of_many).len(), 3);
    assert!(!syncs(&of_many).is_empty());
    for (operations, bytes) in [syncs(&of_large), syncs(&of_many)].concat() {
        assert!(operations <= CHANGES_OPERATIONS_MAX && bytes <= CHANGES_BYTES_MAX);
    }
}

#[tokio::test]
async fn what_the_journal_has_goes_to_the_database_before_the_slot_once_there_is_no_room() {
    for (bytes, expected) in [(100, 256), (20_000, 13)] {
        let disk = Disk::default();
        let (_guard, mut store) = new_store_with(disk.probe());
        disk.steps();
        let mut groups = 0;

        let settled = loop {
            append(&mut store, [large(1, groups, bytes)]).await;
            groups += 1;
            let steps = disk.steps();
            if steps != [Step::Group { operations: 1 }] {
                break steps;
            }
        };

        assert_eq!(groups, expected + 1, "with {bytes} bytes each");
        assert!(matches!(
            settled[..],
            [Step::Database { .. }, Step::Superblock, Step::Group { .. }]
        ));
        assert_eq!(syncs(&settled)[0].0 as u64, expected);
    }
}

#[tokio::test]
async fn a_truncation_lets_the_promise_fall_before_the_records() {
    let disk = Disk::default();
    let (_guard, mut store) = new_store_with(disk.probe());
    append_grants(&mut store, 1, 0..1000).await;
    disk.steps();

    store.log.truncate_after(Some(log_id(1, 99))).await.unwrap();

    let steps = disk.steps();
    let settled = [Step::Superblock; 3];
    assert_eq!(
        syncs(&steps[..1]).len(),
        1,
        "nothing is left in the journal"
    );
    assert_eq!(steps[1..4], settled, "that is told, then the promise falls");
    let syncs = syncs(&steps[4..]);
    assert_eq!(syncs.len(), steps.len() - 4);
    assert_eq!(syncs.iter().map(|sync| sync.0).sum::<usize>(), 900);
    for (operations, bytes) in syncs {
        assert!(operations <= CHANGES_OPERATIONS_MAX && bytes <= CHANGES_BYTES_MAX);
    }
}

#[tokio::test]
async fn a_purge_never_waits_for_the_disk() {
    let disk = Disk::default();
    let (guard, mut store) = new_store_with(disk.probe());
    append_grants(&mut store, 1, 0..1000).await;
    apply(&mut store, (0..1000).map(|index| grant(1, index))).await;
    build(&mut store).await;
    disk.steps();
    disk.hold();
    let answer = start_append(&mut store, [grant(1, 1000)]).await;
    until("an append is at its sync", || disk.is_busy()).await;

    // The writer stands still, and this returns.
    store.log.purge(log_id(1, 899)).await.unwrap();
    let found = entries(&mut store).await;
    let next = start_append(&mut store, [grant(1, 1001)]).await;
    disk.release();
    answer.await.unwrap().unwrap();
    next.await.unwrap().unwrap();
    settle(&mut store).await;

    assert_eq!(found.first(), Some(&grant(1, 900)));
    let steps = disk.steps();
    assert_eq!(groups(&steps)[..2], [1, 1], "the append, and the marker");
    let removed: usize = syncs(&steps)[1..].iter().map(|sync| sync.0).sum();
    assert_eq!(removed, 900, "all removals, behind the marker");
    let copy = copy_of(guard.path());
    let mut reopened = open(copy.path()).unwrap();
    assert_eq!(entries(&mut reopened).await.len(), 102);
}

#[tokio::test]
async fn appends_go_between_the_parts_of_a_purge() {
    let disk = Disk::default();
    let (_guard, mut store) = new_store_with(disk.probe());
    append_grants(&mut store, 1, 0..3000).await;
    disk.steps();

    // The marker is in a group, in the database, and in a slot; the first part of the removal waits.
    disk.hold_after(3);
    store.log.purge(log_id(1, 2999)).await.unwrap();
    until("the first removals are at their sync", || disk.is_busy()).await;
    let answer = start_append(&mut store, [grant(1, 3000)]).await;
    disk.release();
    answer.await.unwrap().unwrap();
    settle(&mut store).await;

    let steps = disk.steps();
    let removals = |steps: &[Step]| syncs(steps)[0].0;
    assert_eq!(steps[0], Step::Group { operations: 1 }, "the marker");
    assert!(300 < removals(&steps[3..]), "a part of the removal");
    assert_eq!(steps[4], Step::Group { operations: 1 }, "the append");
    assert!(300 < removals(&steps[5..]), "the next part");
}

#[tokio::test]
async fn a_full_queue_does_not_hold_up_a_purge_either() {
    let disk = Disk::default();
    let (_guard, mut store) = new_store_with(disk.probe());
    append_grants(&mut store, 1, 0..10).await;
    disk.hold();
    let first = start_append(&mut store, [grant(1, 10)]).await;
    until("an append is at its sync", || disk.is_busy()).await;
    let mut answers = vec![first];
    for index in 11..11 + 1024 {
        answers.push(start_append(&mut store, [grant(1, index)]).await);
    }
    assert_eq!(store.log.queue_room(), 0, "the queue is full");

    store.log.purge(log_id(1, 5)).await.unwrap();
    store.log.save_committed(Some(log_id(1, 7))).await.unwrap();
    disk.release();
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
    append(&mut store, [grant(1, 1035)]).await;
    settle(&mut store).await;

    assert_eq!(entries(&mut store).await.len(), 1030);
}

#[tokio::test]
async fn a_failed_sync_fails_its_group_and_all_after_it_and_is_never_tried_again() {
    // redis/redis#8111: after an EIO the kernel has dropped the pages; a second sync that succeeds means nothing.
    let disk = Disk::default();
    let (guard, mut store) = new_store_with(disk.probe());
    append_grants(&mut store, 1, 0..3).await;
    store.log.save_vote(&vote(1)).await.unwrap();
    disk.hold();
    let first = start_append(&mut store, [grant(1, 3)]).await;
    until("an append is at its sync", || disk.is_busy()).await;
    let second = start_append(&mut store, [grant(1, 4)]).await;
    disk.break_next(1, is_group);
    disk.steps();
    disk.release();

    let error = first.await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing is written any more since the disk failed: Input/output error (os error 5)"
    );
    second.await.unwrap().unwrap_err();
    start_append(&mut store, [grant(1, 5)])
        .await
        .await
        .unwrap()
        .unwrap_err();
    store.log.save_vote(&vote(2)).await.unwrap_err();
    store
        .log
        .truncate_after(Some(log_id(1, 2)))
        .await
        .unwrap_err();
    let mut builder = store.machine.get_snapshot_builder().await;
    openraft::RaftSnapshotBuilder::build_snapshot(&mut builder)
        .await
        .unwrap_err();

    assert!(
        disk.steps().len() <= 1,
        "nothing is asked of the disk any more"
    );
    let failed = std::mem::replace(&mut store.failed, new_store().1.failed);
    let StoreFailure::Disk(error) = failed.wait().await else {
        panic!("the disk fails");
    };
    assert_eq!(error.raw_os_error(), Some(5));
    // What was acknowledged before is there.
    let copy = copy_of(guard.path());
    let mut reopened = open(copy.path()).unwrap();
    assert_eq!(
        entries(&mut reopened).await[..3],
        [grant(1, 0), grant(1, 1), grant(1, 2)]
    );
    assert_eq!(stored_vote(&mut reopened).await, Some(vote(1)));
}

#[tokio::test]
async fn where_the_database_or_the_slot_fails_the_journal_still_has_what_was_acknowledged() {
    for which in [is_database, is_superblock] {
        let disk = Disk::default();
        let (guard, mut store) = new_store_with(disk.probe());
        store.log.save_vote(&vote(1)).await.unwrap();
        let four = |from: u64| (from..from + 4).map(|index| large(1, index, 60_000));
        append(&mut store, four(0)).await;
        disk.break_next(1, which);
        disk.steps();

        let answer = start_append(&mut store, four(4)).await;

        answer.await.unwrap().unwrap_err();
        assert!(
            groups(&disk.steps()).is_empty(),
            "it is not in the journal either"
        );
        let copy = copy_of(guard.path());
        let mut reopened = open(copy.path()).unwrap();
        assert_eq!(entries(&mut reopened).await, four(0).collect::<Vec<_>>());
        assert_eq!(stored_vote(&mut reopened).await, Some(vote(1)));
    }
}

#[tokio::test]
async fn a_split_append_that_fails_midway_is_told() {
    let disk = Disk::default();
    let (_guard, mut store) = new_store_with(disk.probe());
    disk.break_next(1, is_superblock);

    let all: Vec<_> = (0..10).map(|index| large(1, index, 60_000)).collect();
    let answer = start_append(&mut store, all).await;

    answer.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn an_entry_that_leaves_a_hole_is_refused() {
    let (_guard, mut store) = new_store();
    append_grants(&mut store, 1, 0..3).await;

    for wrong in [grant(1, 4), grant(1, 2), grant(0, 3)] {
        let id = wrong.log_id();
        let callback = openraft::storage::IOFlushed::noop();
        let error = store.log.append([wrong], callback).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("entry {id} does not follow {}", log_id(1, 2))
        );
    }
}

#[test]
fn a_membership_of_fifty_with_the_longest_addresses_fits_a_record() {
    use crate::server::store::record;
    use crate::server::types::{
        ADDRESS_BYTES_MAX, Address, Entry, Member, Membership, NodeId, Payload,
    };
    let longest: Address = format!("{}:1", "a".repeat(ADDRESS_BYTES_MAX - 2))
        .parse()
        .unwrap();
    let member = Member {
        api: longest.clone(),
        peer: longest,
        ..Member::default()
    };
    let nodes: std::collections::BTreeMap<_, _> = (1..=50)
        .map(|id| (NodeId::from(id), member.clone()))
        .collect();
    let voters = vec![nodes.keys().copied().collect()];
    let membership = Membership::new(voters, nodes).unwrap();

    let entry = Entry::new(log_id(1, 5), Payload::Membership(membership));

    assert!(record::encode(&entry, Some(log_id(1, 4))).is_ok());
}

#[tokio::test]
async fn a_vote_never_falls() {
    let (_guard, mut store) = new_store();
    store.log.save_vote(&vote(5)).await.unwrap();

    store.log.save_vote(&vote(4)).await.unwrap_err();

    assert_eq!(
        store.log.get_log_reader().await.read_vote().await.unwrap(),
        Some(vote(5))
    );
}

#[tokio::test]
async fn an_entry_that_fits_no_record_is_refused() {
    let (_guard, mut store) = new_store();

    let callback = openraft::storage::IOFlushed::noop();
    let error = store
        .log
        .append([large(1, 0, 65_536)], callback)
        .await
        .unwrap_err();

    assert_eq!(
        error.to_string(),
        "an entry of 65590 bytes is too large: a record has at most 65536"
    );
}

#[tokio::test]
async fn an_append_waits_while_too_many_bytes_wait_for_the_disk() {
    let disk = Disk::default();
    let (_guard, mut store) = new_store_with(disk.probe());
    disk.hold();
    let part = |number: u64| {
        let indices = number * 100..(number + 1) * 100;
        indices
            .map(|index| large(1, index, 60_000))
            .collect::<Vec<_>>()
    };
    // Eleven parts are 66 MB; ten of them fit into 64 MiB, beside what the writer took already.
    let mut answers = Vec::new();
    for number in 0..11 {
        answers.push(start_append(&mut store, part(number)).await);
    }

    let mut further = Box::pin(start_append(&mut store, part(11)));
    until("the writer waits for the disk", || disk.is_busy()).await;
    assert!(futures::poll!(&mut further).is_pending());

    // Rather than write all that: a failed disk lets everybody go.
    disk.break_next(1, is_group);
    disk.release();
    let answer = further.await;
    answer.await.unwrap().unwrap_err();
    for answer in answers {
        answer.await.unwrap().unwrap_err();
    }
}

#[tokio::test]
async fn an_entry_is_seen_before_the_next_is_taken() {
    let (_guard, mut store) = new_store();
    let tables = store.tables.clone();
    let mut applied_before = Vec::new();
    let entries = futures::stream::iter(0..3).map(|index| {
        applied_before.push(tables.applied().map(|last| last.index()));
        Ok((grant(1, index), None))
    });

    store.machine.apply(entries).await.unwrap();

    assert_eq!(applied_before, [None, Some(0), Some(1)]);
}

// What somebody reads is a copy only as long as he does.
#[tokio::test]
async fn an_entry_changes_a_sequence_where_it_stands() {
    let (_guard, mut store) = new_store();
    let tables = store.tables.clone();
    let one = |index| futures::stream::iter([Ok((grant(1, index), None))]);
    let place = || {
        tables.while_read(|table| {
            let found = table.get(&name("s")).unwrap();
            (std::ptr::from_ref(found).addr(), found.high)
        })
    };
    store.machine.apply(one(0)).await.unwrap();
    drop(tables.table());
    let (created, _) = place();

    store.machine.apply(one(1)).await.unwrap();

    assert_eq!(place(), (created, Some(3)));
}

#[tokio::test]
async fn the_hashes_of_the_latest_states_are_remembered() {
    let (_guard, mut store) = new_store();
    let entries = |indexes: std::ops::RangeInclusive<u64>| {
        futures::stream::iter(indexes).map(|index| Ok((grant(1, index), None)))
    };
    let tables = store.tables.clone();
    store.machine.apply(entries(0..=64 * 40)).await.unwrap();
    let (table, _) = tables.table_at();

    store
        .machine
        .apply(entries(64 * 40 + 1..=64 * 40 + 10))
        .await
        .unwrap();

    let remembered = tables.checkpoints();
    let indexes: Vec<u64> = remembered.iter().map(|(index, _)| *index).collect();
    assert_eq!(
        indexes,
        (9..=40).map(|number| number * 64).collect::<Vec<_>>()
    );
    assert_eq!(remembered.last(), Some(&(64 * 40, table.state_hash())));
}
