//! Each seed in a process of its own, whose chance comes from the seed.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use serde::{Deserialize, Serialize};

use super::faults::Fault;
use super::run::Run;
use crate::planted::{Bug, PLANTED};

/// Where a process tells what it saw.
const TOLD: &str = "HIGHWATER_TEST_SIM_TOLD";
const SEED: &str = "HIGHWATER_TEST_SIM_SEED";

/// What became of a seed.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) seed: u64,
    pub(super) bug: Option<Bug>,
    pub(super) holds: bool,
    pub(super) told: Told,
    /// What the process said, where it does not hold.
    pub(super) said: String,
    pub(super) trace: String,
}

impl Ended {
    /// What was broken, in one line.
    pub(super) fn reason(&self) -> &str {
        let mut lines = self.said.lines();
        // What follows is the panic's message.
        lines.find(|line| line.contains("panicked at"));
        let reason = lines.find(|line| !line.starts_with("seed "));
        reason.unwrap_or("nothing was said")
    }
}

/// What a run was like.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) grants: usize,
    pub(super) requests: usize,
    pub(super) happened: BTreeMap<String, u64>,
}

/// A number from the environment.
pub(super) fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(format!("HIGHWATER_TEST_SIM_{name}")).ok()?;
    Some(text.parse().unwrap())
}

/// Tells the process that started this one.
pub(super) fn tell(run: &Run) {
    let Ok(directory) = std::env::var(TOLD) else {
        return;
    };
    let happened = run
        .happened
        .iter()
        .map(|(kind, count)| ((*kind).to_owned(), *count));
    let told = Told {
        grants: run.seen.lines.iter().filter(|line| line.is_grant()).count(),
        requests: run.seen.lines.len(),
        happened: happened.collect(),
    };
    fs::write(
        Path::new(&directory).join("trace"),
        run.seen.trace.join("\n"),
    )
    .unwrap();
    fs::write(
        Path::new(&directory).join("told"),
        serde_json::to_string(&told).unwrap(),
    )
    .unwrap();
}

/// Runs one seed.
pub(super) fn run_one(seed: u64) -> Ended {
    let directory = tempfile::tempdir().unwrap();
    run_with(&library(directory.path()), seed, None)
}

/// Runs seeds, each with a bug planted where one is named, as many at once as there are processors.
pub(super) fn run_all(seeds: &[(u64, Option<Bug>)]) -> Vec<Ended> {
    let directory = tempfile::tempdir().unwrap();
    let library = library(directory.path());
    let (left, ended) = (Mutex::new(seeds.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some((seed, bug)) = next(&left) {
                    let one = run_with(&library, seed, bug);
                    ended.lock().unwrap().push(one);
                }
            });
        }
    });
    let mut ended = ended.into_inner().unwrap();
    ended.sort_by_key(|ended| ended.seed);
    ended
}

fn next<T: Copy>(left: &Mutex<std::slice::Iter<'_, T>>) -> Option<T> {
    left.lock().unwrap().next().copied()
}

/// How a test ended in a process of its own.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) success: bool,
    said: String,
}

/// Runs another test of this program, with a bug planted where one is named.
pub(super) fn run_test(test: &str, bug: Option<Bug>) -> Outcome {
    run_in(&mut command(test, bug))
}

fn command(test: &str, bug: Option<Bug>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    match bug {
        Some(bug) => command.env(PLANTED, bug.name()),
        None => command.env_remove(PLANTED),
    };
    command
}

fn run_in(command: &mut Command) -> Outcome {
    let output = command.output().unwrap();
    Outcome {
        success: output.status.success(),
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn run_with(library: &Path, seed: u64, bug: Option<Bug>) -> Ended {
    let directory = tempfile::tempdir().unwrap();
    let mut command = command("server::sim::one_seed_holds", bug);
    command
        .env("LD_PRELOAD", library)
        .env(SEED, seed.to_string())
        .env(TOLD, directory.path());
    let Outcome { success, said } = run_in(&mut command);
    let told = fs::read_to_string(directory.path().join("told")).unwrap_or_default();
    Ended {
        seed,
        bug,
        // A task that panics on a simulated machine ends that task only, where it would end the process.
        holds: success && !said.contains("panicked at"),
        told: serde_json::from_str(&told).unwrap_or_default(),
        said,
        trace: fs::read_to_string(directory.path().join("trace")).unwrap_or_default(),
    }
}

fn library(directory: &Path) -> PathBuf {
    let library = directory.join("seeded.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sim/seeded.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    assert!(built.unwrap().success(), "cc cannot build {source}");
    library
}

/// So many seeds have every kind of fault among them.
const SEEDS_OF_ALL_KINDS: usize = 50;

/// Says what happened in them. Many seeds without a kind of fault would show less than they say.
pub(super) fn tally(ended: &[Ended]) {
    let happened = |kind: &str| -> u64 {
        let counts = ended
            .iter()
            .filter_map(|ended| ended.told.happened.get(kind));
        counts.sum()
    };
    let missing: Vec<_> = Fault::KINDS
        .iter()
        .filter(|kind| happened(kind) == 0)
        .collect();
    let grants: usize = ended.iter().map(|ended| ended.told.grants).sum();
    let requests: usize = ended.iter().map(|ended| ended.told.requests).sum();
    let counts: Vec<String> = Fault::KINDS
        .iter()
        .map(|kind| format!("{kind}: {}", happened(kind)))
        .collect();
    println!(
        "{} seeds, {grants} grants of {requests} requests; {}",
        ended.len(),
        counts.join(", ")
    );
    let are_few = ended.len() < SEEDS_OF_ALL_KINDS;
    assert!(are_few || missing.is_empty(), "no seed had {missing:?}");
}
