//! What is told of changes of the members that are begun and not finished.

use super::stored::cluster;
use super::*;
use crate::server::consensus::at_leader::LeaderReply;
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

// I5: the new one votes already when it turns out that it cannot take over.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_of_the_leader_that_was_begun_is_not_said_to_be_refused() {
    let mut cluster = cluster(2).await;
    cluster.places[1].floor = u64::MAX;
    let nodes = cluster.start_with_learners().await;
    let leader = &nodes[0].consensus;
    let (old, new) = (id(1), id(2));

    let told = leader
        .change_member(MemberChange::Replace { old, new }, deadline())
        .await
        .unwrap_err();

    assert!(leader.raft().voter_ids().eq([old, new]));
    assert!(matches!(told, MemberError::Unknown { .. }), "{told:?}");
    let why = "the new node votes, but node 1 leads, and does not hand over: no other voter is fit to lead: node 2 has a full disk";
    assert_eq!(told.to_string(), why);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_leader_began_is_unknown_until_the_next_has_finished_it() {
    let nodes = cluster(1).await.start_with_learners().await;
    let leader = &nodes[0].consensus;
    let told = async |next: LeaderReply<MemberDone, MemberRefusal>| {
        let mut replies = vec![next, LeaderReply::Begun];
        let replies = Mutex::new(std::iter::from_fn(move || match &replies[..] {
            [last] => Some(last.clone()),
            _ => replies.pop(),
        }));
        let reply_of = |_| replies.lock().unwrap().next();
        let soon = Instant::now() + Duration::from_secs(1);
        leader.at_leader(soon, |_| Call::Status, reply_of).await
    };

    let done = told(LeaderReply::Done(MemberDone::Changed)).await;
    let refused = told(LeaderReply::Refused(MemberRefusal::Busy)).await;
    let nobody = told(LeaderReply::NotLeader).await;

    let unknown = |why: &str| {
        let reason = format!("it was begun and is not finished: {why}");
        Err(MemberError::Unknown { reason })
    };
    assert_eq!(done, Ok(MemberDone::Changed));
    assert_eq!(
        refused,
        unknown("another change of the members is under way")
    );
    assert_eq!(nobody, unknown("no leader was found before the deadline"));
}
