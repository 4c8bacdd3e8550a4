//! Histories that do not fit into the memory they are given.

use proptest::prelude::*;

use super::reference::history;
use super::*;

/// Enough for many runs in a temporary file.
const LINES: u64 = 200_000;
/// A small part of what those take.
const MEMORY_BYTES: usize = 512 * 1024;

fn judged(lines: &str, memory_bytes: usize) -> Report {
    let checker = Checker::new(GapRule::MustBeExplained).source(Source::text("h", lines));
    checker.memory_bytes(memory_bytes).check().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_history_that_does_not_fit_into_memory_is_judged_alike(lines in history()) {
        prop_assert_eq!(judged(&text(&lines), 1), check(&lines));
    }
}

#[test]
fn a_fault_among_many_lines_is_found_wherever_they_are_put() {
    let all = (1..=LINES).map(|value| {
        // Each goes on while the next two hundred are asked for, and they are not told in order.
        let times = (value * 10, value * 10 + 2_000 + value % 7 * 100);
        match value % 5 {
            0 => keyed(grant(times, value, value), &value.to_string()),
            _ => grant(times, value, value),
        }
    });
    let twice = grant((1_000_000, 1_000_001), 150_000, 150_000);
    let mut lines: Vec<Line> = all.collect();
    lines.insert(7, twice);
    lines.remove(100_000);
    let lines = text(&lines);

    let spilled = judged(&lines, MEMORY_BYTES);

    assert_eq!(spilled, judged(&lines, usize::MAX));
    assert_eq!((spilled.overlaps, spilled.gaps_unexplained), (1, 1));
    let witnesses = &spilled.violations[0].witnesses;
    let numbers: Vec<u64> = witnesses.iter().map(|witness| witness.number).collect();
    assert_eq!(numbers, [8, 150_000]);
}
