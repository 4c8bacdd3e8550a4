//! What the checker found: counts, and for each kind of violation the smallest set of lines that shows it.

use std::fmt;

use serde::Serialize;

use super::Line;
use super::intake::Sequence;
use super::order::OrderFindings;
use super::values::ValueFindings;
use crate::sequence::SequenceName;

/// Whether the history is one that a correct sequencer can have caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is.
    Holds,
    /// It is not.
    Violated,
}

/// What the checker found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many sequences the history names.
    pub sequences: u64,
    /// How many leases were granted.
    pub grants: u64,
    /// How many answers gave the range of a grant once more, under its key.
    pub replays: u64,
    /// How many lines are reads.
    pub reads: u64,
    /// How many lines are advances that were answered.
    pub advances: u64,
    /// How many lines say that nothing happened.
    pub not_applied: u64,
    /// How many lines say that nothing is known.
    pub unknown: u64,
    /// Grants that share a value with a grant below or beside them (I1).
    pub overlaps: u64,
    /// Grants that do not lie above all that was answered before they were sent (I2).
    pub order_violations: u64,
    /// Final reads below what was acknowledged (I3).
    pub lost: u64,
    /// Grants of a request key that got another range before (I4).
    pub key_conflicts: u64,
    /// Reads of what was not the mark, and grants that are not above what a read had shown (I6).
    pub read_violations: u64,
    /// Grants that are no range, not of the count asked for, or off the sequence's lattice, and advances to elsewhere.
    pub malformed: u64,
    /// Gaps between grants, explained or not.
    pub gaps: u64,
    /// Gaps that no set of requests without an answer explains: lost grants. None where gaps are allowed.
    pub gaps_unexplained: u64,
    /// Gaps for which the search for an explanation was given up. They do not count against the verdict.
    pub gaps_undecided: u64,
    /// For each sequence and kind one violation, the earliest.
    pub violations: Vec<Violation>,
}

/// A broken rule and the lines that show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which rule.
    pub kind: ViolationKind,
    /// Of which sequence.
    pub sequence: SequenceName,
    /// What is wrong, in words.
    pub text: String,
    /// The lines that show it. They do so alone, and no less than all of them does.
    pub witnesses: Vec<Witness>,
}

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ViolationKind {
    /// I1: a value was granted twice.
    Overlap,
    /// I2: a later request got a lower range.
    Order,
    /// I3: an acknowledged grant is above the final mark.
    Lost,
    /// I4: a request key got two ranges.
    Key,
    /// I6: a read showed what was not the mark, or was forgotten.
    Read,
    /// An answer that is not what was asked for.
    Malformed,
    /// Dense: a gap that no request without an answer explains.
    Gap,
}

/// A line and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Witness {
    /// The name of its source.
    pub source: String,
    /// Its number there, from 1 on.
    pub number: u64,
    /// The line itself.
    pub line: Line,
}

impl Report {
    /// The judgement as one word.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let broken = [
            self.overlaps,
            self.order_violations,
            self.lost,
            self.key_conflicts,
            self.read_violations,
            self.malformed,
            self.gaps_unexplained,
        ];
        if broken.iter().all(|count| *count == 0) {
            Verdict::Holds
        } else {
            Verdict::Violated
        }
    }

    pub(super) fn add(
        &mut self,
        sequence: &Sequence,
        by_time: &OrderFindings,
        by_value: &ValueFindings,
    ) {
        self.sequences += 1;
        self.grants += sequence.lines.grants;
        self.replays += sequence.lines.replays;
        self.reads += sequence.lines.reads;
        self.advances += sequence.lines.advances;
        self.not_applied += sequence.lines.not_applied;
        self.unknown += sequence.lines.unknown;
        self.overlaps += by_value.overlaps.count;
        self.order_violations += by_time.order.count;
        self.lost += by_time.lost.count;
        self.key_conflicts += sequence.key_conflicts.count;
        self.read_violations += by_time.reads.count + by_value.marks.count;
        self.malformed += sequence.malformed.count;
        self.gaps += by_value.gaps;
        self.gaps_unexplained += by_value.unexplained.count;
        self.gaps_undecided += by_value.undecided;
    }

    /// The lines of all violations that are shown, each once, in the order in which they were given.
    pub fn witnesses(&self) -> Vec<&Witness> {
        let mut seen = std::collections::BTreeSet::new();
        let all = self
            .violations
            .iter()
            .flat_map(|violation| &violation.witnesses);
        all.filter(|witness| seen.insert((&witness.source, witness.number)))
            .collect()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        for witness in &self.witnesses {
            write!(f, "\n  {witness}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            source,
            number,
            line,
        } = self;
        write!(f, "{source}:{number} {}", line.to_json())
    }
}
