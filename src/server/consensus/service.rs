//! What a node answers to its peers: the seam between the peer port and Raft.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use openraft::errors::{Fatal, RaftError};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::handshake::{Party, Refusal};
use super::promises::{Beginning, Meeting};
use super::protocol::{Call, ForwardReply, NodeStatus, ReadIndexReply, Reply};
use super::status::ClusterView;
use crate::server::store::{SnapshotFile, SnapshotInbox};
use crate::server::types::{Incarnation, Leadership, Member, NodeId, TypeConfig, Vote};

/// openraft's snapshot, of which the data is our file.
pub(crate) type Snapshot = openraft::Snapshot<Leadership, NodeId, Member, SnapshotFile>;

/// A batch from another node, for the dispatcher.
#[derive(Debug)]
pub(crate) struct Forwarded {
    /// One encoded batch, as its origin froze it.
    pub(crate) batch: Bytes,
    /// After it the batch is dropped rather than proposed.
    pub(crate) deadline: Instant,
    /// Under which leadership alone it is proposed; `None`: under whichever this node has.
    pub(crate) required: Option<Leadership>,
    /// Takes what became of it. Dropped unanswered, the origin is told `Unknown`.
    pub(crate) reply: oneshot::Sender<ForwardReply>,
}

/// A running node, as its peers see it: whoever gets here has shown who it is.
pub(crate) trait PeerService: Clone + Send + Sync + 'static {
    /// The incarnation that the membership in this node's log, else its formation record, has for a node (I12).
    fn incarnation_of(&self, node: NodeId) -> Option<Incarnation>;

    /// Whether the node was a member by what this node has applied, and is none any more.
    fn has_removed(&self, node: NodeId) -> bool;

    /// With what this node's process began.
    fn beginning(&self) -> Beginning;

    /// Meets a peer that calls from this address.
    ///
    /// # Errors
    /// [`Refusal`] where it has promised more than it holds, or runs twice.
    fn meet(&self, peer: Party, beginning: Beginning, at: SocketAddr) -> Result<Meeting, Refusal>;

    /// Raft's RequestVote.
    fn vote(
        &self,
        request: VoteRequest<TypeConfig>,
    ) -> impl Future<Output = Result<VoteResponse<TypeConfig>, RaftError<TypeConfig>>> + Send;

    /// The same question without consequences.
    fn pre_vote(
        &self,
        request: VoteRequest<TypeConfig>,
    ) -> impl Future<Output = Result<VoteResponse<TypeConfig>, RaftError<TypeConfig>>> + Send;

    /// The leader hands its leadership over.
    fn transfer_leader(
        &self,
        request: TransferLeaderRequest<TypeConfig>,
    ) -> impl Future<Output = Result<TransferLeaderResponse<TypeConfig>, Fatal<TypeConfig>>> + Send;

    /// Raft's AppendEntries as a stream: one result for each request in their order, ending at the first refusal.
    fn append(
        &self,
        requests: impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + 'static,
    ) -> impl Stream<Item = Result<StreamAppendResult<TypeConfig>, Fatal<TypeConfig>>> + Send + 'static;

    /// Where a snapshot is put while it comes.
    fn snapshots(&self) -> &SnapshotInbox;

    /// Raft's InstallSnapshot, of a snapshot that came whole.
    fn install(
        &self,
        vote: Vote,
        snapshot: Snapshot,
    ) -> impl Future<Output = Result<SnapshotResponse<TypeConfig>, Fatal<TypeConfig>>> + Send;

    /// Takes batches from other nodes; full, they are told so.
    fn forwards(&self) -> &mpsc::Sender<Forwarded>;

    /// Proves leadership within this time, or does not.
    fn read_index(&self, within: Duration) -> impl Future<Output = ReadIndexReply> + Send;

    /// How far this node is.
    fn status(&self) -> NodeStatus;

    /// Serves a call that is for the leader.
    fn serve_as_leader(&self, call: Call) -> impl Future<Output = Reply> + Send;

    /// Whether the leader knows where a member is reached, told within this time.
    fn announce(
        &self,
        node: NodeId,
        member: Member,
        within: Duration,
    ) -> impl Future<Output = bool> + Send;

    /// How far everyone is, asked within this time.
    fn cluster(&self, within: Duration) -> impl Future<Output = ClusterView> + Send;
}
