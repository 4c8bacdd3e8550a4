//! Ranges: how many values are asked for, and which are given.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

/// How many values one lease asks for: 1 to 2^32 − 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RangeCount(NonZeroU32);

impl RangeCount {
    /// One value.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// The count as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// A count known when it is written.
    ///
    /// # Panics
    /// With 0, which at a constant is an error of compilation.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "only for constants, where it fails the build"
    )]
    pub const fn constant(count: u32) -> Self {
        Self(NonZeroU32::new(count).expect("a range has at least one value"))
    }
}

impl TryFrom<u64> for RangeCount {
    type Error = RangeError;

    fn try_from(count: u64) -> Result<Self, RangeError> {
        u32::try_from(count)
            .ok()
            .and_then(NonZeroU32::new)
            .map(Self)
            .ok_or(RangeError::Count { count })
    }
}

impl fmt::Display for RangeCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The values `first, first + increment, …, last`: never empty, never past 2^64 − 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Range {
    first: u64,
    last: u64,
    increment: NonZeroU64,
}

impl Range {
    /// The `count` values from `first` on, or `None` where they do not fit below 2^64.
    #[must_use]
    pub fn starting_at(first: u64, count: RangeCount, increment: NonZeroU64) -> Option<Self> {
        let span = u64::from(count.get() - 1).checked_mul(increment.get())?;
        let last = first.checked_add(span)?;
        Some(Self {
            first,
            last,
            increment,
        })
    }

    /// The range that holds exactly `first..=last` in steps of `increment`.
    ///
    /// # Errors
    /// [`RangeError::Bounds`] where `last` is below `first` or not on the lattice of `first`.
    pub fn from_bounds(first: u64, last: u64, increment: NonZeroU64) -> Result<Self, RangeError> {
        let on_lattice = last
            .checked_sub(first)
            .is_some_and(|span| span % increment == 0);
        if on_lattice {
            Ok(Self {
                first,
                last,
                increment,
            })
        } else {
            Err(RangeError::Bounds {
                first,
                last,
                increment,
            })
        }
    }

    /// The lowest value.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The highest value.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The distance between neighbours.
    #[must_use]
    pub fn increment(&self) -> NonZeroU64 {
        self.increment
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.first, self.last)
    }
}

/// Why numbers are not a range or its count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The count is 0 or above 2^32 − 1.
    #[error("{count} is not a count: lease 1 to {max} values at once", max = u32::MAX)]
    Count {
        /// What was asked for.
        count: u64,
    },
    /// The bounds are not two ends of one lattice.
    #[error("{first}..={last} is not a range in steps of {increment}")]
    Bounds {
        /// The lower end given.
        first: u64,
        /// The upper end given.
        last: u64,
        /// The step given.
        increment: NonZeroU64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(increment: u64) -> NonZeroU64 {
        NonZeroU64::new(increment).unwrap()
    }

    #[test]
    fn a_range_ends_where_its_count_says() {
        let range = Range::starting_at(5, RangeCount::constant(4), step(10)).unwrap();

        assert_eq!((range.first(), range.last()), (5, 35));
    }

    #[test]
    fn a_range_may_end_at_the_last_number_and_not_beyond() {
        let two = RangeCount::constant(2);

        assert_eq!(
            Range::starting_at(u64::MAX - 1, two, step(1))
                .unwrap()
                .last(),
            u64::MAX
        );
        assert_eq!(Range::starting_at(u64::MAX, two, step(1)), None);
        assert_eq!(
            Range::starting_at(0, RangeCount::constant(u32::MAX), step(u64::MAX)),
            None
        );
    }

    #[test]
    fn counts_outside_the_bounds_are_refused() {
        for count in [0, u64::from(u32::MAX) + 1, u64::MAX] {
            assert_eq!(
                RangeCount::try_from(count),
                Err(RangeError::Count { count })
            );
        }
        assert_eq!(
            RangeError::Count { count: 0 }.to_string(),
            "0 is not a count: lease 1 to 4294967295 values at once"
        );
    }

    #[test]
    fn bounds_off_the_lattice_are_refused() {
        assert!(Range::from_bounds(1, 11, step(5)).is_ok());
        assert!(Range::from_bounds(1, 12, step(5)).is_err());
        assert!(Range::from_bounds(2, 1, step(1)).is_err());
    }
}
