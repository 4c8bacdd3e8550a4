use std::collections::BTreeMap;
use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;
use crate::sequence::testing::{at, batch, outcomes};
use crate::sequence::{
    Changes, FixedSetting, Grant, GrantPart, GrantParts, IdForm, ImportPart, Imported,
    NUMBER_SAFE_MAX, NamedSettings, Range, RangeCount, Settings, comparisons,
};

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

/// Applies the commands as one batch of one entry.
fn run(table: &mut Table, commands: Vec<Command>) -> Vec<Outcome> {
    outcomes(table.apply(at(7), &[batch(commands)])).remove(0)
}

fn granted(first: u64, last: u64, increment: u64) -> Outcome {
    let increment = NonZeroU64::new(increment).unwrap();
    let range = Range::from_bounds(first, last, increment).unwrap();
    Outcome::Granted(Grant {
        range,
        id_form: IdForm::Number,
    })
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
        outcomes(applied),
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
    for max_value in [20, NUMBER_SAFE_MAX, u64::MAX] {
        for back in 0..3_u64 {
            for of in [1, 2, 3, 10, u32::MAX] {
                let mut table = Table::default();
                run(
                    &mut table,
                    vec![create("p", settings(max_value - back, 1, max_value))],
                );

                let outcome = run(&mut table, vec![grant("p", of)]).remove(0);

                let left = u32::try_from(back + 1).unwrap();
                let Outcome::Granted(Grant { range, .. }) = outcome else {
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
            Outcome::Granted(Grant {
                range,
                id_form: IdForm::Text
            }),
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
            advanced(None, Some(9)),
            advanced(Some(9), Some(25)),
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
            elapsed_ms: 250,
            ..at(1)
        },
        &[],
    );
    table.apply(
        Position {
            elapsed_ms: u32::MAX,
            ..at(2)
        },
        &[],
    );

    assert_eq!(table.header().state_time_ms, 60_250);
}

fn alter(sequence: &str, changes: Changes) -> Command {
    Command::Alter {
        sequence: name(sequence),
        changes,
    }
}

fn bound(max_value: u64) -> Changes {
    Changes {
        max_value: Some(max_value),
        ..Changes::default()
    }
}

fn retire(sequence: &str) -> Command {
    Command::Retire {
        sequence: name(sequence),
    }
}

fn grant_all(parts: &[(&str, u32)], create: Option<Settings>) -> Command {
    let part = |(sequence, of): &(&str, u32)| GrantPart {
        sequence: name(sequence),
        count: count(*of),
    };
    let parts: Vec<GrantPart> = parts.iter().map(part).collect();
    Command::GrantAll {
        parts: parts.try_into().unwrap(),
        create,
    }
}

/// Each command is refused like this, and the table is what it was, by its hash too.
fn refuses(table: &mut Table, cases: impl IntoIterator<Item = (Command, Refusal, &'static str)>) {
    for (command, refusal, text) in cases {
        let before = table.clone();

        let outcome = run(table, vec![command]).remove(0);

        assert_eq!(refusal.to_string(), text);
        assert_eq!(outcome, Outcome::Refused(refusal));
        assert_eq!(*table, before);
        assert_eq!(table.state_hash(), before.state_hash());
    }
}

// yugabyte/yugabyte-db#26657: a changed setting is no reservation, nothing that was free is used up by it.
#[test]
fn an_altered_sequence_goes_on_where_it_was() {
    let mut table = Table::default();
    run(
        &mut table,
        vec![create("p", settings(1, 1, 5)), grant("p", 1)],
    );
    let changes = Changes {
        start: Some(1),
        increment: Some(1),
        max_value: Some(7),
        max_lease: Some(count(3)),
        cache: Some(0),
    };

    let outcomes = run(
        &mut table,
        vec![
            alter("p", changes),
            alter("p", Changes::default()),
            grant("p", 4),
            grant("p", 3),
            grant("p", 3),
            alter("p", bound(7)),
            grant("p", 1),
        ],
    );

    let altered = |high| Outcome::Altered {
        sequence: Sequence {
            settings: Settings::new(1, 1, 7, count(3)).unwrap(),
            high: Some(high),
            last_grant_index: Some(7),
            retired: false,
        },
    };
    assert_eq!(
        outcomes,
        [
            altered(1),
            altered(1),
            Outcome::Refused(Refusal::LeaseTooLarge {
                asked: count(4),
                limit: count(3)
            }),
            granted(2, 4, 1),
            granted(5, 7, 1),
            altered(7),
            Outcome::Refused(Refusal::Exhausted {
                asked: count(1),
                left: 0
            }),
        ]
    );
}

/// Of `p`, which starts at 10 in steps of 2 and has come to 14, `wide` up to 2^64 − 1, and `none` of 5 to 9.
fn contradictions() -> [(Command, Refusal, &'static str); 7] {
    let start = Changes {
        start: Some(11),
        ..Changes::default()
    };
    let increment = Changes {
        increment: Some(0),
        ..Changes::default()
    };
    let fixed = |setting, fixed, asked| Refusal::ImmutableSetting {
        setting,
        fixed,
        asked,
    };
    let form = |max_value, id_form| Refusal::FormFixed { max_value, id_form };

    [
        (
            alter("unknown", Changes::default()),
            Refusal::UnknownSequence,
            "no such sequence: create it first",
        ),
        (
            alter("p", start),
            fixed(FixedSetting::Start, 10, 11),
            "start is 10 for the sequence's whole life: it cannot become 11",
        ),
        (
            alter("p", increment),
            fixed(FixedSetting::Increment, 2, 0),
            "increment is 2 for the sequence's whole life: it cannot become 0",
        ),
        (
            alter("p", bound(13)),
            Refusal::BelowGranted {
                max_value: 13,
                high: 14,
            },
            "max_value 13 is below the high-water mark: use 14 or more",
        ),
        (
            alter("none", bound(4)),
            Refusal::BelowStart {
                max_value: 4,
                start: 5,
            },
            "max_value 4 is below start 5: no value could be granted",
        ),
        (
            alter("p", bound(NUMBER_SAFE_MAX + 1)),
            form(NUMBER_SAFE_MAX + 1, IdForm::Number),
            "max_value cannot become 9007199254740992: the sequence's ids are JSON numbers, so stay at 2^53 - 1 or below",
        ),
        (
            alter("wide", bound(NUMBER_SAFE_MAX)),
            form(NUMBER_SAFE_MAX, IdForm::Text),
            "max_value cannot become 9007199254740991: the sequence's ids are JSON strings, so stay above 2^53 - 1",
        ),
    ]
}

#[test]
fn settings_that_would_contradict_what_was_granted_are_refused() {
    let mut table = Table::default();
    run(
        &mut table,
        vec![
            create("p", settings(10, 2, 100)),
            grant("p", 3),
            create("wide", settings(1, 1, u64::MAX)),
            create("none", settings(5, 1, 9)),
        ],
    );

    refuses(&mut table, contradictions());

    let outcomes = run(
        &mut table,
        vec![
            alter("p", bound(14)),
            alter("p", bound(NUMBER_SAFE_MAX)),
            alter("wide", bound(NUMBER_SAFE_MAX + 1)),
            alter("wide", bound(u64::MAX)),
            alter("none", bound(5)),
        ],
    );
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Altered { .. })),
        "{outcomes:?}"
    );
}

#[test]
fn a_retired_name_gives_nothing_and_keeps_its_mark() {
    let mut table = Table::default();
    run(
        &mut table,
        vec![create("p", settings(1, 1, 100)), grant("p", 10)],
    );
    let retired = Outcome::Retired {
        sequence: Sequence {
            settings: settings(1, 1, 100),
            high: Some(10),
            last_grant_index: Some(7),
            retired: true,
        },
    };

    let outcomes = run(&mut table, vec![retire("p"), retire("p")]);

    assert_eq!(outcomes, [retired.clone(), retired]);
    let text = "the sequence is retired: create it again, and it continues above its mark";
    refuses(
        &mut table,
        [grant("p", 1), advance("p", 50), alter("p", bound(90))]
            .map(|command| (command, Refusal::Retired, text)),
    );
    refuses(
        &mut table,
        [
            (
                retire("unknown"),
                Refusal::UnknownSequence,
                "no such sequence: create it first",
            ),
            (
                create("p", settings(1, 1, 9)),
                Refusal::BelowGranted {
                    max_value: 9,
                    high: 10,
                },
                "max_value 9 is below the high-water mark: use 10 or more",
            ),
        ],
    );
}

// pingcap/tidb#69781: what undoes or repeats a creation never takes a mark back.
#[test]
fn a_name_created_again_continues_above_its_mark_on_its_new_lattice() {
    let mut table = Table::default();
    run(
        &mut table,
        vec![
            create("p", settings(100, 1, 1000)),
            advance("p", 20),
            retire("p"),
        ],
    );

    let outcomes = run(
        &mut table,
        vec![
            create("p", settings(1, 5, 1000)),
            create("p", settings(1, 5, 1000)),
            grant("p", 2),
            retire("p"),
            create("p", settings(500, 3, u64::MAX)),
            grant("p", 1),
            retire("p"),
            create("p", settings(0, 1, 500)),
            grant("p", 1),
        ],
    );

    let created = |fresh, settings, high| Outcome::Created {
        fresh,
        sequence: Sequence {
            settings,
            high: Some(high),
            last_grant_index: if high == 20 { None } else { Some(7) },
            retired: false,
        },
    };
    assert_eq!(outcomes[0], created(true, settings(1, 5, 1000), 20));
    assert_eq!(outcomes[1], created(false, settings(1, 5, 1000), 20));
    assert_eq!(outcomes[2], granted(21, 26, 5));
    assert_eq!(outcomes[4], created(true, settings(500, 3, u64::MAX), 26));
    let Outcome::Granted(Grant { range, id_form }) = outcomes[5] else {
        panic!("{:?}", outcomes[5])
    };
    assert_eq!((range.first(), id_form), (500, IdForm::Text));
    assert_eq!(outcomes[7], created(true, settings(0, 1, 500), 500));
    assert_eq!(
        outcomes[8],
        Outcome::Refused(Refusal::Exhausted {
            asked: count(1),
            left: 0
        })
    );
}

#[test]
fn both_ends_of_the_number_space_survive_retirement() {
    let mut table = Table::default();
    let all = settings(0, 1, u64::MAX);
    run(
        &mut table,
        vec![
            create("low", all),
            grant("low", 1),
            retire("low"),
            create("low", all),
            create("high", all),
            advance("high", u64::MAX),
            retire("high"),
        ],
    );

    let outcomes = run(
        &mut table,
        vec![
            grant("low", 1),
            create("high", settings(u64::MAX, 1, u64::MAX)),
            grant("high", 1),
        ],
    );

    let Outcome::Granted(Grant { range, .. }) = outcomes[0] else {
        panic!("{:?}", outcomes[0])
    };
    assert_eq!((range.first(), range.last()), (1, 1));
    assert!(matches!(outcomes[1], Outcome::Created { fresh: true, .. }));
    assert_eq!(
        outcomes[2],
        Outcome::Refused(Refusal::Exhausted {
            asked: count(1),
            left: 0
        })
    );
    refuses(
        &mut table,
        [(
            alter("high", bound(u64::MAX - 1)),
            Refusal::BelowGranted {
                max_value: u64::MAX - 1,
                high: u64::MAX,
            },
            "max_value 18446744073709551614 is below the high-water mark: use 18446744073709551615 or more",
        )],
    );
}

fn granted_all(ranges: &[(u64, u64)]) -> Outcome {
    let grant = |(first, last): &(u64, u64)| Grant {
        range: Range::from_bounds(*first, *last, NonZeroU64::MIN).unwrap(),
        id_form: IdForm::Number,
    };
    Outcome::GrantedAll {
        grants: ranges.iter().map(grant).collect(),
    }
}

#[test]
fn several_leases_are_granted_in_order_all_of_them_or_none() {
    let mut table = Table::default();
    run(
        &mut table,
        vec![
            create("p", settings(1, 1, 10)),
            create("q", Settings::default()),
            create("gone", Settings::default()),
            retire("gone"),
        ],
    );

    let outcomes = run(
        &mut table,
        vec![
            grant_all(&[("p", 3), ("q", 5), ("p", 2)], None),
            grant("p", 1),
        ],
    );

    assert_eq!(outcomes[0], granted_all(&[(1, 3), (1, 5), (4, 5)]));
    assert_eq!(outcomes[1], granted(6, 6, 1));
    let unknown = Refusal::UnknownSequence;
    let exhausted = Refusal::Exhausted {
        asked: count(3),
        left: 2,
    };
    for (parts, position, refusal) in [
        (&[("none", 1), ("p", 1)][..], 0, unknown.clone()),
        (&[("p", 1), ("q", 1), ("none", 1)], 2, unknown),
        (&[("q", 1), ("gone", 1)], 1, Refusal::Retired),
        // Together they do not fit, though each would.
        (&[("p", 2), ("q", 1), ("p", 3)], 2, exhausted),
    ] {
        let before = table.clone();
        let outcome = run(&mut table, vec![grant_all(parts, None)]).remove(0);
        assert_eq!(outcome, Outcome::RefusedAt { position, refusal });
        assert_eq!(table, before);
        assert_eq!(table.state_hash(), before.state_hash());
    }
}

#[test]
fn leases_may_create_what_is_not_there_but_only_together_with_all_of_them() {
    let mut table = Table::default();
    run(
        &mut table,
        vec![create("p", settings(5, 1, 10)), retire("p")],
    );
    let create = Some(Settings::default());

    let retired = run(&mut table, vec![grant_all(&[("a", 1), ("p", 1)], create)]).remove(0);
    let too_large = run(&mut table, vec![grant_all(&[("a", 1_000_001)], create)]).remove(0);
    let still_none = table.get(&name("a")).is_none();
    let first = run(
        &mut table,
        vec![grant_all(&[("a", 2), ("b", 1), ("a", 2)], create)],
    );
    let again = run(&mut table, vec![grant_all(&[("a", 1)], create)]);

    assert_eq!(
        retired,
        Outcome::RefusedAt {
            position: 1,
            refusal: Refusal::Retired
        }
    );
    assert!(matches!(too_large, Outcome::RefusedAt { position: 0, .. }));
    assert!(still_none, "I5: what was refused created nothing");
    assert_eq!(first, [granted_all(&[(1, 2), (1, 1), (3, 4)])]);
    assert_eq!(again, [granted_all(&[(5, 5)])]);
    assert_eq!(table.get(&name("b")).unwrap().settings, Settings::default());
}

#[test]
fn a_list_of_leases_has_one_to_256() {
    let part = GrantPart {
        sequence: name("p"),
        count: count(1),
    };
    for (length, fits) in [(0, false), (1, true), (256, true), (257, false)] {
        let parts = GrantParts::try_from(vec![part.clone(); length]);

        assert_eq!(parts.is_ok(), fits, "{length}");
    }
    let error = GrantParts::try_from(Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "0 leases are not 1 to 256");
}

#[test]
fn a_full_table_takes_no_other_name_not_even_for_a_retired_one() {
    let mut table = Table::default();
    let retired = Sequence {
        retired: true,
        ..Sequence::new(Settings::default())
    };
    // Not by `restore`: a million hashes take their time.
    table.sequences = (0..SEQUENCES_MAX - 1)
        .map(|number| (name(&format!("s{number:06}")), retired.clone()))
        .collect();
    let full = Refusal::TooManySequences { limit: 1_000_000 };
    let new = Some(Settings::default());

    let two = run(&mut table, vec![grant_all(&[("a", 1), ("b", 1)], new)]).remove(0);
    let one = run(&mut table, vec![create("a", Settings::default())]).remove(0);
    let none = run(&mut table, vec![grant_all(&[("a", 1), ("b", 1)], new)]).remove(0);

    assert_eq!(
        two,
        Outcome::RefusedAt {
            position: 1,
            refusal: full.clone()
        }
    );
    assert!(matches!(one, Outcome::Created { fresh: true, .. }));
    assert_eq!(
        none,
        Outcome::RefusedAt {
            position: 1,
            refusal: full.clone()
        }
    );
    refuses(
        &mut table,
        [(
            create("b", Settings::default()),
            full,
            "the cluster holds 1000000 sequences, retired ones among them: use one that is there",
        )],
    );
    let known = run(&mut table, vec![create("s000000", Settings::default())]).remove(0);
    assert!(matches!(known, Outcome::Created { fresh: true, .. }));
}

#[test]
fn a_dry_run_answers_what_an_apply_would_and_changes_nothing() {
    let mut table = Table::default();
    run(
        &mut table,
        vec![create("p", settings(1, 1, 100)), grant("p", 5)],
    );
    let commands = [
        create("q", Settings::default()),
        create("p", Settings::default()),
        alter("p", bound(50)),
        alter("p", bound(4)),
        advance("p", 60),
        advance("p", 101),
        retire("p"),
        retire("q"),
    ];

    for command in commands {
        let before = table.clone();

        let dry = table.dry_run(&command);

        assert_eq!(table, before);
        assert_eq!(table.state_hash(), before.state_hash());
        assert_eq!(run(&mut before.clone(), vec![command]), [dry]);
    }
}

/// So many sequences, made by as few entries as a node would.
fn many(sequences: usize) -> Table {
    let names: Vec<String> = (0..sequences).map(|number| format!("s{number}")).collect();
    let mut table = Table::default();
    for names in names.chunks(1_000) {
        let create = |name: &String| create(name, Settings::default());
        run(&mut table, names.iter().map(create).collect());
    }
    table
}

#[test]
fn a_lease_looks_at_a_few_names_however_many_sequences_are_idle() {
    let lease = |table: &mut Table| {
        comparisons::of(|| {
            assert!(!table.is_cached(&name("s77")));
            assert_eq!(run(table, vec![grant("s77", 1)]), [granted(1, 1, 1)]);
        })
    };

    let [few, many] = [100, 50_000].map(|sequences| lease(&mut many(sequences)));

    // A table that is five hundred times as large is nine times halved more.
    assert!(many <= few + 4 * 9, "{many} comparisons, of few {few}");
}

#[test]
fn a_page_costs_the_same_wherever_it_begins() {
    let table = many(50_000);
    let page = |after: &SequenceName| {
        comparisons::of(|| assert_eq!(table.page(None, Some(after)).take(100).count(), 100))
    };
    let names: Vec<&SequenceName> = table.iter().map(|(name, _)| name).collect();

    let costs = [0, 25_000, 49_000].map(|place| page(names[place]));

    assert!(
        costs.iter().all(|cost| *cost < 100),
        "{costs:?} comparisons"
    );
}

#[test]
fn a_page_holds_what_begins_with_the_prefix_and_comes_after_the_name() {
    let mut table = Table::default();
    let names = ["a", "a.b", "a.c", "a.c.d", "ab", "b"];
    run(
        &mut table,
        names.map(|text| create(text, Settings::default())).to_vec(),
    );
    let page = |prefix: &str, after: &str| {
        let [prefix, after] = [prefix, after].map(|text| text.parse::<SequenceName>().ok());
        let page = table.page(prefix.as_ref(), after.as_ref());
        page.map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };

    assert_eq!(page("", ""), names);
    assert_eq!(page("", "a.b"), ["a.c", "a.c.d", "ab", "b"]);
    assert_eq!(page("", "a.bb"), ["a.c", "a.c.d", "ab", "b"]);
    assert_eq!(page("", "b"), [""; 0]);
    assert_eq!(page("a.", "a.b"), ["a.c", "a.c.d"]);
    assert_eq!(page("a.", "a.c.d"), [""; 0]);
    assert_eq!(page("a.c", ""), ["a.c", "a.c.d"]);
    assert_eq!(page("a.c", "a.c"), ["a.c.d"]);
    assert_eq!(page("a.c", "a"), ["a.c", "a.c.d"]);
    assert_eq!(page("a.c", "ab"), [""; 0]);
    assert_eq!(page("c", ""), [""; 0]);
}

/// The simplest thing that could be right: for each name, all values up to its bound, without those up to its mark.
#[derive(Debug, Clone)]
struct Known {
    settings: Settings,
    mark: Option<u64>,
    retired: bool,
}

#[derive(Debug, Clone, Default)]
struct Model {
    sequences: BTreeMap<String, Known>,
}

impl Model {
    fn living(&mut self, id: &str) -> Option<&mut Known> {
        self.sequences.get_mut(id).filter(|known| !known.retired)
    }

    fn create(&mut self, id: &str, settings: Settings) -> bool {
        match self.sequences.get_mut(id) {
            None => {
                let known = Known {
                    settings,
                    mark: None,
                    retired: false,
                };
                self.sequences.insert(id.to_owned(), known);
            }
            Some(known) if known.retired => {
                if known.mark.is_some_and(|mark| settings.max_value() < mark) {
                    return false;
                }
                known.settings = settings;
                known.retired = false;
            }
            Some(known) => return known.settings == settings,
        }
        true
    }

    fn grant(&mut self, id: &str, of: u32) -> Option<Vec<u64>> {
        self.take(id, of, of)
    }

    fn reserve(&mut self, id: &str, of: u32) -> Option<Vec<u64>> {
        let cache = self.living(id)?.settings.cache();
        self.take(id, of, of.max(cache.try_into().unwrap()))
    }

    /// Takes so many values or fewer, if there are as many as are needed.
    fn take(&mut self, id: &str, needed: u32, wanted: u32) -> Option<Vec<u64>> {
        let known = self.living(id)?;
        let settings = known.settings;
        let increment = usize::try_from(settings.increment().get()).unwrap();
        let values: Vec<u64> = (settings.start()..=settings.max_value())
            .step_by(increment)
            .filter(|value| known.mark.is_none_or(|mark| mark < *value))
            .take(usize::try_from(wanted).unwrap())
            .collect();
        if values.len() < usize::try_from(needed).unwrap() || settings.max_lease().get() < needed {
            return None;
        }
        known.mark = values.last().copied();
        Some(values)
    }

    fn advance(&mut self, id: &str, to: u64) -> bool {
        match self.living(id) {
            Some(known) if to <= known.settings.max_value() => {
                known.mark = known.mark.max(Some(to));
                true
            }
            _ => false,
        }
    }

    fn alter(&mut self, id: &str, changes: &Changes) -> bool {
        let Some(known) = self.living(id) else {
            return false;
        };
        let now = known.settings;
        let lattice = (now.start(), now.increment().get());
        let asked = (
            changes.start.unwrap_or(lattice.0),
            changes.increment.unwrap_or(lattice.1),
        );
        let max_value = changes.max_value.unwrap_or(now.max_value());
        let max_lease = changes.max_lease.unwrap_or(now.max_lease());
        let cache = changes.cache.unwrap_or(now.cache());
        let settings = Settings::new(lattice.0, lattice.1, max_value, max_lease);
        match settings {
            Ok(settings) if asked == lattice && known.mark <= Some(max_value) => {
                known.settings = settings.with_cache(cache);
                true
            }
            _ => false,
        }
    }

    fn retire(&mut self, id: &str) -> bool {
        let known = self.sequences.get_mut(id);
        known.map(|known| known.retired = true).is_some()
    }

    fn import(&mut self, part: &ImportPart) -> bool {
        let (id, at_least) = (part.sequence.as_str(), part.at_least);
        let NamedSettings(named) = part.named;
        match self.sequences.get(id) {
            None if at_least <= part.settings.max_value() => {
                self.create(id, part.settings) && self.advance(id, at_least)
            }
            Some(known) if named == [false; 5] || known.settings == part.settings => {
                self.advance(id, at_least)
            }
            _ => false,
        }
    }

    fn grant_all(
        &mut self,
        parts: &GrantParts,
        create: Option<Settings>,
    ) -> Result<Vec<Vec<u64>>, usize> {
        let before = self.clone();
        let mut all = Vec::new();
        for (position, part) in parts.iter().enumerate() {
            let id = part.sequence.as_str();
            if let Some(settings) = create
                && !self.sequences.contains_key(id)
            {
                self.create(id, settings);
            }
            let Some(values) = self.grant(id, part.count.get()) else {
                *self = before;
                return Err(position);
            };
            all.push(values);
        }
        Ok(all)
    }
}

#[test]
fn the_feature_level_rises_and_never_falls() {
    let level = |number| FeatureLevel::from_number(number).unwrap();
    let mut table = Table::default();
    let before = table.state_hash();
    assert_eq!(table.header().level, level(1));

    for (to, expected) in [(1, 1), (3, 3), (2, 3), (3, 3)] {
        let to = level(to);
        let outcome = run(&mut table, vec![Command::RaiseLevel { to }]).remove(0);

        let expected = level(expected);
        assert_eq!(outcome, Outcome::LevelRaised { level: expected });
        assert_eq!(table.header().level, expected);
    }

    assert_ne!(table.state_hash(), before, "I8");
    assert_eq!(rebuilt(&table), table);
    // What the sequences hold may be of that level.
    assert_eq!(table.restored(9).header().level, level(3));
}

fn shapes() -> impl Strategy<Value = Settings> {
    (0..3_u64, 1..4_u64, 0..60_u64, 0..12_u64, 1..9_u32).prop_map(
        |(start, increment, extra, cache, lease)| {
            let settings = Settings::new(start, increment, start + extra, count(lease));
            settings.unwrap().with_cache(cache)
        },
    )
}

fn changes() -> impl Strategy<Value = Changes> {
    let rarely = |values| prop::option::weighted(0.1, values);
    let often = |values| prop::option::weighted(0.6, values);
    (
        rarely(0..3_u64),
        rarely(0..4_u64),
        often(0..80_u64),
        rarely(0..12_u64),
        prop::option::of(1..9_u32),
    )
        .prop_map(|(start, increment, max_value, cache, lease)| Changes {
            start,
            increment,
            max_value,
            cache,
            max_lease: lease.map(count),
        })
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let id = || (0..3_u8).prop_map(|id| name(&format!("s{id}")));
    let part = (id(), 1..6_u32).prop_map(|(sequence, of)| GrantPart {
        sequence,
        count: count(of),
    });
    let parts = prop::collection::vec(part, 1..6);
    let import = (id(), shapes(), any::<bool>(), 0..70_u64).prop_map(
        |(sequence, settings, named, at_least)| {
            let part = ImportPart {
                sequence,
                settings,
                named: NamedSettings([named; 5]),
                at_least,
            };
            let parts = vec![part].try_into().unwrap();
            Command::Import { parts }
        },
    );
    let command = prop_oneof![
        3 => (id(), shapes()).prop_map(|(sequence, settings)| Command::Create { sequence, settings }),
        2 => (id(), 0..70_u64).prop_map(|(sequence, to)| Command::Advance { sequence, to }),
        3 => (id(), changes()).prop_map(|(sequence, changes)| Command::Alter { sequence, changes }),
        2 => id().prop_map(|sequence| Command::Retire { sequence }),
        8 => (id(), 1..10_u32).prop_map(|(sequence, of)| Command::Grant { sequence, count: count(of) }),
        3 => (id(), 1..10_u32).prop_map(|(sequence, of)| Command::Reserve { sequence, count: count(of) }),
        4 => (parts, prop::option::weighted(0.3, shapes()))
            .prop_map(|(parts, create)| Command::GrantAll { parts: parts.try_into().unwrap(), create }),
        3 => import,
    ];
    prop::collection::vec(command, 1..60)
}

fn values(range: Range) -> Vec<u64> {
    let step = usize::try_from(range.increment().get()).unwrap();
    (range.first()..=range.last()).step_by(step).collect()
}

/// The same table from nothing, as a snapshot brings it back.
fn rebuilt(table: &Table) -> Table {
    let mut copy = Table::with_header(table.header());
    for (name, sequence) in table.iter() {
        copy.restore(name.clone(), sequence.clone());
    }
    for (name, window) in table.windows() {
        copy.set_window(name, Some(*window));
    }
    for (id, session) in table.sessions().iter() {
        copy.restore_session(*id, session.clone());
    }
    for kept in table.keys().iter() {
        copy.restore_key(kept.clone());
    }
    let nodes = table.nodes().iter().map(|(id, node)| (*id, node.clone()));
    copy.restore_nodes(table.nodes().next(), nodes);
    copy
}

/// What the model says of the command: the grants, or at which part it is refused.
fn expected(model: &mut Model, command: &Command) -> Result<Vec<Vec<u64>>, usize> {
    let done = |done: bool| if done { Ok(Vec::new()) } else { Err(0) };
    match command {
        Command::Create { sequence, settings } => done(model.create(sequence.as_str(), *settings)),
        Command::Advance { sequence, to } => done(model.advance(sequence.as_str(), *to)),
        Command::Alter { sequence, changes } => done(model.alter(sequence.as_str(), changes)),
        Command::Retire { sequence } => done(model.retire(sequence.as_str())),
        Command::Grant { sequence, count } => {
            let values = model.grant(sequence.as_str(), count.get());
            values.map(|values| vec![values]).ok_or(0)
        }
        Command::Reserve { sequence, count } => {
            let values = model.reserve(sequence.as_str(), count.get());
            values.map(|values| vec![values]).ok_or(0)
        }
        Command::GrantAll { parts, create } => model.grant_all(parts, *create),
        Command::Import { parts } => done(parts.iter().all(|part| model.import(part))),
        Command::OpenSession { .. }
        | Command::Admit { .. }
        | Command::RaiseLevel { .. }
        | Command::GrantAllKeyed { .. }
        | Command::GrantTaken { .. }
        | Command::AdvanceKeyed { .. } => Ok(Vec::new()),
    }
}

/// What the table did, in the model's words.
fn answered(outcome: &Outcome) -> Result<Vec<Vec<u64>>, usize> {
    match outcome {
        Outcome::Granted(grant) => Ok(vec![values(grant.range)]),
        Outcome::Reserved(reserved) => Ok(vec![values(reserved.range)]),
        Outcome::GrantedAll { grants } => {
            Ok(grants.iter().map(|grant| values(grant.range)).collect())
        }
        Outcome::Created { .. }
        | Outcome::Advanced { .. }
        | Outcome::Altered { .. }
        | Outcome::Retired { .. }
        | Outcome::Opened { .. }
        | Outcome::Admitted { .. }
        | Outcome::LevelRaised { .. }
        | Outcome::Replayed { .. } => Ok(Vec::new()),
        Outcome::Imported { parts } => match parts[..] {
            [Imported::Done { .. }] => Ok(Vec::new()),
            _ => Err(0),
        },
        Outcome::Refused(_) => Err(0),
        Outcome::RefusedAt { position, .. } => Err(usize::try_from(*position).unwrap()),
    }
}

/// The names whose values a command asks for, in the order of its grants.
fn asked(command: &Command) -> Vec<SequenceName> {
    match command {
        Command::Grant { sequence, .. } | Command::Reserve { sequence, .. } => {
            vec![sequence.clone()]
        }
        Command::GrantAll { parts, .. } => parts.iter().map(|part| part.sequence.clone()).collect(),
        _ => Vec::new(),
    }
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_list_of_free_values(commands in commands()) {
        let mut table = Table::default();
        let mut model = Model::default();
        let mut last: BTreeMap<SequenceName, u64> = BTreeMap::new();

        for command in commands {
            let before = table.clone();
            let outcome = run(&mut table, vec![command.clone()]).remove(0);

            let grants = answered(&outcome);
            prop_assert_eq!(&grants, &expected(&mut model, &command), "{:?}", command);
            if grants.is_err() {
                prop_assert_eq!(&table, &before, "I5: {:?}", command);
                prop_assert_eq!(table.state_hash(), before.state_hash());
            }
            for (name, values) in asked(&command).into_iter().zip(grants.unwrap_or_default()) {
                for value in values {
                    let previous = last.insert(name.clone(), value);
                    prop_assert!(previous < Some(value), "I1: {} of {}", value, name);
                }
            }
        }
    }

    // I8: how a log is cut into entries and batches is no part of the marks it leaves.
    #[test]
    fn the_same_commands_leave_the_same_sequences(commands in commands(), cut in 1..7_usize) {
        let mut whole = Table::default();
        let mut parts = Table::default();

        let at_once = outcomes(whole.apply(at(7), &[batch(commands.clone())])).concat();
        let in_parts: Vec<Outcome> = commands
            .chunks(cut)
            .flat_map(|part| outcomes(parts.apply(at(7), &[batch(part.to_vec())])).concat())
            .collect();

        prop_assert_eq!(at_once, in_parts);
        prop_assert_eq!(whole.state_hash(), parts.state_hash(), "I8: the hash of {:?}", whole);
        prop_assert_eq!(whole, parts);
    }

    #[test]
    fn the_hash_that_follows_each_entry_is_the_hash_of_the_whole(
        entries in prop::collection::vec(commands(), 1..6),
    ) {
        let mut table = Table::default();
        let mut same = Table::default();

        for (index, commands) in (1..).zip(entries) {
            let batch = [batch(commands)];
            table.apply(at(index), &batch);
            same.apply(at(index), &batch);

            let whole = rebuilt(&table);
            let said = "I8: what the hash became entry by entry is not the hash of the table";
            prop_assert_eq!(table.state_hash(), whole.state_hash(), "{}: {:?}", said, table);
            prop_assert_eq!(&table, &whole);
            prop_assert_eq!(table.state_hash(), same.state_hash(), "I8: of the same entries");
        }
    }
}
