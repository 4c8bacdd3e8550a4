//! Bugs that are planted on purpose: each has to be found, or what holds elsewhere shows nothing.

use super::processes::{self, Ended};
use crate::planted::Bug;

/// How many seeds may pass before one finds it.
const SEEDS_MAX: u64 = 200;

/// The first seeds that found them. Any change of the program may change what a seed does: then others are tried.
const FOUND_BY: [(Bug, u64); 15] = [
    (Bug::RangeEnd, 1),
    (Bug::ReplyBeforeCommit, 3),
    (Bug::BatchRenumbered, 13),
    (Bug::SessionsNotInSnapshot, 1),
    (Bug::KeyForgotten, 1),
    (Bug::VoteNotSynced, 8),
    (Bug::TruncateNotSynced, 141),
    (Bug::WipedNodeVotes, 7),
    (Bug::StateTimeFromClock, 1),
    (Bug::HashOrder, 1),
    (Bug::ReadUnproved, 4),
    (Bug::UnknownToldAsRefused, 24),
    (Bug::LinkNotReopened, 1),
    (Bug::WindowOpenAfterAdvance, 1),
    (Bug::WindowsKept, 1),
];

/// Those that other tests find: no simulation has so many workers that a queue is full, and what comes of two leaders within a
/// round trip, or of one that is cut off for a moment, is rare.
const FOUND_BY_TEST: [(Bug, &str); 4] = [
    (
        Bug::QueueUnbounded,
        "server::batcher::tests::beyond_the_queues_length_a_request_is_overloaded_at_once_and_the_others_wait",
    ),
    (
        Bug::ProofTooEarly,
        "server::consensus::cached::proofs::tests::who_asks_while_a_proof_is_under_way_shares_the_next_one",
    ),
    (
        Bug::UnprovedGivenAgain,
        "server::batcher::cached::tests::values_that_were_taken_without_a_proof_are_never_given_again",
    ),
    (
        Bug::LateReservation,
        "server::consensus::cached::windows::tests::a_late_reservation_of_an_earlier_leadership_opens_nothing",
    ),
];

/// The first seed from this one on that finds it, as many at once as run at once.
fn hunt(bug: Bug, from: u64) -> Option<Ended> {
    let seeds = (from..=SEEDS_MAX).chain(1..from);
    let seeds: Vec<_> = seeds.map(|seed| (seed, Some(bug))).collect();
    seeds.chunks(2).find_map(|seeds| {
        let ended = processes::run_all(seeds);
        ended.into_iter().find(|ended| !ended.holds)
    })
}

/// `HIGHWATER_TEST_SIM_FIRST=1` looks for the first seed that finds each, which takes some minutes.
#[test]
fn every_planted_bug_is_found() {
    let from = |known| processes::setting("FIRST").unwrap_or(known);
    let first = FOUND_BY.map(|(bug, known)| (from(known), Some(bug)));
    let found = processes::run_all(&first);

    for (seed, bug) in first.map(|(seed, bug)| (seed, bug.unwrap())) {
        let at_once = found
            .iter()
            .find(|ended| ended.bug == Some(bug) && !ended.holds);
        let found = at_once.cloned().or_else(|| hunt(bug, seed + 1));
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found by {SEEDS_MAX} seeds"));
        println!("| `{bug:?}` | {} | {} |", found.seed, found.reason());
    }

    for (bug, test) in FOUND_BY_TEST {
        let found = processes::run_test(test, Some(bug));
        assert!(!found.success, "{bug:?} is not found by {test}");
        assert!(
            processes::run_test(test, None).success,
            "{test} fails anyway"
        );
    }
}

#[test]
fn the_page_names_every_planted_bug_with_the_seed_that_finds_it() {
    let page = include_str!("../../docs/guarantees.md");

    for bug in Bug::ALL {
        let name = format!("`{bug:?}`");
        match FOUND_BY.iter().find(|(known, _)| *known == bug) {
            Some((_, seed)) => {
                let row = format!("| {name} | {seed} |");
                assert!(page.contains(&row), "docs/guarantees.md has no row {row}");
            }
            None => assert!(FOUND_BY_TEST.iter().any(|(known, _)| *known == bug)),
        }
        assert!(1 < page.matches(&name).count(), "{name} is of no promise");
    }
}
