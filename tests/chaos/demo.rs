//! The demo as it is run by hand, with a shorter run: the verdict is the exit code and one JSON object.

use std::process::Command;

use serde_json::Value;

struct Ended {
    exit: Option<i32>,
    summary: Value,
    told: String,
}

fn demo(arguments: &[&str]) -> Ended {
    let output = Command::new(env!("CARGO_BIN_EXE_highwater"))
        .args(["demo", "--json"])
        .args(arguments)
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}\n{told}");
    Ended {
        exit: output.status.code(),
        summary: serde_json::from_str(&text).unwrap(),
        told,
    }
}

fn count(summary: &Value, of: &str) -> u64 {
    summary[of].as_u64().unwrap()
}

#[test]
fn leaders_are_killed_and_every_guarantee_holds() {
    let directory = tempfile::tempdir().unwrap();
    let history = directory.path().join("run.ndjson");
    let history = history.to_str().unwrap();

    let ended = demo(&["--duration", "6s", "--history", history]);

    assert_eq!(ended.exit, Some(0), "{}", ended.told);
    let summary = &ended.summary;
    let fields: Vec<&str> = summary
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        fields,
        [
            "gaps",
            "grants",
            "leader_kills",
            "order_violations",
            "overlaps",
            "seconds",
            "unknown",
            "verdict"
        ]
    );
    assert_eq!(summary["verdict"], "holds");
    assert!(0 < count(summary, "grants"), "{summary}");
    assert!(0 < count(summary, "leader_kills"), "{summary}");
    let told = std::fs::read_to_string(history).unwrap();
    for kind in [
        r#""sequence":"demo","#,
        r#""sequence":"demo-cached","#,
        r#""cached":true"#,
    ] {
        assert!(told.lines().any(|line| line.contains(kind)), "{kind}");
    }
    let verified = Command::new(env!("CARGO_BIN_EXE_highwater"))
        .args(["verify", "--json", history])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert_eq!(verified.status.code(), Some(0));
    assert_eq!(report["grants"], summary["grants"]);
}

#[test]
fn of_five_nodes_two_are_killed_at_once_and_every_guarantee_holds() {
    let ended = demo(&["--duration", "6s", "--nodes", "5"]);

    assert_eq!(ended.exit, Some(0), "{}", ended.told);
    assert_eq!(ended.summary["verdict"], "holds");
    assert!(
        0 < count(&ended.summary, "leader_kills"),
        "{}",
        ended.summary
    );
    assert!(
        ended.told.contains(", the leader, and node "),
        "{}",
        ended.told
    );
}

#[test]
fn a_planted_duplicate_is_found_and_what_shows_it_is_kept() {
    let ended = demo(&["--duration", "2s", "--plant-duplicate"]);

    assert_eq!(ended.exit, Some(10), "{}", ended.told);
    assert_eq!(ended.summary["verdict"], "violated");
    assert_eq!(count(&ended.summary, "overlaps"), 1);
    assert!(
        ended
            .told
            .contains("I1: two grants of demo-cached share values (1 such in all)")
    );
    let kept = ended
        .told
        .lines()
        .find_map(|line| line.strip_prefix("data, logs and history are left in "))
        .unwrap();
    assert!(std::path::Path::new(kept).join("history.ndjson").exists());
    std::fs::remove_dir_all(kept).unwrap();
}
