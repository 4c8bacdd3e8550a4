//! The checker is itself checked: here by planted faults, in `reference` against a slow judge on random histories.

mod large;
mod reference;
mod witness;

use super::*;
use crate::sequence::{RangeCount, SequenceName};

/// A line of worker `w`, node 1, sequence `s`.
fn line(sent_ns: u64, received_ns: u64, count: u64, outcome: LeaseOutcome) -> Line {
    Line {
        worker: "w".to_owned(),
        node: Some(1),
        sequence: "s".parse().unwrap(),
        sent_ns,
        received_ns,
        operation: Operation::Lease {
            count: RangeCount::try_from(count).unwrap(),
            key: None,
            outcome,
        },
    }
}

fn grant(times: (u64, u64), first: u64, last: u64) -> Line {
    stepped(times, (first, last), 1)
}

fn stepped((sent_ns, received_ns): (u64, u64), (first, last): (u64, u64), increment: u64) -> Line {
    let outcome = LeaseOutcome::Granted {
        first,
        last,
        increment,
    };
    let count = (last - first) / increment + 1;
    line(sent_ns, received_ns, count, outcome)
}

fn unknown((sent_ns, received_ns): (u64, u64), count: u64) -> Line {
    line(sent_ns, received_ns, count, LeaseOutcome::Unknown)
}

fn keyed(mut line: Line, name: &str) -> Line {
    if let Operation::Lease { key, .. } = &mut line.operation {
        *key = Some(name.to_owned());
    }
    line
}

fn operation((sent_ns, received_ns): (u64, u64), operation: Operation) -> Line {
    Line {
        operation,
        ..grant((sent_ns, received_ns), 1, 1)
    }
}

fn read(times: (u64, u64), high: u64) -> Line {
    let high = Some(high);
    let mark = Mark {
        high,
        ..Mark::default()
    };
    operation(times, Operation::Read(mark))
}

fn read_finally(times: (u64, u64), high: u64) -> Line {
    let high = Some(high);
    let mark = Mark {
        high,
        ..Mark::default()
    };
    operation(times, Operation::FinalRead(mark))
}

/// A read before the first grant.
fn nothing(times: (u64, u64), start: u64) -> Line {
    let start = Some(start);
    let mark = Mark {
        start,
        ..Mark::default()
    };
    operation(times, Operation::Read(mark))
}

fn advance(times: (u64, u64), to: u64, previous: Option<u64>, high: u64) -> Line {
    let outcome = AdvanceOutcome::Advanced { previous, high };
    operation(times, Operation::Advance { to, outcome })
}

fn unknown_advance(times: (u64, u64), to: u64) -> Line {
    let outcome = AdvanceOutcome::Unknown;
    operation(times, Operation::Advance { to, outcome })
}

fn text(lines: &[Line]) -> String {
    lines.iter().map(|line| line.to_json() + "\n").collect()
}

fn check_by(gap_rule: GapRule, lines: &[Line]) -> Report {
    let checker = Checker::new(gap_rule).source(Source::text("h", text(lines)));
    checker.check().unwrap()
}

fn check(lines: &[Line]) -> Report {
    check_by(GapRule::MustBeExplained, lines)
}

/// The kinds found, with the numbers of the lines that show them.
fn shown(report: &Report) -> Vec<(ViolationKind, Vec<u64>)> {
    report
        .violations
        .iter()
        .map(|violation| {
            let numbers = violation.witnesses.iter().map(|witness| witness.number);
            (violation.kind, numbers.collect())
        })
        .collect()
}

#[test]
fn concurrent_grants_side_by_side_hold_in_any_order() {
    let report = check(&[
        grant((1, 9), 4, 6),
        grant((2, 8), 1, 3),
        grant((9, 12), 7, 7),
    ]);

    assert_eq!(report.verdict(), Verdict::Holds);
    assert_eq!((report.grants, report.gaps), (3, 0));
}

#[test]
fn an_overlap_is_found_and_shown_by_two_lines() {
    let report = check(&[
        grant((1, 9), 1, 10),
        grant((1, 9), 11, 12),
        grant((2, 9), 10, 10),
        grant((2, 9), 13, 13),
    ]);

    assert_eq!(report.verdict(), Verdict::Violated);
    assert_eq!(report.overlaps, 1);
    assert_eq!(shown(&report), [(ViolationKind::Overlap, vec![1, 3])]);
    assert_eq!(
        report.violations[0].to_string(),
        "I1: two grants of s share values (1 such in all)\n  \
         h:1 {\"v\":1,\"worker\":\"w\",\"node\":1,\"sequence\":\"s\",\"count\":10,\"key\":null,\"sent_ns\":1,\
         \"received_ns\":9,\"outcome\":\"granted\",\"first\":1,\"last\":10,\"increment\":1}\n  \
         h:3 {\"v\":1,\"worker\":\"w\",\"node\":1,\"sequence\":\"s\",\"count\":1,\"key\":null,\"sent_ns\":2,\
         \"received_ns\":9,\"outcome\":\"granted\",\"first\":10,\"last\":10,\"increment\":1}"
    );
}

#[test]
fn a_range_hidden_inside_a_wide_one_overlaps_it() {
    let report = check(&[
        grant((1, 9), 1, 100),
        grant((1, 9), 2, 3),
        grant((1, 9), 50, 60),
    ]);

    assert_eq!(report.overlaps, 2);
}

#[test]
fn one_range_acknowledged_twice_is_an_overlap() {
    let report = check(&[grant((1, 2), 1, 3), grant((1, 2), 1, 3)]);

    assert_eq!(report.overlaps, 1);
    assert_eq!(report.order_violations, 0);
}

#[test]
fn of_many_violations_all_are_counted_and_a_hundred_are_shown() {
    let overlaps = (0..150).flat_map(|number| {
        let sequence: SequenceName = format!("s{number}").parse().unwrap();
        let twice = Line {
            sequence,
            ..grant((1, 2), 1, 3)
        };
        [twice.clone(), twice]
    });

    let report = check(&overlaps.collect::<Vec<_>>());

    assert_eq!(report.overlaps, 150);
    assert_eq!(report.violations.len(), 100);
}

#[test]
fn the_witness_is_the_pair_that_showed_first() {
    let report = check(&[
        grant((1, 90), 1, 2),
        grant((1, 91), 2, 3),
        grant((1, 30), 11, 12),
        grant((1, 31), 12, 13),
    ]);

    assert_eq!(report.overlaps, 2);
    assert_eq!(report.violations[0].witnesses[0].number, 3);
    assert_eq!(report.violations[0].witnesses[1].number, 4);
}

#[test]
fn grants_of_other_sequences_do_not_meet() {
    let other = Line {
        sequence: "t".parse().unwrap(),
        ..grant((3, 4), 1, 3)
    };

    let report = check(&[grant((1, 2), 1, 3), other]);

    assert_eq!(report.verdict(), Verdict::Holds);
    assert_eq!(report.sequences, 2);
}

#[test]
fn a_later_request_with_a_lower_range_is_an_inversion() {
    let report = check(&[grant((1, 2), 4, 6), grant((3, 4), 1, 3)]);

    assert_eq!(report.verdict(), Verdict::Violated);
    assert_eq!((report.overlaps, report.order_violations), (0, 1));
    assert_eq!(shown(&report), [(ViolationKind::Order, vec![1, 2])]);
    assert!(
        report.violations[0]
            .text
            .starts_with("I2: a grant of s is not above one that was received before it was sent")
    );
}

#[test]
fn a_request_sent_at_the_instant_of_a_receipt_is_concurrent_with_it() {
    let report = check(&[grant((1, 3), 4, 6), grant((3, 4), 1, 3)]);

    assert_eq!(report.verdict(), Verdict::Holds);
}

#[test]
fn a_gap_without_an_unanswered_request_is_a_lost_grant() {
    let report = check(&[grant((1, 2), 1, 3), grant((3, 4), 7, 8)]);

    assert_eq!(report.verdict(), Verdict::Violated);
    assert_eq!((report.gaps, report.gaps_unexplained), (1, 1));
    assert_eq!(shown(&report), [(ViolationKind::Gap, vec![1, 2])]);
    assert!(
        report.violations[0]
            .text
            .contains("the values 4..=6 of s were given to nobody")
    );
}

#[test]
fn a_refusal_explains_no_gap() {
    let refused = line(1, 2, 3, LeaseOutcome::NotApplied);

    let report = check(&[grant((1, 2), 1, 3), refused, grant((3, 4), 7, 8)]);

    assert_eq!((report.not_applied, report.gaps_unexplained), (1, 1));
}

#[test]
fn unanswered_requests_of_the_right_counts_explain_a_gap() {
    let history = |counts: [u64; 2]| {
        check(&[
            grant((1, 2), 1, 3),
            unknown((1, 9), counts[0]),
            unknown((1, 9), counts[1]),
            grant((3, 4), 7, 8),
        ])
    };

    assert_eq!(history([1, 2]).verdict(), Verdict::Holds);
    assert_eq!(history([5, 3]).verdict(), Verdict::Holds);
    assert_eq!(history([2, 2]).verdict(), Verdict::Violated);
}

#[test]
fn a_request_sent_after_a_higher_grant_was_answered_explains_no_lower_gap() {
    let before = check(&[grant((1, 2), 1, 3), unknown((4, 9), 3), grant((3, 4), 7, 8)]);
    let after = check(&[grant((1, 2), 1, 3), unknown((5, 9), 3), grant((3, 4), 7, 8)]);

    assert_eq!(before.verdict(), Verdict::Holds);
    assert_eq!(after.verdict(), Verdict::Violated);
}

#[test]
fn gaps_are_only_counted_where_they_are_allowed() {
    let lines = [grant((1, 2), 1, 3), grant((3, 4), 7, 8)];

    let report = check_by(GapRule::Allowed, &lines);

    assert_eq!(report.verdict(), Verdict::Holds);
    assert_eq!((report.gaps, report.gaps_unexplained), (1, 0));
    assert_eq!(report.violations, []);
}

#[test]
fn a_read_before_the_first_grant_and_one_at_the_end_make_gaps_at_both_ends_visible() {
    let first = nothing((0, 0), 1);
    let only = grant((1, 2), 3, 4);
    assert_eq!(check(std::slice::from_ref(&only)).verdict(), Verdict::Holds);

    let report = check(&[first, only, read_finally((3, 4), 6)]);

    assert_eq!((report.gaps, report.gaps_unexplained), (2, 2));
    assert_eq!(shown(&report), [(ViolationKind::Gap, vec![1, 2])]);
}

#[test]
fn a_grant_below_the_start_is_malformed() {
    let report = check(&[nothing((0, 0), 5), grant((1, 2), 3, 4), grant((3, 4), 5, 6)]);

    assert_eq!(report.malformed, 1);
    assert_eq!(shown(&report), [(ViolationKind::Malformed, vec![1, 2])]);
}

#[test]
fn a_final_mark_at_the_highest_grant_holds() {
    let report = check(&[
        grant((1, 2), 1, 3),
        grant((3, 4), 4, 6),
        read_finally((5, 6), 6),
    ]);

    assert_eq!(report.verdict(), Verdict::Holds);
    assert_eq!((report.grants, report.reads), (2, 1));
}

#[test]
fn an_acknowledged_grant_above_the_final_mark_was_lost() {
    let report = check(&[
        grant((1, 2), 1, 3),
        grant((3, 4), 4, 6),
        read_finally((5, 6), 3),
    ]);

    assert_eq!(report.lost, 1);
    assert_eq!(shown(&report), [(ViolationKind::Lost, vec![2, 3])]);
}

#[test]
fn a_read_below_what_was_acknowledged_before_it_was_sent_is_stale() {
    let history = |sent| check(&[grant((1, 2), 1, 3), grant((3, 4), 4, 6), read((sent, 9), 3)]);

    assert_eq!(history(4).verdict(), Verdict::Holds);
    let stale = history(5);
    assert_eq!(stale.read_violations, 1);
    assert_eq!(shown(&stale), [(ViolationKind::Read, vec![2, 3])]);
    assert!(
        stale.violations[0]
            .text
            .starts_with("I6: a read of s is below what was acknowledged before it was sent")
    );
}

#[test]
fn reads_one_after_the_other_never_fall() {
    let report = check(&[
        grant((1, 9), 1, 3),
        grant((1, 9), 4, 6),
        read((2, 3), 6),
        read((4, 5), 3),
    ]);

    assert_eq!(report.read_violations, 1);
    assert_eq!(shown(&report), [(ViolationKind::Read, vec![3, 4])]);
}

#[test]
fn a_grant_that_was_asked_for_after_a_read_lies_above_it() {
    let history = |received| {
        check(&[
            grant((1, 9), 1, 3),
            read((2, received), 3),
            grant((5, 9), 4, 6),
            grant((5, 9), 7, 7),
        ])
    };
    assert_eq!(history(4).verdict(), Verdict::Holds);

    let shown_before = |high| {
        check(&[
            grant((1, 9), 1, 3),
            read((2, 4), high),
            grant((5, 9), 4, 6),
            grant((1, 9), 7, 7),
        ])
    };

    assert_eq!(shown_before(3).verdict(), Verdict::Holds);
    let late = shown_before(6);
    assert_eq!(shown(&late), [(ViolationKind::Read, vec![2, 3])]);
}

#[test]
fn a_read_shows_the_end_of_a_range() {
    let history = |high| check(&[grant((1, 9), 1, 3), read((1, 9), high), grant((1, 9), 4, 6)]);

    assert_eq!(history(3).verdict(), Verdict::Holds);
    let torn = history(5);
    assert_eq!(shown(&torn), [(ViolationKind::Read, vec![2, 3])]);
    assert!(
        torn.violations[0]
            .text
            .starts_with("I6: a read of s shows a mark inside a range")
    );
}

#[test]
fn a_read_in_a_gap_says_where_one_request_ended_and_the_next_began() {
    let history = |high| {
        check(&[
            grant((1, 2), 1, 3),
            unknown((1, 9), 2),
            unknown((1, 9), 3),
            read((3, 9), high),
            grant((3, 9), 9, 9),
        ])
    };

    assert_eq!(history(5).verdict(), Verdict::Holds);
    assert_eq!(history(6).verdict(), Verdict::Holds);
    assert_eq!(history(7).gaps_unexplained, 2);
}

#[test]
fn a_request_that_was_sent_after_a_read_took_nothing_below_it() {
    let history = |sent| {
        check(&[
            grant((1, 2), 1, 3),
            read((3, 4), 4),
            unknown((sent, 9), 1),
            grant((6, 9), 5, 5),
        ])
    };

    assert_eq!(history(4).verdict(), Verdict::Holds);
    assert_eq!(history(5).gaps_unexplained, 1);
}

#[test]
fn a_mark_off_the_lattice_is_nobodys_but_an_advances() {
    let history = |more: Line| {
        check(&[
            stepped((1, 2), (5, 15), 10),
            more,
            read((5, 6), 20),
            stepped((7, 8), (25, 25), 10),
        ])
    };

    assert_eq!(
        history(advance((3, 4), 20, Some(15), 20)).verdict(),
        Verdict::Holds
    );
    assert_eq!(
        history(unknown_advance((3, 9), 20)).verdict(),
        Verdict::Holds
    );
    let by_nobody = history(unknown((3, 9), 1));
    assert_eq!(shown(&by_nobody), [(ViolationKind::Read, vec![1, 3])]);
}

#[test]
fn what_an_advance_passes_over_is_no_gap_and_is_granted_to_nobody() {
    let history = |first| {
        check(&[
            grant((1, 2), 1, 3),
            advance((3, 4), 100, Some(3), 100),
            grant((5, 6), first, first),
        ])
    };

    assert_eq!(history(101).verdict(), Verdict::Holds);
    assert_eq!((history(101).gaps, history(101).advances), (0, 1));
    let passed_over = history(100);
    assert_eq!(passed_over.overlaps, 1);
    assert_eq!(passed_over.order_violations, 1);
    assert_eq!(history(102).gaps_unexplained, 1);
}

#[test]
fn an_advance_finds_the_mark_that_was_acknowledged_before() {
    let report = check(&[grant((1, 2), 1, 3), advance((3, 4), 100, None, 100)]);

    assert_eq!(report.overlaps, 1);
    assert_eq!(report.read_violations, 1);
}

#[test]
fn an_advance_that_is_above_already_only_shows_the_mark() {
    let history = |high| check(&[grant((1, 2), 1, 3), advance((3, 4), 2, Some(high), high)]);

    assert_eq!(history(3).verdict(), Verdict::Holds);
    assert_eq!(shown(&history(2)), [(ViolationKind::Read, vec![1, 2])]);
}

#[test]
fn an_advance_to_elsewhere_is_malformed() {
    let report = check(&[advance((1, 2), 100, Some(3), 99)]);

    assert_eq!(shown(&report), [(ViolationKind::Malformed, vec![1])]);
}

#[test]
fn an_advance_without_an_answer_may_explain_the_gap_that_it_ends_in() {
    let history = |to| {
        check(&[
            grant((1, 2), 1, 3),
            unknown_advance((1, 2), to),
            grant((3, 4), 7, 8),
        ])
    };

    for (to, undecided, unexplained) in [(3, 0, 1), (4, 1, 0), (6, 1, 0), (7, 0, 1)] {
        let report = history(to);
        let found = (report.gaps_undecided, report.gaps_unexplained);
        assert_eq!(found, (undecided, unexplained), "{to}");
    }
}

#[test]
fn what_a_read_shows_to_have_a_cache_may_have_gaps_beside_what_has_none() {
    let of = |sequence: &str, line: Line| Line {
        sequence: sequence.parse().unwrap(),
        ..line
    };
    let mark = Mark {
        high: Some(100),
        start: None,
        cached: true,
    };
    let shown = operation((3, 4), Operation::Read(mark));
    let lines = [
        of("p", grant((1, 2), 1, 3)),
        of("p", grant((5, 6), 7, 8)),
        of("q", grant((1, 2), 1, 3)),
        of("q", grant((5, 6), 7, 8)),
        of("q", shown),
    ];

    let report = check(&lines);

    assert_eq!(shown_names(&report), ["p"]);
    assert_eq!((report.gaps, report.gaps_unexplained), (2, 1));
}

fn shown_names(report: &Report) -> Vec<&str> {
    let violations = report.violations.iter();
    violations.map(|found| found.sequence.as_str()).collect()
}

#[test]
fn with_a_cache_a_mark_may_be_ahead_of_grants_and_never_behind() {
    let history = |high| {
        check_by(
            GapRule::Allowed,
            &[grant((1, 2), 1, 3), read((3, 4), high), grant((5, 6), 4, 6)],
        )
    };

    assert_eq!(history(1_000).verdict(), Verdict::Holds);
    assert_eq!(history(2).read_violations, 1);
}

#[test]
fn a_grant_of_another_count_is_malformed() {
    let mut wrong = grant((3, 4), 4, 6);
    if let Operation::Lease { count, .. } = &mut wrong.operation {
        *count = RangeCount::constant(2);
    }

    let report = check(&[grant((1, 2), 1, 3), wrong]);

    assert_eq!(report.verdict(), Verdict::Violated);
    assert_eq!(report.malformed, 1);
    assert_eq!(shown(&report), [(ViolationKind::Malformed, vec![2])]);
}

#[test]
fn grants_off_the_lattice_are_malformed() {
    let good = stepped((1, 2), (5, 25), 10);
    for bad in [
        stepped((3, 4), (36, 46), 10),
        stepped((3, 4), (35, 36), 1),
        line(
            3,
            4,
            1,
            LeaseOutcome::Granted {
                first: 35,
                last: 35,
                increment: 0,
            },
        ),
        line(
            3,
            4,
            2,
            LeaseOutcome::Granted {
                first: 45,
                last: 35,
                increment: 10,
            },
        ),
    ] {
        let report = check(&[good.clone(), bad]);

        assert_eq!(report.malformed, 1, "{report:?}");
    }
    assert_eq!(
        check(&[good, stepped((3, 4), (35, 45), 10)]).verdict(),
        Verdict::Holds
    );
}

#[test]
fn gaps_of_a_wide_lattice_are_counted_in_its_values() {
    let report = check(&[
        stepped((1, 2), (5, 25), 10),
        unknown((1, 9), 2),
        stepped((3, 4), (55, 55), 10),
    ]);

    assert_eq!(report.verdict(), Verdict::Holds);
    assert_eq!(report.gaps, 1);
}

#[test]
fn a_replay_under_its_key_is_one_grant() {
    let report = check(&[
        keyed(unknown((1, 2), 3), "k"),
        keyed(grant((3, 4), 1, 3), "k"),
        grant((5, 6), 4, 4),
        keyed(grant((7, 8), 1, 3), "k"),
    ]);

    assert_eq!(report.verdict(), Verdict::Holds);
}

#[test]
fn a_grant_under_a_key_may_have_been_made_for_any_of_its_tries() {
    let report = check(&[
        keyed(unknown((1, 10), 1), "k"),
        grant((3, 4), 2, 2),
        keyed(grant((11, 12), 1, 1), "k"),
    ]);

    assert_eq!(report.verdict(), Verdict::Holds);
}

#[test]
fn a_request_answered_under_its_key_explains_no_gap() {
    let report = check(&[
        keyed(unknown((1, 2), 3), "k"),
        keyed(grant((3, 4), 1, 3), "k"),
        grant((5, 6), 7, 7),
    ]);

    assert_eq!(report.gaps_unexplained, 1);
}

#[test]
fn a_retry_under_its_key_may_answer_what_the_first_send_was_given() {
    // The first was granted 1..=3 and its answer lost; another lease was answered before the retry was sent.
    let report = check(&[
        keyed(unknown((1, 2), 3), "k"),
        grant((2, 3), 4, 6),
        keyed(grant((4, 5), 1, 3), "k"),
    ]);

    assert_eq!(report.verdict(), Verdict::Holds, "{report:#?}");
    assert_eq!((report.grants, report.replays), (2, 0));
}

#[test]
fn another_count_under_a_key_was_refused_or_is_none_of_that_request() {
    let report = check(&[
        keyed(unknown((1, 2), 2), "k"),
        grant((2, 3), 4, 6),
        keyed(grant((4, 5), 1, 3), "k"),
    ]);

    // Nothing but the 2 was asked for before 4..=6 was answered.
    assert_eq!(report.order_violations, 1);
}

#[test]
fn one_key_with_two_ranges_is_a_conflict_inside_its_window() {
    const MINUTE: u64 = 60_000_000_000;
    let history = |sent, received, count: u64| {
        check(&[
            keyed(grant((1, 2), 1, 3), "k"),
            keyed(grant((sent, received), 4, 3 + count), "k"),
        ])
    };

    for count in [1, 3_u64] {
        let inside: Report = history(10 * MINUTE - 1, 10 * MINUTE + 1, count);
        assert_eq!(inside.key_conflicts, 1);
        assert_eq!(shown(&inside), [(ViolationKind::Key, vec![1, 2])]);
        // It may have been carried out when the key was forgotten.
        let outside = history(10 * MINUTE, 10 * MINUTE + 2, count);
        assert_eq!(outside.verdict(), Verdict::Holds);
    }
}

#[test]
fn a_key_is_its_sequences_whoever_asks() {
    let elsewhere = Line {
        sequence: "t".parse().unwrap(),
        ..keyed(grant((3, 4), 4, 6), "k")
    };
    let other_worker = Line {
        worker: "x".to_owned(),
        node: Some(2),
        ..keyed(grant((3, 4), 4, 6), "k")
    };
    let first = keyed(grant((1, 2), 1, 3), "k");

    assert_eq!(check(&[first.clone(), elsewhere]).key_conflicts, 0);
    assert_eq!(check(&[first, other_worker]).key_conflicts, 1);
}

#[test]
fn the_ends_of_the_number_space_are_exact() {
    let report = check(&[
        grant((1, 2), 0, 0),
        unknown((1, 9), 5),
        grant((3, 4), u64::MAX, u64::MAX),
    ]);

    assert_eq!((report.gaps, report.gaps_unexplained), (1, 1));
    assert_eq!(report.overlaps, 0);
}
