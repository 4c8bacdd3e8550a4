//! I1, and dense: values that were granted twice, marks that nothing leads to, and values that nobody was given. One sweep
//! along the values.
//!
//! Each gap must be the ranges of requests without an answer, or it is a lost grant: a range given under an answer that said
//! otherwise, or under no line at all. A read splits a gap in two, because the mark stood there.

use std::io;

use super::GapRule;
use super::cover::{self, Answer, Need};
use super::findings::Findings;
use super::intake::{Sequence, Sorts};
use super::lattice::Missing;
use super::op::{Op, OpKind};
use super::order::{Open, OpenKind};

/// What the values of a sequence come to.
#[derive(Debug, Default)]
pub(super) struct ValueFindings {
    /// Grants and advances that share a value with one below or beside them.
    pub(super) overlaps: Findings,
    /// Reads of a mark that no request leads to.
    pub(super) marks: Findings,
    /// All gaps.
    pub(super) gaps: u64,
    /// Those that no set of unanswered requests explains.
    pub(super) unexplained: Findings,
    /// Those for which the search was given up: counted as explained.
    pub(super) undecided: u64,
}

/// Values that no grant or advance covers.
#[derive(Debug)]
struct Gap {
    missing: Missing,
    /// The marks between which it lies.
    marks: (Option<u64>, Option<u64>),
    /// What shows them.
    neighbours: (Op, Op),
}

/// Goes through one sequence's values from below.
pub(super) fn find(
    rule: GapRule,
    (number, sequence): (u32, &mut Sequence),
    open: &[Open],
    sorts: &mut Sorts,
) -> io::Result<ValueFindings> {
    let mut sweep = Sweep {
        rule,
        sequence,
        open,
        advances: open.iter().filter_map(Open::advance).collect(),
        findings: ValueFindings::default(),
        covered: None,
        mark: None,
        gaps: Vec::new(),
    };
    while let Some(op) = sorts.by_value.next_of(number)? {
        sweep.add(op);
    }
    Ok(sweep.end())
}

struct Sweep<'a> {
    rule: GapRule,
    sequence: &'a mut Sequence,
    open: &'a [Open],
    /// Advances without an answer: what was known when they were sent, and to where.
    advances: Vec<(Option<u64>, Option<u64>)>,
    findings: ValueFindings,
    /// What reached highest so far.
    covered: Option<Op>,
    /// The highest mark so far, and what shows it. None where nothing tells where the history begins.
    mark: Option<(Option<u64>, Op)>,
    gaps: Vec<Gap>,
}

impl Sweep<'_> {
    fn add(&mut self, op: Op) {
        if let Some(reference) = self.sequence.refuses(&op).copied() {
            self.sequence.blame(&reference, &op);
            return;
        }
        match op.kind {
            // A cache is part of the mark before it is granted. Before the first grant there is none.
            OpKind::Read | OpKind::FinalRead
                if self.rule == GapRule::MustBeExplained || op.high.is_none() =>
            {
                self.show(op.high, op);
            }
            OpKind::Grant | OpKind::Advance => self.cover(op),
            _ => {}
        }
    }

    fn cover(&mut self, op: Op) {
        let below = self.covered.filter(|covered| op.low < covered.high);
        if let Some(below) = below {
            let name = &self.sequence.name;
            self.findings.overlaps.add(&[&below, &op], || {
                if (below.kind, op.kind) == (OpKind::Grant, OpKind::Grant) {
                    format!("I1: two grants of {name} share values")
                } else {
                    format!("I1: a grant of {name} has values that an advance passed over")
                }
            });
        } else if op.kind == OpKind::Advance && self.rule == GapRule::MustBeExplained {
            self.show(op.low, op);
        } else {
            self.skip(op.low, op);
        }
        if self.covered.is_none_or(|covered| covered.high < op.high) {
            self.covered = Some(op);
        }
        if self.mark.is_none_or(|(mark, _)| mark <= op.high) {
            self.mark = Some((op.high, op));
        }
    }

    /// The mark was exactly this.
    fn show(&mut self, shown: Option<u64>, op: Op) {
        let Some((mark, by)) = self.mark else {
            self.mark = Some((shown, op));
            return;
        };
        if mark == shown {
            return;
        }
        let lattice = &self.sequence.lattice;
        let between = lattice.between(mark, shown);
        let leads_there = between.map(|missing| missing.last) == shown
            || lattice.reference().is_none()
            || self
                .advances
                .iter()
                .any(|(floor, to)| *floor <= mark && *to == shown);
        if shown < mark || !leads_there {
            let name = &self.sequence.name;
            let lines = [&by, &op, lattice.reference().unwrap_or(&op)];
            self.findings.marks.add(&lines, || {
                if shown < mark {
                    format!("I6: a read of {name} shows a mark inside a range")
                } else {
                    format!("I6: a read of {name} shows a mark that no request leads to")
                }
            });
            return;
        }
        self.skip(shown, op);
        self.mark = Some((shown, op));
    }

    /// Nothing covers what lies between the mark so far and this one.
    fn skip(&mut self, to: Option<u64>, op: Op) {
        let Some((from, by)) = self.mark else {
            return;
        };
        if let Some(missing) = self.sequence.lattice.between(from, to) {
            self.findings.gaps += 1;
            if self.rule == GapRule::MustBeExplained {
                self.gaps.push(Gap {
                    missing,
                    marks: (from, to),
                    neighbours: (by, op),
                });
            }
        }
    }

    fn end(mut self) -> ValueFindings {
        // Who passed over a gap is not known, so nobody's request is needed for it.
        let (passed_over, gaps): (Vec<Gap>, Vec<Gap>) = std::mem::take(&mut self.gaps)
            .into_iter()
            .partition(|gap| self.may_be_passed_over(gap));
        self.findings.undecided += u64::try_from(passed_over.len()).unwrap_or(u64::MAX);
        for (gap, answer) in gaps.iter().zip(cover::explain(&self.needs(&gaps))) {
            match answer {
                Answer::Yes => {}
                Answer::Undecided => self.findings.undecided += 1,
                Answer::No => {
                    let name = &self.sequence.name;
                    let Missing { first, last, .. } = gap.missing;
                    let (below, above) = &gap.neighbours;
                    let reference = self.sequence.lattice.reference();
                    let lines = [below, above, reference.unwrap_or(above)];
                    self.findings.unexplained.add(&lines, || {
                        format!(
                            "lost grant: the values {first}..={last} of {name} were given to nobody, and no request \
                             without an answer explains it"
                        )
                    });
                }
            }
        }
        self.findings
    }

    /// What each gap needs, and which unanswered requests may have taken it but none of the gaps below: a request lies above
    /// all that was answered before it was sent (I2), so what may lie in a gap may lie in every higher one.
    fn needs(&self, gaps: &[Gap]) -> Vec<Need> {
        // The floor rises with the time of sending, as the gaps rise.
        let mut arrivals = self.open.iter().peekable();
        let need = |gap: &Gap| {
            let mut counts = Vec::new();
            while let Some(next) = arrivals.next_if(|next| next.floor < Some(gap.missing.first)) {
                if let OpenKind::Lease(count) = next.what {
                    counts.push(count);
                }
            }
            Need {
                values: gap.missing.values,
                arrivals: counts,
            }
        };
        gaps.iter().map(need).collect()
    }

    /// Whether an advance without an answer may have ended there.
    fn may_be_passed_over(&self, gap: &Gap) -> bool {
        let (from, to) = gap.marks;
        let ends_here = |(floor, high): &(Option<u64>, Option<u64>)| {
            *floor <= from && from < *high && *high <= to
        };
        self.advances.iter().any(ends_here)
    }
}
