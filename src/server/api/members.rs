//! `/v1/cluster/members`: who the members are, and what changes that.

use axum::Json;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;

use super::Api;
use super::cluster::{StatusOptions, survey};
use super::error::ApiError;
use super::extract::{Consistency, NoBody, Options, Write};
use super::json::Object;
use super::leases::mismatched;
use crate::sequence::{Command, FeatureLevel, NodeCard, Outcome};
use crate::server::batcher::SubmitError;
use crate::server::consensus::{MemberChange, MemberDone};
use crate::server::types::{Address, Incarnation, NodeId};
use crate::wire::{
    AdmitBody, AdmittedBody, AdmittedMemberBody, MemberChangedBody, MembersBody, ReplaceBody,
};

/// The member in the path.
pub(super) struct Id(NodeId);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Ok(Path(text)) = Path::<String>::from_request_parts(parts, state).await else {
            return Err(ApiError::UnknownPath);
        };
        text.parse()
            .map(Self)
            .map_err(|_not_digits| ApiError::InvalidNodeId { text })
    }
}

pub(super) async fn list(
    State(api): State<Api>,
    Options(options): Options<StatusOptions>,
) -> Result<Json<MembersBody>, ApiError> {
    let service = api.running()?;
    let members = survey(&service, options.timeout.deadline()).await?.members;
    Ok(Json(MembersBody { members }))
}

/// Gives a node its id. It becomes a learner as soon as the leader sees it.
pub(super) async fn admit(
    write: Write<StatusOptions, Object<AdmitBody>>,
) -> Result<Json<AdmittedBody>, ApiError> {
    write.refuse_key()?;
    let node = card(&write.body.0)?;
    let service = &write.service;
    // Its copy would have to be given to it, and it could not read that.
    let table = service.read(Consistency::Linearizable, write.deadline);
    level_max(&write.body.0)?.check(table.await?.header().level)?;
    let command = Command::Admit { node };
    let committed = service.submit(command, write.deadline).await?;
    let id = match committed.outcome {
        Outcome::Admitted { id } => id,
        Outcome::Refused(refusal) => return Err(ApiError::Refused(refusal)),
        _ => return Err(mismatched()),
    };
    let table = service.read(Consistency::Linearizable, write.deadline);
    // It has its id already, whatever hinders the read (I5).
    let table = table.await.map_err(|_unread| SubmitError::TimedOut)?;
    let members = table.nodes().iter().filter(|(_, node)| node.member);
    Ok(Json(AdmittedBody {
        id,
        cluster: service.cluster.to_string(),
        members: members
            .map(|(id, node)| AdmittedMemberBody {
                id: *id,
                incarnation: Incarnation::from_bits(node.card.incarnation).to_string(),
                api: node.card.api.clone(),
                peer: node.card.peer.clone(),
            })
            .collect(),
    }))
}

pub(super) async fn promote(
    Id(node): Id,
    write: Write<StatusOptions, NoBody>,
) -> Result<Json<MemberChangedBody>, ApiError> {
    change(&write, MemberChange::Promote { node }).await
}

pub(super) async fn demote(
    Id(node): Id,
    write: Write<StatusOptions, NoBody>,
) -> Result<Json<MemberChangedBody>, ApiError> {
    change(&write, MemberChange::Demote { node }).await
}

pub(super) async fn remove(
    Id(node): Id,
    write: Write<StatusOptions, NoBody>,
) -> Result<Json<MemberChangedBody>, ApiError> {
    change(&write, MemberChange::Remove { node }).await
}

pub(super) async fn replace(
    Id(old): Id,
    write: Write<StatusOptions, Option<Object<ReplaceBody>>>,
) -> Result<Json<MemberChangedBody>, ApiError> {
    // Who comes has no default.
    let Some(Object(body)) = &write.body else {
        return Err(ApiError::InvalidBody {
            reason: "missing field `with`".to_owned(),
        });
    };
    let new = NodeId::from(body.with);
    if new == old {
        return Err(ApiError::InvalidBody {
            reason: format!("node {old} cannot replace itself"),
        });
    }
    change(&write, MemberChange::Replace { old, new }).await
}

async fn change<B>(
    write: &Write<StatusOptions, B>,
    change: MemberChange,
) -> Result<Json<MemberChangedBody>, ApiError> {
    write.refuse_key()?;
    let consensus = &write.service.consensus;
    let done = consensus.change_member(change, write.deadline).await?;
    let changed = done == MemberDone::Changed;
    Ok(Json(MemberChangedBody { changed }))
}

fn level_max(body: &AdmitBody) -> Result<FeatureLevel, ApiError> {
    let number = body.feature_level_max.unwrap_or(FeatureLevel::FIRST.get());
    FeatureLevel::from_number(number).ok_or_else(|| ApiError::InvalidBody {
        reason: "feature_level_max is 0, and the first level is 1".to_owned(),
    })
}

fn card(body: &AdmitBody) -> Result<NodeCard, ApiError> {
    let address = |text: &str| match text.parse::<Address>() {
        Ok(address) if address.port() != 0 => Ok(address.to_string()),
        Ok(_) => Err(ApiError::InvalidBody {
            reason: format!("{text:?} has port 0, which nobody can call"),
        }),
        Err(error) => Err(ApiError::InvalidBody {
            reason: error.to_string(),
        }),
    };
    let incarnation: Incarnation =
        body.incarnation
            .parse()
            .map_err(|error| ApiError::InvalidBody {
                reason: format!("{error}"),
            })?;
    Ok(NodeCard {
        incarnation: incarnation.bits(),
        api: address(&body.api)?,
        peer: address(&body.peer)?,
    })
}
