//! What becomes of the members without anybody's asking: who was admitted becomes a learner, what a leader left unfinished
//! is finished, who moved is found, and who was removed ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::ChangeMembers;
use tokio::time::{Instant, sleep};

use super::member_change::{MemberChange, MemberDone};
use super::membership::{Leavers, MemberError};
use super::promises::Disowned;
use super::{Call, Consensus, Leader, Reply, left_ms};
use crate::server::types::{Member, NodeId};

/// How often a leader looks whether somebody was admitted, or a change of its predecessor is unfinished.
const TEND_INTERVAL: Duration = Duration::from_millis(200);
/// How long a node waits for the answer to where it is reached, and how often it looks whether it is still a member.
const OWN_INTERVAL: Duration = Duration::from_secs(1);

impl Consensus {
    /// While this node leads: those who were admitted become learners, and an unfinished change is finished.
    pub(crate) async fn tend_members(self) {
        loop {
            sleep(TEND_INTERVAL).await;
            if matches!(self.leader(), Leader::Here(_))
                && let Ok(_turn) = self.changing.try_acquire()
            {
                self.tend_once().await;
            }
        }
    }

    pub(super) async fn tend_once(&self) {
        // Before it is applied, whom the table has waiting may have come and gone.
        let Some(membership) = self.applied_membership() else {
            return;
        };
        let joint = 1 < membership.membership().get_joint_config().len();
        let mut admitted = self.admitted();
        admitted.retain(|id, _| membership.get_node(id).is_none());
        let changes = match (joint, admitted.is_empty()) {
            // Whoever was to go stays as a learner: whether it was to go for good is not known any more.
            (true, _) => ChangeMembers::AddVoterIds(BTreeSet::new()),
            (false, false) => ChangeMembers::AddNodes(admitted.clone()),
            (false, true) => return,
        };
        let deadline = Instant::now() + self.timing().election_max();
        let written = self.write_membership((changes, Leavers::Stay), &membership, deadline);
        match written.await {
            Ok(()) => {
                for peer in admitted.keys() {
                    tracing::info!(%peer, "node admitted as a learner");
                }
            }
            // It is tried again, here or by the next leader.
            Err(reply) => tracing::debug!(?reply, "members not tended"),
        }
    }

    /// Who has an id and is no member yet, by what this node has applied.
    pub(super) fn admitted(&self) -> BTreeMap<NodeId, Member> {
        let table = self.tables().table();
        let waiting = table.nodes().waiting().filter_map(|(id, card)| {
            // It was parsed before it was admitted.
            Some((NodeId::from(*id), Member::try_from(card).ok()?))
        });
        waiting.collect()
    }

    /// Whether the node was a member, by what this node has applied, and is none any more.
    pub(super) fn has_left(&self, node: NodeId) -> bool {
        self.tables().table().nodes().has_left(node.get())
    }

    /// Resolves where this process must not be this node, as a peer says or its own log.
    pub(crate) async fn disowned(&self) -> Disowned {
        let node = self.node();
        let removed = async {
            while !self.has_left(node) {
                sleep(OWN_INTERVAL).await;
            }
        };
        tokio::select! {
            disowned = self.peers.promises().disowned() => disowned,
            () = removed => Disowned::Removed { node, told_by: node },
        }
    }

    /// Has the membership say where this node is reached, if it says otherwise.
    pub(crate) async fn announce(self, own: Member) {
        let node = self.node();
        loop {
            let membership = self.membership();
            let known = membership.get_node(&node);
            if known == Some(&own) {
                // What is only in the log may be undone by another leader.
                if self.applied_membership().as_ref() == Some(&membership) {
                    return;
                }
            } else if known.is_some() {
                for (id, member) in membership.nodes() {
                    if self.announce_to(*id, member, &own).await {
                        tracing::info!(%node, "the cluster knows this node's addresses");
                        break;
                    }
                }
            }
            // Who is no member yet will be one with these addresses.
            sleep(TEND_INTERVAL).await;
        }
    }

    /// Whether this member has had the leader carry it out. The leader, which cannot reach this node, may be unknown here
    /// or have moved itself.
    async fn announce_to(&self, id: NodeId, member: &Member, own: &Member) -> bool {
        let deadline = Instant::now() + OWN_INTERVAL;
        if id == self.node() {
            let leads = matches!(self.leader(), Leader::Here(_));
            return leads && self.move_member(id, own.clone(), deadline).await.is_ok();
        }
        let call = Call::Announce {
            node: self.node(),
            member: own.clone(),
            left_ms: left_ms(deadline),
        };
        let reply = self.call(id, member, call, deadline).await;
        matches!(reply, Ok(Reply::Announce { done: true }))
    }

    /// Has whoever leads know that a member is reached elsewhere.
    pub(super) async fn move_member(
        &self,
        node: NodeId,
        member: Member,
        deadline: Instant,
    ) -> Result<MemberDone, MemberError> {
        let change = MemberChange::Move { node, member };
        self.change_member(change, deadline).await
    }
}
