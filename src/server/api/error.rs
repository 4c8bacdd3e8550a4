//! Every way a request can fail, and what it says of itself: status, code, and whether it happened (I5).

mod cluster;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use self::cluster::{hand_over_kind, level_kind, members_kind, older_node_kind};
use super::backup::BACKUPS_MAX;
use super::bodies::{ANSWERS_BYTES_MAX, BODIES_BYTES_MAX};
use crate::sequence::{
    GrantPartsError, ImportPartsError, LaterLevel, NameError, Refusal, SettingsError,
};
use crate::server::batcher::SubmitError;
use crate::server::consensus::{HandOverError, LevelError, MemberError, ReadError};
use crate::wire::{IDEMPOTENCY_KEY_BYTES_MAX, Problem, ProblemOutcome};

/// The longest detail, in characters.
const DETAIL_CHARS_MAX: usize = 500;

/// Why a request was not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ApiError {
    #[error("there is nothing at this path")]
    UnknownPath,
    #[error("the path has no such method")]
    MethodNotAllowed,
    #[error(transparent)]
    InvalidName(NameError),
    #[error("a sequence name is not UTF-8: use letters, digits, '.', '_', ':' or '-'")]
    NameEncoding,
    #[error("the request has {count} Host headers: HTTP/1.1 has exactly one")]
    Hosts { count: usize },
    #[error("count {} is not 1 to {max}", shown(count), max = u32::MAX)]
    InvalidCount { count: String },
    #[error("the count is given twice, in the query and in the body")]
    CountTwice,
    #[error(
        "a request key is one Idempotency-Key header of 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters"
    )]
    InvalidKey,
    #[error("this request takes no Idempotency-Key: repeated, it changes nothing more anyway")]
    NoKey,
    #[error("the query is not understood: {reason}")]
    InvalidQuery { reason: String },
    #[error("the body is not understood: {reason}")]
    InvalidBody { reason: String },
    #[error("the body is not understood: {reason}")]
    NoCount { reason: String },
    #[error("the body has an {reason}")]
    UnknownField { reason: String },
    #[error(transparent)]
    InvalidSettings(SettingsError),
    #[error(transparent)]
    InvalidLeases(GrantPartsError),
    #[error(transparent)]
    InvalidImport(ImportPartsError),
    #[error("no setting is named: name max_value, cache or max_lease")]
    NothingToAlter,
    #[error("{field} is out of bounds: {limit}")]
    OutOfBounds {
        field: &'static str,
        limit: &'static str,
    },
    #[error("the body is not read: {reason}")]
    UnsupportedMediaType { reason: String },
    #[error("the body has more than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("large bodies of {BODIES_BYTES_MAX} bytes are on their way to this node already")]
    BodiesFull,
    #[error("large answers of {ANSWERS_BYTES_MAX} bytes are on their way from this node already")]
    AnswersFull,
    #[error("{BACKUPS_MAX} backups are being sent by this node already")]
    BackupsFull,
    #[error(transparent)]
    Refused(Refusal),
    /// In a list of leases, of which none happened, or of sequences.
    #[error("at position {position}: {error}")]
    At { position: u32, error: Box<Self> },
    #[error("this node is starting: it has not caught up with the cluster yet")]
    Starting,
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    HandOver(#[from] HandOverError),
    #[error("{text:?} is no node id: it is a whole number")]
    InvalidNodeId { text: String },
    #[error(transparent)]
    Members(#[from] MemberError),
    #[error(transparent)]
    Level(#[from] LevelError),
    /// Of a node that wants to join.
    #[error(transparent)]
    OlderNode(#[from] LaterLevel),
}

/// What is fixed for a kind of error.
struct Kind {
    status: StatusCode,
    code: &'static str,
    outcome: ProblemOutcome,
    hint: &'static str,
}

impl ApiError {
    /// The same, where it is known of which of a list.
    pub(super) fn at(self, position: Option<u32>) -> Self {
        match position {
            Some(position) => Self::At {
                position,
                error: Box::new(self),
            },
            None => self,
        }
    }

    /// The same of a request that has only one part.
    pub(super) fn without_position(self) -> Self {
        match self {
            Self::At { error, .. } => *error,
            error => error,
        }
    }

    /// What became of the request.
    pub(super) fn outcome(&self) -> ProblemOutcome {
        self.kind().outcome
    }

    fn position(&self) -> Option<u32> {
        match self {
            Self::At { position, .. } => Some(*position),
            _ => None,
        }
    }

    fn kind(&self) -> Kind {
        let wrong = |code, hint| refused(StatusCode::BAD_REQUEST, code, hint);
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
            Self::Hosts { .. } => wrong("invalid_request", "send one Host header"),
            Self::InvalidName(_) | Self::NameEncoding => wrong(
                "invalid_name",
                "rename the sequence: it starts with a letter or digit and has at most 128 characters",
            ),
            Self::InvalidCount { .. } | Self::NoCount { .. } | Self::CountTwice => wrong(
                "invalid_count",
                "give the count once, as ?count=N or {\"count\":N}",
            ),
            Self::InvalidKey | Self::NoKey => {
                wrong("invalid_key", "correct the key, or leave it out")
            }
            Self::InvalidQuery { .. } => {
                wrong("invalid_query", "correct the query and send it again")
            }
            Self::InvalidBody { .. }
            | Self::InvalidSettings(_)
            | Self::InvalidLeases(_)
            | Self::InvalidImport(_)
            | Self::NothingToAlter
            | Self::OutOfBounds { .. } => {
                wrong("invalid_body", "correct the body and send it again")
            }
            Self::UnknownField { .. } => {
                wrong("unknown_field", "remove or correct the field's name")
            }
            Self::UnsupportedMediaType { .. } => refused(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "send JSON as it is, with content type application/json",
            ),
            Self::BodyTooLarge { .. } => refused(
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_large",
                "send a smaller body",
            ),
            Self::BodiesFull | Self::AnswersFull | Self::BackupsFull => overloaded(),
            Self::Refused(refusal) => refusal_kind(refusal),
            Self::At { error, .. } => error.kind(),
            Self::Starting => unavailable(
                "starting",
                "ask another node, or this one when /readyz is 200",
            ),
            Self::Submit(error) => submit_kind(*error),
            Self::HandOver(error) => hand_over_kind(error),
            Self::InvalidNodeId { .. } => wrong(
                "invalid_node_id",
                "GET /v1/cluster/members to see the members",
            ),
            Self::Members(error) => members_kind(error),
            Self::Level(error) => level_kind(error),
            Self::OlderNode(_) => older_node_kind(),
            Self::Read(error) => read_kind(error),
        }
    }
}

fn read_kind(error: &ReadError) -> Kind {
    match error {
        ReadError::Crowded => overloaded(),
        ReadError::NoLeader | ReadError::Stopped => unavailable(
            "no_leader",
            "repeat the read; if it lasts, look for a quorum of nodes",
        ),
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
        Refusal::Retired => (
            StatusCode::GONE,
            "retired",
            "use another sequence, or create this one again with PUT /v1/sequences/NAME",
        ),
        Refusal::ImmutableSetting { .. } | Refusal::FormFixed { .. } => (
            StatusCode::CONFLICT,
            "immutable_setting",
            "leave it out, or create another sequence with the settings you need",
        ),
        Refusal::BelowGranted { .. } => (
            StatusCode::CONFLICT,
            "below_granted",
            "GET the sequence to see its high-water mark",
        ),
        Refusal::BelowStart { .. } => (
            StatusCode::BAD_REQUEST,
            "invalid_body",
            "correct the body and send it again",
        ),
        Refusal::TooManySequences { .. } => (
            StatusCode::CONFLICT,
            "too_many_sequences",
            "use a sequence that is there: the marks of retired ones are kept for ever",
        ),
        Refusal::KeyReused => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "key_reused",
            "make a new key for each request, and repeat it only with the same request",
        ),
        Refusal::TooManyKeys { .. } | Refusal::WindowClosed => return overloaded(),
        Refusal::TooManyNodes { .. } => (
            StatusCode::CONFLICT,
            "too_many_nodes",
            "remove a node that is not needed, with DELETE /v1/cluster/members/ID",
        ),
    };
    refused(status, code, hint)
}

/// It changed nothing.
fn refused(status: StatusCode, code: &'static str, hint: &'static str) -> Kind {
    Kind {
        status,
        code,
        outcome: ProblemOutcome::NotApplied,
        hint,
    }
}

/// It changed nothing, and may be served later.
fn unavailable(code: &'static str, hint: &'static str) -> Kind {
    refused(StatusCode::SERVICE_UNAVAILABLE, code, hint)
}

/// It may have happened, or may still happen.
fn lost(code: &'static str, hint: &'static str) -> Kind {
    Kind {
        status: StatusCode::GATEWAY_TIMEOUT,
        code,
        outcome: ProblemOutcome::Unknown,
        hint,
    }
}

fn overloaded() -> Kind {
    unavailable(
        "overloaded",
        "send it again after a pause; lease more values at once to send fewer requests",
    )
}

fn submit_kind(error: SubmitError) -> Kind {
    const LEASE_AGAIN: &str = "lease again: should the lost request have been applied, its values are a gap and nobody else's";
    match error {
        SubmitError::Overloaded | SubmitError::Crowded => overloaded(),
        SubmitError::NoLeader => unavailable(
            "no_leader",
            "send it again; if it lasts, look for a quorum of nodes",
        ),
        SubmitError::DiskFull => unavailable(
            "disk_full",
            "free space on the nodes' disks: grants resume by themselves",
        ),
        SubmitError::DiskStuck => unavailable(
            "disk_stuck",
            "send it again to another node; look at this node's disk",
        ),
        SubmitError::Stopping => unavailable("draining", "send it again to another node"),
        SubmitError::TimedOut => lost("timed_out", LEASE_AGAIN),
        SubmitError::LeaderLost => lost("leader_lost", LEASE_AGAIN),
    }
}

/// Digits as they are, anything else so that it can be seen where it begins and ends.
fn shown(count: &str) -> String {
    let digits = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    if digits {
        count.to_owned()
    } else {
        format!("{count:?}")
    }
}

/// What is wrong stands in front; what is quoted from the request may be as long as a body.
fn shortened(text: String) -> String {
    match text.char_indices().nth(DETAIL_CHARS_MAX) {
        None => text,
        Some((end, _)) => format!("{}…", text.split_at(end).0),
    }
}

impl ApiError {
    /// What a client is told.
    pub(super) fn problem(&self) -> Problem {
        let kind = self.kind();
        let request_id = format!("{:016x}", rand::random::<u64>());
        let retryable = kind.status.is_server_error();
        if retryable {
            tracing::debug!(%request_id, error = %self, "request not served");
        }
        Problem {
            kind: format!("urn:highwater:problem:{}", kind.code),
            title: kind.code.replace('_', " "),
            status: kind.status.as_u16(),
            detail: shortened(self.to_string()),
            position: self.position(),
            code: kind.code.to_owned(),
            outcome: kind.outcome,
            retryable,
            request_id,
            hint: kind.hint.to_owned(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.kind().status;
        let problem = self.problem();
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (status, Body::from(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::{FixedSetting, GrantParts, IdForm, RangeCount, SequenceName, Settings};
    use crate::server::api::error::cluster::cases as cluster_cases;

    fn settings_error() -> SettingsError {
        Settings::new(9, 1, 8, RangeCount::ONE).unwrap_err()
    }

    /// An error, its status, code and text.
    pub(super) type Case = (ApiError, u16, &'static str, &'static str);

    /// Refused for its path or its query.
    fn refused_by_the_url() -> Vec<Case> {
        let reason = || "reason".to_owned();
        let name = "a/b".parse::<SequenceName>().unwrap_err();
        vec![
            (
                ApiError::UnknownPath,
                404,
                "unknown_path",
                "there is nothing at this path",
            ),
            (
                ApiError::MethodNotAllowed,
                405,
                "method_not_allowed",
                "the path has no such method",
            ),
            (
                ApiError::InvalidName(name),
                400,
                "invalid_name",
                "a sequence name has '/' at byte 1: use letters and digits, and after the first also '.', '_', ':' and '-'",
            ),
            (
                ApiError::InvalidCount {
                    count: "0".to_owned(),
                },
                400,
                "invalid_count",
                "count 0 is not 1 to 4294967295",
            ),
            (
                ApiError::CountTwice,
                400,
                "invalid_count",
                "the count is given twice, in the query and in the body",
            ),
            (
                ApiError::InvalidKey,
                400,
                "invalid_key",
                "a request key is one Idempotency-Key header of 1 to 255 visible ASCII characters",
            ),
            (
                ApiError::NoKey,
                400,
                "invalid_key",
                "this request takes no Idempotency-Key: repeated, it changes nothing more anyway",
            ),
            (
                ApiError::InvalidQuery { reason: reason() },
                400,
                "invalid_query",
                "the query is not understood: reason",
            ),
        ]
    }

    /// Refused for its body.
    fn refused_by_the_body() -> Vec<Case> {
        let reason = || "reason".to_owned();
        vec![
            (
                ApiError::InvalidBody { reason: reason() },
                400,
                "invalid_body",
                "the body is not understood: reason",
            ),
            (
                ApiError::UnknownField {
                    reason: "unknown field `x`".to_owned(),
                },
                400,
                "unknown_field",
                "the body has an unknown field `x`",
            ),
            (
                ApiError::InvalidSettings(settings_error()),
                400,
                "invalid_body",
                "max_value 8 is below start 9: no value could be granted",
            ),
            (
                ApiError::InvalidLeases(GrantParts::try_from(Vec::new()).unwrap_err()),
                400,
                "invalid_body",
                "0 leases are not 1 to 256",
            ),
            (
                ApiError::NothingToAlter,
                400,
                "invalid_body",
                "no setting is named: name max_value, cache or max_lease",
            ),
            (
                ApiError::OutOfBounds {
                    field: "to",
                    limit: "0 to 9",
                },
                400,
                "invalid_body",
                "to is out of bounds: 0 to 9",
            ),
            (
                ApiError::BodyTooLarge { limit: 7 },
                413,
                "body_too_large",
                "the body has more than 7 bytes",
            ),
        ]
    }

    /// What the table refuses. Its texts are tested beside it.
    fn refused_by_the_table() -> Vec<(Refusal, u16, &'static str)> {
        let one = RangeCount::ONE;
        vec![
            (Refusal::UnknownSequence, 404, "unknown_sequence"),
            (Refusal::TooManyNodes { limit: 16 }, 409, "too_many_nodes"),
            (Refusal::SequenceExists, 409, "sequence_exists"),
            (
                Refusal::LeaseTooLarge {
                    asked: one,
                    limit: one,
                },
                400,
                "invalid_count",
            ),
            (
                Refusal::Exhausted {
                    asked: one,
                    left: 0,
                },
                409,
                "exhausted",
            ),
            (
                Refusal::AboveMaximum {
                    to: 2,
                    max_value: 1,
                },
                409,
                "above_max_value",
            ),
            (Refusal::Retired, 410, "retired"),
            (
                Refusal::ImmutableSetting {
                    setting: FixedSetting::Start,
                    fixed: 1,
                    asked: 2,
                },
                409,
                "immutable_setting",
            ),
            (
                Refusal::FormFixed {
                    max_value: 1,
                    id_form: IdForm::Text,
                },
                409,
                "immutable_setting",
            ),
            (
                Refusal::BelowGranted {
                    max_value: 1,
                    high: 2,
                },
                409,
                "below_granted",
            ),
            (
                Refusal::BelowStart {
                    max_value: 1,
                    start: 2,
                },
                400,
                "invalid_body",
            ),
            (
                Refusal::TooManySequences { limit: 1 },
                409,
                "too_many_sequences",
            ),
        ]
    }

    /// What it refuses because of a request key.
    fn refused_by_the_keys() -> Vec<(Refusal, u16, &'static str)> {
        let (limit, seconds) = (1, 1);
        vec![
            (Refusal::KeyReused, 422, "key_reused"),
            (Refusal::TooManyKeys { limit, seconds }, 503, "overloaded"),
        ]
    }

    fn from_the_table() -> impl Iterator<Item = (Refusal, u16, &'static str)> {
        refused_by_the_table()
            .into_iter()
            .chain(refused_by_the_keys())
    }

    /// Not served, by no fault of its own.
    fn not_served() -> Vec<Case> {
        vec![
            (
                ApiError::Starting,
                503,
                "starting",
                "this node is starting: it has not caught up with the cluster yet",
            ),
            (
                ApiError::Submit(SubmitError::Overloaded),
                503,
                "overloaded",
                "4096 requests, or 8388608 bytes of them, wait at this node already",
            ),
            (
                ApiError::Submit(SubmitError::Crowded),
                503,
                "overloaded",
                "the request waited behind others until its deadline",
            ),
            (
                ApiError::Submit(SubmitError::DiskFull),
                503,
                "disk_full",
                "the leader's disk is full, and no node with room can lead",
            ),
            (
                ApiError::Submit(SubmitError::DiskStuck),
                503,
                "disk_stuck",
                "this node's disk does not answer",
            ),
            (
                ApiError::Submit(SubmitError::NoLeader),
                503,
                "no_leader",
                "no leader took the request before its deadline",
            ),
            (
                ApiError::Submit(SubmitError::Stopping),
                503,
                "draining",
                "this node is going down",
            ),
            (
                ApiError::Submit(SubmitError::TimedOut),
                504,
                "timed_out",
                "the request was sent, and its deadline passed without an answer",
            ),
            (
                ApiError::Submit(SubmitError::LeaderLost),
                504,
                "leader_lost",
                "the request was sent, and the leader was lost before it answered",
            ),
        ]
    }

    /// Reads, and what is too large together.
    fn not_read() -> Vec<Case> {
        vec![
            (
                ApiError::Read(ReadError::NoLeader),
                503,
                "no_leader",
                "no leader proved itself in time",
            ),
            (
                ApiError::Read(ReadError::Crowded),
                503,
                "overloaded",
                "the read waited behind others until its deadline",
            ),
            (
                ApiError::BodiesFull,
                503,
                "overloaded",
                "large bodies of 16777216 bytes are on their way to this node already",
            ),
            (
                ApiError::AnswersFull,
                503,
                "overloaded",
                "large answers of 33554432 bytes are on their way from this node already",
            ),
            (
                ApiError::BackupsFull,
                503,
                "overloaded",
                "2 backups are being sent by this node already",
            ),
            (
                ApiError::Read(ReadError::Stopped),
                503,
                "no_leader",
                "raft has stopped",
            ),
        ]
    }

    fn not_from_the_table() -> impl Iterator<Item = Case> {
        let cases = [
            refused_by_the_url(),
            refused_by_the_body(),
            not_served(),
            not_read(),
            cluster_cases::not_handed_over(),
            cluster_cases::members_not_asked_for(),
            cluster_cases::members_not_changed(),
            cluster_cases::members_at_risk(),
            cluster_cases::level_not_known(),
        ];
        cases.into_iter().flatten()
    }

    #[test]
    fn every_error_has_its_status_code_and_text() {
        for (error, status, code, text) in not_from_the_table() {
            let kind = error.kind();
            assert_eq!((kind.status.as_u16(), kind.code), (status, code));
            assert_eq!(error.to_string(), text);
        }
        for (refusal, status, code) in from_the_table() {
            let error = ApiError::Refused(refusal.clone());
            let kind = error.kind();
            assert_eq!((kind.status.as_u16(), kind.code), (status, code));
            assert_eq!(error.to_string(), refusal.to_string());
        }
    }

    #[test]
    fn a_detail_is_cut_between_two_characters() {
        let fits = "é".repeat(DETAIL_CHARS_MAX);

        assert_eq!(shortened(fits.clone()), fits);
        assert_eq!(shortened(format!("{fits}e")), format!("{fits}…"));
    }

    #[test]
    fn a_client_error_never_happened_and_a_server_error_says_whether_it_did() {
        let errors = not_from_the_table()
            .map(|(error, ..)| error)
            .chain(from_the_table().map(|(refusal, ..)| ApiError::Refused(refusal)));
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

    #[test]
    fn an_error_in_a_list_is_of_its_own_kind_and_names_its_position() {
        let error = ApiError::Refused(Refusal::Retired).at(Some(3));

        let kind = error.kind();
        assert_eq!((kind.status.as_u16(), kind.code), (410, "retired"));
        assert_eq!(error.position(), Some(3));
        assert_eq!(
            error.to_string(),
            "at position 3: the sequence is retired: create it again, and it continues above its mark"
        );
    }
}
