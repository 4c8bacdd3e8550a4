//! Bugs that are planted on purpose: each has to be found, or what holds elsewhere shows nothing.

use super::processes::{self, Ended};
use crate::planted::Bug;

/// How many seeds may pass before one finds it.
const SEEDS_MAX: u64 = 200;

/// No simulation has so many workers that a queue is full: another test finds this one.
const FOUND_BY_TEST: (Bug, &str) = (
    Bug::QueueUnbounded,
    "server::batcher::tests::beyond_the_queues_length_a_request_is_overloaded_at_once_and_the_others_wait",
);

/// The first seed that finds it, in how many it was looked for.
fn hunt(bug: Bug) -> Option<Ended> {
    let at_once = 4;
    let mut seeds = (1..=SEEDS_MAX).step_by(at_once);
    seeds.find_map(|first| {
        let to = first + u64::try_from(at_once).unwrap();
        let ended = processes::run_all(first..to, Some(&bug.name()));
        ended.into_iter().find(|ended| !ended.holds)
    })
}

#[test]
fn every_planted_bug_is_found() {
    let (elsewhere, test) = FOUND_BY_TEST;
    let found = processes::run_test(test, Some(&elsewhere.name()));
    assert!(!found.success, "{elsewhere:?} is not found by {test}");
    assert!(
        processes::run_test(test, None).success,
        "{test} fails anyway"
    );

    for bug in Bug::ALL.into_iter().filter(|bug| *bug != elsewhere) {
        let found = hunt(bug);
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found by {SEEDS_MAX} seeds"));
        println!("| {bug:?} | {} | {} |", found.seed, found.reason());
    }
}
