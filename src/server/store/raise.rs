//! How far a restore raises sequences above what a backup has of them: what was granted after the backup is not in it (I1).

use std::collections::BTreeMap;

use crate::sequence::{Sequence, SequenceName, Table};

/// What the operator decides. A mark is raised to the highest of what is named for it, and never falls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Raise {
    /// Every mark by so much, up to the sequence's `max_value`.
    pub(crate) by: Option<u64>,
    /// Marks of single sequences to at least so much.
    pub(crate) floors: BTreeMap<SequenceName, u64>,
}

/// Why sequences are not raised so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RaiseError {
    /// A floor of a sequence that is not in the backup.
    #[error(
        "the backup has no sequence {name}: correct its name, or create it in the restored cluster with a start above its floor"
    )]
    Unknown {
        /// Its name.
        name: SequenceName,
    },
    /// A floor that leaves nothing to grant.
    #[error("the floor {floor} of {name} is above its max_value {max_value}: correct the floor")]
    AboveMaximum {
        /// The sequence.
        name: SequenceName,
        /// What was asked for.
        floor: u64,
        /// Its last value.
        max_value: u64,
    },
    /// Nothing is said of a sequence.
    #[error(
        "nothing says how far {name} is to be raised: give it a --floor, or all an --advance-by"
    )]
    Undecided {
        /// The first such sequence.
        name: SequenceName,
    },
}

impl Raise {
    /// The sequences of a table, raised.
    ///
    /// # Errors
    /// [`RaiseError`] where a floor cannot be, or a sequence has neither a floor nor an advance.
    pub(crate) fn apply(&self, table: &Table) -> Result<Table, RaiseError> {
        for (name, floor) in &self.floors {
            let (name, floor) = (name.clone(), *floor);
            let Some(sequence) = table.get(&name) else {
                return Err(RaiseError::Unknown { name });
            };
            let max_value = sequence.settings.max_value();
            if max_value < floor {
                return Err(RaiseError::AboveMaximum {
                    name,
                    floor,
                    max_value,
                });
            }
        }
        let mut raised = table.clone();
        for (name, sequence) in table.iter() {
            let floor = self.floors.get(name).copied();
            if floor.is_none() && self.by.is_none() {
                return Err(RaiseError::Undecided { name: name.clone() });
            }
            let high = floor.max(self.advanced(sequence)).max(sequence.high);
            assert!(sequence.high <= high, "I1: the mark of {name} would fall");
            let sequence = Sequence {
                high,
                ..sequence.clone()
            };
            raised.restore(name.clone(), sequence);
        }
        Ok(raised)
    }

    /// Where a mark comes by the advance alone. Beyond the last value there is nothing that could have been granted.
    fn advanced(&self, sequence: &Sequence) -> Option<u64> {
        let by = self.by.filter(|by| 0 < *by)?;
        let below_first = sequence.settings.start().saturating_sub(1);
        let from = sequence.high.unwrap_or(below_first);
        Some(from.saturating_add(by).min(sequence.settings.max_value()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::testing::{at, batch};
    use crate::sequence::{Command, RangeCount, Settings};

    fn name(text: &str) -> SequenceName {
        text.parse().unwrap()
    }

    /// `granted` up to 10, `new` from 5 on and without a grant, and `short` up to 3 of 4.
    fn table() -> Table {
        let create = |text: &str, start, max_value| Command::Create {
            sequence: name(text),
            settings: Settings::new(start, 1, max_value, RangeCount::constant(100)).unwrap(),
        };
        let advance = |text: &str, to| Command::Advance {
            sequence: name(text),
            to,
        };
        let commands = vec![
            create("granted", 1, 1_000),
            create("new", 5, 1_000),
            create("short", 1, 4),
            advance("granted", 10),
            advance("short", 3),
        ];
        let mut table = Table::default();
        table.apply(at(1), &[batch(commands)]);
        table.restored(7)
    }

    fn raised(by: Option<u64>, floors: &[(&str, u64)]) -> Result<[Option<u64>; 3], RaiseError> {
        let floors = floors.iter().map(|(text, floor)| (name(text), *floor));
        let raise = Raise {
            by,
            floors: floors.collect(),
        };
        let table = raise.apply(&table())?;
        let high = |text| table.get(&name(text)).unwrap().high;
        Ok(["granted", "new", "short"].map(high))
    }

    #[test]
    fn every_mark_is_raised_to_the_highest_of_what_is_named_for_it_and_none_falls() {
        for (by, floors, marks) in [
            (Some(0), &[] as &[_], [Some(10), None, Some(3)]),
            (Some(20), &[], [Some(30), Some(24), Some(4)]),
            (Some(u64::MAX), &[], [Some(1_000), Some(1_000), Some(4)]),
            (Some(20), &[("granted", 25)], [Some(30), Some(24), Some(4)]),
            (Some(20), &[("granted", 35)], [Some(35), Some(24), Some(4)]),
            (
                None,
                &[("granted", 9), ("new", 0), ("short", 4)],
                [Some(10), Some(0), Some(4)],
            ),
        ] {
            assert_eq!(raised(by, floors), Ok(marks), "{by:?} {floors:?}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (floors, line) in [
            (
                &[("granted", 11_u64)] as &[(&str, u64)],
                "nothing says how far new is to be raised: give it a --floor, or all an --advance-by",
            ),
            (
                &[("grated", 11)],
                "the backup has no sequence grated: correct its name, or create it in the restored cluster with a start above its floor",
            ),
            (
                &[("short", 5)],
                "the floor 5 of short is above its max_value 4: correct the floor",
            ),
        ] {
            assert_eq!(raised(None, floors).unwrap_err().to_string(), line);
        }
    }

    #[test]
    fn the_raised_table_is_one_that_grants_above_its_marks_and_has_the_hash_of_its_content() {
        let raise = Raise {
            by: Some(5),
            ..Raise::default()
        };
        let mut raised = raise.apply(&table()).unwrap();
        let mut again = Table::with_header(raised.header());
        for (name, sequence) in raised.iter() {
            again.restore(name.clone(), sequence.clone());
        }

        assert_eq!(raised.state_hash(), again.state_hash());
        let grant = Command::Grant {
            sequence: name("granted"),
            count: RangeCount::ONE,
        };
        raised.apply(at(2), &[batch(vec![grant])]);
        assert_eq!(raised.get(&name("granted")).unwrap().high, Some(16));
    }
}
