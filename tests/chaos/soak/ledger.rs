//! What was granted of one sequence, every value of it, in as few ranges as describe it.

use std::collections::BTreeMap;

/// Ranges that were granted. Neighbours become one, so in a run without gaps there are about as many as grants in flight.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The last value of each range, by its first.
    ranges: BTreeMap<u64, u64>,
}

impl Ledger {
    /// Adds a grant.
    ///
    /// # Errors
    /// What shows that a value of it was granted before (I1).
    pub(super) fn grant(&mut self, first: u64, last: u64) -> Result<(), String> {
        let below = self.ranges.range(..=last).next_back();
        if let Some((start, end)) = below.filter(|(_, end)| first <= **end) {
            return Err(format!(
                "I1: {first}..={last} was granted, and {start}..={end} before"
            ));
        }
        let mut range = (first, last);
        if let Some((start, end)) = below.map(|(start, end)| (*start, *end))
            && end + 1 == first
        {
            self.ranges.remove(&start);
            range.0 = start;
        }
        if let Some(end) = self.ranges.remove(&(last + 1)) {
            range.1 = end;
        }
        self.ranges.insert(range.0, range.1);
        Ok(())
    }

    /// The highest value, 0 before the first grant.
    pub(super) fn high(&self) -> u64 {
        self.ranges.last_key_value().map_or(0, |(_, last)| *last)
    }

    /// How many values from 1 to the highest nobody got.
    pub(super) fn missing(&self) -> u64 {
        let granted = self.ranges.iter().map(|(first, last)| last - first + 1);
        self.high() - granted.sum::<u64>()
    }
}

#[test]
fn grants_side_by_side_become_one_range_in_any_order() {
    let mut ledger = Ledger::default();
    for (first, last) in [(1, 3), (7, 9), (4, 4), (10, 20), (5, 6)] {
        ledger.grant(first, last).unwrap();
    }

    assert_eq!(ledger.ranges, [(1, 20)].into());
    assert_eq!((ledger.high(), ledger.missing()), (20, 0));
}

#[test]
fn a_value_that_nobody_got_is_missing_and_one_that_two_got_is_found() {
    let mut ledger = Ledger::default();
    assert_eq!((ledger.high(), ledger.missing()), (0, 0));
    ledger.grant(3, 5).unwrap();
    ledger.grant(8, 8).unwrap();
    assert_eq!((ledger.high(), ledger.missing()), (8, 4));

    for (first, last) in [(5, 5), (1, 3), (4, 4), (1, 10), (8, 9)] {
        let error = ledger.grant(first, last).unwrap_err();
        assert!(error.starts_with("I1: "), "{error}");
    }
    assert_eq!(
        ledger.grant(2, 3).unwrap_err(),
        "I1: 2..=3 was granted, and 3..=5 before"
    );
}
