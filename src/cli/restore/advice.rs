//! What a person needs to know before they restore: what the backup holds, how old it is, and how much may have been granted
//! since, as far as that can be told.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::{HEADING, Row, SHOWN_MAX, more};
use crate::cli::output::{Table, or_dash};
use crate::sequence::{Sequence, SequenceName};
use crate::server::offline::Backup;

/// How many times what the rate makes of the age is suggested: rates change, and values that are skipped cost nothing.
const CAUTION: u128 = 10;

/// What is told of a backup.
#[derive(Debug, Serialize)]
pub(super) struct Advice {
    cluster: String,
    epoch: u64,
    /// The last log entry in it.
    index: Option<u64>,
    taken_ms: u64,
    /// None where this machine's clock is behind.
    age_seconds: Option<u64>,
    /// The time over which rates were measured; none where there are none.
    window_seconds: Option<u64>,
    /// What would do for every sequence.
    suggested_advance: u64,
    sequences: Vec<AdviceRow>,
}

/// A sequence, were nothing raised, and what is suggested.
#[derive(Debug, Serialize)]
struct AdviceRow {
    #[serde(flatten)]
    row: Row,
    suggested_advance: u64,
}

impl Advice {
    pub(super) fn of(backup: &Backup) -> Self {
        let taken = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(backup.taken_ms));
        let age = taken.and_then(|taken| taken.elapsed().ok());
        Self::at(backup, age)
    }

    fn at(backup: &Backup, age: Option<Duration>) -> Self {
        let rows = backup.table.iter().map(|(name, sequence)| {
            let suggested_advance = suggested(backup, (name, sequence), age.unwrap_or_default());
            AdviceRow {
                row: Row::of((name, sequence), sequence.high),
                suggested_advance,
            }
        });
        let sequences: Vec<AdviceRow> = rows.collect();
        let suggested = sequences.iter().map(|row| row.suggested_advance);
        let window_ms = backup.rises.window_ms;
        Self {
            cluster: backup.cluster.to_string(),
            epoch: backup.table.header().epoch,
            index: backup.last.map(|last| last.index()),
            taken_ms: backup.taken_ms,
            age_seconds: age.map(|age| age.as_secs()),
            window_seconds: (0 < window_ms).then_some(window_ms / 1_000),
            suggested_advance: suggested.max().unwrap_or_default(),
            sequences,
        }
    }

    pub(super) fn text(&self) -> String {
        let heading = HEADING.into_iter().chain(["SUGGESTED ADVANCE"]);
        let shown = self.sequences.iter().take(SHOWN_MAX);
        let table = shown.fold(Table::new().row(heading), |table, shown| {
            let suggested = shown.suggested_advance.to_string();
            table.row(shown.row.cells().into_iter().chain([suggested]))
        });
        let Self {
            cluster,
            epoch,
            index,
            age_seconds,
            suggested_advance,
            ..
        } = self;
        let index = or_dash(*index);
        let taken = match age_seconds {
            Some(age) => format!("taken {} ago", spoken(*age)),
            None => "taken at a time that the clock here has not reached".to_owned(),
        };
        let rates = match self.window_seconds {
            Some(window) => format!(
                "{CAUTION} times what the rates of the {} before the backup make of its age",
                spoken(window)
            ),
            None => "rates are not known".to_owned(),
        };
        format!(
            "backup of cluster {cluster}, epoch {epoch}, up to log entry {index}, {taken}\n\n\
             {table}{more}\n\
             What was granted since is not in it. Suggested for all: --advance-by {suggested_advance}\n\
             ({rates}; the largest lease at least)",
            more = more(self.sequences.len()),
        )
    }
}

/// Rate × age × 10, and not less than one of the sequence's largest leases.
fn suggested(backup: &Backup, (name, sequence): (&SequenceName, &Sequence), age: Duration) -> u64 {
    let rise = backup.rises.by_name.get(name).copied().unwrap_or_default();
    let window_ms = u128::from(backup.rises.window_ms.max(1));
    let since = u128::from(rise)
        .saturating_mul(age.as_millis())
        .saturating_mul(CAUTION)
        .div_ceil(window_ms);
    let settings = &sequence.settings;
    let lease = u64::from(settings.max_lease().get()).saturating_mul(settings.increment().get());
    u64::try_from(since).unwrap_or(u64::MAX).max(lease)
}

/// A time in its two largest units.
fn spoken(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sequence::{RangeCount, Settings, Table as Sequences};
    use crate::server::offline::Rises;
    use crate::server::types::ClusterId;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    fn name(text: &str) -> SequenceName {
        text.parse().unwrap()
    }

    /// `busy` rose by 500 in 100 s, `idle` by nothing; the largest lease is 100.
    fn backup() -> Backup {
        let mut table = Sequences::default();
        for text in ["busy", "idle"] {
            let settings = Settings::new(1, 1, 1_000_000, RangeCount::constant(100)).unwrap();
            let sequence = Sequence {
                settings,
                high: Some(1_000),
                last_grant_index: None,
                retired: false,
            };
            table.restore(name(text), sequence);
        }
        Backup {
            cluster: ClusterId::default(),
            taken_ms: 0,
            rises: Rises {
                window_ms: 100_000,
                by_name: BTreeMap::from([(name("busy"), 500)]),
            },
            last: None,
            table,
        }
    }

    #[test]
    fn ten_times_rate_and_age_is_suggested_and_a_largest_lease_at_least() {
        let advice = Advice::at(&backup(), Some(HOUR));
        let young = Advice::at(&backup(), Some(Duration::from_secs(1)));

        let suggested = |advice: &Advice| {
            let rows = advice.sequences.iter();
            rows.map(|row| row.suggested_advance).collect::<Vec<_>>()
        };
        assert_eq!(suggested(&advice), [180_000, 100]);
        assert_eq!(advice.suggested_advance, 180_000);
        assert_eq!(suggested(&young), [100, 100]);
    }

    #[test]
    fn a_person_is_told_what_is_in_it_how_old_it_is_and_what_would_do() {
        let unknown = Backup {
            rises: Rises::default(),
            ..backup()
        };

        assert_eq!(
            Advice::at(&backup(), Some(HOUR + Duration::from_secs(300))).text(),
            "backup of cluster 00000000000000000000000000000000, epoch 1, up to log entry -, taken 1 h 5 min ago\n\n\
             SEQUENCE  LAST IN BACKUP  NEXT  RETIRED  SUGGESTED ADVANCE\n\
             busy      1000            1001  no       195000\n\
             idle      1000            1001  no       100\n\n\
             What was granted since is not in it. Suggested for all: --advance-by 195000\n\
             (10 times what the rates of the 1 min 40 s before the backup make of its age; the largest lease at least)"
        );
        let text = Advice::at(&unknown, None).text();
        assert!(
            text.contains(", taken at a time that the clock here has not reached\n"),
            "{text}"
        );
        assert!(
            text.ends_with("(rates are not known; the largest lease at least)"),
            "{text}"
        );
    }

    #[test]
    fn a_time_is_told_in_its_two_largest_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (61, "1 min 1 s"),
            (3_599, "59 min 59 s"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(spoken(seconds), text);
        }
    }
}
