//! `GET /v1/sequences` and `GET /v1/sequences/{name}`: what the table holds, as fresh as asked for.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;

use super::Api;
use super::error::ApiError;
use super::extract::{Consistency, Name, Options, Timeout};
use crate::sequence::{NameError, Refusal, Sequence, SequenceName};
use crate::wire::{Number, SequenceBody, SequencesBody};

/// The most sequences of one page: half a megabyte.
const PAGE_MAX: usize = 1_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShowOptions {
    #[serde(default)]
    timeout: Timeout,
    #[serde(default)]
    consistency: Consistency,
}

pub(super) async fn show(
    State(api): State<Api>,
    Name(sequence): Name,
    Options(options): Options<ShowOptions>,
) -> Result<Json<SequenceBody>, ApiError> {
    let deadline = options.timeout.deadline();
    let table = api.service()?.read(options.consistency, deadline).await?;
    let found = table.get(&sequence);
    let found = found.ok_or(ApiError::Refused(Refusal::UnknownSequence))?;
    Ok(Json(describe(&sequence, found)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListOptions {
    #[serde(default)]
    prefix: NameOrNothing,
    #[serde(default)]
    after: NameOrNothing,
    #[serde(default)]
    limit: Limit,
    #[serde(default)]
    timeout: Timeout,
    #[serde(default)]
    consistency: Consistency,
}

/// What names begin with, or come after: no name has to be this one, but each could be.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "String")]
struct NameOrNothing(Option<SequenceName>);

impl TryFrom<String> for NameOrNothing {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let name = (!text.is_empty()).then(|| text.try_into());
        name.transpose().map(Self)
    }
}

/// How many sequences a page may have.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Limit(usize);

impl Default for Limit {
    fn default() -> Self {
        Self(100)
    }
}

impl TryFrom<String> for Limit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let limit = text.parse().ok().filter(|_| digits);
        limit
            .filter(|limit| (1..=PAGE_MAX).contains(limit))
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not 1 to {PAGE_MAX}"))
    }
}

pub(super) async fn list(
    State(api): State<Api>,
    Options(options): Options<ListOptions>,
) -> Result<Json<SequencesBody>, ApiError> {
    let deadline = options.timeout.deadline();
    let table = api.service()?.read(options.consistency, deadline).await?;
    let (NameOrNothing(prefix), NameOrNothing(after)) = (options.prefix, options.after);
    let mut rest = table.page(prefix.as_ref(), after.as_ref()).peekable();
    let Limit(limit) = options.limit;
    let page = rest.by_ref().take(limit);
    let sequences: Vec<SequenceBody> = page.map(|(name, found)| describe(name, found)).collect();
    let last = sequences.last().map(|last| last.sequence.clone());
    let next = last.filter(|_| rest.peek().is_some());
    Ok(Json(SequencesBody { sequences, next }))
}

/// A sequence as the API shows it.
pub(super) fn describe(name: &SequenceName, sequence: &Sequence) -> SequenceBody {
    let settings = &sequence.settings;
    let form = settings.id_form();
    let number = |value: u64| Number::new(value, form);
    let remaining = settings.remaining_above(sequence.high);
    SequenceBody {
        sequence: name.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_one_to_a_thousand_sequences() {
        for (text, limit) in [("1", 1), ("0100", 100), ("1000", 1_000)] {
            assert_eq!(Limit::try_from(text.to_owned()).unwrap().0, limit);
        }
        for text in ["", "0", "1001", "-1", "+1", "1.5", "18446744073709551617"] {
            assert_eq!(
                Limit::try_from(text.to_owned()).unwrap_err(),
                format!("{text:?} is not 1 to 1000")
            );
        }
    }
}
