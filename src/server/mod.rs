//! A node: what it is made of, in which order that starts, and in which order it stops.
//!
//! The modules stand in the order of a request's walk: `api` parses it, `batcher` puts it into a batch, `consensus`
//! has the batch committed, `store` makes it durable and applies it.

pub(crate) mod api;
pub(crate) mod batcher;
pub(crate) mod codec;
pub(crate) mod config;
pub(crate) mod consensus;
mod error;
pub(crate) mod formats;
mod open_files;
pub(crate) mod store;
pub(crate) mod tasks;
#[cfg(feature = "cli")]
pub(crate) mod telemetry;
pub(crate) mod types;

use std::future::Future;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::api::{Api, Service};
use self::batcher::Batcher;
use self::config::Config;
use self::consensus::{
    Beginning, Consensus, Inbound, Listener, LocalNode, Peers, Plan, PlannedMember, Promise,
    Proposer, Retention,
};
use self::error::Listening;
pub(crate) use self::error::ServerError;
use self::store::{DataDir, FormationRecord, Identity, Space, Store, StoreClosed, StoreFailed};
#[cfg(feature = "cli")]
pub(crate) use self::store::{EntryView, InspectError, Inspection, Verdict, VoteView, inspect};
use self::tasks::Tasks;
use self::types::{Address, LogId, NodeId};

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
        Ok(Some(consensus)) => {
            let ended = match select(stop, pin!(node.ended(&consensus))).await {
                Either::Left(((), _)) => {
                    tracing::info!("stopping");
                    Ok(())
                }
                Either::Right((ended, _)) => Err(ended),
            };
            (Some(consensus), ended)
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
    plan: Plan,
    config: Config,
    dir: DataDir,
    peer_listener: TcpListener,
    api_listener: TcpListener,
    connections_max: usize,
    http: axum_server::Handle<SocketAddr>,
    service: watch::Sender<Option<Arc<Service>>>,
    /// Cancelled once the node is asked to end.
    stopping: CancellationToken,
    failed: Option<StoreFailed>,
    closed: Option<StoreClosed>,
    /// Serves workers, and ends by itself once their connections are drained.
    front: Tasks,
    /// Everything behind it.
    tasks: Tasks,
}

impl Node {
    fn listen(config: Config) -> Result<Self, ServerError> {
        // What was told wrongly is refused before anything is made.
        let peer_at = config.bind_address(&config.peer_listen)?;
        let api_at = config.bind_address(&config.api_listen)?;
        let connections_max = open_files::connections_max()?;
        let peer_listener = bind(Listening::Peers, &config.peer_listen, peer_at)?;
        let api_listener = bind(Listening::Api, &config.api_listen, api_at)?;
        let dir = DataDir::open(&config.data_dir)?;
        Store::refuse_orphan(&dir)?;
        Ok(Self {
            plan: plan(&config, &api_listener, &peer_listener),
            config,
            dir,
            peer_listener,
            api_listener,
            connections_max,
            http: axum_server::Handle::new(),
            service: watch::Sender::new(None),
            stopping: CancellationToken::new(),
            failed: None,
            closed: None,
            front: Tasks::default(),
            tasks: Tasks::default(),
        })
    }

    /// Starts everything from the outside in: what answers `starting`, then the cluster's forming, the store, Raft,
    /// and at last the service.
    async fn start(&mut self) -> Result<Consensus, ServerError> {
        let (identity, identity_seen) = watch::channel(self.dir.identity().clone());
        let (inbound, inbound_seen) = watch::channel(None);
        self.serve_peers(identity_seen, inbound_seen)?;
        self.serve_api()?;
        // From here on something is written.
        let space = Space::of(&self.dir)?;
        space.await_room().await;

        let record = consensus::form(&mut self.dir, &self.plan, &identity).await?;
        let store = open_store(&self.dir)?;
        // A directory that is refused is left as it was, so this comes after all that may refuse it.
        self.write_ready_file()?;
        warn_if_even(record.members.len());
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
            record.node,
            peers,
            timing,
            Retention::with(self.config.snapshot_interval),
        )
        .await?;

        let (proposals, queue) = Proposer::queue();
        self.tasks
            .spawn(Proposer::new(consensus.clone(), queue).run());
        let (batcher, handle) = Batcher::new(consensus.clone(), proposals.clone());
        self.tasks.spawn(batcher.run());

        inbound.send_replace(Some(Inbound::new(
            consensus.clone(),
            store.snapshots,
            proposals,
            record.clone(),
        )));
        consensus.run();
        self.tasks.spawn(consensus.clone().keep_peers());
        self.tasks.spawn(consensus.clone().keep_log_short());
        self.tasks.spawn(consensus.clone().relieve());
        self.service.send_replace(Some(Arc::new(Service {
            batcher: handle,
            consensus: consensus.clone(),
            cluster: record.cluster,
            auto_create: self.config.auto_create,
            stopping: self.stopping.clone(),
            recovered: self.watch_recovery(consensus.clone(), store.last_log_id),
        })));
        Ok(consensus)
    }

    /// Sees a new cluster through its first membership. Resolves when the node cannot go on: its store cannot write, its
    /// Raft has ended (I10), or it cannot be part of the cluster.
    async fn ended(&mut self, consensus: &Consensus) -> ServerError {
        let failed = self.failed.take();
        let failed = async {
            match failed {
                Some(failed) => failed.wait().await,
                None => std::future::pending().await,
            }
        };
        let record = self.dir.identity().formation.as_ref();
        let refused = async {
            match consensus::initialize(consensus, &self.plan, record).await {
                Ok(()) => consensus::refused(&self.plan, record).await,
                Err(refused) => refused,
            }
        };
        let error = tokio::select! {
            // A disk that failed ends Raft too: the first reason is the one to tell.
            biased;
            error = failed => ServerError::disk(self.dir.path(), error),
            reason = consensus.ended() => ServerError::Ended { reason },
            refused = refused => refused.into(),
            diverged = consensus.diverged() => diverged.into(),
            rolled_back = consensus.rolled_back() => Box::new(rolled_back).into(),
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

    fn watch_recovery(
        &self,
        consensus: Consensus,
        started_with: Option<LogId>,
    ) -> watch::Receiver<bool> {
        let (recovered, seen) = watch::channel(false);
        self.tasks.spawn(async move {
            // The only error is Raft's end, which ends the process.
            if consensus.recovered(started_with).await.is_ok() {
                tracing::info!("recovered");
                recovered.send_replace(true);
            }
        });
        seen
    }

    fn serve_peers(
        &self,
        identity: watch::Receiver<Identity>,
        inbound: watch::Receiver<Option<Inbound>>,
    ) -> Result<(), ServerError> {
        let bound = |source| bind_error(Listening::Peers, &self.config.peer_listen, source);
        let listener = self.peer_listener.try_clone().map_err(bound)?;
        listener.set_nonblocking(true).map_err(bound)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(bound)?;
        let port = Listener {
            node: self.plan.node,
            file: self.plan.file_hash(),
            identity,
            service: inbound,
            timing: self.config.timing,
            tasks: self.tasks.clone(),
        };
        self.tasks.spawn(port.serve(listener));
        Ok(())
    }

    fn serve_api(&self) -> Result<(), ServerError> {
        let bound = |source| bind_error(Listening::Api, &self.config.api_listen, source);
        let listener = self.api_listener.try_clone().map_err(bound)?;
        let routes = Api::new(self.plan.node, self.service.subscribe()).router();
        let (http, connections_max) = (self.http.clone(), self.connections_max);
        self.front.spawn(async move {
            if let Err(error) = api::serve(listener, routes, http, connections_max).await {
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

    /// `ready.json` tells scripts and tests where a node listens that was given port 0.
    fn write_ready_file(&self) -> Result<(), ServerError> {
        let path = self.dir.path().join("ready.json");
        let failed = |source| ServerError::Ready {
            path: path.clone(),
            source,
        };
        let address = |listener: &TcpListener| listener.local_addr().map(|at| at.to_string());
        let ready = serde_json::json!({
            "node": self.plan.node.get(),
            "api": address(&self.api_listener).map_err(failed)?,
            "peer": address(&self.peer_listener).map_err(failed)?,
            "pid": std::process::id(),
        });
        let temporary = path.with_extension("json.new");
        std::fs::File::create(&temporary)
            .and_then(|mut file| writeln!(file, "{ready}"))
            .and_then(|()| std::fs::rename(&temporary, &path))
            .map_err(failed)
    }
}

/// An even number of nodes needs a larger majority than the odd one below, and survives no more losses.
fn warn_if_even(nodes: usize) {
    if !nodes.is_multiple_of(2) {
        return;
    }
    let fewer = nodes.saturating_sub(1);
    let tolerated = match fewer / 2 {
        0 => "none".to_owned(),
        losses => losses.to_string(),
    };
    let what = format!(
        "{nodes} nodes tolerate the loss of {tolerated}, no more than {fewer} would: use an odd number"
    );
    tracing::warn!(count = nodes, error = what, "even number of nodes");
}

fn bind_error(listening: Listening, address: &Address, source: std::io::Error) -> ServerError {
    ServerError::Bind {
        listening,
        address: address.clone(),
        source,
    }
}

fn open_store(dir: &DataDir) -> Result<Store, ServerError> {
    // Opening reads and checks the whole log, so it may take seconds. Probes are answered meanwhile.
    tokio::task::block_in_place(|| Store::open(dir)).map_err(ServerError::from)
}

fn bind(
    listening: Listening,
    address: &Address,
    at: SocketAddr,
) -> Result<TcpListener, ServerError> {
    TcpListener::bind(at).map_err(|source| bind_error(listening, address, source))
}

/// The members as they are to be, with the addresses that a lone node was given by the system.
fn plan(config: &Config, api: &TcpListener, peer: &TcpListener) -> Plan {
    let alone = config.members.len() == 1;
    let bound = |listener: &TcpListener, configured: &Address| match listener.local_addr() {
        Ok(address) if alone && configured.port() == 0 => Address::from(address),
        _ => configured.clone(),
    };
    let planned = |(id, member): (&NodeId, &config::MemberConfig)| {
        let planned = PlannedMember {
            api: bound(api, &member.api),
            peer: bound(peer, &member.peer),
        };
        (*id, planned)
    };
    Plan {
        node: config.node,
        members: config.members.iter().map(planned).collect(),
    }
}
