//! The values that a sequence can grant: `start + k·increment`, as its first lease and its reads show them.

use std::num::NonZeroU64;

use super::op::Op;
use crate::sequence::{Range, RangeCount};

/// What the lines say of a sequence's values.
#[derive(Debug, Default)]
pub(super) struct Lattice {
    /// The grant that was sent first: all others are on its lattice.
    reference: Option<(Op, NonZeroU64)>,
    /// A read from before the first grant, and the first value that it names.
    start: Option<(Op, u64)>,
}

/// Values between two marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missing {
    /// The lowest.
    pub(super) first: u64,
    /// The highest.
    pub(super) last: u64,
    /// How many.
    pub(super) values: u64,
}

impl Lattice {
    /// Takes a grant that is a range.
    pub(super) fn add_grant(&mut self, grant: &Op, increment: NonZeroU64) {
        let first = |op: &Op| (op.sent_ns, op.entry);
        if self
            .reference
            .is_none_or(|(reference, _)| first(grant) < first(&reference))
        {
            self.reference = Some((*grant, increment));
        }
    }

    /// Takes a read that found no mark. A name that was created again may have had several starts: the lowest counts.
    pub(super) fn add_start(&mut self, read: &Op, start: u64) {
        if self.start.is_none_or(|(_, lowest)| start < lowest) {
            self.start = Some((*read, start));
        }
    }

    /// The line to blame where this grant is none of the sequence's.
    pub(super) fn refuses(&self, grant: &Op) -> Option<&Op> {
        let (reference, increment) = self.reference.as_ref()?;
        if grant.increment != increment.get() {
            return Some(reference);
        }
        let (origin, named_by) = match &self.start {
            Some((read, start)) => (*start, read),
            None => (reference.first(), reference),
        };
        let below_start = self.start.is_some() && grant.first() < origin;
        let is_off = origin % *increment != grant.first() % *increment;
        (below_start || is_off).then_some(named_by)
    }

    /// The values above one mark, up to another. None also where no grant tells how far apart values are.
    pub(super) fn between(&self, from: Option<u64>, to: Option<u64>) -> Option<Missing> {
        let (reference, increment) = self.reference.as_ref()?;
        let start = self.start.map(|(_, start)| start);
        let origin = start.unwrap_or(reference.first());
        let lowest = from.map_or(Some(0), |from| from.checked_add(1))?;
        let lowest = lowest.max(start.unwrap_or(0));
        // Both remainders are below the increment, so that neither step wraps around.
        let (wanted, is) = (origin % *increment, lowest % *increment);
        let up = if is <= wanted {
            wanted - is
        } else {
            increment.get() - (is - wanted)
        };
        let first = lowest.checked_add(up)?;
        let steps = to?.checked_sub(first)? / *increment;
        Some(Missing {
            first,
            last: first + steps * increment.get(),
            values: steps.saturating_add(1),
        })
    }

    /// The grant that tells how far apart values are.
    pub(super) fn reference(&self) -> Option<&Op> {
        self.reference.as_ref().map(|(reference, _)| reference)
    }
}

/// The increment of what is a range of so many values.
pub(super) fn range_increment(
    count: RangeCount,
    (first, last, increment): (u64, u64, u64),
) -> Option<NonZeroU64> {
    let increment = NonZeroU64::new(increment)?;
    let range = Range::starting_at(first, count, increment)?;
    (range.last() == last).then_some(increment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lattice(first: u64, increment: u64) -> Lattice {
        let mut lattice = Lattice::default();
        let grant = Op {
            low: first.checked_sub(1),
            high: Some(first),
            ..Op::default()
        };
        lattice.add_grant(&grant, NonZeroU64::new(increment).unwrap());
        lattice
    }

    fn ends(missing: Option<Missing>) -> Option<(u64, u64, u64)> {
        missing.map(|missing| (missing.first, missing.last, missing.values))
    }

    #[test]
    fn the_values_between_two_marks_are_those_of_the_lattice() {
        let tens = lattice(5, 10);

        assert_eq!(ends(tens.between(Some(5), Some(34))), Some((15, 25, 2)));
        assert_eq!(ends(tens.between(Some(5), Some(35))), Some((15, 35, 3)));
        assert_eq!(ends(tens.between(Some(5), Some(14))), None);
        assert_eq!(ends(tens.between(Some(7), Some(15))), Some((15, 15, 1)));
        assert_eq!(ends(tens.between(None, Some(5))), Some((5, 5, 1)));
        assert_eq!(ends(tens.between(None, None)), None);
    }

    #[test]
    fn the_ends_of_the_number_space_are_exact() {
        let ones = lattice(0, 1);

        assert_eq!(
            ends(ones.between(None, Some(u64::MAX))),
            Some((0, u64::MAX, u64::MAX))
        );
        assert_eq!(ends(ones.between(Some(u64::MAX), Some(u64::MAX))), None);
        let wide = lattice(u64::MAX, u64::MAX);
        assert_eq!(ends(wide.between(None, Some(0))), Some((0, 0, 1)));
        assert_eq!(
            ends(wide.between(Some(0), Some(u64::MAX))),
            Some((u64::MAX, u64::MAX, 1))
        );
    }
}
