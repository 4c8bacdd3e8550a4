//! Judges lines, in whatever order they come.

use std::io;

use super::findings::{Findings, Shown};
use super::intake::Intake;
use super::line::Line;
use super::report::{Report, ViolationKind};
use super::{order, values};
use crate::sequence::SequenceName;

/// How many violations are shown. All are counted.
const VIOLATIONS_SHOWN_MAX: usize = 100;

/// What a gap between grants means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapRule {
    /// Sequences without a cache, and every request of theirs is in the history: a gap that no request without an answer
    /// explains is a lost grant.
    MustBeExplained,
    /// Sequences with a cache, or others leased too: gaps are counted only, and what a read shows may be above what is
    /// granted later. What a read shows to have a cache is judged like this whatever the rule is.
    Allowed,
}

/// Takes all lines, then judges.
#[derive(Debug)]
pub(super) struct Judge {
    rule: GapRule,
    intake: Intake,
}

/// A broken rule, and the lines that show it, perhaps more than are needed.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) kind: ViolationKind,
    pub(super) sequence: SequenceName,
    /// How often in this sequence.
    pub(super) count: u64,
    pub(super) text: String,
    pub(super) entries: Vec<u64>,
}

impl Judge {
    pub(super) fn new(rule: GapRule, memory_bytes: usize) -> Self {
        Self {
            rule,
            intake: Intake::new(memory_bytes),
        }
    }

    /// Takes the line that has this number over all sources.
    pub(super) fn add(&mut self, entry: u64, line: &Line) -> io::Result<()> {
        self.intake.add(entry, line)
    }

    /// Counts all violations, and gives those that are shown.
    pub(super) fn judge(self) -> io::Result<(Report, Vec<Found>)> {
        let (mut sequences, mut sorts) = self.intake.sorted()?;
        let mut report = Report::default();
        let mut found = Vec::new();
        for (number, sequence) in (0..).zip(&mut sequences) {
            let rule = if sequence.cached {
                GapRule::Allowed
            } else {
                self.rule
            };
            let by_time = order::find(rule, (number, sequence), &mut sorts)?;
            let open = &by_time.open;
            let by_value = values::find(rule, (number, sequence), open, &mut sorts)?;
            report.add(sequence, &by_time, &by_value);
            let mut reads = by_time.reads;
            reads.merge(by_value.marks);
            for (kind, findings) in [
                (ViolationKind::Overlap, by_value.overlaps),
                (ViolationKind::Order, by_time.order),
                (ViolationKind::Lost, by_time.lost),
                (
                    ViolationKind::Key,
                    std::mem::take(&mut sequence.key_conflicts),
                ),
                (ViolationKind::Read, reads),
                (
                    ViolationKind::Malformed,
                    std::mem::take(&mut sequence.malformed),
                ),
                (ViolationKind::Gap, by_value.unexplained),
            ] {
                let Findings { count, shown } = findings;
                if let Some(Shown {
                    text, mut entries, ..
                }) = shown
                    && found.len() < VIOLATIONS_SHOWN_MAX
                {
                    entries.sort_unstable();
                    entries.dedup();
                    found.push(Found {
                        kind,
                        sequence: sequence.name.clone(),
                        count,
                        text,
                        entries,
                    });
                }
            }
        }
        Ok((report, found))
    }
}
