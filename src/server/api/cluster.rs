//! `/v1/cluster`, `/livez` and `/readyz`: how the node and its cluster are.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use tokio::time::Instant;

use super::error::ApiError;
use super::extract::{Options, Timeout, Write, WriteOptions};
use super::json::Object;
use super::{Api, Service};
use crate::server::consensus::{ClusterView, MemberView};
use crate::server::store::DiskState;
use crate::server::types::{LogId, NodeId};
use crate::wire::{ClusterBody, MemberBody, MemberRole, TransferBody, TransferredBody};

/// How long the members are waited for: longer than a slow sync, shorter than a person's patience.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatusOptions {
    #[serde(default)]
    pub(super) timeout: Timeout,
}

impl WriteOptions for StatusOptions {
    fn timeout(&self) -> Timeout {
        self.timeout
    }
}

pub(super) async fn show(
    State(api): State<Api>,
    Options(options): Options<StatusOptions>,
) -> Result<Json<ClusterBody>, ApiError> {
    let deadline = options.timeout.deadline();
    let service = api.running()?;
    Ok(Json(survey(&service, deadline).await?))
}

/// The cluster as its members say it is just now.
pub(super) async fn survey(service: &Service, deadline: Instant) -> Result<ClusterBody, ApiError> {
    let latest = deadline.min(Instant::now() + SURVEY_TIMEOUT);
    let view = service.consensus.cluster(latest).await?;
    Ok(describe(service, view))
}

/// Has whoever leads hand over to the named voter, or to whichever is fit.
pub(super) async fn transfer_leader(
    write: Write<StatusOptions, Object<TransferBody>>,
) -> Result<Json<TransferredBody>, ApiError> {
    write.refuse_key()?;
    let to = write.body.0.to.map(NodeId::from);
    let leader = write
        .service
        .consensus
        .hand_over(to, write.deadline)
        .await?;
    Ok(Json(TransferredBody {
        leader: leader.get(),
    }))
}

/// 200 as long as the process serves HTTP; a dead Raft ends the process.
pub(super) async fn live() -> &'static str {
    "ok\n"
}

/// 200 where a request sent now would be served by a leader with a quorum, and this node's disk takes its part in it.
pub(super) async fn ready(State(api): State<Api>) -> (StatusCode, &'static str) {
    let unready = |why| (StatusCode::SERVICE_UNAVAILABLE, why);
    let Ok(service) = api.service() else {
        return unready("starting\n");
    };
    if service.stopping.is_cancelled() {
        return unready("draining\n");
    }
    match service.consensus.disk().state() {
        // First, because it keeps the node from hearing of its leader.
        DiskState::Stuck => unready("disk does not answer\n"),
        _ if !service.consensus.in_touch() => unready("no leader\n"),
        DiskState::Full => unready("disk full\n"),
        DiskState::Fit if !service.batcher.has_session() => unready("starting\n"),
        DiskState::Fit => (StatusCode::OK, "ok\n"),
    }
}

fn describe(service: &Service, view: ClusterView) -> ClusterBody {
    let leader = view.leader;
    let voters = view.members.values().filter(|member| member.votes).count();
    let reachable = view
        .members
        .values()
        .filter(|member| member.votes && member.reachable == Some(true))
        .count();
    let quorum = voters / 2 + 1;
    let spare = u64::try_from(reachable.saturating_sub(quorum)).unwrap_or(u64::MAX);
    ClusterBody {
        cluster: service.cluster.to_string(),
        epoch: service.epoch(),
        node: service.consensus.node().get(),
        leader: leader.map(NodeId::get),
        term: view.term,
        members: view
            .members
            .into_iter()
            .map(|(id, member)| describe_member(id, leader, member))
            .collect(),
        tolerates_loss_of: leader.map(|_| spare),
        feature_level: service.consensus.level().get(),
    }
}

fn describe_member(id: NodeId, leader: Option<NodeId>, view: MemberView) -> MemberBody {
    let role = match (leader == Some(id), view.votes) {
        (true, _) => MemberRole::Leader,
        (false, true) => MemberRole::Follower,
        (false, false) => MemberRole::Learner,
    };
    let log = view.status.as_ref().map(|status| status.log);
    MemberBody {
        id: id.get(),
        role,
        incarnation: view.member.incarnation.to_string(),
        api: view.member.api.to_string(),
        peer: view.member.peer.to_string(),
        reachable: view.reachable,
        match_index: view.matched,
        lag: view.lag(),
        applied_index: view
            .status
            .as_ref()
            .and_then(|status| Some(LogId::from(status.applied?).index())),
        state_hash: view
            .status
            .as_ref()
            .map(|status| status.state_hash.to_string()),
        log_entries: log.map(|log| log.entries),
        log_bytes: log.map(|log| log.bytes),
        log_bytes_appended: log.map(|log| log.appended_bytes),
        snapshot_index: log.and_then(|log| log.snapshot_index),
        feature_level_max: view.status.as_ref().map(|status| status.level_max.get()),
        version: view.status.map(|status| status.version),
    }
}
