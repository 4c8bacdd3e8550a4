//! What the nodes know of one another, gathered for people: the `status` frame behind `/v1/cluster`.

use std::collections::BTreeMap;

use futures::future::join_all;
use openraft::async_runtime::WatchReceiver;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::protocol::LogStatus;
use super::{Call, Consensus, Leader, NodeStatus, ReadError, Reply, left_ms};
use crate::server::store::Stretch;
use crate::server::types::{Member, NodeId};

/// The cluster as its leader sees it, or without one as the asked node does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterView {
    /// The node that leads.
    pub(crate) leader: Option<NodeId>,
    /// The term of the view.
    pub(crate) term: u64,
    /// Everyone in the membership.
    pub(crate) members: BTreeMap<NodeId, MemberView>,
}

/// One node in a [`ClusterView`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberView {
    /// Its addresses and incarnation.
    pub(crate) member: Member,
    /// Whether it votes.
    pub(crate) votes: bool,
    /// Whether it answered the leader just now; unknown without a leader.
    pub(crate) reachable: Option<bool>,
    /// The last index known to be on its disk.
    pub(crate) matched: Option<u64>,
    /// The leader's last index.
    pub(crate) leader_last: Option<u64>,
    /// What it said of itself.
    pub(crate) status: Option<NodeStatus>,
}

impl MemberView {
    /// How many entries of the leader it lacks.
    pub(crate) fn lag(&self) -> Option<u64> {
        let last = self.leader_last?;
        Some(last.saturating_sub(self.matched?))
    }
}

impl Consensus {
    /// The leader's view of the cluster; this node's own where no leader answers before the deadline.
    ///
    /// # Errors
    /// [`ReadError::Crowded`] where too many ask already.
    pub(crate) async fn cluster(&self, deadline: Instant) -> Result<ClusterView, ReadError> {
        let _place = self.reads.survey(deadline).await?;
        Ok(self.view(deadline).await)
    }

    async fn view(&self, deadline: Instant) -> ClusterView {
        match self.leader() {
            Leader::Here(_) => self.survey(deadline).await,
            Leader::There(id, member) => {
                match self
                    .call(
                        id,
                        &member,
                        Call::Cluster {
                            left_ms: left_ms(deadline),
                        },
                        deadline,
                    )
                    .await
                {
                    Ok(Reply::Cluster(view)) => view,
                    Ok(_) | Err(_) => self.unled_view(),
                }
            }
            Leader::Unknown => self.unled_view(),
        }
    }

    /// What this node says of itself.
    pub(crate) fn status(&self) -> NodeStatus {
        let metrics = self.raft().metrics();
        let last_log_index = metrics.borrow_watched().last_log_index;
        let (table, applied) = self.tables().table_at();
        NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            applied: applied.map(Into::into),
            last_log_index,
            state_hash: table.state_hash(),
            checkpoints: self.tables().checkpoints(),
            disk: self.disk().state(),
            log: self.log_status(),
            level_max: self.level_max,
        }
    }

    fn log_status(&self) -> LogStatus {
        let Stretch { entries, bytes } = self.log_size.above(None);
        LogStatus {
            entries,
            bytes,
            appended_bytes: self.log_size.appended_bytes(),
            snapshot_index: self.log_size.snapshot().map(|last| last.index()),
        }
    }

    /// Asks every member at once. Only the leader's survey knows how far each has come.
    pub(crate) async fn survey(&self, deadline: Instant) -> ClusterView {
        let mut view = self.unled_view();
        let (leads, last, matched) = {
            let metrics = self.raft().metrics();
            let metrics = metrics.borrow_watched();
            let matched: BTreeMap<NodeId, u64> = metrics
                .replication
                .iter()
                .flatten()
                .filter_map(|(id, log_id)| Some((*id, log_id.as_ref()?.index())))
                .collect();
            (metrics.state.is_leader(), metrics.last_log_index, matched)
        };
        if !leads {
            return view;
        }
        view.leader = Some(self.node());
        for (id, member) in &mut view.members {
            let own = *id == self.node();
            member.leader_last = last;
            member.matched = if own { last } else { matched.get(id).copied() };
        }
        join_all(
            view.members
                .iter_mut()
                .map(|(id, member)| self.ask(*id, member, deadline)),
        )
        .await;
        view
    }

    /// Asks one member how it is.
    pub(super) async fn ask(&self, id: NodeId, view: &mut MemberView, deadline: Instant) {
        view.status = if id == self.node() {
            Some(self.status())
        } else {
            match self.call(id, &view.member, Call::Status, deadline).await {
                Ok(Reply::Status(status)) => Some(status),
                Ok(_) | Err(_) => None,
            }
        };
        view.reachable = Some(view.status.is_some());
    }

    pub(super) fn unled_view(&self) -> ClusterView {
        let metrics = self.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        let membership = &metrics.membership_config;
        let voters: Vec<NodeId> = membership.voter_ids().collect();
        let view = |(id, member): (&NodeId, &Member)| {
            let view = MemberView {
                member: member.clone(),
                votes: voters.contains(id),
                reachable: None,
                matched: None,
                leader_last: None,
                status: None,
            };
            (*id, view)
        };
        ClusterView {
            leader: None,
            term: metrics.vote.leader_id.term,
            members: membership.nodes().map(view).collect(),
        }
    }
}
