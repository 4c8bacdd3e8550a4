//! `POST /v1/sequences`: many sequences at once, each with the mark that another counter has reached.

use serde::{Deserialize, Serialize};

use super::{CreateBody, Number, Problem, given};

/// One sequence of the list that is the body of `POST /v1/sequences`. A setting that is left out has its default where the
/// sequence is created, and any value where it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct ImportBody {
    /// Its name, which the node checks, so that it can say which of the list is none.
    pub sequence: String,
    /// No value up to this one is granted afterwards.
    pub at_least: Number,
    /// The first value.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub start: Option<Number>,
    /// The distance between neighbours, at least 1.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub increment: Option<Number>,
    /// No value above it is granted.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_value: Option<Number>,
    /// Values that the leader reserves at once, up to 2^32 − 1; 0: every grant is committed by itself.
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

impl ImportBody {
    /// A sequence without any settings named.
    #[must_use]
    pub fn new(sequence: impl Into<String>, at_least: u64) -> Self {
        Self {
            sequence: sequence.into(),
            at_least: at_least.into(),
            start: None,
            increment: None,
            max_value: None,
            cache: None,
            max_lease: None,
        }
    }

    /// The settings, as for a creation.
    #[must_use]
    pub fn settings(&self) -> CreateBody {
        CreateBody {
            start: self.start,
            increment: self.increment,
            max_value: self.max_value,
            cache: self.cache,
            max_lease: self.max_lease,
        }
    }
}

/// What became of a sequence that was to be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportResult {
    /// It was not there.
    Created,
    /// It was there, and its mark was lower.
    Advanced,
    /// It was there, with this mark or a higher one.
    Unchanged,
    /// It is as it was, because of a problem.
    Refused,
}

/// The answer about one sequence of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedBody {
    /// Which one.
    pub sequence: String,
    /// What became of it.
    pub result: ImportResult,
    /// Whether anything of it is different now.
    pub changed: bool,
    /// The mark before; null where it is refused, too.
    pub previous: Option<Number>,
    /// The mark now; null where it is refused, too.
    pub high: Option<Number>,
    /// Why it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// The answer to `POST /v1/sequences`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportsBody {
    /// One for each sequence of the list, in its order.
    pub sequences: Vec<ImportedBody>,
}
