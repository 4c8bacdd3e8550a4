//! What the checker found: counts, and for each kind of violation the smallest set of lines that shows it.

use std::fmt;

use serde::Serialize;

use super::Line;
use super::checker::Entry;
use super::gaps::GapFindings;
use super::overlap::Findings;
use super::requests::Requests;
use crate::sequence::SequenceName;

/// How many violations are shown. All are counted.
const VIOLATIONS_SHOWN_MAX: usize = 100;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    sources: Vec<String>,
    /// How many sequences the history names.
    pub sequences: u64,
    /// How many lines are grants.
    pub grants: u64,
    /// How many lines say that nothing happened.
    pub not_applied: u64,
    /// How many lines say that nothing is known.
    pub unknown: u64,
    /// Grants that share a value with a grant below or beside them (I1).
    pub overlaps: u64,
    /// Grants that do not lie above all that was answered before they were sent (I2).
    pub order_violations: u64,
    /// Grants above the sequence's final mark (I3).
    pub lost: u64,
    /// Grants of a request key that got another range before (I4).
    pub key_conflicts: u64,
    /// Grants that are no range, not of the count asked for, or off the sequence's lattice.
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
    /// Two lines at most.
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
    /// A grant that is not what was asked for.
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

/// What was found of one sequence.
pub(super) struct Judged<'a> {
    pub(super) name: &'a SequenceName,
    pub(super) entries: &'a [Entry],
    pub(super) high: Option<u64>,
    pub(super) not_applied: u64,
    pub(super) unknown: u64,
    pub(super) requests: &'a Requests,
    pub(super) overlaps: Findings,
    pub(super) order: Findings,
    pub(super) gaps: GapFindings,
}

impl Report {
    pub(super) fn new(sources: Vec<String>) -> Self {
        Self {
            sources,
            sequences: 0,
            grants: 0,
            not_applied: 0,
            unknown: 0,
            overlaps: 0,
            order_violations: 0,
            lost: 0,
            key_conflicts: 0,
            malformed: 0,
            gaps: 0,
            gaps_unexplained: 0,
            gaps_undecided: 0,
            violations: Vec::new(),
        }
    }

    /// The judgement as one word.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let broken = [
            self.overlaps,
            self.order_violations,
            self.lost,
            self.key_conflicts,
            self.malformed,
            self.gaps_unexplained,
        ];
        if broken.iter().all(|count| *count == 0) {
            Verdict::Holds
        } else {
            Verdict::Violated
        }
    }

    pub(super) fn add(&mut self, judged: &Judged<'_>) {
        let lines = u64::try_from(judged.entries.len()).unwrap_or(u64::MAX);
        self.sequences += 1;
        self.grants += lines.saturating_sub(judged.unknown);
        self.not_applied += judged.not_applied;
        self.unknown += judged.unknown;
        self.overlaps += judged.overlaps.count;
        self.order_violations += judged.order.count;
        self.key_conflicts += judged.requests.key_conflicts.count;
        self.malformed += judged.requests.malformed.count;
        self.gaps += judged.gaps.count;
        self.gaps_unexplained += judged.gaps.unexplained;
        self.gaps_undecided += judged.gaps.undecided;

        self.add_pair(judged, ViolationKind::Overlap, judged.overlaps);
        self.add_pair(judged, ViolationKind::Order, judged.order);
        self.add_pair(judged, ViolationKind::Key, judged.requests.key_conflicts);
        self.add_pair(judged, ViolationKind::Malformed, judged.requests.malformed);
        self.add_lost(judged);
        self.add_gap(judged);
    }

    fn add_pair(&mut self, judged: &Judged<'_>, kind: ViolationKind, findings: Findings) {
        let Some((earlier, later)) = findings.witness else {
            return;
        };
        let count = findings.count;
        let name = judged.name;
        let what = match kind {
            ViolationKind::Overlap => format!("I1: two grants of {name} share values"),
            ViolationKind::Order => format!(
                "I2: a grant of {name} is not above one that was received before it was sent"
            ),
            ViolationKind::Key => format!("I4: a request key of {name} got two ranges"),
            ViolationKind::Malformed | ViolationKind::Lost | ViolationKind::Gap => format!(
                "a grant of {name} is not the range asked for, or not on the sequence's lattice: the last of these"
            ),
        };
        let text = format!("{what} ({count} such in all)");
        let mut entries = vec![earlier, later];
        entries.dedup();
        self.show(judged, kind, text, &entries);
    }

    fn add_lost(&mut self, judged: &Judged<'_>) {
        let grants = &judged.requests.grants;
        let above = |last: u64| judged.high.is_some_and(|high| high < last);
        let lost = grants.iter().filter(|grant| above(grant.last)).count();
        self.lost += u64::try_from(lost).unwrap_or(u64::MAX);
        let highest = grants.iter().max_by_key(|grant| grant.last);
        if let (Some(highest), Some(high)) =
            (highest.filter(|grant| above(grant.last)), judged.high)
        {
            let name = judged.name;
            let text = format!(
                "I3: an acknowledged grant of {name} is above the final mark {high} ({lost} such in all)"
            );
            self.show(judged, ViolationKind::Lost, text, &[highest.entry]);
        }
    }

    fn add_gap(&mut self, judged: &Judged<'_>) {
        let Some(gap) = judged.gaps.witness else {
            return;
        };
        let name = judged.name;
        let text = format!(
            "lost grant: the values {first}..={last} of {name} were given to nobody, and no request without an \
             answer explains it ({count} such gaps in all)",
            first = gap.first,
            last = gap.last,
            count = judged.gaps.unexplained,
        );
        let entries: Vec<usize> = [gap.neighbours.0, gap.neighbours.1]
            .into_iter()
            .flatten()
            .collect();
        self.show(judged, ViolationKind::Gap, text, &entries);
    }

    fn show(&mut self, judged: &Judged<'_>, kind: ViolationKind, text: String, entries: &[usize]) {
        if VIOLATIONS_SHOWN_MAX <= self.violations.len() {
            return;
        }
        let witnesses = entries
            .iter()
            .filter_map(|entry| judged.entries.get(*entry))
            .map(|entry| Witness {
                source: entry.source.name(&self.sources),
                number: entry.number,
                line: entry.line.clone(),
            })
            .collect();
        self.violations.push(Violation {
            kind,
            sequence: judged.name.clone(),
            text,
            witnesses,
        });
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
