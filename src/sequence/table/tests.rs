use std::collections::BTreeMap;
use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;
use crate::sequence::IdForm;
use crate::sequence::testing::batch;

fn name(text: &str) -> SequenceName {
    text.parse().unwrap()
}

fn count(count: u32) -> RangeCount {
    RangeCount::constant(count)
}

fn create(sequence: &str, settings: Settings) -> Command {
    Command::Create {
        sequence: name(sequence),
        settings,
    }
}

fn grant(sequence: &str, of: u32) -> Command {
    Command::Grant {
        sequence: name(sequence),
        count: count(of),
    }
}

fn advance(sequence: &str, to: u64) -> Command {
    Command::Advance {
        sequence: name(sequence),
        to,
    }
}

fn at(index: u64) -> Position {
    Position {
        index,
        elapsed_ms: 0,
    }
}

/// Applies the commands as one batch of one entry.
fn run(table: &mut Table, commands: Vec<Command>) -> Vec<Outcome> {
    table.apply(at(7), &[batch(commands)]).batches.remove(0)
}

fn granted(first: u64, last: u64, increment: u64) -> Outcome {
    let increment = NonZeroU64::new(increment).unwrap();
    let range = Range::from_bounds(first, last, increment).unwrap();
    Outcome::Granted {
        range,
        id_form: IdForm::Number,
    }
}

fn settings(start: u64, increment: u64, max_value: u64) -> Settings {
    Settings::new(start, increment, max_value, count(u32::MAX)).unwrap()
}

#[test]
fn two_leases_of_three_are_one_to_three_and_four_to_six() {
    let mut table = Table::default();

    let outcomes = run(
        &mut table,
        vec![
            create("p", Settings::default()),
            grant("p", 3),
            grant("p", 3),
        ],
    );

    assert_eq!(outcomes[1..], [granted(1, 3, 1), granted(4, 6, 1)]);
    let sequence = table.get(&name("p")).unwrap();
    assert_eq!(
        (sequence.high, sequence.last_grant_index),
        (Some(6), Some(7))
    );
}

#[test]
fn grants_of_one_entry_follow_the_order_of_its_batches() {
    let mut table = Table::default();
    run(&mut table, vec![create("p", Settings::default())]);

    let applied = table.apply(
        at(8),
        &[batch(vec![grant("p", 2)]), batch(vec![grant("p", 1)])],
    );

    assert_eq!(
        applied.batches,
        [vec![granted(1, 2, 1)], vec![granted(3, 3, 1)]]
    );
}

#[test]
fn a_refused_command_changes_nothing_and_stops_nobody() {
    let mut table = Table::default();
    let small = Settings::new(1, 1, 10, count(4)).unwrap();
    run(&mut table, vec![create("p", small)]);
    let before = table.clone();

    let outcomes = run(
        &mut table,
        vec![
            grant("q", 1),
            grant("p", 5),
            advance("q", 5),
            advance("p", 11),
            create("p", Settings::default()),
        ],
    );

    assert_eq!(table, before);
    let expected = [
        (
            Refusal::UnknownSequence,
            "no such sequence: create it first",
        ),
        (
            Refusal::LeaseTooLarge {
                asked: count(5),
                limit: count(4),
            },
            "a lease of 5 values is too large: lease at most 4 at once",
        ),
        (
            Refusal::UnknownSequence,
            "no such sequence: create it first",
        ),
        (
            Refusal::AboveMaximum {
                to: 11,
                max_value: 10,
            },
            "cannot advance to 11: max_value is 10",
        ),
        (
            Refusal::SequenceExists,
            "the sequence exists with other settings",
        ),
    ];
    for (outcome, (refusal, text)) in outcomes.iter().zip(expected) {
        assert_eq!(refusal.to_string(), text);
        assert_eq!(*outcome, Outcome::Refused(refusal));
    }
    assert_eq!(run(&mut table, vec![grant("p", 4)]), [granted(1, 4, 1)]);
}

#[test]
fn creating_again_with_the_same_settings_finds_the_sequence_as_it_is() {
    let mut table = Table::default();
    run(
        &mut table,
        vec![create("p", Settings::default()), grant("p", 3)],
    );

    let outcomes = run(&mut table, vec![create("p", Settings::default())]);

    let sequence = table.get(&name("p")).unwrap().clone();
    assert_eq!(sequence.high, Some(3));
    assert_eq!(
        outcomes,
        [Outcome::Created {
            fresh: false,
            sequence
        }]
    );
}

// duckdb/duckdb#2692: the last value can be granted once, and a range past it is refused whole.
#[test]
fn a_range_that_does_not_fit_is_refused_whole_and_the_last_value_is_granted_once() {
    for max_value in [20, u64::MAX] {
        for back in 0..3_u64 {
            for of in [1, 2, 3, 10, u32::MAX] {
                let mut table = Table::default();
                run(
                    &mut table,
                    vec![create("p", settings(max_value - back, 1, max_value))],
                );

                let outcome = run(&mut table, vec![grant("p", of)]).remove(0);

                let left = u32::try_from(back + 1).unwrap();
                let Outcome::Granted { range, .. } = outcome else {
                    assert!(left < of);
                    assert_eq!(
                        outcome,
                        Outcome::Refused(Refusal::Exhausted {
                            asked: count(of),
                            left
                        })
                    );
                    assert_eq!(table.get(&name("p")).unwrap().high, None);
                    continue;
                };
                assert!(of <= left);
                assert_eq!(range.last(), max_value - u64::from(left - of));
            }
        }
    }
}

#[test]
fn the_very_last_number_is_granted_once() {
    let mut table = Table::default();
    run(
        &mut table,
        vec![create("p", settings(u64::MAX, 1, u64::MAX))],
    );

    let outcomes = run(&mut table, vec![grant("p", 1), grant("p", 1)]);

    let range = Range::from_bounds(u64::MAX, u64::MAX, NonZeroU64::MIN).unwrap();
    assert_eq!(
        outcomes,
        [
            Outcome::Granted {
                range,
                id_form: IdForm::Text
            },
            Outcome::Refused(Refusal::Exhausted {
                asked: count(1),
                left: 0
            }),
        ]
    );
}

#[test]
fn an_advance_raises_the_mark_and_never_lowers_it() {
    let mut table = Table::default();
    run(&mut table, vec![create("p", settings(10, 10, 1000))]);
    let advanced = |previous, high| Outcome::Advanced {
        previous,
        high,
        id_form: IdForm::Number,
    };

    let outcomes = run(
        &mut table,
        vec![
            advance("p", 9),
            advance("p", 25),
            advance("p", 25),
            advance("p", 3),
            grant("p", 2),
            advance("p", 1000),
            grant("p", 1),
        ],
    );

    assert_eq!(
        outcomes,
        [
            advanced(None, None),
            advanced(None, Some(25)),
            advanced(Some(25), Some(25)),
            advanced(Some(25), Some(25)),
            granted(30, 40, 10),
            advanced(Some(40), Some(1000)),
            Outcome::Refused(Refusal::Exhausted {
                asked: count(1),
                left: 0
            }),
        ]
    );
}

#[test]
fn state_time_is_the_sum_of_bounded_steps() {
    let mut table = Table::default();

    table.apply(
        Position {
            index: 1,
            elapsed_ms: 250,
        },
        &[],
    );
    table.apply(
        Position {
            index: 2,
            elapsed_ms: u32::MAX,
        },
        &[],
    );

    assert_eq!(table.header().state_time_ms, 60_250);
}

/// The simplest thing that could be right: every lattice value up to the bound, in order, none taken twice.
#[derive(Debug, Default)]
struct Model {
    sequences: BTreeMap<u8, (Settings, Vec<u64>)>,
}

impl Model {
    fn create(&mut self, id: u8, settings: Settings) -> bool {
        if let Some((found, _)) = self.sequences.get(&id) {
            return *found == settings;
        }
        let increment = usize::try_from(settings.increment().get()).unwrap();
        let free = (settings.start()..=settings.max_value())
            .step_by(increment)
            .collect();
        self.sequences.insert(id, (settings, free));
        true
    }

    fn grant(&mut self, id: u8, of: u32) -> Option<Vec<u64>> {
        let (settings, free) = self.sequences.get_mut(&id)?;
        let of = usize::try_from(of).unwrap();
        if free.len() < of || settings.max_lease().get() < u32::try_from(of).unwrap() {
            return None;
        }
        Some(free.drain(..of).collect())
    }

    fn advance(&mut self, id: u8, to: u64) -> bool {
        let Some((settings, free)) = self.sequences.get_mut(&id) else {
            return false;
        };
        if settings.max_value() < to {
            return false;
        }
        free.retain(|value| to < *value);
        true
    }
}

fn commands() -> impl Strategy<Value = Vec<(u8, Command)>> {
    let shapes =
        (0..3_u64, 1..4_u64, 0..60_u64, 1..9_u32).prop_map(|(start, increment, extra, lease)| {
            Settings::new(start, increment, start + extra, count(lease)).unwrap()
        });
    let command =
        (0..3_u8, shapes, 1..10_u32, 0..70_u64, 0..8_u8).prop_map(|(id, shape, of, to, pick)| {
            let sequence = format!("s{id}");
            let command = match pick {
                0 => create(&sequence, shape),
                1 => advance(&sequence, to),
                _ => grant(&sequence, of),
            };
            (id, command)
        });
    prop::collection::vec(command, 1..60)
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_list_of_free_values(commands in commands()) {
        let mut table = Table::default();
        let mut model = Model::default();

        for (id, command) in commands {
            let outcome = run(&mut table, vec![command.clone()]).remove(0);

            match (&command, &outcome) {
                (Command::Create { settings, .. }, outcome) => {
                    let created = matches!(outcome, Outcome::Created { .. });
                    prop_assert_eq!(created, model.create(id, *settings));
                }
                (Command::Grant { count, .. }, Outcome::Granted { range, .. }) => {
                    let step = usize::try_from(range.increment().get()).unwrap();
                    let values: Vec<u64> = (range.first()..=range.last()).step_by(step).collect();
                    prop_assert_eq!(Some(values), model.grant(id, count.get()));
                }
                (Command::Grant { count, .. }, _) => {
                    prop_assert_eq!(None, model.grant(id, count.get()));
                }
                (Command::Advance { to, .. }, outcome) => {
                    let advanced = matches!(outcome, Outcome::Advanced { .. });
                    prop_assert_eq!(advanced, model.advance(id, *to));
                }
            }
        }
    }

    // I8: how a log is cut into entries and batches is no part of the marks it leaves.
    #[test]
    fn the_same_commands_leave_the_same_sequences(commands in commands(), cut in 1..7_usize) {
        let commands: Vec<Command> = commands.into_iter().map(|(_, command)| command).collect();
        let mut whole = Table::default();
        let mut parts = Table::default();

        let at_once = whole.apply(at(7), &[batch(commands.clone())]).batches.concat();
        let in_parts: Vec<Outcome> = commands
            .chunks(cut)
            .flat_map(|part| parts.apply(at(7), &[batch(part.to_vec())]).batches.concat())
            .collect();

        prop_assert_eq!(at_once, in_parts);
        prop_assert_eq!(whole, parts);
    }
}
