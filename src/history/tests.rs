//! The checker is itself checked: by planted faults, and against a slow reference on random histories.

use proptest::prelude::*;

use super::*;
use crate::sequence::{RangeCount, SequenceName};

/// A line of worker `w`, node 1, sequence `s`.
fn line(sent_ns: u64, received_ns: u64, count: u64, outcome: LeaseOutcome) -> Line {
    Line {
        worker: "w".to_owned(),
        node: Some(1),
        sequence: "s".parse().unwrap(),
        count: RangeCount::try_from(count).unwrap(),
        key: None,
        sent_ns,
        received_ns,
        outcome,
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

fn keyed(line: Line, key: &str) -> Line {
    Line {
        key: Some(key.to_owned()),
        ..line
    }
}

fn checker(lines: &[Line]) -> Checker {
    let mut checker = Checker::new(GapRule::MustBeExplained);
    let source = checker.add_source("h");
    for (number, line) in (1..).zip(lines) {
        checker.add(source, number, line.clone());
    }
    checker
}

fn check(lines: &[Line]) -> Report {
    checker(lines).check()
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
    let mut checker = Checker::new(GapRule::Allowed);
    let source = checker.add_source("h");
    checker.add(source, 1, grant((1, 2), 1, 3));
    checker.add(source, 2, grant((3, 4), 7, 8));

    let report = checker.check();

    assert_eq!(report.verdict(), Verdict::Holds);
    assert_eq!((report.gaps, report.gaps_unexplained), (1, 0));
    assert_eq!(report.violations, []);
}

#[test]
fn a_known_start_and_final_mark_make_gaps_at_both_ends_visible() {
    let mut checker = checker(&[grant((1, 2), 3, 4)]);
    let name = "s".parse().unwrap();
    assert_eq!(checker.check().verdict(), Verdict::Holds);

    checker.expect_start(&name, 1);
    checker.expect_high(&name, 6);
    let report = checker.check();

    assert_eq!((report.gaps, report.gaps_unexplained), (2, 2));
    assert_eq!(shown(&report), [(ViolationKind::Gap, vec![1])]);
}

#[test]
fn a_grant_below_the_start_is_malformed() {
    let mut checker = checker(&[grant((1, 2), 3, 4), grant((3, 4), 5, 6)]);
    checker.expect_start(&"s".parse().unwrap(), 5);

    let report = checker.check();

    assert_eq!(report.malformed, 1);
    assert_eq!(shown(&report), [(ViolationKind::Malformed, vec![1])]);
}

#[test]
fn a_final_mark_at_the_highest_grant_holds() {
    let mut checker = checker(&[grant((1, 2), 1, 3), grant((3, 4), 4, 6)]);
    checker.expect_high(&"s".parse().unwrap(), 6);

    assert_eq!(checker.check().verdict(), Verdict::Holds);
}

#[test]
fn an_acknowledged_grant_above_the_final_mark_was_lost() {
    let mut checker = checker(&[grant((1, 2), 1, 3), grant((3, 4), 4, 6)]);
    checker.expect_high(&"s".parse().unwrap(), 5);

    let report = checker.check();

    assert_eq!(report.lost, 1);
    assert_eq!(shown(&report), [(ViolationKind::Lost, vec![2])]);
}

#[test]
fn a_grant_of_another_count_is_malformed() {
    let mut wrong = grant((3, 4), 4, 6);
    wrong.count = RangeCount::constant(2);

    let report = check(&[grant((1, 2), 1, 3), wrong]);

    assert_eq!(report.verdict(), Verdict::Violated);
    assert_eq!(report.malformed, 1);
    assert_eq!(shown(&report), [(ViolationKind::Malformed, vec![1, 2])]);
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
fn one_key_with_two_ranges_is_a_conflict_inside_its_window() {
    let late = 3 + 601_000_000_000;

    let inside = check(&[
        keyed(grant((1, 2), 1, 3), "k"),
        keyed(grant((3, 4), 4, 6), "k"),
    ]);
    let outside = check(&[
        keyed(grant((1, 2), 1, 3), "k"),
        keyed(grant((late, late), 4, 6), "k"),
    ]);

    assert_eq!(inside.key_conflicts, 1);
    assert_eq!(shown(&inside), [(ViolationKind::Key, vec![1, 2])]);
    assert_eq!(outside.verdict(), Verdict::Holds);
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

// The reference: every pair, every assignment.

fn slow_overlaps(grants: &[Simple]) -> bool {
    pairs(grants).any(|(a, b)| a.first <= b.last && b.first <= a.last)
}

fn slow_inversions(grants: &[Simple]) -> u64 {
    let inverted = |later: &&Simple| {
        grants
            .iter()
            .any(|earlier| earlier.received < later.sent && later.first <= earlier.last)
    };
    u64::try_from(grants.iter().filter(inverted).count()).unwrap()
}

/// Whether some assignment of unanswered requests to gaps fills every gap exactly.
fn slow_explained(grants: &[Simple], open: &[(u64, u64)]) -> bool {
    let (Some(lowest), Some(highest)) = (
        grants.iter().map(|grant| grant.first).min(),
        grants.iter().map(|grant| grant.last).max(),
    ) else {
        return true;
    };
    let covered = |value: &u64| {
        grants
            .iter()
            .any(|grant| grant.first <= *value && *value <= grant.last)
    };
    let mut gaps: Vec<(u64, u64)> = Vec::new();
    for value in (lowest..=highest).filter(|value| !covered(value)) {
        match gaps.last_mut() {
            Some((first, size)) if *first + *size == value => *size += 1,
            _ => gaps.push((value, 1)),
        }
    }
    assign(&mut gaps, open, grants)
}

fn assign(gaps: &mut [(u64, u64)], open: &[(u64, u64)], grants: &[Simple]) -> bool {
    let Some(((sent, count), rest)) = open.split_first() else {
        return gaps.iter().all(|(_, size)| *size == 0);
    };
    if assign(gaps, rest, grants) {
        return true;
    }
    for index in 0..gaps.len() {
        let (first, size) = gaps[index];
        let below_a_known_grant = grants
            .iter()
            .any(|grant| grant.received < *sent && first < grant.first);
        if *count <= size && !below_a_known_grant {
            gaps[index].1 -= count;
            if assign(gaps, rest, grants) {
                return true;
            }
            gaps[index].1 += count;
        }
    }
    false
}

fn pairs(grants: &[Simple]) -> impl Iterator<Item = (&Simple, &Simple)> {
    grants
        .iter()
        .enumerate()
        .flat_map(|(index, a)| grants[index + 1..].iter().map(move |b| (a, b)))
}

#[derive(Debug, Clone, Copy)]
struct Simple {
    sent: u64,
    received: u64,
    first: u64,
    last: u64,
}

prop_compose! {
    fn simple()(sent in 0..12_u64, took in 0..6_u64, first in 0..30_u64, more in 0..4_u64) -> Simple {
        Simple { sent, received: sent + took, first, last: first + more }
    }
}

/// What a correct sequencer answers: grants in the order of commits, each inside its request's life.
fn served(requests: &[(u64, u64, u64, bool)]) -> Vec<Line> {
    let mut by_commit: Vec<_> = requests
        .iter()
        .map(|(sent, took, count, answered)| {
            (sent + took / 2, *sent, sent + took, *count, *answered)
        })
        .collect();
    by_commit.sort_unstable();
    let mut next = 1;
    by_commit
        .into_iter()
        .map(|(_, sent, received, count, answered)| {
            let first = next;
            next += count;
            if answered {
                grant((sent, received), first, next - 1)
            } else {
                unknown((sent, received), count)
            }
        })
        .collect()
}

proptest! {
    #[test]
    fn the_checker_agrees_with_the_slow_reference(
        grants in prop::collection::vec(simple(), 0..8),
        open in prop::collection::vec((0..12_u64, 1..4_u64), 0..5),
    ) {
        let lines: Vec<Line> = grants
            .iter()
            .map(|simple| grant((simple.sent, simple.received), simple.first, simple.last))
            .chain(open.iter().map(|(sent, count)| unknown((*sent, 99), *count)))
            .collect();

        let report = check(&lines);

        prop_assert_eq!(report.overlaps > 0, slow_overlaps(&grants));
        prop_assert_eq!(report.order_violations, slow_inversions(&grants));
        prop_assert_eq!(report.gaps_undecided, 0);
        if !slow_overlaps(&grants) {
            prop_assert_eq!(report.gaps_unexplained == 0, slow_explained(&grants, &open));
        }
    }

    #[test]
    fn what_a_correct_sequencer_answers_holds(
        requests in prop::collection::vec((0..50_u64, 0..20_u64, 1..9_u64, prop::bool::weighted(0.8)), 0..40),
    ) {
        let mut checker = checker(&served(&requests));
        checker.expect_start(&"s".parse().unwrap(), 1);
        let report = checker.check();

        prop_assert_eq!(report.verdict(), Verdict::Holds, "{:?}", report.violations);
    }

    #[test]
    fn a_grant_repeated_or_dropped_in_a_correct_history_is_found(
        requests in prop::collection::vec((0..50_u64, 0..20_u64, 1..9_u64, Just(true)), 3..40),
        place in any::<prop::sample::Index>(),
    ) {
        let lines = served(&requests);
        let place = place.index(lines.len() - 2) + 1;
        let mut repeated = lines.clone();
        repeated.push(lines[place].clone());
        let mut dropped = lines;
        dropped.remove(place);

        prop_assert_eq!(check(&repeated).overlaps, 1);
        prop_assert_eq!(check(&dropped).gaps_unexplained, 1);
    }
}
