//! I2: what was answered before another request was sent lies below its range. One sweep over sends and receipts.

use super::overlap::Findings;
use super::requests::Grant;

/// The grants whose range does not lie above all that was answered before they were sent.
pub(super) fn find(grants: &[Grant]) -> Findings {
    let mut findings = Findings::default();
    let mut frontier = Frontier::new(grants);
    let mut by_sent: Vec<&Grant> = grants.iter().collect();
    by_sent.sort_unstable_by_key(|grant| grant.sent_ns);
    for later in by_sent {
        let earlier = frontier.before(later.sent_ns);
        if let Some(earlier) = earlier.filter(|earlier| later.first <= earlier.last) {
            findings.add(earlier, later);
        }
    }
    findings
}

/// The highest grant answered before an instant, for instants that only rise.
pub(super) struct Frontier<'a> {
    by_received: Vec<&'a Grant>,
    passed: usize,
    highest: Option<&'a Grant>,
}

impl<'a> Frontier<'a> {
    pub(super) fn new(grants: &'a [Grant]) -> Self {
        let mut by_received: Vec<&Grant> = grants.iter().collect();
        by_received.sort_unstable_by_key(|grant| grant.received_ns);
        Self {
            by_received,
            passed: 0,
            highest: None,
        }
    }

    /// Of equal instants the clock does not tell which came first: only earlier ones count.
    pub(super) fn before(&mut self, sent_ns: u64) -> Option<&'a Grant> {
        while let Some(grant) = self.by_received.get(self.passed)
            && grant.received_ns < sent_ns
        {
            self.passed += 1;
            if self.highest.is_none_or(|highest| highest.last < grant.last) {
                self.highest = Some(grant);
            }
        }
        self.highest
    }
}
