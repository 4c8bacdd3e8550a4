//! The lines that show a violation show it alone, and no less than all of them.

use proptest::prelude::*;

use super::reference::history;
use super::*;

/// What is wrong with these lines, but for how often.
fn faults(lines: &[Line]) -> Vec<(ViolationKind, String)> {
    let violations = check(lines).violations.into_iter();
    violations
        .map(|found| {
            let (text, _) = found.text.split_once(" (").unwrap();
            (found.kind, text.to_owned())
        })
        .collect()
}

fn assert_witnesses_are_smallest(lines: &[Line]) {
    let report = check(lines);
    for (fault, violation) in faults(lines).iter().zip(&report.violations) {
        let witnesses = violation.witnesses.iter();
        let few: Vec<Line> = witnesses.map(|witness| witness.line.clone()).collect();
        assert!((1..=3).contains(&few.len()), "{violation}");
        assert!(
            faults(&few).iter().any(|(kind, _)| *kind == violation.kind),
            "{violation}"
        );
        for index in 0..few.len() {
            let mut fewer = few.clone();
            fewer.remove(index);
            assert!(!faults(&fewer).contains(fault), "{violation}");
        }
    }
}

#[test]
fn every_kind_of_violation_has_a_smallest_witness() {
    let far = [grant((1, 2), 1, 3), grant((3, 4), 4, 6)];
    for (kind, bad) in [
        (ViolationKind::Overlap, vec![grant((3, 9), 6, 6)]),
        (ViolationKind::Order, vec![grant((5, 6), 0, 0)]),
        (ViolationKind::Lost, vec![read_finally((5, 6), 3)]),
        (
            ViolationKind::Key,
            vec![
                keyed(grant((5, 6), 7, 7), "k"),
                keyed(grant((7, 8), 8, 8), "k"),
            ],
        ),
        (ViolationKind::Read, vec![read((3, 9), 5)]),
        (ViolationKind::Read, vec![read((5, 6), 3)]),
        (ViolationKind::Malformed, vec![stepped((5, 6), (7, 9), 2)]),
        (ViolationKind::Malformed, vec![nothing((0, 0), 2)]),
        (ViolationKind::Gap, vec![grant((5, 6), 8, 8)]),
        (ViolationKind::Gap, vec![nothing((0, 0), 0)]),
    ] {
        let lines = [&far[..], &bad].concat();

        assert!(
            faults(&lines).iter().any(|(found, _)| *found == kind),
            "{kind:?}"
        );
        assert_witnesses_are_smallest(&lines);
    }
}

#[test]
fn a_witness_that_needs_a_third_line_for_the_lattice_has_it() {
    let lines = [
        advance((1, 2), 20, None, 20),
        read((3, 4), 22),
        stepped((5, 6), (25, 35), 10),
    ];

    let report = check(&lines);

    assert_eq!(shown(&report), [(ViolationKind::Read, vec![1, 2, 3])]);
    assert_witnesses_are_smallest(&lines);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn whatever_is_violated_has_a_smallest_witness(lines in history()) {
        assert_witnesses_are_smallest(&lines);
    }

    #[test]
    fn the_witnesses_of_all_violations_together_show_all_of_them(lines in history()) {
        let report = check(&lines);

        let few: Vec<Line> = report.witnesses().iter().map(|witness| witness.line.clone()).collect();
        let again = faults(&few);

        for (kind, _) in faults(&lines) {
            prop_assert!(again.iter().any(|(other, _)| *other == kind), "{kind:?}: {}", text(&few));
        }
    }
}
