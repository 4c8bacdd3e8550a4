//! What a run comes to.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::coverage::{Covered, Tally};
use super::kind::Kind;
use super::recording::Recorded;
use crate::chaos::summary::{Ended, RunVerdict};
use crate::history::{Report, Verdict};

/// A kind that could not be had here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct LeftOut {
    /// What.
    pub(crate) kind: Kind,
    /// Why.
    pub(crate) why: &'static str,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ChaosSummary {
    /// In one word.
    pub(crate) verdict: RunVerdict,
    /// What makes the same schedule, where there is one.
    pub(crate) seed: Option<u64>,
    /// The command that does it again.
    pub(crate) repeat: String,
    /// Ranges granted.
    pub(crate) grants: u64,
    /// Leases without an answer.
    pub(crate) unknown: u64,
    /// Grants that share a value with another.
    pub(crate) overlaps: u64,
    /// Grants below one that was received before they were sent.
    pub(crate) order_violations: u64,
    /// Gaps between grants, explained or not.
    pub(crate) gaps: u64,
    /// What came of the faults.
    #[serde(flatten)]
    pub(crate) tally: Tally,
    /// Each chosen kind of fault.
    pub(crate) faults: Vec<Covered>,
    /// Kinds that could not be had here.
    pub(crate) left_out: Vec<LeftOut>,
    /// Broken promises that the history does not show.
    pub(crate) findings: Vec<String>,
    /// From the end of all faults until all was well.
    pub(crate) healing_seconds: Option<f64>,
    /// From the first process to the verdict.
    pub(crate) seconds: f64,
}

/// What is known of a run beside what it saw.
pub(super) struct About {
    pub(super) seed: Option<u64>,
    pub(super) repeat: String,
    pub(super) left_out: Vec<LeftOut>,
    pub(super) kept: Option<PathBuf>,
}

impl About {
    /// What a run comes to that began then.
    pub(super) fn ended(self, recorded: Recorded, started: Instant) -> Ended<ChaosSummary> {
        let verdict = verdict(&recorded);
        let (report, played) = recorded;
        let count = |of: fn(&Report) -> u64| report.as_ref().map_or(0, of);
        let seconds = |time: Duration| (time.as_secs_f64() * 10.0).round() / 10.0;
        let summary = ChaosSummary {
            verdict,
            seed: self.seed,
            repeat: self.repeat,
            grants: count(|report| report.grants),
            unknown: count(|report| report.unknown),
            overlaps: count(|report| report.overlaps),
            order_violations: count(|report| report.order_violations),
            gaps: count(|report| report.gaps),
            tally: played.tally,
            faults: played.coverage.into_kinds(),
            left_out: self.left_out,
            findings: played.findings.iter().map(ToString::to_string).collect(),
            healing_seconds: played.healed.map(|healed| seconds(healed.took)),
            seconds: seconds(started.elapsed()),
        };
        Ended {
            summary,
            report,
            failure: played.failure,
            kept: self.kept,
        }
    }
}

/// In one word: what broke a promise counts more than what went wrong with the run.
pub(super) fn verdict((report, played): &Recorded) -> RunVerdict {
    match (report.as_ref().map(Report::verdict), &played.failure) {
        (Some(Verdict::Violated), _) => RunVerdict::Violated,
        _ if !played.findings.is_empty() => RunVerdict::Violated,
        (Some(Verdict::Holds), None) => RunVerdict::Holds,
        (Some(Verdict::Holds), Some(_)) | (None, _) => RunVerdict::HarnessFailure,
    }
}
