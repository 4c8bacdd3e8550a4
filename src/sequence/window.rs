//! Windows: values that a leader has reserved in the log, and grants from memory afterwards (cached sequences).
//!
//! These types are stored and sent with a positional codec: a change of order or type is a change of format.

use serde::{Deserialize, Serialize};

use super::{Command, IdForm, Outcome, Range, RangeCount, SequenceName};

/// A window in the table: there as long as no other command on its sequence came after the reservation. It ends at the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// The log index of the reservation.
    pub(crate) index: u64,
    /// Its lowest value.
    pub(crate) first: u64,
}

/// The values that a reservation came to, and what they are granted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reserved {
    /// The values.
    pub(crate) range: Range,
    /// How the sequence's values are written in JSON.
    pub(crate) id_form: IdForm,
    /// The most values of one lease.
    pub(crate) max_lease: RangeCount,
}

impl Command {
    /// Names each sequence that has no window after this command: a window ends with whatever else befalls its sequence.
    pub(crate) fn each_closed(&self, mut close: impl FnMut(&SequenceName)) {
        match self {
            Self::Grant { sequence, .. }
            | Self::Create { sequence, .. }
            | Self::Advance { sequence, .. }
            | Self::Alter { sequence, .. }
            | Self::Retire { sequence }
            | Self::AdvanceKeyed { sequence, .. } => close(sequence),
            Self::GrantAll { parts, .. } | Self::GrantAllKeyed { parts, .. } => {
                parts.iter().for_each(|part| close(&part.sequence));
            }
            Self::GrantTaken { parts, .. } => {
                let above_marks = parts.iter().filter(|part| part.taken.is_none());
                above_marks.for_each(|part| close(&part.part.sequence));
            }
            Self::Import { parts } => parts.iter().for_each(|part| close(&part.sequence)),
            Self::Reserve { .. }
            | Self::OpenSession { .. }
            | Self::Admit { .. }
            | Self::RaiseLevel { .. } => {}
        }
    }
}

impl Outcome {
    /// Whether the command changed nothing.
    pub(crate) fn is_unchanged(&self) -> bool {
        matches!(
            self,
            Self::Refused(_) | Self::RefusedAt { .. } | Self::Replayed { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::testing::{at, batch, outcomes};
    use crate::sequence::{
        Changes, Grant, GrantPart, KeyedAnswer, NUMBER_SAFE_MAX, Refusal, RequestKey, Settings,
        Table, Taken, WindowPart,
    };

    const KEY: RequestKey = RequestKey { id: 1, request: 2 };

    fn name() -> SequenceName {
        "p".parse().unwrap()
    }

    fn count(count: u32) -> RangeCount {
        RangeCount::constant(count)
    }

    fn run(table: &mut Table, index: u64, command: Command) -> Outcome {
        outcomes(table.apply(at(index), &[batch(vec![command])]))
            .concat()
            .remove(0)
    }

    /// A table with this sequence, made by the entry 1.
    fn table(settings: Settings) -> Table {
        let mut table = Table::default();
        let sequence = name();
        run(&mut table, 1, Command::Create { sequence, settings });
        table
    }

    /// One value after the other up to `max_value`, at most 50 a lease.
    fn settings(cache: u64, max_value: u64) -> Settings {
        let settings = Settings::new(1, 1, max_value, count(50)).unwrap();
        settings.with_cache(cache)
    }

    fn reserve(of: u32) -> Command {
        Command::Reserve {
            sequence: name(),
            count: count(of),
        }
    }

    fn range(first: u64, last: u64) -> Range {
        Range::from_bounds(first, last, 1.try_into().unwrap()).unwrap()
    }

    fn reserved(first: u64, last: u64) -> Outcome {
        Outcome::Reserved(Reserved {
            range: range(first, last),
            id_form: IdForm::Number,
            max_lease: count(50),
        })
    }

    fn granted(first: u64, last: u64) -> Grant {
        Grant {
            range: range(first, last),
            id_form: IdForm::Number,
        }
    }

    /// A lease of what was taken out of the window that the entry `index` reserved.
    fn take(key: Option<RequestKey>, index: u64, first: u64, last: u64) -> Command {
        let part = GrantPart {
            sequence: name(),
            count: u64::try_into(last + 1 - first).unwrap(),
        };
        let taken = Some(Taken {
            index,
            range: range(first, last),
        });
        Command::GrantTaken {
            key,
            parts: vec![WindowPart { part, taken }].try_into().unwrap(),
            create: None,
        }
    }

    fn closed() -> Outcome {
        Outcome::RefusedAt {
            position: 0,
            refusal: Refusal::WindowClosed,
        }
    }

    fn window(table: &Table) -> Option<Window> {
        table.windows().next().map(|(_, window)| *window)
    }

    #[test]
    fn a_reservation_raises_the_mark_by_the_cache_or_by_what_is_asked_for() {
        let mut table = table(settings(10, 100));

        assert_eq!(run(&mut table, 2, reserve(3)), reserved(1, 10));
        assert_eq!(run(&mut table, 3, reserve(20)), reserved(11, 30));

        let found = table.get(&name()).unwrap();
        assert_eq!((found.high, found.last_grant_index), (Some(30), Some(3)));
        assert_eq!(
            window(&table),
            Some(Window {
                index: 3,
                first: 11
            })
        );
    }

    #[test]
    fn a_reservation_ends_at_the_largest_value_and_is_refused_where_the_lease_does_not_fit() {
        let mut table = table(settings(10, 13));
        run(&mut table, 2, reserve(1));
        let before = table.clone();

        let asked = count(4);
        let refused = Outcome::Refused(Refusal::Exhausted { asked, left: 3 });
        assert_eq!(run(&mut table, 3, reserve(4)), refused);
        let asked = count(51);
        let limit = count(50);
        let refused = Outcome::Refused(Refusal::LeaseTooLarge { asked, limit });
        assert_eq!(run(&mut table, 3, reserve(51)), refused);
        assert_eq!(table, before, "I5");

        assert_eq!(run(&mut table, 4, reserve(2)), reserved(11, 13));
    }

    #[test]
    fn the_largest_cache_reserves_what_one_range_can_count() {
        let mut table = table(settings(u64::MAX, NUMBER_SAFE_MAX));

        let last = u32::MAX.into();
        assert_eq!(run(&mut table, 2, reserve(1)), reserved(1, last));
    }

    #[test]
    fn what_was_taken_out_of_a_window_is_given_in_any_order() {
        let mut table = table(settings(10, 100));
        run(&mut table, 2, reserve(1));

        let later = run(&mut table, 3, take(None, 2, 4, 6));
        let earlier = run(&mut table, 4, take(Some(KEY), 2, 1, 3));

        let grants = vec![granted(4, 6)];
        assert_eq!(later, Outcome::GrantedAll { grants });
        let grants = vec![granted(1, 3)];
        assert_eq!(earlier, Outcome::GrantedAll { grants });
        assert_eq!(table.get(&name()).unwrap().high, Some(10));
    }

    #[test]
    fn a_key_gives_what_was_taken_first_whatever_is_taken_later() {
        let mut table = table(settings(10, 100));
        run(&mut table, 2, reserve(1));
        run(&mut table, 3, take(Some(KEY), 2, 1, 3));

        let again = run(&mut table, 4, take(Some(KEY), 2, 4, 6));

        let Outcome::Replayed { entry, answer } = again else {
            panic!("{again:?}");
        };
        let first = KeyedAnswer::Granted(vec![granted(1, 3)]);
        assert_eq!((entry.index, answer), (3, first));
    }

    #[test]
    fn a_window_ends_with_any_other_command_on_its_sequence_that_is_not_refused() {
        let sequence = name();
        let part = || GrantPart {
            sequence: name(),
            count: RangeCount::ONE,
        };
        let above_the_mark = WindowPart {
            part: part(),
            taken: None,
        };
        let changes = Changes {
            max_lease: Some(count(50)),
            ..Changes::default()
        };
        let parts = vec![above_the_mark].try_into().unwrap();
        let others = [
            reserve(1),
            Command::Grant {
                sequence: name(),
                count: RangeCount::ONE,
            },
            // Below the mark: no value up to there is granted afterwards, though the mark stays.
            Command::Advance {
                sequence: name(),
                to: 5,
            },
            Command::AdvanceKeyed {
                key: KEY,
                sequence: name(),
                to: 5,
            },
            Command::Alter {
                sequence: name(),
                changes,
            },
            Command::Create {
                sequence: name(),
                settings: settings(10, 100),
            },
            Command::GrantAll {
                parts: part().into(),
                create: None,
            },
            Command::GrantTaken {
                key: None,
                parts,
                create: None,
            },
            Command::Retire { sequence },
        ];
        for other in others {
            let mut table = table(settings(10, 100));
            run(&mut table, 2, reserve(1));
            assert!(!run(&mut table, 3, other.clone()).is_unchanged());
            let before = table.clone();

            let refused = run(&mut table, 4, take(None, 2, 1, 3));

            let retired = matches!(other, Command::Retire { .. }).then_some(Refusal::Retired);
            let refusal = retired.unwrap_or(Refusal::WindowClosed);
            let position = 0;
            assert_eq!(
                refused,
                Outcome::RefusedAt { position, refusal },
                "{other:?}"
            );
            assert_eq!(table, before, "I5");
        }
    }

    #[test]
    fn what_is_refused_ends_no_window() {
        let mut table = table(settings(10, 100));
        run(&mut table, 2, reserve(1));
        let before = table.clone();

        let above = Command::Advance {
            sequence: name(),
            to: 101,
        };
        assert!(run(&mut table, 3, above).is_unchanged());

        assert_eq!(table, before, "I5");
        let given = run(&mut table, 4, take(None, 2, 1, 3));
        assert!(!given.is_unchanged(), "{given:?}");
    }

    #[test]
    fn what_lies_not_in_the_window_or_is_not_what_was_asked_for_is_refused() {
        let mut table = table(settings(10, 100));
        run(&mut table, 2, reserve(1));
        run(&mut table, 3, reserve(1));

        for outside in [
            take(None, 2, 1, 3),
            take(None, 2, 11, 13),
            take(None, 3, 9, 11),
            take(None, 3, 20, 21),
            take(None, 4, 11, 13),
        ] {
            assert_eq!(run(&mut table, 5, outside.clone()), closed(), "{outside:?}");
        }
        let Command::GrantTaken { parts, .. } = take(None, 3, 11, 13) else {
            panic!();
        };
        let mut parts = Vec::from(parts);
        parts[0].part.count = count(2);
        let other = Command::GrantTaken {
            key: None,
            parts: parts.try_into().unwrap(),
            create: None,
        };
        assert_eq!(run(&mut table, 5, other), closed());
    }

    #[test]
    fn windows_are_no_part_of_what_is_restored() {
        let mut table = table(settings(10, 100));
        run(&mut table, 2, reserve(1));

        let restored = table.restored(2);

        assert_eq!(restored.windows().len(), 0);
        assert_eq!(restored.get(&name()).unwrap().high, Some(10));
    }
}
