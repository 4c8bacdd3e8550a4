//! What a run comes to: a demo's, or that of `highwater chaos`.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::HarnessError;
use crate::history::Report;

/// How the run ended, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunVerdict {
    /// All guarantees held.
    Holds,
    /// One did not.
    Violated,
    /// The run could not be made or finished: it says nothing about the guarantees.
    HarnessFailure,
}

impl fmt::Display for RunVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::Violated => "violated",
            Self::HarnessFailure => "harness failure",
        })
    }
}

/// What came out of a demo.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// In one word.
    pub(crate) verdict: RunVerdict,
    /// Ranges granted.
    pub(crate) grants: u64,
    /// Leases without an answer.
    pub(crate) unknown: u64,
    /// How often a leader was killed.
    pub(crate) leader_kills: u64,
    /// Grants that share a value with another.
    pub(crate) overlaps: u64,
    /// Grants below one that was received before they were sent.
    pub(crate) order_violations: u64,
    /// Gaps between grants, explained or not.
    pub(crate) gaps: u64,
    /// How long it took, from the first process to the verdict.
    pub(crate) seconds: f64,
}

/// The end of a run.
#[derive(Debug)]
pub(crate) struct Ended<S> {
    /// What came out.
    pub(crate) summary: S,
    /// What the checker found; none where there is no history.
    pub(crate) report: Option<Report>,
    /// What went wrong with the run itself.
    pub(crate) failure: Option<HarnessError>,
    /// The directory with data, logs and history, where it is left for a look.
    pub(crate) kept: Option<PathBuf>,
}
