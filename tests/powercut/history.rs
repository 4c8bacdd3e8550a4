//! What the workers asked and were told, and what a disk therefore owes them.
//!
//! Each worker has a sequence of its own and asks for one thing at a time, so it knows how high the mark can be: of a sequence with
//! a cache higher than what was granted, by what was reserved, and never lower. Times
//! are CLOCK_MONOTONIC, the recorder's clock too.

use std::collections::BTreeMap;

use rustix::time::{ClockId, clock_gettime};

use crate::lone::Owed;

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap();
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) sent_ns: u64,
    /// The highest mark that it and those before it can lead to, 0 before the first grant.
    pub(crate) high_asked: u64,
    /// What the answer said, `None` where there was none.
    pub(crate) answer: Option<Answer>,
}

/// The answer to a request that was acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) received_ns: u64,
    /// The value or mark that it told of.
    pub(crate) high: u64,
    /// The term in which it was granted and the log index of that, where the answer tells.
    pub(crate) term: Option<u64>,
    pub(crate) index: Option<u64>,
}

/// The requests on each sequence, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    pub(crate) steps: BTreeMap<String, Vec<Step>>,
}

impl History {
    /// What is owed by a disk whose power is cut at `at_ns`.
    ///
    /// A cut lies before a record of the trace, and `at_ns` is that record's time, taken before it happened. An answer
    /// that was received earlier was given when the disk had done at most what stands before the cut, so everything
    /// it acknowledged has to follow from that. A request that was sent later is not on the disk.
    pub(crate) fn owed_at(&self, at_ns: u64) -> Owed {
        let mut owed = Owed::default();
        for (sequence, steps) in &self.steps {
            let mut acknowledged = None;
            let mut asked = 0;
            for step in steps.iter().filter(|step| step.sent_ns < at_ns) {
                asked = asked.max(step.high_asked);
                if let Some(answer) = &step.answer
                    && answer.received_ns < at_ns
                {
                    acknowledged = acknowledged.max(Some(answer.high));
                    owed.term = owed.term.max(answer.term.unwrap_or_default());
                    owed.index = owed.index.max(answer.index.unwrap_or_default());
                }
            }
            if let Some(acknowledged) = acknowledged {
                owed.marks.insert(sequence.clone(), acknowledged..=asked);
            }
        }
        owed
    }

    /// The history as it was known at that time: what had not been answered never will be.
    pub(crate) fn known_at(&self, at_ns: u64) -> Self {
        let mut known = self.clone();
        for steps in known.steps.values_mut() {
            steps.retain(|step| step.sent_ns < at_ns);
            for step in steps {
                step.answer.take_if(|answer| at_ns <= answer.received_ns);
            }
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(sent_ns: u64, high: u64, received_ns: Option<u64>) -> Step {
        let answer = received_ns.map(|received_ns| Answer {
            received_ns,
            high,
            term: Some(received_ns / 10),
            index: Some(received_ns),
        });
        Step {
            sent_ns,
            high_asked: high,
            answer,
        }
    }

    #[test]
    fn a_disk_owes_what_was_acknowledged_and_may_have_what_was_asked() {
        let steps = vec![
            step(10, 0, Some(20)),
            step(30, 7, Some(40)),
            step(50, 9, None),
            step(70, 8, Some(80)),
        ];
        let history = History {
            steps: BTreeMap::from([("s".to_owned(), steps)]),
        };

        for (at_ns, mark, term) in [
            (20, None, 0),
            (21, Some(0..=0), 2),
            (40, Some(0..=7), 2),
            (41, Some(7..=7), 4),
            (60, Some(7..=9), 4),
            (90, Some(8..=9), 8),
        ] {
            let owed = history.owed_at(at_ns);

            assert_eq!(owed.marks.get("s").cloned(), mark, "at {at_ns}");
            assert_eq!(owed.term, term, "at {at_ns}");
            assert_eq!(owed.index / 10, term, "at {at_ns}");
        }
    }
}
