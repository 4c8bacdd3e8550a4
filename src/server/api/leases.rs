//! `POST /v1/sequences/{name}/leases`, the request that everything else is for, and `POST /v1/leases` for several.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Service;
use super::error::ApiError;
use super::extract::{Name, Timeout, Write, WriteOptions, wants_text};
use super::json::{self, List, Object};
use super::keys::{CarriedOut, marked};
use crate::sequence::{
    Command, EntryId, Grant, GrantPart, GrantParts, KeyedAnswer, Outcome, RangeCount, Refusal,
    RequestKey, Settings,
};
use crate::server::batcher::{Committed, SubmitError};
use crate::server::config::AutoCreate;
use crate::server::metrics::Loss;
use crate::wire::{GrantBody, GrantsBody, LeaseBody, LeasePartBody, Number, ProblemOutcome};

/// How often values are taken out of windows for one request. After that it takes what comes next, which nothing can prevent.
const WINDOW_TRIES: usize = 2;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeaseOptions {
    count: Option<String>,
    #[serde(default)]
    timeout: Timeout,
}

impl WriteOptions for LeaseOptions {
    fn timeout(&self) -> Timeout {
        self.timeout
    }
}

pub(super) async fn lease(
    Name(sequence): Name,
    write: Write<LeaseOptions, Object<LeaseBody>>,
) -> Result<Response, ApiError> {
    let count = count(write.options.count, write.body.0.count)?;
    let part = GrantPart { sequence, count };
    let service = &write.service;
    let cached = service.consensus.is_cached(&part.sequence);
    let committed = match &write.key {
        Some(key) => {
            let parts = GrantParts::from(part.clone());
            let key = key.of_lease(&parts);
            service.lease_all(Some(key), parts, write.deadline).await?
        }
        None if cached => service.lease_cached(&part, write.deadline).await?,
        None => service.lease(&part, write.deadline).await?,
    };
    let Leased {
        grants,
        entry,
        when,
    } = leased(committed).map_err(ApiError::without_position)?;
    let grant = *grants.first().ok_or_else(mismatched)?;
    let granted = Granted {
        part,
        grant,
        cached,
    };
    let text = || granted.text();
    let body = || granted.body(service, entry);
    Ok(answer(&write.headers, when, text, body))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeaseAllOptions {
    #[serde(default)]
    timeout: Timeout,
}

impl WriteOptions for LeaseAllOptions {
    fn timeout(&self) -> Timeout {
        self.timeout
    }
}

pub(super) async fn lease_all(
    write: Write<LeaseAllOptions, List<Object<LeasePartBody>>>,
) -> Result<Response, ApiError> {
    let parts = parts(write.body)?;
    let key = write.key.as_ref().map(|key| key.of_leases(&parts));
    let service = &write.service;
    let committed = service.lease_all(key, parts.clone(), write.deadline);
    let Leased {
        grants,
        entry,
        when,
    } = leased(committed.await?)?;
    let parts = Vec::from(parts);
    if parts.len() != grants.len() {
        return Err(mismatched());
    }
    let granted = parts.into_iter().zip(grants);
    let granted: Vec<Granted> = granted
        .map(|(part, grant)| Granted {
            cached: service.consensus.is_cached(&part.sequence),
            part,
            grant,
        })
        .collect();
    let text = || granted.iter().map(Granted::text).collect();
    let body = || GrantsBody {
        grants: granted
            .iter()
            .map(|granted| granted.body(service, entry))
            .collect(),
    };
    Ok(answer(&write.headers, when, text, body))
}

impl Service {
    /// One lease of a cached sequence, which needs no commit of its own.
    async fn lease_cached(
        &self,
        part: &GrantPart,
        deadline: Instant,
    ) -> Result<Committed, ApiError> {
        match self.cached.lease(part.clone(), deadline).await? {
            Some(leased) => Ok(leased),
            None => self.lease(part, deadline).await,
        }
    }

    /// One lease.
    async fn lease(&self, part: &GrantPart, deadline: Instant) -> Result<Committed, ApiError> {
        let grant = Command::Grant {
            sequence: part.sequence.clone(),
            count: part.count,
        };
        let committed = self.submit(grant, deadline).await?;
        let unknown = committed.outcome == Outcome::Refused(Refusal::UnknownSequence);
        if unknown && self.auto_create == AutoCreate::On {
            // In one command: what is refused has created nothing (I5).
            return self.lease_all(None, part.clone().into(), deadline).await;
        }
        Ok(committed)
    }

    /// Several leases, or one under a key, in one command. What is cached is taken out of windows first: a command of what comes next
    /// above the mark would end them.
    async fn lease_all(
        &self,
        key: Option<RequestKey>,
        parts: GrantParts,
        deadline: Instant,
    ) -> Result<Committed, ApiError> {
        // A sequence that is not there is made with the defaults, where the node is told to.
        let create = match self.auto_create {
            AutoCreate::Off => None,
            AutoCreate::On => Some(Settings::default()),
        };
        if parts
            .iter()
            .any(|part| self.consensus.is_cached(&part.sequence))
        {
            let taken = self.lease_taken(key, &parts, create, deadline);
            if let Some(committed) = Box::pin(taken).await? {
                return Ok(committed);
            }
        }
        let command = match key {
            Some(key) => Command::GrantAllKeyed { key, parts, create },
            None => Command::GrantAll { parts, create },
        };
        self.submit(command, deadline).await
    }

    /// The same with what the leader takes out of windows; `None` where it takes nothing, or the windows end again and again
    /// before the command is applied.
    async fn lease_taken(
        &self,
        key: Option<RequestKey>,
        parts: &GrantParts,
        create: Option<Settings>,
        deadline: Instant,
    ) -> Result<Option<Committed>, ApiError> {
        for _ in 0..WINDOW_TRIES {
            let now = Instant::now();
            let until = now + deadline.saturating_duration_since(now) / 2;
            let Some(parts) = self.cached.take(parts, until).await else {
                break;
            };
            let taken = parts.iter().filter(|part| part.taken.is_some());
            let taken = taken.map(|part| u64::from(part.part.count.get())).sum();
            let command = Command::GrantTaken { key, parts, create };
            let committed = self.submit(command, deadline).await;
            if grants_nothing(&committed) {
                let windows = &self.consensus.metrics().windows;
                windows.lost(Loss::Refused, taken);
            }
            let committed = committed?;
            if !matches!(
                committed.outcome,
                Outcome::RefusedAt {
                    refusal: Refusal::WindowClosed,
                    ..
                }
            ) {
                return Ok(Some(committed));
            }
        }
        Ok(None)
    }
}

/// Whether nobody can have been granted anything by this command.
fn grants_nothing(committed: &Result<Committed, ApiError>) -> bool {
    match committed {
        Ok(committed) => !matches!(committed.outcome, Outcome::GrantedAll { .. }),
        Err(error) => error.outcome() == ProblemOutcome::NotApplied,
    }
}

/// What was given, by which entry, and whether that was before.
struct Leased {
    grants: Vec<Grant>,
    entry: EntryId,
    when: CarriedOut,
}

fn leased(Committed { outcome, entry }: Committed) -> Result<Leased, ApiError> {
    let (grants, entry, when) = match outcome {
        Outcome::Granted(grant) => (vec![grant], entry, CarriedOut::Now),
        Outcome::GrantedAll { grants } => (grants, entry, CarriedOut::Now),
        Outcome::Replayed {
            entry,
            answer: KeyedAnswer::Granted(grants),
        } => (grants, entry, CarriedOut::Before),
        Outcome::Refused(refusal) => return Err(ApiError::Refused(refusal)),
        Outcome::RefusedAt { position, refusal } => {
            return Err(ApiError::Refused(refusal).at(Some(position)));
        }
        _ => return Err(mismatched()),
    };
    Ok(Leased {
        grants,
        entry,
        when,
    })
}

struct Granted {
    part: GrantPart,
    grant: Grant,
    cached: bool,
}

impl Granted {
    fn text(&self) -> String {
        let range = self.grant.range;
        format!("{} {}\n", range.first(), range.last())
    }

    fn body(&self, service: &Service, entry: EntryId) -> GrantBody {
        let Grant { range, id_form } = self.grant;
        let number = |value: u64| Number::new(value, id_form);
        GrantBody {
            sequence: self.part.sequence.clone(),
            first: number(range.first()),
            last: number(range.last()),
            count: self.part.count.get(),
            increment: number(range.increment().get()),
            epoch: service.epoch(),
            cluster: service.cluster_text.clone(),
            term: entry.term,
            index: entry.index,
            cached: self.cached,
        }
    }
}

fn answer<B: Serialize>(
    headers: &HeaderMap,
    when: CarriedOut,
    text: impl FnOnce() -> String,
    body: impl FnOnce() -> B,
) -> Response {
    let answer = if wants_text(headers) {
        (StatusCode::CREATED, text()).into_response()
    } else {
        (StatusCode::CREATED, json::written(&body())).into_response()
    };
    marked(answer, when)
}

fn parts(List(bodies): List<Object<LeasePartBody>>) -> Result<GrantParts, ApiError> {
    let parts = (0..).zip(bodies);
    let parts =
        parts.map(|(position, Object(body))| part(body).map_err(|error| error.at(Some(position))));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    parts.try_into().map_err(ApiError::InvalidLeases)
}

fn part(
    LeasePartBody {
        sequence,
        count: asked,
    }: LeasePartBody,
) -> Result<GrantPart, ApiError> {
    Ok(GrantPart {
        sequence: sequence.parse().map_err(ApiError::InvalidName)?,
        count: count(None, asked)?,
    })
}

/// The count of the query or of the body; one where neither names it.
fn count(query: Option<String>, body: Option<Number>) -> Result<RangeCount, ApiError> {
    let (value, text) = match (query, body) {
        (Some(_), Some(_)) => return Err(ApiError::CountTwice),
        (None, None) => return Ok(RangeCount::ONE),
        (Some(text), None) => {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            (text.parse::<u64>().ok().filter(|_| digits), text)
        }
        (None, Some(number)) => (number.get(), number.to_string()),
    };
    value
        .and_then(|value| RangeCount::try_from(value).ok())
        .ok_or(ApiError::InvalidCount { count: text })
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
    use crate::sequence::IdForm;

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
        for text in [
            "",
            "0",
            "-1",
            "+1",
            "1.5",
            "4294967296",
            "9007199254740993",
            "x",
        ] {
            let error = count(Some(text.to_owned()), None).unwrap_err();
            assert_eq!(
                error,
                ApiError::InvalidCount {
                    count: text.to_owned()
                }
            );
        }
        let error = count(None, number(0)).unwrap_err();
        assert_eq!(error.to_string(), "count 0 is not 1 to 4294967295");
        let all = Some(Number::new(1_u128 << 64, IdForm::Text));
        assert_eq!(
            count(None, all).unwrap_err().to_string(),
            "count 18446744073709551616 is not 1 to 4294967295"
        );
    }

    fn list(parts: &[(&str, u64)]) -> List<Object<LeasePartBody>> {
        let body = |(sequence, count): &(&str, u64)| LeasePartBody {
            sequence: (*sequence).to_owned(),
            count: number(*count),
        };
        List(parts.iter().map(body).map(Object).collect())
    }

    #[test]
    fn a_list_of_leases_is_refused_with_the_position_of_what_is_wrong() {
        let error = parts(list(&[("p", 1), ("a/b", 1)])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "at position 1: a sequence name has '/' at byte 1: use letters and digits, and after the first also '.', '_', ':' and '-'"
        );
        let error = parts(list(&[("p", 0)])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "at position 0: count 0 is not 1 to 4294967295"
        );
        for length in [0, 257] {
            let error = parts(list(&vec![("p", 1); length])).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{length} leases are not 1 to 256")
            );
        }
    }
}
