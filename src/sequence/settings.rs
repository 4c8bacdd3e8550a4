//! What a sequence is created with, as in SQL's `CREATE SEQUENCE` (ISO/IEC 9075-2, sequence generators).

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::RangeCount;

/// 2^53 − 1: the highest integer that a JSON number carries exactly everywhere (RFC 8259 §6).
pub const NUMBER_SAFE_MAX: u64 = (1 << 53) - 1;

/// A sequence's settings. Values are those of the lattice `start + k·increment` up to `max_value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Settings {
    start: u64,
    increment: NonZeroU64,
    max_value: u64,
    cache: u64,
    max_lease: RangeCount,
}

impl Settings {
    /// `max_lease` unless told otherwise: one lease cannot burn a number space by a typing error.
    pub const MAX_LEASE_DEFAULT: RangeCount = RangeCount::constant(1_000_000);

    /// Settings from their parts.
    ///
    /// # Errors
    /// [`SettingsError`] where no value could ever be granted.
    pub fn new(
        start: u64,
        increment: u64,
        max_value: u64,
        max_lease: RangeCount,
    ) -> Result<Self, SettingsError> {
        Unchecked {
            start,
            increment,
            max_value,
            cache: 0,
            max_lease,
        }
        .try_into()
    }

    /// These settings with so many values reserved ahead; 0 for none.
    #[must_use]
    pub fn with_cache(self, cache: u64) -> Self {
        Self { cache, ..self }
    }

    /// The first value.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The distance between neighbours.
    #[must_use]
    pub fn increment(&self) -> NonZeroU64 {
        self.increment
    }

    /// No value above this is ever granted.
    #[must_use]
    pub fn max_value(&self) -> u64 {
        self.max_value
    }

    /// How many values a leader reserves ahead; 0: every grant is committed by itself.
    #[must_use]
    pub fn cache(&self) -> u64 {
        self.cache
    }

    /// The most values one lease may ask for.
    #[must_use]
    pub fn max_lease(&self) -> RangeCount {
        self.max_lease
    }

    /// How this sequence's values are written in JSON, for its whole life.
    #[must_use]
    pub fn id_form(&self) -> IdForm {
        if self.max_value <= NUMBER_SAFE_MAX {
            IdForm::Number
        } else {
            IdForm::Text
        }
    }

    /// These settings with another bound, cache and largest lease, where they leave any value at all.
    #[cfg(feature = "server")]
    pub(crate) fn altered(&self, changes: &super::Changes) -> Option<Self> {
        let max_value = changes.max_value.unwrap_or(self.max_value);
        (self.start <= max_value).then(|| Self {
            max_value,
            cache: changes.cache.unwrap_or(self.cache),
            max_lease: changes.max_lease.unwrap_or(self.max_lease),
            ..*self
        })
    }

    /// All of them, in a fixed order, for what compares tables.
    #[cfg(feature = "server")]
    pub(super) fn numbers(&self) -> [u64; 5] {
        let Self {
            start,
            increment,
            max_value,
            cache,
            max_lease,
        } = self;
        let max_lease = max_lease.get().into();
        [*start, increment.get(), *max_value, *cache, max_lease]
    }

    /// The smallest value of the lattice above `high`, or `None` where it is above `max_value`.
    #[must_use]
    pub fn next_above(&self, high: Option<u64>) -> Option<u64> {
        let next = match high {
            Some(high) if self.start <= high => {
                let steps = (high - self.start) / self.increment.get();
                let last = self
                    .start
                    .checked_add(steps.checked_mul(self.increment.get())?)?;
                last.checked_add(self.increment.get())?
            }
            _ => self.start,
        };
        (next <= self.max_value).then_some(next)
    }

    /// How many values are left above `high`: 0 to 2^64, hence u128.
    #[must_use]
    pub fn remaining_above(&self, high: Option<u64>) -> u128 {
        match self.next_above(high) {
            Some(next) => u128::from((self.max_value - next) / self.increment.get()) + 1,
            None => 0,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            start: 1,
            increment: NonZeroU64::MIN,
            max_value: NUMBER_SAFE_MAX,
            cache: 0,
            max_lease: Self::MAX_LEASE_DEFAULT,
        }
    }
}

/// How a value is written in JSON. Clients that read numbers as doubles would round a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdForm {
    /// As a number.
    Number,
    /// As a string of digits.
    Text,
}

/// Why settings make no sequence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// An increment of 0 would grant one value for ever.
    #[error("increment is 0: use 1 or more")]
    Increment,
    /// `max_value` is below `start`.
    #[error("max_value {max_value} is below start {start}: no value could be granted")]
    Empty {
        /// The first value asked for.
        start: u64,
        /// The bound asked for.
        max_value: u64,
    },
}

/// The wire's and the log's view of [`Settings`], before it is checked.
#[derive(Deserialize)]
struct Unchecked {
    start: u64,
    increment: u64,
    max_value: u64,
    cache: u64,
    max_lease: RangeCount,
}

impl TryFrom<Unchecked> for Settings {
    type Error = SettingsError;

    fn try_from(given: Unchecked) -> Result<Self, SettingsError> {
        let Unchecked {
            start,
            increment,
            max_value,
            cache,
            max_lease,
        } = given;
        let increment = NonZeroU64::new(increment).ok_or(SettingsError::Increment)?;
        if max_value < start {
            return Err(SettingsError::Empty { start, max_value });
        }
        Ok(Self {
            start,
            increment,
            max_value,
            cache,
            max_lease,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(start: u64, increment: u64, max_value: u64) -> Settings {
        Settings::new(start, increment, max_value, RangeCount::ONE).unwrap()
    }

    #[test]
    fn the_next_value_is_the_smallest_of_the_lattice_above_the_mark() {
        let by_ten = settings(5, 10, 100);

        assert_eq!(by_ten.next_above(None), Some(5));
        assert_eq!(by_ten.next_above(Some(4)), Some(5));
        assert_eq!(by_ten.next_above(Some(5)), Some(15));
        assert_eq!(by_ten.next_above(Some(14)), Some(15));
        assert_eq!(by_ten.next_above(Some(15)), Some(25));
        assert_eq!(by_ten.next_above(Some(95)), None);
    }

    #[test]
    fn both_ends_of_the_number_space_are_exact() {
        let all = settings(0, 1, u64::MAX);

        assert_eq!(all.next_above(None), Some(0));
        assert_eq!(all.remaining_above(None), 1 << 64);
        assert_eq!(all.next_above(Some(u64::MAX - 1)), Some(u64::MAX));
        assert_eq!(all.remaining_above(Some(u64::MAX - 1)), 1);
        assert_eq!(all.next_above(Some(u64::MAX)), None);
        assert_eq!(all.remaining_above(Some(u64::MAX)), 0);

        let wide = settings(u64::MAX - 1, u64::MAX, u64::MAX);
        assert_eq!(wide.next_above(None), Some(u64::MAX - 1));
        assert_eq!(wide.next_above(Some(u64::MAX - 1)), None);
    }

    #[test]
    fn settings_that_could_grant_nothing_are_refused() {
        let one = RangeCount::ONE;

        assert_eq!(Settings::new(1, 0, 9, one), Err(SettingsError::Increment));
        assert_eq!(
            Settings::new(9, 1, 8, one),
            Err(SettingsError::Empty {
                start: 9,
                max_value: 8
            })
        );
        assert_eq!(
            SettingsError::Empty {
                start: 9,
                max_value: 8
            }
            .to_string(),
            "max_value 8 is below start 9: no value could be granted"
        );
    }

    #[test]
    fn values_above_the_exact_doubles_are_written_as_text() {
        assert_eq!(settings(1, 1, NUMBER_SAFE_MAX).id_form(), IdForm::Number);
        assert_eq!(settings(1, 1, NUMBER_SAFE_MAX + 1).id_form(), IdForm::Text);
    }
}
