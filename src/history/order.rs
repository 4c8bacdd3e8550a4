//! I2, I3, I6: what was answered before another request was sent lies below it. One sweep over sends and receipts.

use std::io;

use super::GapRule;
use super::findings::Findings;
use super::intake::{Sequence, Sorts};
use super::op::{Op, OpKind};

/// What the times of a sequence's requests come to.
#[derive(Debug, Default)]
pub(super) struct OrderFindings {
    /// Grants that are not above what was granted or advanced to before they were sent.
    pub(super) order: Findings,
    /// Final reads below what was granted or advanced to before.
    pub(super) lost: Findings,
    /// Reads below what was acknowledged or shown before, and what is not above an earlier read.
    pub(super) reads: Findings,
    /// The requests without an answer, in the order of sending.
    pub(super) open: Vec<Open>,
}

/// A request that may have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Open {
    /// It happened above this mark, which was known before it was sent.
    pub(super) floor: Option<u64>,
    /// What it would have done.
    pub(super) what: OpenKind,
}

/// What a request without an answer would have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenKind {
    /// Taken so many values.
    Lease(u32),
    /// Raised the mark to this.
    Advance(u64),
}

impl Open {
    /// What was known when an advance was sent, and to where.
    pub(super) fn advance(&self) -> Option<(Option<u64>, Option<u64>)> {
        match self.what {
            OpenKind::Advance(to) => Some((self.floor, Some(to))),
            OpenKind::Lease(_) => None,
        }
    }
}

/// Goes through one sequence's requests by time.
pub(super) fn find(
    rule: GapRule,
    (number, sequence): (u32, &Sequence),
    sorts: &mut Sorts,
) -> io::Result<OrderFindings> {
    let name = &sequence.name;
    let mut findings = OrderFindings::default();
    let mut known = Known::default();
    while let Some(later) = sorts.by_sent.next_of(number)? {
        known.until(later.sent_ns, (number, sequence), sorts)?;
        if sequence.refuses(&later).is_some() {
            continue;
        }
        let taken = known.taken.as_ref().filter(|op| later.low < op.high);
        let shown = known.shown.as_ref().filter(|op| later.low < op.high);
        // With a cache a mark is ahead of grants, and gaps need no explanation.
        let is_dense = rule == GapRule::MustBeExplained;
        match (later.kind, taken, shown) {
            (OpKind::OpenLease, ..) if is_dense => findings.open.push(Open {
                floor: known.mark(),
                what: OpenKind::Lease(later.count),
            }),
            (OpKind::OpenAdvance, ..) if is_dense => findings.open.push(Open {
                floor: known.mark(),
                what: OpenKind::Advance(later.last()),
            }),
            (OpKind::OpenLease | OpKind::OpenAdvance, ..) => {}
            (OpKind::Grant, Some(earlier), _) => findings.order.add(&[earlier, &later], || {
                format!(
                    "I2: a grant of {name} is not above one that was received before it was sent"
                )
            }),
            (OpKind::Grant, None, Some(read)) if is_dense => {
                findings.reads.add(&[read, &later], || {
                    format!("I6: a grant of {name} is not above what a read had shown before it was sent")
                });
            }
            (OpKind::Grant, None, _) => {}
            (OpKind::FinalRead, Some(earlier), _) => findings.lost.add(&[earlier, &later], || {
                format!("I3: the final read of {name} is below an acknowledged grant")
            }),
            (OpKind::Advance | OpKind::Read, Some(earlier), _) => {
                findings.reads.add(&[earlier, &later], || {
                    format!(
                        "I6: a read of {name} is below what was acknowledged before it was sent"
                    )
                });
            }
            (OpKind::Advance | OpKind::Read | OpKind::FinalRead, None, Some(earlier)) => {
                findings.reads.add(&[earlier, &later], || {
                    format!(
                        "I6: a read of {name} is below what a read had shown before it was sent"
                    )
                });
            }
            (OpKind::Advance | OpKind::Read | OpKind::FinalRead, None, None) => {}
        }
    }
    // What was received after the last was sent came before nothing.
    while sorts.by_received.next_of(number)?.is_some() {}
    Ok(findings)
}

/// The highest marks answered before an instant that only rises.
#[derive(Debug, Default)]
struct Known {
    /// By a grant or an advance.
    taken: Option<Op>,
    /// By a read.
    shown: Option<Op>,
}

impl Known {
    /// Of equal instants the clock does not tell which came first: only earlier ones count.
    fn until(
        &mut self,
        sent_ns: u64,
        (number, sequence): (u32, &Sequence),
        sorts: &mut Sorts,
    ) -> io::Result<()> {
        let is_before = |op: &&Op| op.sequence == number && op.received_ns < sent_ns;
        while sorts.by_received.peek().filter(is_before).is_some() {
            let Some(op) = sorts.by_received.next()? else {
                break;
            };
            if sequence.refuses(&op).is_some() {
                continue;
            }
            let highest = match op.kind {
                OpKind::Grant | OpKind::Advance => &mut self.taken,
                _ => &mut self.shown,
            };
            if highest.is_none_or(|highest| highest.high < op.high) {
                *highest = Some(op);
            }
        }
        Ok(())
    }

    fn mark(&self) -> Option<u64> {
        let high = |op: Option<Op>| op.and_then(|op| op.high);
        high(self.taken).max(high(self.shown))
    }
}
