//! The simulation: whole clusters with their workers in one thread, whose network, time, disks and chance a seed decides.
//!
//! What is real: the client, the API, the batcher, consensus and the peer port, the state machine, and the store but for
//! sled. What is simulated: the network and time (turmoil), the medium below the store (`store::memory_disk`), and faults of
//! all of them. It is part of the library's own tests because it looks at what no user sees.
//!
//! A seed gives the same run again. turmoil decides by its own seed; everything else that draws chance (ours, openraft's,
//! tokio's, the order of hash maps) gets it from the system, which is asked through one library function. So each seed runs
//! in a process of its own, in which a preloaded library (`tests/sim/seeded.c`) answers that question from the seed.

mod bugs;
mod disks;
mod faults;
mod invariants;
mod machine;
mod operator;
mod processes;
mod run;
mod watch;
mod workers;

/// One seed, in this process: that of `HIGHWATER_TEST_SIM_SEED`. It is how the others run theirs.
#[test]
fn one_seed_holds() {
    let seed = processes::setting("SEED").unwrap_or(1);
    let run = run::run(seed);

    processes::tell(&run);
    let broken = invariants::broken(&run);
    assert!(broken.is_empty(), "seed {seed}:\n{}", broken.join("\n"));
}

/// `HIGHWATER_TEST_SIM_SEEDS` asks for more, `HIGHWATER_TEST_SIM_FIRST` for others.
#[test]
fn fifty_seeds_hold() {
    let first = processes::setting("FIRST").unwrap_or(1);
    let seeds = processes::setting("SEEDS").unwrap_or(50);
    let seeds: Vec<_> = (first..first + seeds).map(|seed| (seed, None)).collect();
    let ended = processes::run_all(&seeds);

    let broken: Vec<String> = ended
        .iter()
        .filter(|ended| !ended.holds)
        .map(|ended| format!("seed {}:\n{}\n{}", ended.seed, ended.trace, ended.said))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
    processes::tally(&ended);
}

#[test]
fn a_seed_gives_the_same_trace_again_and_another_one_another() {
    let traces = [7, 7, 8].map(|seed| processes::run_one(seed).trace);

    assert!(traces[0].contains("granted"));
    assert!(traces[0] == traces[1], "{}\n\n{}", traces[0], traces[1]);
    assert_ne!(traces[0], traces[2]);
}
