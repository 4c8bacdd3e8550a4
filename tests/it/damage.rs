//! Random damage to the directory of a stopped node: it starts with everything that it acknowledged, or says on one
//! line what is wrong (I7).
//!
//! `server/store/tests/damage/tally.rs` does the same inside, where the superblock can be left unheard to see that the
//! tally finds losses.

#[path = "../../src/server/store/tests/damage/harm.rs"]
mod harm;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::harm::{Harm, HarmKind, damages, seeded};
use crate::lone::{self, LoneNode, Owed, Started};

/// How many damages where nobody asks for more.
const DAMAGES: usize = 40;
/// As many as are worth a longer log.
const DAMAGES_MANY: usize = 500;
/// How many directories are started at once. A start mostly waits.
const STARTS: usize = 4;
const WAY_OUT: &str =
    "put the whole directory back as it last was, or replace the node by a new one";

/// The leases of each of two lives. The longer log has a snapshot and a purge, made every 10,000 entries.
fn leases() -> [u64; 2] {
    if damages(DAMAGES) < DAMAGES_MANY {
        [100, 100]
    } else {
        [10_200, 200]
    }
}

/// A stopped node's directory, and what it owes.
struct Stopped {
    data_dir: PathBuf,
    owed: Owed,
}

/// Runs a node, kills it, runs it again, and stops it by this signal.
async fn stopped_by(signal: Signal, scratch: &Path) -> Stopped {
    let data_dir = scratch.join("stopped");
    let log = scratch.join("log");
    let mut owed = Owed::default();
    for (leases, signal) in leases().into_iter().zip([Signal::KILL, signal]) {
        let node = LoneNode::spawn(&data_dir, &log, &[]);
        let mut node = node.wait_until_serving().await;
        lease(&node, leases, &mut owed).await;
        node.signal(signal);
        node.wait_until_ended().await;
    }
    Stopped { data_dir, owed }
}

/// Leases from three sequences in turn.
async fn lease(node: &LoneNode, leases: u64, owed: &mut Owed) {
    let http = lone::http();
    for number in 0..leases {
        let sequence = format!("s{}", number % 3);
        let url = format!("{}/v1/sequences/{sequence}", node.api);
        let created = http.put(&url).json(&json!({})).send().await.unwrap();
        assert!(created.status().is_success());
        let lease = http.post(format!("{url}/leases"));
        let answer = lease.json(&json!({ "count": 1 + number % 7 })).send();
        let grant: Value = answer.await.unwrap().json().await.unwrap();
        let last = grant["last"].as_u64().unwrap();
        owed.marks.insert(sequence, last..=last);
        owed.term = grant["term"].as_u64().unwrap();
        owed.index = grant["index"].as_u64().unwrap();
    }
}

/// What became of a damaged directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Right,
    /// By which check: the line without what is only of this directory.
    Refused(String),
    /// Lost, broke or hung: none of it may happen.
    Fault(String),
}

async fn start_on(data_dir: &Path, owed: &Owed) -> Fate {
    let log = data_dir.with_extension("log");
    let node = LoneNode::spawn(data_dir, &log, &[]);
    match node.wait_until_started().await {
        Started::Serving(node) => match owed.check(&node.api).await {
            Ok(()) => Fate::Right,
            Err(lost) => Fate::Fault(format!("lost: {lost}")),
        },
        Started::Refused(line) => match line.split_once(WAY_OUT) {
            // A cause may follow.
            Some((line, _)) => Fate::Refused(check_named_by(line, data_dir)),
            None => Fate::Fault(format!("refused without a way out: {line}")),
        },
        Started::Broke(said) => Fate::Fault(format!("broke: {said}")),
        Started::Hung(said) => Fate::Fault(format!("hung: {said}")),
    }
}

/// The line without its directory and its numbers.
fn check_named_by(line: &str, data_dir: &Path) -> String {
    let line = line.replace(data_dir.to_str().unwrap(), "DIR");
    let mut words = String::new();
    let mut number = String::new();
    for letter in line.chars().chain(['\n']) {
        if letter.is_ascii_hexdigit() {
            number.push(letter);
            continue;
        }
        let is_number = number.contains(|letter: char| letter.is_ascii_digit());
        words.push_str(if is_number { "#" } else { &number });
        number.clear();
        words.push(letter);
    }
    words.trim_end().to_owned()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(path, target).unwrap();
        }
    }
}

// spacejam/sled#1387, spacejam/sled#1189, spacejam/sled#1039, spacejam/sled#1211, spacejam/sled#954: damaged files
// made sled panic, hang, or forget.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_directory_starts_with_all_that_it_acknowledged_or_is_refused() {
    let mut random = seeded();
    let [terminated, killed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let stopped = [
        ("SIGTERM", stopped_by(Signal::TERM, terminated.path()).await),
        ("kill -9", stopped_by(Signal::KILL, killed.path()).await),
    ];
    let mut tally: BTreeMap<(HarmKind, Fate), usize> = BTreeMap::new();
    let mut faults = Vec::new();
    let mut starting = JoinSet::new();

    for number in 0..damages(DAMAGES) {
        let (after, Stopped { data_dir, owed }) = &stopped[number % stopped.len()];
        let after = *after;
        let scratch = tempfile::tempdir().unwrap();
        let damaged = scratch.path().join("damaged");
        copy(data_dir, &damaged);
        let harm = Harm::any(&damaged, &mut random);
        harm.inflict(&damaged);
        let owed = owed.clone();
        starting.spawn(async move {
            let fate = start_on(&damaged, &owed).await;
            drop(scratch);
            (harm, after, fate)
        });
        while STARTS <= starting.len() || (number + 1 == damages(DAMAGES) && !starting.is_empty()) {
            let (harm, after, fate) = starting.join_next().await.unwrap().unwrap();
            if let Fate::Fault(fault) = &fate {
                faults.push(format!("after {after}, {harm:?}: {fault}"));
            }
            *tally.entry((harm.kind, fate)).or_default() += 1;
        }
    }

    for ((kind, fate), count) in &tally {
        println!("{count:5} {kind:?}: {fate:?}");
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
