//! Leadership that is handed over: to whom, and what its holder does until then.

use openraft::async_runtime::watch::WatchReceiver;

use super::stored::{Cluster, StoredNode, cluster, sequence, stored_leader};
use super::*;
use crate::sequence::Command;
use crate::server::consensus::Retention;
use crate::server::consensus::protocol::{Call, Reply, TransferLeaderReply};
use crate::server::consensus::transfer::TransferError;

/// Three nodes by what they are: one leads, one follows, and one follows whose disk is full.
struct Roles {
    cluster: Cluster,
    nodes: Vec<StoredNode>,
    leader: usize,
    follower: usize,
    full: usize,
    grant: Command,
}

impl Roles {
    async fn new() -> Self {
        let mut cluster = cluster(3).await;
        let mut nodes = cluster.start(Retention::default()).await;
        let grant = sequence(&nodes, "s").await;
        stored_leader(&nodes).await;
        let leader = nodes.iter().position(StoredNode::leads).unwrap();
        let (follower, full) = ((leader + 1) % 3, (leader + 2) % 3);
        nodes.remove(full).stop().await;
        cluster.places[full].floor = u64::MAX;
        let again = cluster.places[full].start(Retention::default()).await;
        nodes.insert(full, again);
        let roles = Self {
            cluster,
            nodes,
            leader,
            follower,
            full,
            grant,
        };
        roles.wait_until_all_have_the_log().await;
        assert!(roles.leader().leads(), "the leader never changed");
        roles
    }

    fn leader(&self) -> &StoredNode {
        &self.nodes[self.leader]
    }

    fn id(&self, at: usize) -> NodeId {
        self.cluster.places[at].node
    }

    async fn wait_until_all_have_the_log(&self) {
        let applied = |node: &StoredNode| node.applied();
        let leads = || applied(self.leader());
        wait_until(|| self.nodes.iter().all(|node| applied(node) == leads())).await;
    }

    async fn grants(&self) -> bool {
        self.leader().propose(vec![self.grant.clone()]).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_is_handed_to_a_voter_with_room_and_never_to_one_whose_disk_is_full() {
    let roles = Roles::new().await;
    let leader = &roles.leader().consensus;
    let (follower, full) = (roles.id(roles.follower), roles.id(roles.full));

    let refused = within(leader.transfer_leader(Some(full))).await;
    let handed = within(leader.transfer_leader(None)).await;

    assert_eq!(
        refused.unwrap_err().to_string(),
        format!("no other voter is fit to lead: node {full} has a full disk")
    );
    assert_eq!(handed, Ok(follower));
    let next = &roles.nodes[roles.follower];
    wait_until(|| next.leads()).await;
    assert!(next.propose(vec![roles.grant.clone()]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_leadership_is_handed_over_nothing_is_proposed_and_while_something_is_it_waits() {
    let roles = Roles::new().await;
    let leader = &roles.leader().consensus;

    let turn = leader.turn.try_take().unwrap();
    assert!(!roles.grants().await, "proposed beside a transfer");
    let handed = within(leader.transfer_leader(None)).await;

    let within = leader.timing().election_max();
    assert_eq!(handed, Err(TransferError::InFlight { within }));
    drop(turn);
    assert!(roles.grants().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_could_not_hand_over_proposes_again() {
    let roles = Roles::new().await;
    let leader = &roles.leader().consensus;
    let place = &roles.cluster.places[roles.follower];

    // The only one with room lacks the last entry.
    place.disk.hang();
    assert!(roles.grants().await);
    let handed = within(leader.transfer_leader(None)).await;
    let granted = roles.grants().await;
    place.disk.go_on();

    let within = leader.timing().election_max();
    assert_eq!(handed, Err(TransferError::Behind { within }));
    assert!(granted, "it has the turn for ever");
}

// Whoever obeyed these would depose a leader that is well.
#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_lead_by_the_present_vote_hands_nothing_over() {
    let roles = Roles::new().await;
    let leader = roles.leader();
    let (follower, other) = (roles.id(roles.follower), roles.id(roles.full));
    let before = leader.consensus.leader();
    let (vote, to) = {
        let metrics = leader.consensus.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        let to = metrics.membership_config.get_node(&follower).cloned();
        (metrics.vote, to.unwrap())
    };
    let term = vote.leader_id.term;
    let past = Leadership::new(term - 1, leader.consensus.node());
    let follows = Leadership::new(term, other);

    for asks in [past, follows] {
        let asks = Vote::from_leader_id(asks, true);
        let request = TransferLeaderRequest::new(asks, follower, leader.applied());
        let call = Call::TransferLeader(request.into());
        let called = leader.consensus.call(follower, &to, call, deadline());
        let reply = within(called).await.unwrap();

        // Which of the two is a matter of how the votes compare.
        let refused = matches!(
            reply,
            Reply::TransferLeader(
                TransferLeaderReply::VoteChanged { .. } | TransferLeaderReply::LogNotFlushed { .. }
            )
        );
        assert!(refused, "{asks} was obeyed: {reply:?}");
    }
    assert!(roles.grants().await);
    assert_eq!(leader.consensus.leader(), before);
}
