//! `/v1/sequences/{name}`: create, show, advance.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::Api;
use super::error::ApiError;
use super::extract::{Name, Options, Timeout, read_json, refuse_request_key};
use super::leases::mismatched;
use crate::sequence::{Command, Outcome, RangeCount, Refusal, Sequence, SequenceName, Settings};
use crate::wire::{AdvanceBody, AdvancedBody, CreateBody, Number, Object, SequenceBody};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plain {
    #[serde(default)]
    pub(super) timeout: Timeout,
}

pub(super) async fn create(
    State(api): State<Api>,
    Name(sequence): Name,
    Options(options): Options<Plain>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let deadline = options.timeout.deadline();
    let service = api.service()?;
    refuse_request_key(&headers)?;
    let body: Option<Object<CreateBody>> = read_json(&headers, body).await?;
    let settings = settings(&body.map(|Object(body)| body).unwrap_or_default())?;
    let command = Command::Create {
        sequence: sequence.clone(),
        settings,
    };
    match service.batcher.submit(command, deadline).await?.outcome {
        Outcome::Created {
            fresh,
            sequence: created,
        } => {
            let status = if fresh {
                StatusCode::CREATED
            } else {
                StatusCode::OK
            };
            Ok((status, Json(describe(sequence, &created))).into_response())
        }
        Outcome::Refused(refusal) => Err(ApiError::Refused(refusal)),
        _ => Err(mismatched()),
    }
}

pub(super) async fn show(
    State(api): State<Api>,
    Name(sequence): Name,
    Options(options): Options<Plain>,
) -> Result<Json<SequenceBody>, ApiError> {
    let deadline = options.timeout.deadline();
    let service = api.service()?;
    service.consensus.linearize(deadline).await?;
    let table = service.consensus.tables().table();
    let found = table.get(&sequence);
    let found = found.ok_or(ApiError::Refused(Refusal::UnknownSequence))?;
    Ok(Json(describe(sequence, found)))
}

pub(super) async fn advance(
    State(api): State<Api>,
    Name(sequence): Name,
    Options(options): Options<Plain>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<AdvancedBody>, ApiError> {
    let deadline = options.timeout.deadline();
    let service = api.service()?;
    refuse_request_key(&headers)?;
    let body: Option<Object<AdvanceBody>> = read_json(&headers, body).await?;
    let Object(body) = body.ok_or_else(|| ApiError::InvalidBody {
        reason: "missing field `to`".to_owned(),
    })?;
    let to = bounded(body.to, "to", "0 to 2^64 - 1")?;
    let command = Command::Advance {
        sequence: sequence.clone(),
        to,
    };
    match service.batcher.submit(command, deadline).await?.outcome {
        Outcome::Advanced {
            previous,
            high,
            id_form,
        } => {
            let number = |value: u64| Number::new(value, id_form);
            Ok(Json(AdvancedBody {
                sequence,
                previous: previous.map(number),
                high: high.map(number),
                changed: previous != high,
            }))
        }
        Outcome::Refused(refusal) => Err(ApiError::Refused(refusal)),
        _ => Err(mismatched()),
    }
}

fn settings(body: &CreateBody) -> Result<Settings, ApiError> {
    let default = Settings::default();
    let value = |number: Option<Number>, field, otherwise| match number {
        Some(number) => bounded(number, field, "0 to 2^64 - 1"),
        None => Ok(otherwise),
    };
    if value(body.cache, "cache", 0)? != 0 {
        return Err(ApiError::UnsupportedSetting {
            setting: "a cache other than 0",
        });
    }
    let max_lease = value(
        body.max_lease,
        "max_lease",
        default.max_lease().get().into(),
    )?;
    let max_lease =
        RangeCount::try_from(max_lease).map_err(|_out_of_bounds| ApiError::OutOfBounds {
            field: "max_lease",
            limit: "1 to 2^32 - 1",
        })?;
    let start = value(body.start, "start", default.start())?;
    let increment = value(body.increment, "increment", default.increment().get())?;
    let max_value = value(body.max_value, "max_value", default.max_value())?;
    Settings::new(start, increment, max_value, max_lease).map_err(ApiError::InvalidSettings)
}

fn bounded(number: Number, field: &'static str, limit: &'static str) -> Result<u64, ApiError> {
    number.get().ok_or(ApiError::OutOfBounds { field, limit })
}

fn describe(name: SequenceName, sequence: &Sequence) -> SequenceBody {
    let settings = &sequence.settings;
    let form = settings.id_form();
    let number = |value: u64| Number::new(value, form);
    let remaining = settings.remaining_above(sequence.high);
    SequenceBody {
        sequence: name,
        start: number(settings.start()),
        increment: number(settings.increment().get()),
        max_value: number(settings.max_value()),
        cache: settings.cache(),
        max_lease: settings.max_lease().get(),
        high: sequence.high.map(number),
        next: settings.next_above(sequence.high).map(number),
        remaining: Number::new(remaining, form),
        used_ratio: used_ratio(remaining, settings.remaining_above(None)),
        retired: sequence.retired,
        index: sequence.last_grant_index,
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a ratio for people: 53 bits are plenty"
)]
fn used_ratio(remaining: u128, all: u128) -> f64 {
    if all == 0 {
        1.0
    } else {
        (all - remaining) as f64 / all as f64
    }
}
