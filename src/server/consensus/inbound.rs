//! What this node answers to its peers, once Raft runs: the peer port's calls, given to Raft and the proposer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{Fatal, RaftError};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::handshake::{Party, Refusal};
use super::promises::{Beginning, Meeting};
use super::protocol::{Call, NodeStatus, ReadIndexReply, Reply};
use super::service::{Forwarded, PeerService, Snapshot};
use super::{ClusterView, Consensus};
use crate::server::store::{FormationRecord, SnapshotInbox};
use crate::server::types::{Incarnation, Member, NodeId, TypeConfig, Vote};

/// When this node last accepted an append from a leader. openraft's known leader never expires; this does.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastAppend(Arc<Mutex<Option<Instant>>>);

impl LastAppend {
    /// Whether that was less than this long ago.
    pub(super) fn within(&self, limit: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < limit)
    }

    fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// The answering side of a running node.
#[derive(Debug, Clone)]
pub(crate) struct Inbound {
    consensus: Consensus,
    snapshots: SnapshotInbox,
    forwards: mpsc::Sender<Forwarded>,
    record: Arc<FormationRecord>,
}

impl Inbound {
    /// Answers for this Raft: batches go to the proposer's queue, snapshots to the inbox.
    pub(crate) fn new(
        consensus: Consensus,
        snapshots: SnapshotInbox,
        forwards: mpsc::Sender<Forwarded>,
        record: FormationRecord,
    ) -> Self {
        Self {
            consensus,
            snapshots,
            forwards,
            record: Arc::new(record),
        }
    }
}

impl PeerService for Inbound {
    fn incarnation_of(&self, node: NodeId) -> Option<Incarnation> {
        let metrics = self.consensus.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        let members = metrics.membership_config.membership();
        let formed = members.nodes().next().is_some();
        // Before the first membership is in the log, the record that it will be made of rules.
        let member = if formed {
            members.get_node(&node)
        } else {
            self.record.members.get(&node)
        };
        member.map(|member| member.incarnation)
    }

    fn has_removed(&self, node: NodeId) -> bool {
        self.consensus.has_left(node)
    }

    fn beginning(&self) -> Beginning {
        self.consensus.peers.beginning()
    }

    fn meet(&self, peer: Party, beginning: Beginning, at: SocketAddr) -> Result<Meeting, Refusal> {
        self.consensus.peers.promises().meet(peer, beginning, at)
    }

    async fn vote(
        &self,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, RaftError<TypeConfig>> {
        self.consensus.raft().vote(request).await
    }

    async fn pre_vote(
        &self,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, RaftError<TypeConfig>> {
        self.consensus.raft().pre_vote(request).await
    }

    async fn transfer_leader(
        &self,
        request: TransferLeaderRequest<TypeConfig>,
    ) -> Result<TransferLeaderResponse<TypeConfig>, Fatal<TypeConfig>> {
        self.consensus.raft().handle_transfer_leader(request).await
    }

    fn append(
        &self,
        requests: impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + 'static,
    ) -> impl Stream<Item = Result<StreamAppendResult<TypeConfig>, Fatal<TypeConfig>>> + Send + 'static
    {
        let accepted = self.consensus.last_append.clone();
        let results = self.consensus.raft().stream_append(requests.boxed());
        results.inspect(move |result| {
            if matches!(result, Ok(Ok(_))) {
                accepted.touch();
            }
        })
    }

    fn snapshots(&self) -> &SnapshotInbox {
        &self.snapshots
    }

    async fn install(
        &self,
        vote: Vote,
        snapshot: Snapshot,
    ) -> Result<SnapshotResponse<TypeConfig>, Fatal<TypeConfig>> {
        self.consensus
            .raft()
            .install_full_snapshot(vote, snapshot)
            .await
    }

    fn forwards(&self) -> &mpsc::Sender<Forwarded> {
        &self.forwards
    }

    async fn read_index(&self, within: Duration) -> ReadIndexReply {
        self.consensus.read_index(Instant::now() + within).await
    }

    fn status(&self) -> NodeStatus {
        self.consensus.status()
    }

    async fn serve_as_leader(&self, call: Call) -> Reply {
        self.consensus.serve_as_leader(call).await
    }

    async fn announce(&self, node: NodeId, member: Member, within: Duration) -> bool {
        self.consensus.peers.found(node, &member);
        let deadline = Instant::now() + within;
        let moved = self.consensus.move_member(node, member, deadline);
        moved.await.is_ok()
    }

    async fn cluster(&self, within: Duration) -> ClusterView {
        self.consensus.survey(Instant::now() + within).await
    }
}
