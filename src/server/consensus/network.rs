//! openraft's view of the peers: one client a target, which never connects where openraft waits for it.
//!
//! openraft asks for a new client for every vote and every replication, inside its core. A client costs nothing until
//! it is used: votes go over the pool's warm connections, and the first append of a client starts a connection that
//! belongs to it alone. So heartbeats never queue behind entries, nor either behind a snapshot, and the defaults of
//! `new_heartbeat_client` and `new_snapshot_client` are right.

use std::future::Future;

use futures::future::{BoxFuture, Either, select};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use tokio::time::Instant;

use super::append::{self, Append, AppendResult};
use super::handshake::{Party, Purpose};
use super::link::{Link, Retry};
use super::peers::{CallError, Peers};
use super::protocol::{Call, Reply};
use super::retention::{LagLimit, Progress};
use super::service::Snapshot;
use super::snapshot;
use crate::server::store::SnapshotFile;
use crate::server::types::{Address, Member, NodeId, TypeConfig, Vote};

/// Makes openraft's clients over the peers.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    peers: Peers,
    lag: Option<LagLimit>,
}

impl Network {
    pub(super) fn new(peers: Peers, lag: Option<LagLimit>) -> Self {
        Self { peers, lag }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: NodeId, node: &Member) -> PeerClient {
        // Begins to connect in the background where there is no connection yet.
        self.peers.link(target, node);
        PeerClient {
            peers: self.peers.clone(),
            lag: self.lag.clone(),
            to: target,
            member: node.clone(),
            appends: None,
            last_stream: 0,
        }
    }
}

/// openraft's client of one peer.
#[derive(Debug)]
pub(crate) struct PeerClient {
    peers: Peers,
    lag: Option<LagLimit>,
    to: NodeId,
    member: Member,
    /// The connection for appends, from the first on, and where it leads.
    appends: Option<(Address, Link)>,
    /// Numbers the append streams, so that the follower can tell them apart.
    last_stream: u64,
}

impl PeerClient {
    async fn call(&self, call: Call, option: &RPCOption) -> Result<Reply, RPCError<TypeConfig>> {
        let deadline = Instant::now() + option.soft_ttl();
        match self.peers.call(self.to, &self.member, call, deadline).await {
            Ok(Reply::Failed { reason }) => Err(NetworkError::from_string(reason).into()),
            Ok(reply) => Ok(reply),
            // openraft waits before it tries again.
            Err(error @ CallError::NotSent { .. }) => Err(Unreachable::new(&error).into()),
            Err(error @ CallError::Lost { .. }) => Err(NetworkError::new(&error).into()),
        }
    }

    fn party(&self) -> Party {
        Party {
            node: self.to,
            incarnation: self.member.incarnation,
        }
    }

    fn appends(&mut self) -> &Link {
        let present = self.peers.present(self.to, &self.member);
        if self
            .appends
            .as_ref()
            .is_some_and(|(at, _)| *at != present.peer)
        {
            self.appends = None;
        }
        let (_, link) = self.appends.get_or_insert_with(|| {
            let link = self.peers.connect(self.to, &present, Purpose::Append);
            (present.peer, link)
        });
        link
    }

    async fn append_stream<'s, S>(
        &'s mut self,
        requests: S,
    ) -> Result<BoxStream<'s, AppendResult>, RPCError<TypeConfig>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + 'static,
    {
        self.last_stream += 1;
        let stream = self.last_stream;
        // openraft pauses between the requests of a stream, and not before it opens another one.
        let pause = self.peers.limits().retry_max;
        let channel = match self.appends().channel_within(pause).await {
            Ok(channel) => channel,
            Err(error) => return Err(Unreachable::new(&error).into()),
        };
        let promised = (self.peers.promises().clone(), self.party());
        let Some(lag) = self.lag.clone() else {
            return Ok(append::send(channel, stream, promised, requests).boxed());
        };
        let progress = Progress::default();
        let begun = progress.clone();
        let requests = requests.inspect(move |request| begun.begin(request.prev_log_id));
        let results = append::send(channel, stream, promised, requests);
        let every = self.peers.limits().ping;
        Ok(progress.watched(results, lag, every).boxed())
    }
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.last_stream += 1;
        let append = Append::new(self.last_stream, &request);
        let channel = match self.appends().channel().await {
            Ok(channel) => channel,
            Err(error) => return Err(Unreachable::new(&error).into()),
        };
        let result = append::receive(channel.send(&append).await).await;
        let promises = self.peers.promises();
        Ok(promises.check(self.party(), request.vote, result)?.into())
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendResult>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        // The connection has its own limit of silence; a follower may take longer than that for its disk.
        Box::pin(self.append_stream(input))
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let vote = request.vote;
        match self.call(Call::Vote(request.into()), &option).await? {
            Reply::Vote(reply) => {
                let response = VoteResponse::from(reply);
                if response.vote_granted {
                    self.peers.promises().voted(self.party(), vote);
                }
                Ok(response)
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(Call::PreVote(request.into()), &option).await? {
            Reply::PreVote(reply) => Ok(reply.into()),
            other => Err(unexpected(&other)),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let call = Call::TransferLeader(request.into());
        match self.call(call, &option).await? {
            Reply::TransferLeader(reply) => Ok(reply.into()),
            other => Err(unexpected(&other)),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let hello = self.peers.hello(self.to, &self.member, Purpose::Snapshot);
        let present = self.peers.present(self.to, &self.member);
        let sent = Box::pin(snapshot::send(
            &present.peer,
            hello,
            (vote, snapshot),
            self.peers.limits(),
            option.soft_ttl(),
        ));
        match select(Box::pin(cancel), sent).await {
            Either::Left((closed, _)) => Err(closed.into()),
            Either::Right((vote, _)) => vote.map(SnapshotResponse::new),
        }
    }

    fn backoff(&self) -> Option<Backoff> {
        let retry = Retry::new(self.peers.limits());
        Some(Backoff::new(retry))
    }
}

fn unexpected(reply: &Reply) -> RPCError<TypeConfig> {
    NetworkError::from_string(format!("the reply is to another call: {reply:?}")).into()
}
