//! `/v1/sequences/{name}`, what changes it: create, alter, retire, advance.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::extract::{Consistency, Name, NoBody, Timeout, Write, WriteOptions};
use super::json::Object;
use super::keys::{CarriedOut, marked};
use super::leases::mismatched;
use super::reads::describe;
use crate::sequence::{Changes, Command, KeyedAnswer, Outcome, RangeCount, SequenceName, Settings};
use crate::wire::{AdvanceBody, AdvancedBody, AlterBody, CreateBody, Number};

/// The header of an answer to what was only tried.
const DRY_RUN_HEADER: HeaderName = HeaderName::from_static("highwater-dry-run");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeOptions {
    #[serde(default)]
    timeout: Timeout,
    #[serde(default)]
    dry_run: DryRun,
}

impl WriteOptions for ChangeOptions {
    fn timeout(&self) -> Timeout {
        self.timeout
    }
}

/// Whether a change is only tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
enum DryRun {
    #[default]
    No,
    Yes,
}

impl TryFrom<String> for DryRun {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match &*text {
            "true" => Ok(Self::Yes),
            "false" => Ok(Self::No),
            _ => Err(format!("{text:?} is not true or false")),
        }
    }
}

impl<B> Write<ChangeOptions, B> {
    /// What the table answers to the command, or would. It is the same function either way.
    pub(super) async fn outcome(&self, command: Command) -> Result<Outcome, ApiError> {
        let outcome = match self.options.dry_run {
            DryRun::No => {
                let committed = self.service.submit(command, self.deadline);
                committed.await?.outcome
            }
            DryRun::Yes => {
                let read = self.service.read(Consistency::Linearizable, self.deadline);
                read.await?.dry_run(&command)
            }
        };
        match outcome {
            Outcome::Refused(refusal) => Err(ApiError::Refused(refusal)),
            done => Ok(done),
        }
    }

    pub(super) fn answer(&self, status: StatusCode, body: impl Serialize) -> Response {
        match self.options.dry_run {
            DryRun::No => (status, Json(body)).into_response(),
            DryRun::Yes => {
                let mut response = Json(body).into_response();
                let said = HeaderValue::from_static("true");
                response.headers_mut().insert(DRY_RUN_HEADER, said);
                response
            }
        }
    }
}

pub(super) async fn create(
    Name(sequence): Name,
    write: Write<ChangeOptions, Object<CreateBody>>,
) -> Result<Response, ApiError> {
    write.refuse_key()?;
    let command = Command::Create {
        sequence: sequence.clone(),
        settings: settings(&write.body.0)?,
    };
    let Outcome::Created {
        fresh,
        sequence: created,
    } = write.outcome(command).await?
    else {
        return Err(mismatched());
    };
    let status = if fresh {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(write.answer(status, describe(&sequence, &created)))
}

pub(super) async fn alter(
    Name(sequence): Name,
    write: Write<ChangeOptions, Object<AlterBody>>,
) -> Result<Response, ApiError> {
    write.refuse_key()?;
    let command = Command::Alter {
        sequence: sequence.clone(),
        changes: changes(&write.body.0)?,
    };
    match write.outcome(command).await? {
        Outcome::Altered { sequence: altered } => {
            Ok(write.answer(StatusCode::OK, describe(&sequence, &altered)))
        }
        _ => Err(mismatched()),
    }
}

pub(super) async fn retire(
    Name(sequence): Name,
    write: Write<ChangeOptions, NoBody>,
) -> Result<Response, ApiError> {
    write.refuse_key()?;
    let command = Command::Retire {
        sequence: sequence.clone(),
    };
    match write.outcome(command).await? {
        Outcome::Retired { sequence: retired } => {
            Ok(write.answer(StatusCode::OK, describe(&sequence, &retired)))
        }
        _ => Err(mismatched()),
    }
}

pub(super) async fn advance(
    Name(sequence): Name,
    write: Write<ChangeOptions, Option<Object<AdvanceBody>>>,
) -> Result<Response, ApiError> {
    // An advance has no default.
    let missing = || ApiError::InvalidBody {
        reason: "missing field `to`".to_owned(),
    };
    let Object(body) = write.body.as_ref().ok_or_else(missing)?;
    let to = bounded(body.to, "to", ANY_VALUE)?;
    let outcome = write
        .outcome(advance_command(&write, &sequence, to))
        .await?;
    let when = match outcome {
        Outcome::Replayed { .. } => CarriedOut::Before,
        _ => CarriedOut::Now,
    };
    let (Outcome::Advanced {
        previous,
        high,
        id_form,
    }
    | Outcome::Replayed {
        answer:
            KeyedAnswer::Advanced {
                previous,
                high,
                id_form,
            },
        ..
    }) = outcome
    else {
        return Err(mismatched());
    };
    let number = |value: u64| Number::new(value, id_form);
    let advanced = AdvancedBody {
        sequence,
        previous: previous.map(number),
        high: high.map(number),
        changed: previous != high,
    };
    Ok(marked(write.answer(StatusCode::OK, advanced), when))
}

/// A dry run is nothing that could be repeated by mistake, so a key means nothing there.
fn advance_command<B>(
    write: &Write<ChangeOptions, B>,
    sequence: &SequenceName,
    to: u64,
) -> Command {
    let sequence = sequence.clone();
    match &write.key {
        Some(key) if write.options.dry_run == DryRun::No => Command::AdvanceKeyed {
            key: key.of_advance(&sequence, to),
            sequence,
            to,
        },
        _ => Command::Advance { sequence, to },
    }
}

pub(super) fn settings(body: &CreateBody) -> Result<Settings, ApiError> {
    let default = Settings::default();
    let cache = cache(body.cache)?.unwrap_or(default.cache());
    let max_lease = max_lease(body.max_lease)?.unwrap_or(default.max_lease());
    let value = |number: Option<Number>, field, otherwise| match number {
        Some(number) => bounded(number, field, ANY_VALUE),
        None => Ok(otherwise),
    };
    let start = value(body.start, "start", default.start())?;
    let increment = value(body.increment, "increment", default.increment().get())?;
    let max_value = value(body.max_value, "max_value", default.max_value())?;
    let settings = Settings::new(start, increment, max_value, max_lease);
    Ok(settings
        .map_err(ApiError::InvalidSettings)?
        .with_cache(cache))
}

fn changes(body: &AlterBody) -> Result<Changes, ApiError> {
    if *body == AlterBody::default() {
        return Err(ApiError::NothingToAlter);
    }
    let value = |number: Option<Number>, field| {
        let value = number.map(|number| bounded(number, field, ANY_VALUE));
        value.transpose()
    };
    Ok(Changes {
        start: value(body.start, "start")?,
        increment: value(body.increment, "increment")?,
        max_value: value(body.max_value, "max_value")?,
        cache: cache(body.cache)?,
        max_lease: max_lease(body.max_lease)?,
    })
}

pub(super) const ANY_VALUE: &str = "0 to 2^64 - 1";

fn cache(number: Option<Number>) -> Result<Option<u64>, ApiError> {
    let limit = "0 to 2^32 - 1";
    let cache = number.map(|number| {
        let cache = bounded(number, "cache", limit)?;
        let is_count = u32::try_from(cache).is_ok();
        is_count.then_some(cache).ok_or(ApiError::OutOfBounds {
            field: "cache",
            limit,
        })
    });
    cache.transpose()
}

fn max_lease(number: Option<Number>) -> Result<Option<RangeCount>, ApiError> {
    let parsed = number.map(|number| {
        let count = number
            .get()
            .and_then(|count| RangeCount::try_from(count).ok());
        count.ok_or(ApiError::OutOfBounds {
            field: "max_lease",
            limit: "1 to 2^32 - 1",
        })
    });
    parsed.transpose()
}

pub(super) fn bounded(
    number: Number,
    field: &'static str,
    limit: &'static str,
) -> Result<u64, ApiError> {
    number.get().ok_or(ApiError::OutOfBounds { field, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_names_nothing_is_refused() {
        let error = changes(&AlterBody::default()).unwrap_err();

        assert_eq!(error, ApiError::NothingToAlter);
        assert_eq!(
            error.to_string(),
            "no setting is named: name max_value, cache or max_lease"
        );
    }

    #[test]
    fn every_setting_is_bounded() {
        let too_large = Some(Number::new(1_u128 << 64, crate::IdForm::Text));
        let bodies = [
            (
                AlterBody {
                    max_value: too_large,
                    ..AlterBody::default()
                },
                "max_value is out of bounds: 0 to 2^64 - 1",
            ),
            (
                AlterBody {
                    max_lease: Some(Number::from(1 << 32)),
                    ..AlterBody::default()
                },
                "max_lease is out of bounds: 1 to 2^32 - 1",
            ),
            (
                AlterBody {
                    cache: Some(Number::from(1 << 32)),
                    ..AlterBody::default()
                },
                "cache is out of bounds: 0 to 2^32 - 1",
            ),
        ];

        for (body, text) in bodies {
            assert_eq!(changes(&body).unwrap_err().to_string(), text);
        }
    }
}
