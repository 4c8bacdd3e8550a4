//! A simulated machine with a node on it: everything of a node but its process, its sockets and sled.

use std::convert::Infallible;
use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use axum::ServiceExt;
use axum::extract::Request;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use turmoil::net::{TcpListener, TcpStream};

use super::disks::MachineDisk;
use super::watch::Board;
use crate::sequence::FeatureLevel;
use crate::server::api::Api;
use crate::server::config::{AutoCreate, SnapshotInterval, Timing};
use crate::server::consensus::{
    self, Beginning, Consensus, Listener, LocalNode, Peers, Plan, PlannedMember, Promise, Retention,
};
use crate::server::engine::Engine;
use crate::server::metrics::Metrics;
use crate::server::store::{DataDir, Disk, FormationRecord, Store, StoreFailed};
use crate::server::tasks::Tasks;
use crate::server::types::NodeId;

const API_PORT: u16 = 7100;
const PEER_PORT: u16 = 7200;
/// Few, so that logs are purged and snapshots sent.
const SNAPSHOT_ENTRIES: u64 = 100;

/// A machine that a node is started on, again and again.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) id: u64,
    pub(super) nodes: u64,
    pub(super) directory: PathBuf,
    pub(super) disk: MachineDisk,
    pub(super) board: Board,
}

/// The name of a node's machine.
pub(super) fn name(id: u64) -> String {
    format!("node-{id}")
}

/// Where a node's API is.
pub(super) fn url(id: u64) -> String {
    format!("http://{}:{API_PORT}", name(id))
}

impl Machine {
    /// Runs a node until it ends by itself, which is told, or the machine's power is cut.
    pub(super) async fn run(self) -> turmoil::Result {
        let tasks = Tasks::default();
        let Err(why) = self.serve(&tasks).await;
        // Where the directory is differs from run to run.
        let why = why.replace(&*self.directory.to_string_lossy(), "DIR");
        let consensus = self.board.ended(self.id, why);
        tasks.stop().await;
        if let Some(consensus) = consensus {
            consensus.shutdown().await;
        }
        Ok(())
    }

    async fn serve(&self, tasks: &Tasks) -> Result<Infallible, String> {
        let mut dir = DataDir::open(&self.directory).map_err(|error| told(&error))?;
        let plan = self.plan();
        let (identity, identity_seen) = watch::channel(dir.identity().clone());
        let (inbound, inbound_seen) = watch::channel(None);
        let timing = Timing::default();
        let port = Listener {
            node: plan.node,
            file: plan.file_hash(),
            identity: identity_seen,
            service: inbound_seen,
            timing,
            tasks: tasks.clone(),
        };
        tasks.spawn(port.serve(bind(PEER_PORT).await));
        let (service, service_seen) = watch::channel(None);
        let metrics = Metrics::default();
        let api = Api::new(
            Arc::new(OnceLock::from(plan.node)),
            service_seen,
            metrics.clone(),
        );
        let http = Http(bind(API_PORT).await);
        let front = ServiceExt::<Request>::into_make_service(api.front());
        tasks.spawn(async move { axum::serve(http, front).await.unwrap() });

        let formed = consensus::form(&mut dir, &plan, &identity).await;
        let record = formed.map_err(|error| told(&error))?;
        let store = Store::open_with(&dir, FeatureLevel::LATEST, self.disk.probe());
        let store = store.map_err(|error| told(&error))?;
        self.board.started(self.id, store.vote, store.last_log_id);
        let beginning = Beginning {
            process: rand::random(),
            holds: Promise::new(store.vote, store.last_log_id),
        };
        let local = LocalNode {
            cluster: record.cluster,
            node: record.node,
            incarnation: dir.identity().incarnation,
            beginning,
        };
        let built = Consensus::build(
            (
                store.log,
                store.machine,
                store.tables,
                store.log_size,
                Disk::default(),
            ),
            Peers::new(local, timing, tasks.clone()),
            timing,
            Retention::with(SnapshotInterval::from_entries(SNAPSHOT_ENTRIES).unwrap()),
            metrics,
        );
        let consensus = built.await.map_err(|error| told(&error))?;
        let engine = Engine {
            consensus: consensus.clone(),
            plan: plan.clone(),
            record: record.clone(),
            incarnation: local.incarnation,
            snapshots: store.snapshots,
            started_with: store.last_log_id,
            auto_create: AutoCreate::On,
            stopping: CancellationToken::new(),
            tasks: tasks.clone(),
        };
        service.send_replace(Some(Arc::new(engine.start(&inbound))));
        self.board.runs(self.id, consensus.clone());
        Err(ended(store.failed, consensus, &plan, &record).await)
    }

    fn plan(&self) -> Plan {
        let member = |id: u64| PlannedMember {
            api: format!("{}:{API_PORT}", name(id)).parse().unwrap(),
            peer: format!("{}:{PEER_PORT}", name(id)).parse().unwrap(),
        };
        let members = (1..=self.nodes).map(|id| (NodeId::from(id), member(id)));
        Plan {
            node: NodeId::from(self.id),
            members: members.collect(),
        }
    }
}

/// What ends a node: the same as in a process.
async fn ended(
    failed: StoreFailed,
    consensus: Consensus,
    plan: &Plan,
    record: &FormationRecord,
) -> String {
    let refused = async {
        match consensus::initialize(&consensus, plan, Some(record)).await {
            Ok(()) => consensus::refused(plan, Some(record)).await,
            Err(refused) => refused,
        }
    };
    tokio::select! {
        biased;
        failure = failed.wait() => format!("{failure:?}"),
        reason = consensus.ended() => reason,
        refused = refused => told(&refused),
        diverged = consensus.diverged() => told(&diverged),
        disowned = consensus.disowned() => told(&disowned),
    }
}

/// An error with all its causes.
fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

async fn bind(port: u16) -> TcpListener {
    TcpListener::bind(("0.0.0.0", port)).await.unwrap()
}

/// The API's port.
struct Http(TcpListener);

impl axum::serve::Listener for Http {
    type Io = TcpStream;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        self.0.accept().await.unwrap()
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}
