//! A node: what it is made of, in which order that starts, and in which order it stops.
//!
//! The modules stand in the order of a request's walk: `api` parses it, `batcher` puts it into a batch, `consensus`
//! has the batch committed, `store` makes it durable and applies it.

pub(crate) mod api;
pub(crate) mod batcher;
pub(crate) mod codec;
pub(crate) mod config;
pub(crate) mod consensus;
mod engine;
mod error;
pub(crate) mod formats;
pub(crate) mod host;
mod joining;
pub(crate) mod metrics;
#[cfg(feature = "cli")]
pub(crate) mod offline;
mod open_files;
mod sockets;
pub(crate) mod store;
pub(crate) mod tasks;
#[cfg(feature = "cli")]
pub(crate) mod telemetry;
pub(crate) mod types;

#[cfg(test)]
#[path = "../../tests/sim/mod.rs"]
mod sim;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::{Either, select};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::api::{Api, Service};
use self::config::{Config, Entry};
use self::consensus::{
    Beginning, Consensus, Inbound, Listener, LocalNode, Peers, Plan, PlannedMember, Promise,
    Retention,
};
use self::engine::Engine;
pub(crate) use self::error::ServerError;
use self::metrics::Metrics;
use self::sockets::Sockets;
use self::store::{DataDir, FormationRecord, Identity, Space, Store, StoreClosed, StoreFailed};
use self::tasks::Tasks;
use self::types::{Member, NodeId};

/// How long open requests are waited for at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The same at the end of a node that cannot go on: it can serve none of them, only say so.
const DRAIN_TIMEOUT_FAILED: Duration = Duration::from_millis(500);

/// How long Raft may take to end: it waits for a write that is under way, and a disk that hangs never ends that.
const RAFT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the store may take to close its files.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs a node until `stop` resolves.
///
/// # Errors
/// [`ServerError`] where the node must not or cannot run on; the process should end with exit code 1.
pub(crate) async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), ServerError> {
    let mut node = Node::listen(config)?;
    let mut stop = pin!(stop);
    let started = match select(stop.as_mut(), pin!(node.start())).await {
        Either::Left(((), _)) => {
            tracing::info!("stopping");
            Ok(None)
        }
        Either::Right((started, _)) => started.map(Some),
    };
    let (consensus, ended) = match started {
        Ok(Some(started)) => {
            let ended = match select(stop, pin!(node.ended(&started))).await {
                Either::Left(((), _)) => {
                    tracing::info!("stopping");
                    Ok(())
                }
                Either::Right((ended, _)) => Err(ended),
            };
            (Some(started.0), ended)
        }
        Ok(None) => (None, Ok(())),
        Err(error) => (None, Err(error)),
    };
    match &ended {
        Ok(()) => {
            node.stopping.cancel();
            if let Some(consensus) = &consensus {
                consensus.resign().await;
            }
            node.stop(consensus, DRAIN_TIMEOUT).await;
        }
        Err(_) => node.stop(consensus, DRAIN_TIMEOUT_FAILED).await,
    }
    ended
}

/// A node whose listeners are open and whose directory is locked.
struct Node {
    /// This node's id, once it is known.
    id: Arc<OnceLock<NodeId>>,
    config: Config,
    dir: DataDir,
    sockets: Sockets,
    connections_max: usize,
    http: axum_server::Handle<SocketAddr>,
    service: watch::Sender<Option<Arc<Service>>>,
    metrics: Metrics,
    /// Cancelled once the node is asked to end.
    stopping: CancellationToken,
    failed: Option<StoreFailed>,
    closed: Option<StoreClosed>,
    /// Serves workers, and ends by itself once their connections are drained.
    front: Tasks,
    /// Everything behind it.
    tasks: Tasks,
}

/// What is known of a node's place in a cluster when it starts.
enum Entrance {
    Known(Plan),
    /// It is given an id by the cluster of these nodes.
    Joins(Vec<String>),
}

impl Node {
    fn listen(config: Config) -> Result<Self, ServerError> {
        // What was told wrongly is refused before anything is made.
        let connections_max = open_files::connections_max()?;
        let sockets = Sockets::bind(&config)?;
        let dir = DataDir::open(&config.data_dir)?;
        Store::refuse_orphan(&dir)?;
        Ok(Self {
            id: Arc::default(),
            config,
            dir,
            sockets,
            connections_max,
            http: axum_server::Handle::new(),
            service: watch::Sender::new(None),
            metrics: Metrics::default(),
            stopping: CancellationToken::new(),
            failed: None,
            closed: None,
            front: Tasks::default(),
            tasks: Tasks::default(),
        })
    }

    /// Starts everything from the outside in: what answers `starting`, then the cluster's forming or the joining of one, the
    /// store, Raft, and at last the service.
    async fn start(&mut self) -> Result<(Consensus, Plan), ServerError> {
        let (identity, identity_seen) = watch::channel(self.dir.identity().clone());
        let (inbound, inbound_seen) = watch::channel(None);
        let entrance = self.entrance();
        if let Entrance::Known(plan) = &entrance {
            self.serve_peers(plan, identity_seen.clone(), inbound_seen.clone())?;
        }
        self.serve_api()?;
        // From here on something is written.
        let space = Space::of(&self.dir)?;
        space.await_room().await;

        let plan = match entrance {
            Entrance::Known(plan) => plan,
            Entrance::Joins(urls) => {
                let plan = self.join(&urls, &identity).await?;
                self.serve_peers(&plan, identity_seen, inbound_seen)?;
                plan
            }
        };
        let record = consensus::form(&mut self.dir, &plan, &identity).await?;
        // Opening reads and checks the whole log, so it may take seconds. Probes are answered meanwhile.
        let open = || Store::open(&self.dir, self.config.level_max);
        let store = tokio::task::block_in_place(open)?;
        // A directory that is refused is left as it was, so this comes after all that may refuse it.
        self.sockets.write_ready_file(self.dir.path(), plan.node)?;
        let (disk, disk_watch) = store.disk(space, self.config.disk_free_min.bytes());
        self.tasks.spawn(disk_watch.run());
        self.failed = Some(store.failed);
        self.closed = Some(store.closed);
        let beginning = Beginning {
            process: rand::random(),
            holds: Promise::new(store.vote, store.last_log_id),
        };
        let peers = self.peers(&record, beginning);
        let timing = self.config.timing;
        let consensus = Consensus::build(
            (store.log, store.machine, store.tables, store.log_size, disk),
            peers,
            timing,
            Retention::with(self.config.snapshot_interval),
            self.metrics.clone(),
        )
        .await
        .map_err(|error| ServerError::raft(error, self.failed.as_mut(), self.dir.path()))?;

        let engine = Engine {
            consensus: consensus.clone(),
            plan: plan.clone(),
            record,
            incarnation: self.dir.identity().incarnation,
            snapshots: store.snapshots,
            started_with: store.last_log_id,
            auto_create: self.config.auto_create,
            stopping: self.stopping.clone(),
            tasks: self.tasks.clone(),
        };
        self.service
            .send_replace(Some(Arc::new(engine.start(&inbound))));
        Ok((consensus, plan))
    }

    /// Sees a new cluster through its first membership. Resolves when the node cannot go on: its store cannot write, its
    /// Raft has ended (I10), or it cannot be part of the cluster.
    async fn ended(&mut self, (consensus, plan): &(Consensus, Plan)) -> ServerError {
        let failed = self.failed.take();
        let failed = async {
            match failed {
                Some(failed) => failed.wait().await,
                None => std::future::pending().await,
            }
        };
        let record = self.dir.identity().formation.as_ref();
        let refused = async {
            match consensus::initialize(consensus, plan, record).await {
                Ok(()) => consensus::refused(plan, record).await,
                Err(refused) => refused,
            }
        };
        let error = tokio::select! {
            // A disk that failed ends Raft too: the first reason is the one to tell.
            biased;
            failure = failed => ServerError::store(self.dir.path(), failure),
            reason = consensus.ended() => ServerError::Ended { reason },
            refused = refused => refused.into(),
            strange = joining::refused(&self.config.entry, record) => strange.into(),
            diverged = consensus.diverged() => diverged.into(),
            disowned = consensus.disowned() => Box::new(disowned).into(),
        };
        if let ServerError::Disk { .. } | ServerError::DiskFull { .. } = error {
            // A disk that failed is not asked to close anything.
            self.closed = None;
        }
        error
    }

    /// Stops from the outside in: no new requests, the open ones answered while Raft still runs, then Raft.
    async fn stop(self, consensus: Option<Consensus>, drain: Duration) {
        self.http.graceful_shutdown(Some(drain));
        self.front.finish().await;
        self.service.send_replace(None);
        // What serves peers ends before Raft: a stream that loses its Raft would be an error to openraft.
        self.tasks.stop().await;
        if let Some(consensus) = consensus {
            // Elapsed: the disk hangs. Nothing is acknowledged any more, so nothing is lost.
            drop(tokio::time::timeout(RAFT_TIMEOUT, consensus.shutdown()).await);
        }
        if let Some(closed) = self.closed {
            // Elapsed: all that was acknowledged is on disk already, so an unclosed store loses nothing.
            drop(tokio::time::timeout(CLOSE_TIMEOUT, closed.wait()).await);
        }
    }

    /// What this node is to be in its cluster, if that is known already.
    fn entrance(&self) -> Entrance {
        match &self.config.entry {
            Entry::Alone => Entrance::Known(self.plan_of(NodeId::from(1))),
            Entry::Formation { node, members } => {
                let planned = members.iter();
                let planned = planned.map(|(id, member)| (*id, PlannedMember::from(member)));
                Entrance::Known(Plan {
                    node: *node,
                    members: planned.collect(),
                })
            }
            Entry::Join { urls } => match &self.dir.identity().formation {
                Some(record) => Entrance::Known(self.plan_of(record.node)),
                None => Entrance::Joins(urls.clone()),
            },
        }
    }

    /// This node by itself.
    fn plan_of(&self, node: NodeId) -> Plan {
        Plan {
            node,
            members: [(node, self.sockets.reached_at())].into(),
        }
    }

    /// Waits until a cluster has given this directory an id, and keeps that.
    async fn join(
        &mut self,
        urls: &[String],
        identity: &watch::Sender<Identity>,
    ) -> Result<Plan, ServerError> {
        let PlannedMember { api, peer } = self.sockets.reached_at();
        let own = Member {
            api,
            peer,
            incarnation: self.dir.identity().incarnation,
        };
        let record = joining::admitted(urls, own, self.config.level_max).await?;
        let plan = self.plan_of(record.node);
        self.dir.adopt(record)?;
        identity.send_replace(self.dir.identity().clone());
        Ok(plan)
    }

    fn serve_peers(
        &self,
        plan: &Plan,
        identity: watch::Receiver<Identity>,
        inbound: watch::Receiver<Option<Inbound>>,
    ) -> Result<(), ServerError> {
        let listener = self.sockets.peers.listener()?;
        let unusable = |source| self.sockets.peers.unusable(source);
        let listener = tokio::net::TcpListener::from_std(listener).map_err(unusable)?;
        let port = Listener {
            node: plan.node,
            file: plan.file_hash(),
            identity,
            service: inbound,
            timing: self.config.timing,
            tasks: self.tasks.clone(),
        };
        // It is set once: a node has one plan.
        self.id.set(plan.node).ok();
        self.tasks.spawn(port.serve(listener));
        Ok(())
    }

    fn serve_api(&self) -> Result<(), ServerError> {
        let listener = self.sockets.api.listener()?;
        let api = Api::new(
            Arc::clone(&self.id),
            self.service.subscribe(),
            self.metrics.clone(),
        );
        let (http, connections_max) = (self.http.clone(), self.connections_max);
        self.front.spawn(async move {
            if let Err(error) = api::serve(listener, api.front(), http, connections_max).await {
                tracing::error!(%error, "the API's listener ended");
            }
        });
        Ok(())
    }

    fn peers(&self, record: &FormationRecord, beginning: Beginning) -> Peers {
        let local = LocalNode {
            cluster: record.cluster,
            node: record.node,
            incarnation: self.dir.identity().incarnation,
            beginning,
        };
        Peers::new(local, self.config.timing, self.tasks.clone())
    }
}
