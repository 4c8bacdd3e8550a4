//! Dense: values that nobody was given. Each gap must be the ranges of requests without an answer, or it is a lost grant:
//! a range given under an answer that said otherwise, or under no line at all.

use std::num::NonZeroU64;

use super::checker::{Expected, GapRule};
use super::cover::{self, Answer, Need};
use super::order::Frontier;
use super::requests::{Grant, Requests};

/// Values of the lattice between, below or above the grants that no grant covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    /// The lowest missing value.
    pub(super) first: u64,
    /// The highest missing value.
    pub(super) last: u64,
    /// How many values are missing.
    pub(super) values: u64,
    /// The entries of the grants below and above it.
    pub(super) neighbours: (Option<usize>, Option<usize>),
}

/// What the gaps of a sequence come to.
#[derive(Debug, Default)]
pub(super) struct GapFindings {
    /// All gaps.
    pub(super) count: u64,
    /// Those that no set of unanswered requests explains.
    pub(super) unexplained: u64,
    /// Those for which the search was given up: counted as explained.
    pub(super) undecided: u64,
    /// The lowest unexplained gap.
    pub(super) witness: Option<Gap>,
}

/// The gaps of one sequence, and which of them its unanswered requests explain.
pub(super) fn find(rule: GapRule, requests: &Requests, expected: Expected) -> GapFindings {
    let gaps = list(requests, expected);
    if rule == GapRule::Allowed {
        return GapFindings {
            count: u64::try_from(gaps.len()).unwrap_or(u64::MAX),
            ..GapFindings::default()
        };
    }
    let mut findings = GapFindings::default();
    let needs = needs(&gaps, requests);
    for (gap, answer) in gaps.iter().zip(cover::explain(&needs)) {
        findings.count += 1;
        match answer {
            Answer::Yes => {}
            Answer::Undecided => findings.undecided += 1,
            Answer::No => {
                findings.unexplained += 1;
                findings.witness.get_or_insert(*gap);
            }
        }
    }
    findings
}

fn list(requests: &Requests, expected: Expected) -> Vec<Gap> {
    let Some(increment) = requests.increment else {
        return Vec::new();
    };
    let mut gaps = Vec::new();
    let mut highest: Option<&Grant> = None;
    for grant in &requests.grants {
        let from = match highest {
            Some(below) => below.last.checked_add(increment.get()),
            None => expected.start,
        };
        let to = grant.first.checked_sub(increment.get());
        let neighbours = (highest.map(|below| below.entry), Some(grant.entry));
        gaps.extend(gap(from, to, increment, neighbours));
        if highest.is_none_or(|below| below.last < grant.last) {
            highest = Some(grant);
        }
    }
    if let Some(highest) = highest {
        let from = highest.last.checked_add(increment.get());
        gaps.extend(gap(
            from,
            expected.high,
            increment,
            (Some(highest.entry), None),
        ));
    }
    gaps
}

fn gap(
    from: Option<u64>,
    to: Option<u64>,
    increment: NonZeroU64,
    neighbours: (Option<usize>, Option<usize>),
) -> Option<Gap> {
    let (first, to) = (from?, to?);
    let steps = to.checked_sub(first)? / increment.get();
    Some(Gap {
        first,
        last: first + steps * increment.get(),
        values: steps.saturating_add(1),
        neighbours,
    })
}

/// What each gap needs, and which unanswered requests may have taken it but none of the gaps below: a request lies above
/// all that was answered before it was sent (I2), so what may lie in a gap may lie in every higher one.
fn needs(gaps: &[Gap], requests: &Requests) -> Vec<Need> {
    let mut frontier = Frontier::new(&requests.grants);
    let mut by_sent = requests.unanswered.clone();
    by_sent.sort_unstable_by_key(|unanswered| unanswered.sent_ns);
    let mut arrivals = by_sent.into_iter().peekable();
    let mut needs = Vec::with_capacity(gaps.len());
    for gap in gaps {
        let mut counts = Vec::new();
        // The floor rises with the time of sending, as the gaps rise.
        while let Some(next) = arrivals.next_if(|next| {
            let below = frontier.before(next.sent_ns);
            below.is_none_or(|below| below.last < gap.first)
        }) {
            counts.push(next.count);
        }
        needs.push(Need {
            values: gap.values,
            arrivals: counts,
        });
    }
    needs
}
