//! `POST /v1/sequences`: the marks that other counters have reached, many in one commit, each answered by itself.

use axum::http::StatusCode;
use axum::response::Response;

use super::error::ApiError;
use super::extract::Write;
use super::json::{List, Object};
use super::leases::mismatched;
use super::sequences::{ANY_VALUE, ChangeOptions, bounded, settings};
use crate::sequence::{Command, ImportPart, ImportParts, Imported, NamedSettings, Outcome};
use crate::wire::{ImportBody, ImportResult, ImportedBody, ImportsBody, Number};

pub(super) async fn import(
    mut write: Write<ChangeOptions, List<Object<ImportBody>>>,
) -> Result<Response, ApiError> {
    write.refuse_key()?;
    let parts = parts(std::mem::take(&mut write.body))?;
    let names: Vec<String> = parts.iter().map(|part| part.sequence.to_string()).collect();
    let Outcome::Imported { parts } = write.outcome(Command::Import { parts }).await? else {
        return Err(mismatched());
    };
    if parts.len() != names.len() {
        return Err(mismatched());
    }
    let parts = names.into_iter().zip(parts);
    let body = ImportsBody {
        sequences: parts.map(|(name, part)| describe(name, part)).collect(),
    };
    Ok(write.answer(StatusCode::OK, body))
}

fn parts(List(bodies): List<Object<ImportBody>>) -> Result<ImportParts, ApiError> {
    let parts = (0..).zip(bodies);
    let parts =
        parts.map(|(position, Object(body))| part(&body).map_err(|error| error.at(Some(position))));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    parts.try_into().map_err(ApiError::InvalidImport)
}

fn part(body: &ImportBody) -> Result<ImportPart, ApiError> {
    let ImportBody {
        sequence,
        at_least,
        start,
        increment,
        max_value,
        cache,
        max_lease,
    } = body;
    let named = [start, increment, max_value, cache, max_lease];
    Ok(ImportPart {
        sequence: sequence.parse().map_err(ApiError::InvalidName)?,
        settings: settings(&body.settings())?,
        named: NamedSettings(named.map(Option::is_some)),
        at_least: bounded(*at_least, "at_least", ANY_VALUE)?,
    })
}

fn describe(sequence: String, part: Imported) -> ImportedBody {
    match part {
        Imported::Done {
            fresh,
            previous,
            high,
            id_form,
        } => {
            let number = |value: u64| Number::new(value, id_form);
            let result = match (fresh, previous == high) {
                (true, _) => ImportResult::Created,
                (false, false) => ImportResult::Advanced,
                (false, true) => ImportResult::Unchanged,
            };
            ImportedBody {
                sequence,
                result,
                changed: result != ImportResult::Unchanged,
                previous: previous.map(number),
                high: high.map(number),
                problem: None,
            }
        }
        Imported::Refused(refusal) => ImportedBody {
            sequence,
            result: ImportResult::Refused,
            changed: false,
            previous: None,
            high: None,
            problem: Some(ApiError::Refused(refusal).problem()),
        },
    }
}
