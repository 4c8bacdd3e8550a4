//! Samples into figures: medians with their least and their greatest.

use super::data::{Failover, Limit, LimitKind, Load, Run, Sample, Work};

/// Of several values the median, the least and the greatest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of these; nothing where there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&values, 50)?,
            min: *values.first()?,
            max: *values.last()?,
        })
    }

    /// As `median (min..max)`, each written by this.
    pub(crate) fn written(self, write: impl Fn(f64) -> String) -> String {
        let [median, min, max] = [self.median, self.min, self.max].map(write);
        if min == max {
            median
        } else {
            format!("{median} ({min}..{max})")
        }
    }
}

/// The least value that so many per cent of the sorted values do not exceed.
pub(crate) fn quantile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

impl Run {
    /// The samples of this work, by rising round.
    pub(crate) fn loads(&self, work: Work) -> impl Iterator<Item = &Load> {
        self.all_loads().filter(move |load| load.work == work)
    }

    pub(crate) fn all_loads(&self) -> impl Iterator<Item = &Load> {
        self.samples.iter().filter_map(|sample| match sample {
            Sample::Load(load) => Some(load),
            _ => None,
        })
    }

    pub(crate) fn limits(&self, kind: LimitKind) -> impl Iterator<Item = &Limit> {
        self.samples.iter().filter_map(move |sample| match sample {
            Sample::Limit(limit) if limit.limit == kind => Some(limit),
            _ => None,
        })
    }

    pub(crate) fn failovers(&self) -> impl Iterator<Item = &Failover> {
        self.samples.iter().filter_map(|sample| match sample {
            Sample::Failover(failover) => Some(failover),
            _ => None,
        })
    }

    /// One figure of this work over its rounds.
    pub(crate) fn spread(&self, work: Work, figure: impl Fn(&Load) -> f64) -> Option<Spread> {
        Spread::of(self.loads(work).map(figure))
    }

    /// One figure of a work by that of another, round by round: what slowed a round down slowed both.
    pub(crate) fn ratio(
        &self,
        (work, other): (Work, Work),
        figure: impl Fn(&Load) -> f64,
    ) -> Option<Spread> {
        let pair = |load: &Load| {
            let other = self.loads(other).find(|other| other.round == load.round)?;
            Some(figure(load) / figure(other))
        };
        Spread::of(self.loads(work).filter_map(pair))
    }
}

/// A number as it is read: `12,345`, `123`, `12.3`, `1.23`, `0.012`.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        large if 100.0 <= large => 0,
        large if 10.0 <= large => 1,
        middle if 0.1 <= middle => 2,
        0.0 => 0,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let point = if rest.is_empty() { "" } else { "." };
    format!("{}{point}{rest}", grouped(whole))
}

/// A count as it is read: `12,345`.
pub(crate) fn count(count: u64) -> String {
    grouped(&count.to_string())
}

fn grouped(digits: &str) -> String {
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if 0 < at && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_median_between_the_least_and_the_greatest() {
        let spread = Spread::of([3.0, 1.0, 2.0, 5.0, 4.0]).unwrap();

        assert_eq!(spread.written(number), "3.00 (1.00..5.00)");
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([2.0, 2.0]).unwrap().written(number), "2.00");
    }

    #[test]
    fn a_quantile_is_a_value_that_was_measured() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();

        assert_eq!(quantile(&values, 50), Some(10.0));
        assert_eq!(quantile(&values, 95), Some(19.0));
        assert_eq!(quantile(&values[..1], 99), Some(1.0));
        assert_eq!(quantile(&[], 50), None);
    }

    #[test]
    fn numbers_are_written_with_the_digits_that_count() {
        let written = [1_234_567.8, 999.6, 99.94, 12.34, 1.234, 0.1234, 0.0123, 0.0].map(number);

        assert_eq!(
            written,
            [
                "1,234,568",
                "1,000",
                "99.9",
                "12.3",
                "1.23",
                "0.12",
                "0.012",
                "0"
            ]
        );
    }
}
