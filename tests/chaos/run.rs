//! `highwater chaos` as it is run by hand, with shorter runs: the verdict is the exit code and one JSON object.
//!
//! Here a short run with every kind of fault. `HIGHWATER_TEST_CHAOS_SEED` and `HIGHWATER_TEST_CHAOS_SECONDS` ask for another one,
//! `HIGHWATER_TEST_CHAOS_FOUND` for so many of the seeds that once found something.

use std::collections::BTreeMap;
use std::process::Command;

use highwater::client::ListQuery;
use serde_json::Value;

use crate::settings::{program, setting};
use crate::world::World;

/// Seeds that found something, and what. When processes do what is not the seed's, so one run of it may find nothing again.
const FOUND: [(u64, &str); 3] = [
    (
        3,
        "the harness removed a member while another had no directory, and then took one of two; it harmed a node that was to be \
         promoted; a node read the cluster file while it was written",
    ),
    (
        15,
        "a node that stood still for longer than its start may take gave that up when it went on",
    ),
    (
        38,
        "the harness removed a voter while another was harmed and not replaced yet, which the cluster refused",
    ),
];
/// Shorter than one round of all kinds, which a run goes on for.
const SECONDS: u64 = 12;

/// Which seeds run: the first, where nobody asks for others.
fn seeds() -> Vec<u64> {
    let found = FOUND.iter().take(setting("CHAOS_FOUND").unwrap_or(1));
    match setting("CHAOS_SEED") {
        Some(seed) => vec![seed],
        None => found.map(|(seed, _)| *seed).collect(),
    }
}

struct Ended {
    exit: Option<i32>,
    summary: Value,
    told: String,
}

fn chaos(arguments: &[&str]) -> Ended {
    ended(Command::new(program().path).arg("chaos").args(arguments))
}

fn ended(command: &mut Command) -> Ended {
    let output = command.arg("--json").output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    eprintln!("{told}{text}");
    Ended {
        exit: output.status.code(),
        summary: serde_json::from_str(&text).unwrap_or_default(),
        told,
    }
}

#[test]
fn whatever_fails_at_once_no_promise_is_broken_and_everybody_is_served_afterwards() {
    let seconds: u64 = setting("CHAOS_SECONDS").unwrap_or(SECONDS);
    for seed in seeds() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/chaos");
        let (seed, duration) = (seed.to_string(), format!("{seconds}s"));
        let mut script = Command::new(script);
        script.args(["--seed", &seed, "--duration", &duration]);

        let Ended { exit, summary, .. } = ended(script.env("HIGHWATER_BIN", program().path));

        assert_eq!(exit, Some(0));
        assert_eq!(summary["verdict"], "holds");
        assert_eq!(summary["seed"].to_string(), seed);
        let faults = summary["faults"].as_array().unwrap();
        let happened = faults.iter().map(|fault| {
            let kind = fault["kind"].as_str().unwrap();
            (kind, fault["happened"].as_u64().unwrap())
        });
        let happened: BTreeMap<&str, u64> = happened.collect();
        assert!(happened.values().all(|times| 0 < *times), "{happened:?}");
        for kind in ["kill-all", "apart", "hung-sync", "old-directory", "clock"] {
            assert!(happened.contains_key(kind), "{kind}: {happened:?}");
        }
        // Of these only more nodes have one.
        assert_eq!(summary["left_out"][0]["kind"], "ring");
        assert_eq!(summary["left_out"].as_array().unwrap().len(), 1);
        let count = |what: &str| summary[what].as_u64().unwrap();
        assert!(0 < count("grants") && 0 < count("kills") && 0 < count("refused"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_somebody_else_breaks_is_leased_from_and_judged_and_left_as_it_was() {
    let mut world = World::new().await;
    let urls = world.cluster.urls().join(",");
    let target = ["--target".to_owned(), urls];
    for sequence in [&[][..], &["--sequence".to_owned(), "p".to_owned()]] {
        let arguments = [&target[..], sequence, &["--duration=2s".to_owned()]].concat();
        let run = tokio::task::spawn_blocking(move || {
            chaos(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let leader = world.leader().await;
        world.cluster.kill(&[leader]).await.unwrap();
        world.restart().await;

        let ended = run.await.unwrap();

        assert_eq!(ended.exit, Some(0));
        assert_eq!(ended.summary["verdict"], "holds");
        assert!(0 < ended.summary["grants"].as_u64().unwrap());
    }
    let listed = world.client().list_sequences(&ListQuery::default()).await;
    let listed = listed.unwrap().sequences;
    let retired = listed.iter().filter(|sequence| sequence.retired);
    assert_eq!((listed.len(), retired.count()), (2, 1), "{listed:#?}");
    assert!(!listed.last().unwrap().retired, "p was named");
}

#[test]
fn a_run_in_which_a_chosen_fault_does_not_happen_has_failed() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    let faults = ["--faults", "kill-leader,isolate", "--duration", "1s"];
    let planted = ["--plant", "idle", "--directory", kept.to_str().unwrap()];
    let ended = chaos(&[&faults[..], &planted].concat());

    assert_eq!(ended.exit, Some(1));
    assert_eq!(ended.summary["verdict"], "harness_failure");
    let told = "kill-leader, isolate never happened: the run proves nothing about it";
    assert!(ended.told.contains(told));

    let ended = chaos(&["--faults", "kill,ring"]);

    assert_eq!(ended.exit, Some(1));
    let told = "ring cannot be had on this machine: it needs --nodes 5";
    assert!(ended.told.contains(told));
}

#[test]
fn a_planted_duplicate_is_found_after_a_run_and_what_shows_it_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    let kept = kept.to_str().unwrap();
    let faults = ["--faults", "backup", "--duration", "1s"];

    let ended = chaos(&[&faults[..], &["--plant", "duplicate", "--directory", kept]].concat());

    assert_eq!(ended.exit, Some(10));
    assert_eq!(ended.summary["verdict"], "violated");
    // Of whichever sequence was leased from last.
    assert!(ended.told.contains("I1: two grants of chaos-"));
    let verified = Command::new(program().path)
        .args(["verify", &format!("{kept}/history.ndjson")])
        .output()
        .unwrap();
    assert_eq!(verified.status.code(), Some(10));
}
