//! Snapshots that are installed while something else is under way.

use openraft::EntryPayload;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::entry::RaftEntry;

use tokio::task::JoinSet;

use super::stored::{Reader, StoredNode, cluster};
use super::*;
use crate::server::consensus::Retention;
use crate::server::types::{Entry, Membership, Proposal, SnapshotMeta, StoredMembership};

/// Node 2 leads.
fn led_in(term: u64) -> Vote {
    Vote::from_leader_id(Leadership::new(term, id(2)), true)
}

fn membership(members: &BTreeMap<NodeId, Member>) -> Membership {
    let voters = members.keys().copied().collect();
    Membership::new(vec![voters], members.clone()).unwrap()
}

/// Appends these entries to an empty log, as node 2 does that leads; some of them are committed.
async fn append(node: &StoredNode, entries: Vec<Entry>, committed: u64) {
    let request = AppendEntriesRequest {
        vote: led_in(1),
        prev_log_id: None,
        entries,
        leader_commit: Some(log_id(1, 2, committed)),
    };
    let appended = node.consensus.raft().append_entries(request).await;
    appended.unwrap();
    wait_until(|| node.applied() == Some(log_id(1, 2, committed))).await;
}

// openraft#2116, etcd-io/etcd#18055: the purges that belong to both wait for their installation, while there are entries between
// them that are in the log and not applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_snapshot_that_comes_while_another_is_installed_is_installed_after_it() {
    let cluster = cluster(3).await;
    let place = &cluster.places[0];
    let node = place.start(Retention::default()).await;
    let membership = membership(&cluster.members);
    let first = RaftEntry::new(
        log_id(1, 2, 0),
        EntryPayload::Membership(membership.clone()),
    );
    let proposal = Proposal {
        elapsed_ms: 0,
        batches: Vec::new(),
    };
    let entry = |index| RaftEntry::new(log_id(1, 2, index), EntryPayload::Normal(proposal.clone()));
    let entries = std::iter::once(first).chain((1..=100).map(entry));
    append(&node, entries.collect(), 20).await;
    let install = |last| {
        let meta = SnapshotMeta {
            last_log_id: Some(log_id(1, 2, last)),
            last_membership: StoredMembership::new(Some(log_id(1, 2, 0)), membership.clone()),
        };
        let snapshot = testing::snapshot(&place.path.join("snapshots"), &meta, 1000);
        let inbound = node.inbound.clone();
        async move {
            inbound
                .install(led_in(2), Snapshot { meta, snapshot })
                .await
        }
    };
    let mut installed = JoinSet::new();

    let reader = Reader::of(&node.consensus);
    installed.spawn(install(80));
    let metrics = node.consensus.raft().metrics();
    let begun = || metrics.borrow_watched().vote == led_in(2);
    wait_until(begun).await;
    installed.spawn(install(150));
    let early = tokio::time::timeout(Duration::from_millis(300), installed.join_next()).await;
    reader.end();

    assert!(early.is_err(), "{early:?}");
    while let Some(ended) = within(installed.join_next()).await {
        ended.unwrap().unwrap();
    }
    assert_eq!(node.applied(), Some(log_id(1, 2, 150)));
}
