//! I1: no two grants of a sequence share a value. Sorted by their first values, an overlap shows between neighbours.

use super::requests::Grant;

/// How many grants break a rule, and the earliest of them with the grant it collides with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// How many grants.
    pub(super) count: u64,
    /// Two entries that show it.
    pub(super) witness: Option<(usize, usize)>,
    earliest: Option<u64>,
}

impl Findings {
    /// Counts one, and keeps it as witness where it became visible before the one kept so far.
    pub(super) fn add(&mut self, earlier: &Grant, later: &Grant) {
        self.count = self.count.saturating_add(1);
        let visible = earlier.received_ns.max(later.received_ns);
        if self.earliest.is_none_or(|earliest| visible < earliest) {
            self.earliest = Some(visible);
            self.witness = Some((earlier.entry, later.entry));
        }
    }
}

/// The grants that share a value with one below or beside them. All are of one lattice, sorted by first value.
pub(super) fn find(by_first: &[Grant]) -> Findings {
    let mut findings = Findings::default();
    let mut highest: Option<&Grant> = None;
    for grant in by_first {
        if let Some(below) = highest.filter(|below| grant.first <= below.last) {
            if grant.received_ns < below.received_ns {
                findings.add(grant, below);
            } else {
                findings.add(below, grant);
            }
        }
        if highest.is_none_or(|below| below.last < grant.last) {
            highest = Some(grant);
        }
    }
    findings
}
