//! HTTP bodies, as the API writes and the client reads them, and the other way round.
//!
//! What is a value of a sequence's number space (`first`, `last`, `start`, `increment`, `max_value`, `high`,
//! `next`, `remaining`, `previous`, `to`, `at_least`) is a [`Number`]: written in the sequence's form, read in both.

mod cluster;
mod import;
mod key;

pub use cluster::{
    AdmitBody, AdmittedBody, AdmittedMemberBody, ClusterBody, MemberBody, MemberChangedBody,
    MemberRole, MembersBody, ReplaceBody, TransferBody, TransferredBody,
};
pub use import::{ImportBody, ImportResult, ImportedBody, ImportsBody};
pub use key::{IDEMPOTENCY_KEY_BYTES_MAX, IdempotencyKey, IdempotencyKeyError};
pub(crate) use key::{KEY_HEADER, REPLAYED_HEADER};

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::sequence::{IdForm, NUMBER_SAFE_MAX, SequenceName};

/// An integer of 0 to 2^64, in JSON a number or a string of digits; never rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    value: u128,
    form: IdForm,
}

impl Number {
    /// The integer, to be written in this form.
    #[must_use]
    pub fn new(value: impl Into<u128>, form: IdForm) -> Self {
        Self {
            value: value.into(),
            form,
        }
    }

    /// The integer, where it is at most 2^64 − 1.
    #[must_use]
    pub fn get(self) -> Option<u64> {
        u64::try_from(self.value).ok()
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// In the form that every reader reads exactly: a number up to 2^53 − 1, text above.
impl From<u64> for Number {
    fn from(value: u64) -> Self {
        let form = if value <= NUMBER_SAFE_MAX {
            IdForm::Number
        } else {
            IdForm::Text
        };
        Self::new(value, form)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.form, self.get()) {
            (IdForm::Number, Some(value)) => serializer.serialize_u64(value),
            (IdForm::Number, None) | (IdForm::Text, _) => serializer.collect_str(&self.value),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;

        impl Visitor<'_> for Digits {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer from 0 to 2^64 - 1, as a number or a string of digits")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
                Ok(Number::new(value, IdForm::Number))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let value = text
                    .parse::<u128>()
                    .ok()
                    .filter(|value| digits && *value <= 1 << 64);
                value
                    .map(|value| Number::new(value, IdForm::Text))
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(Digits)
    }
}

/// What stands in a body is a number: a null may be a client's lost value, and must not become the default.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Number>, D::Error> {
    Number::deserialize(deserializer).map(Some)
}

/// The body of `PUT /v1/sequences/{name}`: what is left out has its default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct CreateBody {
    /// The first value; 1 by default.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub start: Option<Number>,
    /// The distance between neighbours, at least 1; 1 by default.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub increment: Option<Number>,
    /// No value above it is granted; 2^53 − 1 by default.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_value: Option<Number>,
    /// Values that the leader reserves at once, up to 2^32 − 1, to grant them from memory; 0 by default: every grant is
    /// committed by itself.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub cache: Option<Number>,
    /// The most values of one lease, up to 2^32 − 1; 1,000,000 by default.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_lease: Option<Number>,
}

/// The body of `PATCH /v1/sequences/{name}`: what is left out stays as it is, but something must be named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct AlterBody {
    /// Never changes: any other value than the sequence's is refused.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub start: Option<Number>,
    /// Never changes: any other value than the sequence's is refused.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub increment: Option<Number>,
    /// No value above it is granted. Never below the mark, nor to the other side of 2^53 − 1.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_value: Option<Number>,
    /// Values that the leader reserves at once, up to 2^32 − 1, to grant them from memory; 0: every grant is committed by
    /// itself.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub cache: Option<Number>,
    /// The most values of one lease, up to 2^32 − 1.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_lease: Option<Number>,
}

/// The answer to `PUT`, `GET`, `PATCH` and `DELETE /v1/sequences/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequenceBody {
    /// The name.
    pub sequence: SequenceName,
    /// The first value.
    pub start: Number,
    /// The distance between neighbours.
    pub increment: Number,
    /// No value above it is granted.
    pub max_value: Number,
    /// Values that the leader reserves at once; 0: every grant is committed by itself.
    pub cache: u64,
    /// The most values of one lease.
    pub max_lease: u32,
    /// The high-water mark: the highest value covered by a grant or a reservation, null before the first.
    pub high: Option<Number>,
    /// The next value, null when the sequence is exhausted.
    pub next: Option<Number>,
    /// How many values are left.
    pub remaining: Number,
    /// The part of all values that is used up, 0 to 1.
    pub used_ratio: f64,
    /// Whether the name is retired.
    pub retired: bool,
    /// The log index of the last grant or reservation, null before the first.
    pub index: Option<u64>,
}

/// The answer to `GET /v1/sequences`: one page, in the order of the names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequencesBody {
    /// The page's sequences, retired ones too.
    pub sequences: Vec<SequenceBody>,
    /// What the next page is asked for with, as `after`; null after the last.
    pub next: Option<SequenceName>,
}

/// The body of `POST /v1/sequences/{name}/leases`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct LeaseBody {
    /// How many values, 1 by default.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub count: Option<Number>,
}

/// One lease of the list that is the body of `POST /v1/leases`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct LeasePartBody {
    /// Of which sequence: its name, which the node checks, so that it can say which of the list is none.
    pub sequence: String,
    /// How many values, 1 by default.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub count: Option<Number>,
}

/// The answer to several leases in one commit: 201.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantsBody {
    /// One for each lease of the list, in its order.
    pub grants: Vec<GrantBody>,
}

/// The answer to a lease: 201.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantBody {
    /// Of which sequence.
    pub sequence: SequenceName,
    /// The lowest value.
    pub first: Number,
    /// The highest value.
    pub last: Number,
    /// How many values.
    pub count: u32,
    /// The distance between neighbours.
    pub increment: Number,
    /// Generation of the cluster's history.
    pub epoch: u64,
    /// The cluster's id.
    pub cluster: String,
    /// The term of the leader that granted.
    pub term: u64,
    /// The log index of the grant; of a cached sequence, that of the reservation that its values are of.
    pub index: u64,
    /// Whether the sequence has a cache; left out where it has none. Then a request key costs it its speed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cached: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands over references"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// The body of `POST /v1/sequences/{name}/advance`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct AdvanceBody {
    /// No value up to this one is granted afterwards.
    pub to: Number,
}

/// The answer to an advance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvancedBody {
    /// Of which sequence.
    pub sequence: SequenceName,
    /// The mark before.
    pub previous: Option<Number>,
    /// The mark now.
    pub high: Option<Number>,
    /// Whether they differ.
    pub changed: bool,
}

/// What an error says of the request: did it happen?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemOutcome {
    /// It changed nothing.
    NotApplied,
    /// It may have happened, or may still happen. It costs a gap at the worst, never a second grant.
    Unknown,
}

/// An error's body: `application/problem+json` (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A URI reference that names the kind of problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of problem in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong with this request, the limit and the way out.
    pub detail: String,
    /// Which lease or sequence of a list is wrong, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// The stable name of the kind, for programs.
    pub code: String,
    /// Whether the request happened.
    pub outcome: ProblemOutcome,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// What finds this request in the node's log.
    pub request_id: String,
    /// What to do next.
    pub hint: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_in_its_form_and_read_in_both() {
        let all = u128::from(u64::MAX);
        for (value, form, json) in [
            (7, IdForm::Number, "7"),
            (7, IdForm::Text, "\"7\""),
            (all, IdForm::Text, "\"18446744073709551615\""),
            (all + 1, IdForm::Text, "\"18446744073709551616\""),
        ] {
            let number = Number::new(value, form);

            assert_eq!(serde_json::to_string(&number).unwrap(), json);
            assert_eq!(serde_json::from_str::<Number>(json).unwrap(), number);
        }
    }

    #[test]
    fn a_request_writes_text_where_a_double_would_not_be_exact() {
        for (value, json) in [
            (NUMBER_SAFE_MAX, "9007199254740991"),
            (NUMBER_SAFE_MAX + 1, "\"9007199254740992\""),
        ] {
            assert_eq!(serde_json::to_string(&Number::from(value)).unwrap(), json);
        }
    }

    // jqlang/jq#1783: never silently rounded.
    #[test]
    fn a_number_above_the_exact_doubles_is_read_exactly() {
        for json in ["9007199254740993", "\"9007199254740993\""] {
            let number: Number = serde_json::from_str(json).unwrap();

            assert_eq!(number.get(), Some(9_007_199_254_740_993));
        }
    }

    #[test]
    fn what_is_no_integer_in_bounds_is_refused() {
        for json in [
            "-1",
            "1.5",
            "1e3",
            "18446744073709551616",
            "\"\"",
            "\"+1\"",
            "\"1.0\"",
            "\"-1\"",
            "null",
            "true",
            "\"18446744073709551617\"",
        ] {
            assert!(serde_json::from_str::<Number>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_null_is_no_number() {
        for json in ["{\"count\":null}", "{\"count\":\"\"}"] {
            assert!(serde_json::from_str::<LeaseBody>(json).is_err(), "{json}");
        }
        assert!(serde_json::from_str::<AlterBody>("{\"max_value\":null}").is_err());
        for json in [
            "{\"sequence\":\"p\",\"at_least\":null}",
            "{\"sequence\":\"p\"}",
            "{\"sequence\":\"p\",\"at_least\":1,\"start\":null}",
        ] {
            assert!(serde_json::from_str::<ImportBody>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn unknown_fields_of_a_request_are_refused() {
        assert!(serde_json::from_str::<LeaseBody>("{\"cuont\":1}").is_err());
        assert!(serde_json::from_str::<CreateBody>("{\"start\":1,\"cycle\":true}").is_err());
        assert!(serde_json::from_str::<AlterBody>("{\"column\":\"id\"}").is_err());
        assert!(serde_json::from_str::<LeasePartBody>("{\"sequence\":\"p\",\"n\":1}").is_err());
        assert!(serde_json::from_str::<AdvanceBody>("{\"to\":1,\"x\":1}").is_err());
        let import = |rest: &str| format!("{{\"sequence\":\"p\",\"at_least\":{rest}}}");
        assert!(serde_json::from_str::<ImportBody>(&import("1")).is_ok());
        assert!(serde_json::from_str::<ImportBody>(&import("1,\"to\":2")).is_err());
    }

    #[test]
    fn a_field_given_twice_is_refused() {
        for json in ["{\"count\":1,\"count\":1}", "{\"count\":1,\"count\":2}"] {
            let error = serde_json::from_str::<LeaseBody>(json).unwrap_err();

            assert_eq!(
                error.to_string(),
                "duplicate field `count` at line 1 column 18"
            );
        }
    }
}
