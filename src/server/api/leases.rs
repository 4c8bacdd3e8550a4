//! `POST /v1/sequences/{name}/leases`: the request that everything else is for.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::error::ApiError;
use super::extract::{Name, Options, Timeout, read_json, refuse_request_key, wants_text};
use super::{Api, Service};
use crate::sequence::{Command, Grant, IdForm, Outcome, Range, RangeCount, SequenceName};
use crate::server::batcher::{Committed, SubmitError};
use crate::server::types::LogId;
use crate::wire::{GrantBody, LeaseBody, Number, Object};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeaseOptions {
    count: Option<String>,
    #[serde(default)]
    timeout: Timeout,
}

pub(super) async fn lease(
    State(api): State<Api>,
    Name(sequence): Name,
    Options(options): Options<LeaseOptions>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let deadline = options.timeout.deadline();
    let service = api.service()?;
    refuse_request_key(&headers)?;
    let body: Option<Object<LeaseBody>> = read_json(&headers, body).await?;
    let count = count(options.count, body.and_then(|Object(body)| body.count))?;
    let command = Command::Grant {
        sequence: sequence.clone(),
        count,
    };
    let Committed { outcome, log_id } = service.batcher.submit(command, deadline).await?;
    match outcome {
        Outcome::Granted(Grant { range, .. }) if wants_text(&headers) => {
            let text = format!("{} {}\n", range.first(), range.last());
            Ok((StatusCode::CREATED, text).into_response())
        }
        Outcome::Granted(Grant { range, id_form }) => {
            let grant = Granted {
                sequence,
                range,
                count,
                id_form,
                log_id,
            };
            Ok((StatusCode::CREATED, Json(grant.body(&service))).into_response())
        }
        Outcome::Refused(refusal) => Err(ApiError::Refused(refusal)),
        _ => Err(mismatched()),
    }
}

struct Granted {
    sequence: SequenceName,
    range: Range,
    count: RangeCount,
    id_form: IdForm,
    log_id: LogId,
}

impl Granted {
    fn body(self, service: &Service) -> GrantBody {
        let number = |value: u64| Number::new(value, self.id_form);
        GrantBody {
            first: number(self.range.first()),
            last: number(self.range.last()),
            count: self.count.get(),
            increment: number(self.range.increment().get()),
            epoch: service.epoch(),
            cluster: service.cluster.to_string(),
            term: self.log_id.committed_leader_id().term,
            index: self.log_id.index(),
            sequence: self.sequence,
        }
    }
}

/// The count of the query or of the body; one where neither names it.
fn count(query: Option<String>, body: Option<Number>) -> Result<RangeCount, ApiError> {
    let refuse = |count| Err(ApiError::InvalidCount { count });
    let given = match (query, body) {
        (Some(_), Some(_)) => return Err(ApiError::CountTwice),
        (None, None) => return Ok(RangeCount::ONE),
        (Some(text), None) => match parse_digits(&text) {
            Some(count) => count,
            None => return refuse(format!("{text:?}")),
        },
        (None, Some(number)) => match number.get() {
            Some(count) => count,
            None => return refuse(number.to_string()),
        },
    };
    RangeCount::try_from(given).or_else(|_out_of_bounds| refuse(given.to_string()))
}

fn parse_digits(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// An outcome of another command's kind. The outcomes of an entry are in the order of its commands, so this
/// cannot be; if it were, nobody would know what happened.
pub(super) fn mismatched() -> ApiError {
    tracing::error!("a command was answered with another command's outcome");
    ApiError::Submit(SubmitError::LeaderLost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: u64) -> Option<Number> {
        Some(Number::new(value, IdForm::Number))
    }

    #[test]
    fn the_count_is_in_the_query_or_in_the_body_or_one() {
        assert_eq!(count(None, None), Ok(RangeCount::ONE));
        assert_eq!(
            count(Some("7".to_owned()), None),
            Ok(RangeCount::constant(7))
        );
        assert_eq!(count(None, number(7)), Ok(RangeCount::constant(7)));
        assert_eq!(
            count(Some("7".to_owned()), number(7)),
            Err(ApiError::CountTwice)
        );
    }

    #[test]
    fn a_count_that_is_none_is_refused_by_its_own_text() {
        for text in ["0", "4294967296", "9007199254740993"] {
            let error = count(Some(text.to_owned()), None).unwrap_err();

            assert_eq!(
                error.to_string(),
                format!("count {text} is not 1 to 4294967295")
            );
        }
        for text in ["", "-1", "+1", "1.5", "1e3", "x", "18446744073709551616"] {
            let error = count(Some(text.to_owned()), None).unwrap_err();

            assert_eq!(
                error.to_string(),
                format!("count {text:?} is not 1 to 4294967295")
            );
        }
        let largest = Number::new(1_u128 << 64, IdForm::Text);
        let error = count(None, Some(largest)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "count 18446744073709551616 is not 1 to 4294967295"
        );
        let error = count(None, number(0)).unwrap_err();
        assert_eq!(error.to_string(), "count 0 is not 1 to 4294967295");
    }
}
