//! Same log, same state (I8): each node compares its own with the others'. One that differs from a majority ends, loudly.
//!
//! Nodes are never at one entry for long, so each remembers the hash of its state after some entries that all of them come
//! to. Only nodes of one version are compared: another one may hash in another way.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep};

use super::status::ClusterView;
use super::{Consensus, NodeStatus};
use crate::sequence::StateHash;
use crate::server::types::{LogId, NodeId};

/// How often. A node that answers more slowly is compared the next time.
const INTERVAL: Duration = Duration::from_secs(1);

/// A state that is not the majority's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {node} differs from the others (I8): after entry {index} the hash of its state is {own}, and {theirs} on a majority of \
     the nodes. Its memory is faulty, or its program: start it again, and replace the machine if it ends so again"
)]
pub(crate) struct Diverged {
    /// This node.
    pub(crate) node: NodeId,
    /// The entry that both states hold, and nothing later.
    pub(crate) index: u64,
    /// The hash of this node's.
    pub(crate) own: StateHash,
    /// The majority's.
    pub(crate) theirs: StateHash,
}

impl Consensus {
    /// Compares for as long as the node runs. Resolves where it differs.
    pub(crate) async fn diverged(&self) -> Diverged {
        loop {
            sleep(INTERVAL).await;
            if let Some(diverged) = self.compare().await {
                return diverged;
            }
        }
    }

    /// Compares once.
    pub(super) async fn compare(&self) -> Option<Diverged> {
        let mut view = self.unled_view();
        let deadline = Instant::now() + INTERVAL;
        let asked = view
            .members
            .iter_mut()
            .map(|(id, member)| self.ask(*id, member, deadline));
        join_all(asked).await;
        judge(self.node(), &view)
    }
}

fn judge(node: NodeId, view: &ClusterView) -> Option<Diverged> {
    let own = view.members.get(&node)?.status.as_ref()?;
    let voters = || view.members.iter().filter(|(_, member)| member.votes);
    let quorum = voters().count() / 2 + 1;
    let others = voters().filter(|(id, _)| **id != node);
    let others: Vec<BTreeMap<u64, StateHash>> = others
        .filter_map(|(_, member)| member.status.as_ref())
        .filter(|status| status.version == own.version)
        .map(points)
        .collect();
    points(own).into_iter().find_map(|(index, own)| {
        let there = || others.iter().filter_map(|points| points.get(&index));
        let shared_by = |hash: &StateHash| there().filter(|theirs| *theirs == hash).count();
        let theirs = there().find(|theirs| **theirs != own && quorum <= shared_by(theirs))?;
        Some(Diverged {
            node,
            index,
            own,
            theirs: *theirs,
        })
    })
}

/// The hashes that a node remembers, by the last entry in each state.
fn points(status: &NodeStatus) -> BTreeMap<u64, StateHash> {
    let now = status.applied.map(LogId::from);
    let now = now.map(|last| (last.index(), status.state_hash));
    status.checkpoints.iter().copied().chain(now).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::FeatureLevel;
    use crate::server::consensus::MemberView;
    use crate::server::consensus::protocol::LogStatus;
    use crate::server::consensus::tests::{fixed, id, log_id};
    use crate::server::store::DiskState;
    use crate::server::types::Member;

    fn hash(number: u128) -> StateHash {
        fixed(number)
    }

    /// A node that has applied the entry, with such a state, and remembers two others.
    fn status(index: u64, state: u128) -> NodeStatus {
        NodeStatus {
            version: "1".to_owned(),
            applied: Some(log_id(1, 1, index).into()),
            last_log_index: None,
            state_hash: hash(state),
            checkpoints: vec![(64, hash(64 + state)), (128, hash(128 + state))],
            disk: DiskState::Fit,
            log: LogStatus::default(),
            level_max: FeatureLevel::FIRST,
        }
    }

    /// What node 1 finds among so many nodes.
    fn judged(own: &NodeStatus, others: impl IntoIterator<Item = NodeStatus>) -> Option<u64> {
        let mut view = ClusterView::default();
        let statuses = std::iter::once(own.clone()).chain(others);
        for (node, status) in (1..).zip(statuses) {
            let member = MemberView {
                member: Member::default(),
                votes: true,
                reachable: None,
                matched: None,
                leader_last: None,
                status: Some(status),
            };
            view.members.insert(id(node), member);
        }
        let diverged = judge(id(1), &view)?;
        assert_eq!(diverged.node, id(1));
        Some(diverged.index)
    }

    #[test]
    fn who_differs_from_a_majority_at_one_entry_is_told_from_where_on() {
        assert_eq!(
            judged(&status(200, 1), [status(200, 0), status(200, 0)]),
            Some(64)
        );
        // Nobody is at one entry: what they remember is compared.
        assert_eq!(
            judged(&status(200, 1), [status(130, 0), status(150, 0)]),
            Some(64)
        );
    }

    #[test]
    fn who_is_with_the_majority_or_knows_of_none_goes_on() {
        assert_eq!(
            judged(&status(200, 0), [status(200, 0), status(200, 1)]),
            None
        );
        // Each is alone with its state, or one against one: nobody can tell who is right.
        assert_eq!(
            judged(&status(200, 0), [status(200, 1), status(200, 2)]),
            None
        );
        assert_eq!(judged(&status(200, 0), [status(200, 1)]), None);
    }

    #[test]
    fn two_versions_are_not_compared() {
        let other = || NodeStatus {
            version: "2".to_owned(),
            ..status(200, 0)
        };

        assert_eq!(judged(&status(200, 1), [other(), other()]), None);
    }
}
