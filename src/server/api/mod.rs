//! Step 1 and 6 of the walk: HTTP in, parsed at the edge into types that cannot be wrong; outcomes out.
//!
//! Nothing here knows Raft or disk. A handler reads the request whole, submits a command or proves a read, and
//! writes the answer; whatever goes wrong is an [`error::ApiError`], which says what became of the request.

mod backup;
mod bodies;
mod cluster;
mod connections;
mod error;
mod extract;
mod front;
#[cfg(all(feature = "cli", any(fuzzing, test)))]
pub(crate) mod fuzzing;
mod import;
mod json;
mod keys;
mod leases;
mod level;
mod listener;
mod members;
mod metrics;
mod reads;
mod sequences;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::http::HeaderValue;
use axum::routing::{delete, get, post};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::backup::Backups;
pub(crate) use self::listener::{CONNECTIONS_MAX, serve};

use self::bodies::Bodies;
use self::error::ApiError;
use self::extract::Consistency;
use self::front::Front;
use super::batcher;
use super::config::AutoCreate;
use super::consensus::Consensus;
use super::metrics::Metrics;
use super::types::{ClusterId, NodeId};
use crate::sequence::Table;

/// What a node needs to serve requests, once its store is open and Raft runs.
#[derive(Debug)]
pub(crate) struct Service {
    /// Commands go in here.
    pub(crate) batcher: batcher::Handle,
    /// Leases of cached sequences go in here.
    pub(crate) cached: batcher::CachedHandle,
    /// Reads and the cluster's state come from here.
    pub(crate) consensus: Consensus,
    /// The cluster's id.
    pub(crate) cluster: ClusterId,
    /// The same as each answer to a lease says it.
    pub(crate) cluster_text: String,
    /// What backups need beside these.
    pub(crate) backups: Backups,
    /// What a lease of a sequence that is not there does.
    pub(crate) auto_create: AutoCreate,
    /// Cancelled once the node is asked to end.
    pub(crate) stopping: CancellationToken,
    /// Whether the table holds all that this node may have answered from in an earlier life (I6).
    pub(crate) recovered: watch::Receiver<bool>,
}

impl Service {
    /// Generation of the cluster's history.
    fn epoch(&self) -> u64 {
        self.consensus.tables().epoch()
    }

    /// The table, as fresh as asked for.
    async fn read(&self, consistency: Consistency, deadline: Instant) -> Result<Table, ApiError> {
        match consistency {
            Consistency::Linearizable => self.consensus.linearize(deadline).await?,
            Consistency::Local => {}
        }
        Ok(self.consensus.tables().table())
    }
}

/// What handlers share. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// A node that joins has none at first.
    node: Arc<OnceLock<NodeId>>,
    /// The same as each answer says it.
    node_text: OnceLock<HeaderValue>,
    /// Absent until the node has formed and opened its store.
    service: watch::Receiver<Option<Arc<Service>>>,
    metrics: Metrics,
    bodies: Bodies,
}

impl Api {
    /// The API of this node, which answers `starting` as long as there is no service.
    pub(crate) fn new(
        node: Arc<OnceLock<NodeId>>,
        service: watch::Receiver<Option<Arc<Service>>>,
        metrics: Metrics,
    ) -> Self {
        let shared = Shared {
            node,
            node_text: OnceLock::new(),
            service,
            metrics,
            bodies: Bodies::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// All of it, as connections are served with it.
    pub(crate) fn front(self) -> Front {
        let routes = self.clone().routes();
        Front::new(self, routes)
    }

    fn routes(self) -> Router {
        Router::new()
            .route(
                "/v1/sequences/{name}",
                get(reads::show)
                    .put(sequences::create)
                    .patch(sequences::alter)
                    .delete(sequences::retire),
            )
            .route("/v1/sequences", get(reads::list).post(import::import))
            .route("/v1/leases", post(leases::lease_all))
            .route("/v1/sequences/{name}/leases", post(leases::lease))
            .route("/v1/sequences/{name}/advance", post(sequences::advance))
            .route("/v1/backup", get(backup::download))
            .route("/v1/cluster", get(cluster::show))
            .route(
                "/v1/cluster/transfer-leader",
                post(cluster::transfer_leader),
            )
            .route(
                "/v1/cluster/members",
                get(members::list).post(members::admit),
            )
            .route("/v1/cluster/members/{id}", delete(members::remove))
            .route("/v1/cluster/members/{id}/promote", post(members::promote))
            .route("/v1/cluster/members/{id}/demote", post(members::demote))
            .route("/v1/cluster/members/{id}/replace", post(members::replace))
            .route("/livez", get(cluster::live))
            .route("/readyz", get(cluster::ready))
            .route("/metrics", get(metrics::show))
            .fallback(async || ApiError::UnknownPath)
            .method_not_allowed_fallback(async || ApiError::MethodNotAllowed)
            .with_state(self)
    }

    /// The service, for what asks how the node is.
    fn running(&self) -> Result<Arc<Service>, ApiError> {
        let service = self.shared.service.borrow();
        service.clone().ok_or(ApiError::Starting)
    }

    /// The service, for what needs a recovered table.
    fn service(&self) -> Result<Arc<Service>, ApiError> {
        self.running().and_then(|service| {
            let recovered = *service.recovered.borrow();
            if recovered {
                Ok(service)
            } else {
                Err(ApiError::Starting)
            }
        })
    }
}
