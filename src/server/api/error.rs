//! Every way a request can fail, and what it says of itself: status, code, and whether it happened (I5).

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::sequence::{NameError, Refusal, SettingsError};
use crate::server::batcher::SubmitError;
use crate::server::consensus::ReadError;
use crate::wire::{Problem, ProblemOutcome};

/// Why a request was not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ApiError {
    #[error("there is nothing at this path")]
    UnknownPath,
    #[error("the path has no such method")]
    MethodNotAllowed,
    #[error(transparent)]
    InvalidName(NameError),
    #[error("count {count} is not 1 to {max}", max = u32::MAX)]
    InvalidCount { count: String },
    #[error("the count is given twice, in the query and in the body")]
    CountTwice,
    #[error("the query is not understood: {reason}")]
    InvalidQuery { reason: String },
    #[error("the body is not understood: {reason}")]
    InvalidBody { reason: String },
    #[error("the body has an {reason}")]
    UnknownField { reason: String },
    #[error(transparent)]
    InvalidSettings(SettingsError),
    #[error("{field} is out of bounds: {limit}")]
    OutOfBounds {
        field: &'static str,
        limit: &'static str,
    },
    #[error("{setting} is not supported by this version")]
    UnsupportedSetting { setting: &'static str },
    #[error("the body has more than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error(transparent)]
    Refused(Refusal),
    #[error("this node is starting: it has not caught up with the cluster yet")]
    Starting,
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// What is fixed for a kind of error.
struct Kind {
    status: StatusCode,
    code: &'static str,
    outcome: ProblemOutcome,
    hint: &'static str,
}

impl ApiError {
    fn kind(&self) -> Kind {
        let refused = |status, code, hint| Kind {
            status,
            code,
            outcome: ProblemOutcome::NotApplied,
            hint,
        };
        match self {
            Self::UnknownPath => refused(
                StatusCode::NOT_FOUND,
                "unknown_path",
                "sequences are at /v1/sequences/NAME",
            ),
            Self::MethodNotAllowed => refused(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "the Allow header names the path's methods",
            ),
            Self::InvalidName(_) => refused(
                StatusCode::BAD_REQUEST,
                "invalid_name",
                "rename the sequence: it starts with a letter or digit and has at most 128 characters",
            ),
            Self::InvalidCount { .. } | Self::CountTwice => refused(
                StatusCode::BAD_REQUEST,
                "invalid_count",
                "give the count once, as ?count=N or {\"count\":N}",
            ),
            Self::InvalidQuery { .. } => refused(
                StatusCode::BAD_REQUEST,
                "invalid_query",
                "correct the query and send it again",
            ),
            Self::InvalidBody { .. } | Self::InvalidSettings(_) | Self::OutOfBounds { .. } => {
                refused(
                    StatusCode::BAD_REQUEST,
                    "invalid_body",
                    "correct the body and send it again",
                )
            }
            Self::UnknownField { .. } => refused(
                StatusCode::BAD_REQUEST,
                "unknown_field",
                "remove or correct the field's name",
            ),
            Self::UnsupportedSetting { .. } => refused(
                StatusCode::BAD_REQUEST,
                "unsupported_setting",
                "leave it out",
            ),
            Self::BodyTooLarge { .. } => refused(
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_large",
                "send a smaller body",
            ),
            Self::Refused(refusal) => refusal_kind(refusal),
            Self::Starting => refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "starting",
                "ask another node, or this one when /readyz is 200",
            ),
            Self::Submit(error) => submit_kind(*error),
            Self::Read(_) => refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "no_leader",
                "repeat the read; if it lasts, look for a quorum of nodes",
            ),
        }
    }
}

fn refusal_kind(refusal: &Refusal) -> Kind {
    let (status, code, hint) = match refusal {
        Refusal::UnknownSequence => (
            StatusCode::NOT_FOUND,
            "unknown_sequence",
            "check the name, or create the sequence with PUT /v1/sequences/NAME",
        ),
        Refusal::SequenceExists => (
            StatusCode::CONFLICT,
            "sequence_exists",
            "GET the sequence to see its settings, or use another name",
        ),
        Refusal::LeaseTooLarge { .. } => (
            StatusCode::BAD_REQUEST,
            "invalid_count",
            "lease less, more often",
        ),
        Refusal::Exhausted { .. } => (
            StatusCode::CONFLICT,
            "exhausted",
            "lease what is left, or move to a sequence with a larger max_value",
        ),
        Refusal::AboveMaximum { .. } => (
            StatusCode::CONFLICT,
            "above_max_value",
            "advance to max_value at most",
        ),
    };
    Kind {
        status,
        code,
        outcome: ProblemOutcome::NotApplied,
        hint,
    }
}

fn submit_kind(error: SubmitError) -> Kind {
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    let (status, code, outcome, hint) = match error {
        SubmitError::Overloaded | SubmitError::Crowded => (
            unavailable,
            "overloaded",
            ProblemOutcome::NotApplied,
            "send it again after a pause; lease more values at once to send fewer requests",
        ),
        SubmitError::NoLeader => (
            unavailable,
            "no_leader",
            ProblemOutcome::NotApplied,
            "send it again; if it lasts, look for a quorum of nodes",
        ),
        SubmitError::DiskFull => (
            unavailable,
            "disk_full",
            ProblemOutcome::NotApplied,
            "free space on the nodes' disks: grants resume by themselves",
        ),
        SubmitError::DiskStuck => (
            unavailable,
            "disk_stuck",
            ProblemOutcome::NotApplied,
            "send it again to another node; look at this node's disk",
        ),
        SubmitError::Stopping => (
            unavailable,
            "draining",
            ProblemOutcome::NotApplied,
            "send it again to another node",
        ),
        SubmitError::TimedOut | SubmitError::LeaderLost => (
            StatusCode::GATEWAY_TIMEOUT,
            if error == SubmitError::TimedOut {
                "timed_out"
            } else {
                "leader_lost"
            },
            ProblemOutcome::Unknown,
            "lease again: should the lost request have been applied, its values are a gap and nobody else's",
        ),
    };
    Kind {
        status,
        code,
        outcome,
        hint,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let kind = self.kind();
        let request_id = format!("{:016x}", rand::random::<u64>());
        let retryable = kind.status.is_server_error();
        if retryable {
            tracing::debug!(%request_id, error = %self, "request not served");
        }
        let problem = Problem {
            kind: format!("urn:highwater:problem:{}", kind.code),
            title: kind.code.replace('_', " "),
            status: kind.status.as_u16(),
            detail: self.to_string(),
            code: kind.code.to_owned(),
            outcome: kind.outcome,
            retryable,
            request_id,
            hint: kind.hint.to_owned(),
        };
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (kind.status, Body::from(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if kind.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_error_never_happened_and_a_server_error_says_whether_it_did() {
        let errors = [
            ApiError::Starting,
            ApiError::Submit(SubmitError::Overloaded),
            ApiError::Submit(SubmitError::Crowded),
            ApiError::Submit(SubmitError::NoLeader),
            ApiError::Submit(SubmitError::DiskFull),
            ApiError::Submit(SubmitError::DiskStuck),
            ApiError::Submit(SubmitError::Stopping),
            ApiError::Submit(SubmitError::TimedOut),
            ApiError::Submit(SubmitError::LeaderLost),
            ApiError::Read(ReadError::NoLeader),
            ApiError::Refused(Refusal::SequenceExists),
            ApiError::UnknownPath,
        ];
        for error in errors {
            let kind = error.kind();
            let unknown = kind.outcome == ProblemOutcome::Unknown;
            assert_eq!(
                unknown,
                kind.status == StatusCode::GATEWAY_TIMEOUT,
                "I5: {error:?}"
            );
        }
    }
}
