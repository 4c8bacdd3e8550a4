//! One sequence: its settings, how far it has come, and each way in which it goes further.

use serde::{Deserialize, Serialize};

#[cfg(test)]
use crate::planted::Bug;
use crate::sequence::{
    Changes, FixedSetting, Grant, Range, RangeCount, Refusal, Reserved, Settings, Taken, Window,
};

/// One sequence: its settings and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sequence {
    /// What it was created with, or altered to.
    pub(crate) settings: Settings,
    /// The highest value covered by a grant or an advance, `None` before the first. Never falls.
    pub(crate) high: Option<u64>,
    /// The log index of its last grant.
    pub(crate) last_grant_index: Option<u64>,
    /// A retired name keeps its mark for ever.
    pub(crate) retired: bool,
}

/// Where a mark was, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Advance {
    pub(super) previous: Option<u64>,
    pub(super) high: Option<u64>,
}

impl Sequence {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            high: None,
            last_grant_index: None,
            retired: false,
        }
    }

    /// Whether its values are reserved ahead.
    pub(super) fn is_cached(&self) -> bool {
        0 < self.settings.cache() && !self.retired
    }

    /// The sequence, where it can still grant.
    pub(super) fn living(&mut self) -> Result<&mut Self, Refusal> {
        if self.retired {
            Err(Refusal::Retired)
        } else {
            Ok(self)
        }
    }

    pub(super) fn grant(&mut self, index: u64, count: RangeCount) -> Result<Grant, Refusal> {
        self.fits_one_lease(count)?;
        let range = self.next(count)?;
        self.take(index, range);
        Ok(Grant {
            range,
            id_form: self.settings.id_form(),
        })
    }

    /// Takes the next values for a window: as many as the sequence's cache, but at least `count`, and not more than are left.
    pub(super) fn reserve(&mut self, index: u64, count: RangeCount) -> Result<Reserved, Refusal> {
        self.fits_one_lease(count)?;
        let mut range = self.next(count)?;
        let left = u64::try_from(self.settings.remaining_above(self.high)).unwrap_or(u64::MAX);
        let cache = self.settings.cache().min(left).min(u32::MAX.into());
        if let Ok(cache) = RangeCount::try_from(cache)
            && count < cache
        {
            range = self.next(cache)?;
        }
        self.take(index, range);
        Ok(Reserved {
            range,
            id_form: self.settings.id_form(),
            max_lease: self.settings.max_lease(),
        })
    }

    /// Gives what was taken out of the sequence's window for this lease, where that is the window it was taken from.
    pub(super) fn give(
        &mut self,
        index: u64,
        count: RangeCount,
        (taken, window): (&Taken, Option<&Window>),
    ) -> Result<Grant, Refusal> {
        self.fits_one_lease(count)?;
        let range = taken.range;
        let increment = self.settings.increment();
        let is_inside = window.is_some_and(|window| {
            window.index == taken.index
                && window.first <= range.first()
                && (range.first() - window.first).is_multiple_of(increment.get())
                && Some(range.last()) <= self.high
        });
        if !is_inside || Range::starting_at(range.first(), count, increment) != Some(range) {
            return Err(Refusal::WindowClosed);
        }
        self.last_grant_index = Some(index);
        Ok(Grant {
            range,
            id_form: self.settings.id_form(),
        })
    }

    fn fits_one_lease(&self, asked: RangeCount) -> Result<(), Refusal> {
        let limit = self.settings.max_lease();
        if limit < asked {
            return Err(Refusal::LeaseTooLarge { asked, limit });
        }
        Ok(())
    }

    /// The next values above the mark.
    fn next(&self, count: RangeCount) -> Result<Range, Refusal> {
        let range = self
            .settings
            .next_above(self.high)
            .and_then(|first| Range::starting_at(first, count, self.settings.increment()))
            .filter(|range| range.last() <= self.settings.max_value());
        range.ok_or_else(|| {
            // What did not fit is fewer than were asked for, so it fits 32 bits.
            let left = self
                .settings
                .remaining_above(self.high)
                .min(u128::from(u32::MAX));
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            Refusal::Exhausted { asked: count, left }
        })
    }

    fn take(&mut self, index: u64, range: Range) {
        assert!(
            self.high < Some(range.first()),
            "I1: {range} is not above the mark {:?}",
            self.high
        );
        let last = range.last();
        #[cfg(test)]
        let last = last - u64::from(Bug::RangeEnd.is_planted());
        self.raise(last);
        self.last_grant_index = Some(index);
    }

    pub(super) fn advance(&mut self, to: u64) -> Result<Advance, Refusal> {
        let max_value = self.settings.max_value();
        if max_value < to {
            return Err(Refusal::AboveMaximum { to, max_value });
        }
        let previous = self.high;
        // Also below `start`: created again, the sequence may start lower.
        if self.high < Some(to) {
            self.raise(to);
        }
        Ok(Advance {
            previous,
            high: self.high,
        })
    }

    pub(super) fn alter(&mut self, changes: &Changes) -> Result<(), Refusal> {
        stays(FixedSetting::Start, self.settings.start(), changes.start)?;
        let increment = self.settings.increment().get();
        stays(FixedSetting::Increment, increment, changes.increment)?;
        let max_value = changes.max_value.unwrap_or(self.settings.max_value());
        self.covers_the_mark(max_value)?;
        let Some(altered) = self.settings.altered(changes) else {
            let start = self.settings.start();
            return Err(Refusal::BelowStart { max_value, start });
        };
        let id_form = self.settings.id_form();
        if altered.id_form() != id_form {
            return Err(Refusal::FormFixed { max_value, id_form });
        }
        self.settings = altered;
        Ok(())
    }

    /// Gives a retired name new settings. Its mark stays, so it continues above.
    pub(super) fn revive(&mut self, settings: Settings) -> Result<(), Refusal> {
        self.covers_the_mark(settings.max_value())?;
        self.settings = settings;
        self.retired = false;
        Ok(())
    }

    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    fn covers_the_mark(&self, max_value: u64) -> Result<(), Refusal> {
        match self.high {
            Some(high) if max_value < high => Err(Refusal::BelowGranted { max_value, high }),
            _ => Ok(()),
        }
    }

    fn raise(&mut self, to: u64) {
        assert!(
            self.high < Some(to),
            "I1: the mark would fall from {:?} to {to}",
            self.high
        );
        self.high = Some(to);
    }
}

fn stays(setting: FixedSetting, fixed: u64, asked: Option<u64>) -> Result<(), Refusal> {
    match asked {
        Some(asked) if asked != fixed => Err(Refusal::ImmutableSetting {
            setting,
            fixed,
            asked,
        }),
        _ => Ok(()),
    }
}
