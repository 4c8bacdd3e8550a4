//! From the lines of one sequence to its requests: each grant once, each unanswered request once.
//!
//! A request key makes several lines one request (I4); without one, each line is a request. What is no range of the
//! sequence's lattice is set aside here, so that what follows may compare ends only.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use super::checker::{Entry, Expected};
use super::overlap::Findings;
use super::{LeaseOutcome, Line};
use crate::sequence::Range;

/// How long a request key is kept at least. Later the same key may be another request.
const KEY_WINDOW: Duration = Duration::from_mins(10);

/// An acknowledged range, as one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    /// Its lowest value.
    pub(super) first: u64,
    /// Its highest value.
    pub(super) last: u64,
    /// Before this it was not asked for.
    pub(super) sent_ns: u64,
    /// After this it was known to its worker.
    pub(super) received_ns: u64,
    /// The line that says so.
    pub(super) entry: usize,
}

/// A request that may have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unanswered {
    /// How many values it would have taken.
    pub(super) count: u32,
    /// Before this it took none.
    pub(super) sent_ns: u64,
}

/// One sequence's requests.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The distance between neighbours, where there is a grant.
    pub(super) increment: Option<NonZeroU64>,
    /// All grants that are ranges of the lattice, sorted by first value.
    pub(super) grants: Vec<Grant>,
    /// All requests without an answer.
    pub(super) unanswered: Vec<Unanswered>,
    /// Grants that are no range of the lattice, or not of the count asked for.
    pub(super) malformed: Findings,
    /// Grants of a key that got another range before.
    pub(super) key_conflicts: Findings,
}

/// The lattice that all grants of a sequence are on.
struct Lattice {
    increment: NonZeroU64,
    origin: u64,
    /// The grant it is taken from.
    reference: Grant,
}

impl Requests {
    /// Sorts the entries of one sequence into its requests.
    pub(super) fn of(entries: &[Entry], expected: Expected) -> Self {
        let mut by_sent: Vec<(usize, &Line)> = entries
            .iter()
            .map(|entry| &entry.line)
            .enumerate()
            .collect();
        by_sent.sort_by_key(|(_, line)| line.sent_ns);
        let mut requests = Self::default();
        let mut keys: BTreeMap<&str, Key> = BTreeMap::new();
        let mut lattice: Option<Lattice> = None;
        for (entry, line) in by_sent {
            let key = line.key.as_deref().map(|key| keys.entry(key).or_default());
            match line.outcome {
                LeaseOutcome::NotApplied => {}
                LeaseOutcome::Unknown => match key {
                    Some(key) => key.unanswered.push(Unanswered::of(line)),
                    None => requests.unanswered.push(Unanswered::of(line)),
                },
                LeaseOutcome::Granted {
                    first,
                    last,
                    increment,
                } => {
                    let grant = Grant {
                        first,
                        last,
                        sent_ns: line.sent_ns,
                        received_ns: line.received_ns,
                        entry,
                    };
                    if !is_range(&mut lattice, &grant, increment, line, expected) {
                        let reference = lattice.as_ref().map_or(grant, |lattice| lattice.reference);
                        requests.malformed.add(&reference, &grant);
                        continue;
                    }
                    match key {
                        Some(key) => key.add_grant(grant, &mut requests.key_conflicts),
                        None => requests.grants.push(grant),
                    }
                }
            }
        }
        for key in keys.into_values() {
            key.settle(&mut requests);
        }
        requests.increment = lattice.map(|lattice| lattice.increment);
        requests
            .grants
            .sort_by_key(|grant| (grant.first, grant.last));
        requests
    }
}

impl Unanswered {
    fn of(line: &Line) -> Self {
        Self {
            count: line.count.get(),
            sent_ns: line.sent_ns,
        }
    }
}

/// Whether the grant is the range asked for, on the lattice of the first grant that was sent.
fn is_range(
    lattice: &mut Option<Lattice>,
    grant: &Grant,
    increment: u64,
    line: &Line,
    expected: Expected,
) -> bool {
    let Some(increment) = NonZeroU64::new(increment) else {
        return false;
    };
    let asked = Range::starting_at(grant.first, line.count, increment);
    if asked.map(|range| range.last()) != Some(grant.last) {
        return false;
    }
    let lattice = lattice.get_or_insert_with(|| Lattice {
        increment,
        origin: expected.start.unwrap_or(grant.first),
        reference: *grant,
    });
    let below_start = expected.start.is_some_and(|start| grant.first < start);
    lattice.increment == increment
        && lattice.origin % increment == grant.first % increment
        && !below_start
}

/// All lines of one request key, in the order of sending.
#[derive(Debug, Default)]
struct Key {
    grants: Vec<Grant>,
    unanswered: Vec<Unanswered>,
}

impl Key {
    fn add_grant(&mut self, grant: Grant, conflicts: &mut Findings) {
        if let Some(same) = self
            .grants
            .iter_mut()
            .find(|known| (known.first, known.last) == (grant.first, grant.last))
        {
            // A replay: the range was given no later than its first answer says.
            same.received_ns = same.received_ns.min(grant.received_ns);
            return;
        }
        if let Some(other) = self
            .grants
            .last()
            .filter(|other| within_window(other.sent_ns, grant.sent_ns))
        {
            conflicts.add(other, &grant);
        }
        self.grants.push(grant);
    }

    fn settle(mut self, requests: &mut Requests) {
        for grant in &mut self.grants {
            // Any of its tries may be the one that was carried out.
            let tries = self.unanswered.iter().map(|unanswered| unanswered.sent_ns);
            let tries = tries.filter(|sent_ns| within_window(*sent_ns, grant.sent_ns));
            grant.sent_ns = tries.chain([grant.sent_ns]).min().unwrap_or_default();
        }
        let mut counted: Option<u64> = None;
        for unanswered in self.unanswered {
            let answered = self
                .grants
                .iter()
                .any(|grant| within_window(grant.sent_ns, unanswered.sent_ns));
            let repeated = counted.is_some_and(|sent| within_window(sent, unanswered.sent_ns));
            if !answered && !repeated {
                counted = Some(unanswered.sent_ns);
                requests.unanswered.push(unanswered);
            }
        }
        requests.grants.extend(self.grants);
    }
}

fn within_window(one_ns: u64, other_ns: u64) -> bool {
    Duration::from_nanos(one_ns.abs_diff(other_ns)) <= KEY_WINDOW
}
