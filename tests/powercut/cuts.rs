//! Where the power is cut: everywhere, and most often where there is most to lose.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::disk::Moment;
use crate::trace::{Event, Trace};

/// How many records after the beginning of a process count as its start.
const START_RECORDS: usize = 80;
/// How near a cut is to what it is aimed at.
const NEAR_RECORDS: usize = 12;

/// So many moments, in order; the power is cut before the records of these numbers. Some may be the same: what is lost
/// then is another question.
pub(crate) fn cuts(trace: &Trace, wanted: usize, random: &mut StdRng) -> Vec<Moment> {
    let end = trace.records.len();
    let starts = moments(trace, |event| matches!(event, Event::Start));
    let syncs = moments(trace, |event| matches!(event, Event::SyncEnd { .. }));
    let names = moments(trace, |event| {
        matches!(
            event,
            Event::Create { .. }
                | Event::MakeDirectory { .. }
                | Event::Rename { .. }
                | Event::Remove { .. }
                | Event::Truncate { .. }
        )
    });
    let mut found = Vec::new();
    for number in 0..wanted {
        let mut near = |moments: &[Moment], within| {
            let at = moments.choose(random).copied().unwrap_or_default();
            at + random.random_range(0..=within)
        };
        let at = match number % 4 {
            0 => near(&starts, START_RECORDS),
            // Just before a sync has succeeded, and just after.
            1 => near(&syncs, 1),
            2 => near(&names, NEAR_RECORDS),
            _ => random.random_range(0..=end),
        };
        found.push(at.min(end));
    }
    found.sort_unstable();
    found
}

fn moments(trace: &Trace, wanted: impl Fn(&Event) -> bool) -> Vec<Moment> {
    let records = trace.records.iter().enumerate();
    let found = records.filter(|(_, record)| wanted(&record.event));
    found.map(|(moment, _)| moment).collect()
}
