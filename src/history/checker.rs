//! Collects the lines of one or more sources, and judges them all at once.

use std::collections::BTreeMap;

use super::report::{Judged, Report};
use super::requests::Requests;
use super::{LeaseOutcome, Line, gaps, order, overlap};
use crate::sequence::SequenceName;

/// What a gap between grants means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapRule {
    /// Sequences without a cache, and nothing else changed their marks: a gap that no request without an answer
    /// explains is a lost grant.
    MustBeExplained,
    /// Sequences with a cache, or marks that were advanced: gaps are counted only.
    Allowed,
}

/// Names one source of lines, as [`Checker::add_source`] gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceId(usize);

impl SourceId {
    pub(super) fn name(self, sources: &[String]) -> String {
        sources.get(self.0).cloned().unwrap_or_default()
    }
}

/// The exact checker: first all lines, then the verdict.
#[derive(Debug)]
pub struct Checker {
    gap_rule: GapRule,
    sources: Vec<String>,
    sequences: BTreeMap<SequenceName, Recorded>,
}

/// All that is known of one sequence.
#[derive(Debug, Default)]
struct Recorded {
    entries: Vec<Entry>,
    expected: Expected,
    not_applied: u64,
    unknown: u64,
}

/// A line and where it stands.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) source: SourceId,
    pub(super) number: u64,
    pub(super) line: Line,
}

/// What is known of a sequence beside its history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// The first value: below it nothing is granted, and a gap above it counts.
    pub(super) start: Option<u64>,
    /// The high-water mark, read when nothing was in flight any more.
    pub(super) high: Option<u64>,
}

impl Checker {
    /// A checker that has seen nothing.
    #[must_use]
    pub fn new(gap_rule: GapRule) -> Self {
        Self {
            gap_rule,
            sources: Vec::new(),
            sequences: BTreeMap::new(),
        }
    }

    /// Changes what a gap means.
    pub fn set_gap_rule(&mut self, gap_rule: GapRule) {
        self.gap_rule = gap_rule;
    }

    /// Names a source of lines; a witness says where it stands.
    pub fn add_source(&mut self, name: impl Into<String>) -> SourceId {
        self.sources.push(name.into());
        SourceId(self.sources.len() - 1)
    }

    /// Takes one line, in any order.
    pub fn add(&mut self, source: SourceId, number: u64, line: Line) {
        let recorded = match self.sequences.get_mut(&line.sequence) {
            Some(recorded) => recorded,
            None => self.sequences.entry(line.sequence.clone()).or_default(),
        };
        match line.outcome {
            LeaseOutcome::Granted { .. } => {}
            LeaseOutcome::NotApplied => {
                // It says that nothing happened: it bears on nothing but the count.
                recorded.not_applied += 1;
                return;
            }
            LeaseOutcome::Unknown => recorded.unknown += 1,
        }
        recorded.entries.push(Entry {
            source,
            number,
            line,
        });
    }

    /// Tells the sequence's first value: what lies between it and the lowest grant is then a gap as well.
    pub fn expect_start(&mut self, sequence: &SequenceName, start: u64) {
        let recorded = self.sequences.entry(sequence.clone()).or_default();
        recorded.expected.start = Some(start);
    }

    /// Tells the sequence's high-water mark, read after the last request had ended: a grant above it was lost (I3).
    pub fn expect_high(&mut self, sequence: &SequenceName, high: u64) {
        let recorded = self.sequences.entry(sequence.clone()).or_default();
        recorded.expected.high = Some(high);
    }

    /// Judges all lines. O(n log n) in their number, but for the search that explains gaps, which is bounded.
    #[must_use]
    pub fn check(&self) -> Report {
        let mut report = Report::new(self.sources.clone());
        for (name, recorded) in &self.sequences {
            let requests = Requests::of(&recorded.entries, recorded.expected);
            report.add(&Judged {
                name,
                entries: &recorded.entries,
                high: recorded.expected.high,
                not_applied: recorded.not_applied,
                unknown: recorded.unknown,
                overlaps: overlap::find(&requests.grants),
                order: order::find(&requests.grants),
                gaps: gaps::find(self.gap_rule, &requests, recorded.expected),
                requests: &requests,
            });
        }
        report
    }
}
