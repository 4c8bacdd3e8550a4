//! What is told of changes of the members that are begun and not finished.

use super::stored::cluster;
use super::*;
use crate::server::consensus::{MemberChange, MemberDone, MemberError, MemberRefusal};

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_not_committed_is_told_to_nobody() {
    let cluster = cluster(2).await;
    let nodes = cluster.start_with_learners().await;
    let leader = &nodes[0].consensus;
    let remove = || MemberChange::Remove { node: id(2) };
    let soon = || Instant::now() + Duration::from_secs(2);
    cluster.places[0].disk.hang();

    let first = leader.change_member(remove(), soon()).await;
    let second = leader.change_member(remove(), soon()).await;

    assert!(
        matches!(first, Err(MemberError::Unknown { .. })),
        "{first:?}"
    );
    // That it is no member any more is only in this log, and another leader could undo it.
    assert_eq!(second, Err(MemberError::Refused(MemberRefusal::Busy)));
    cluster.places[0].disk.go_on();
    let third = leader.change_member(remove(), deadline()).await;
    assert_eq!(third, Ok(MemberDone::Unchanged));
}
