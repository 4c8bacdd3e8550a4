//! `highwater inspect` on directories of real nodes: it tells what a start would find, and leaves no trace.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::node::{
    Node, Refusal, assert_refused, assert_unchanged, cluster_file, lease, made, member, serve,
    started, tree, trouble, wait_until, wait_until_ready, with,
};
use crate::world::{PATIENCE, send, three_nodes, wait_until_all_have_the_log};

fn inspect(arguments: &[&str], data_dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater"))
        .arg("inspect")
        .arg(data_dir)
        .args(arguments)
        .output()
        .unwrap()
}

/// What `--json` tells, after the assertion that it ends as the verdict says and changes nothing.
pub(crate) fn inspected(data_dir: &Path) -> Value {
    let before = tree(data_dir);
    let output = inspect(&["--json"], data_dir);
    assert_unchanged(data_dir, &before);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let exit = if told["verdict"] == "starts" { 0 } else { 1 };
    assert_eq!(output.status.code(), Some(exit), "{told}");
    told
}

#[tokio::test]
async fn a_whole_directory_is_told_part_by_part() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = made(guard.path(), "data").await;

    let told = inspected(&data_dir);
    let text = String::from_utf8(inspect(&[], &data_dir).stdout).unwrap();

    assert_eq!(told["verdict"], "starts");
    assert_eq!(told["reason"], Value::Null);
    assert_eq!(told["identity"]["node"], 1);
    assert_eq!(told["superblock"]["cluster"], told["identity"]["cluster"]);
    assert_eq!(
        told["vote"],
        json!({"term": 1, "node": 1, "committed": true})
    );
    // The membership, the leader's first entry, the session, the creation and the grant.
    assert_eq!(told["log"]["records"], 5);
    assert_eq!(
        told["log"]["last"],
        json!({"index": 4, "term": 1, "node": 1})
    );
    assert_eq!(told["superblock"]["last"], told["log"]["last"]);
    for nothing in ["snapshot", "table"] {
        assert_eq!(told[nothing], Value::Null);
    }
    assert_eq!(told["sequences"], json!([]));

    let cluster = told["identity"]["cluster"].as_str().unwrap();
    let incarnation = told["identity"]["incarnation"].as_str().unwrap();
    let member = &told["identity"]["members"][0];
    let (api, peer) = (
        member["api"].as_str().unwrap(),
        member["peer"].as_str().unwrap(),
    );
    let committed = told["log"]["committed"]["index"].as_u64().unwrap();
    assert_eq!(
        text,
        format!(
            "starts: nothing that was promised is missing\n\
             \n\
             cluster            {cluster}\n\
             node               1\n\
             incarnation        {incarnation}\n\
             member             1, API {api}, peer {peer}\n\
             vote               term 1 for node 1, granted by a quorum\n\
             log                0 (term 0, node 1) to 4 (term 1, node 1), 5 records\n\
             log purged to      -\n\
             log committed to   {committed} (term 1, node 1)\n\
             snapshot           -\n\
             promised vote      term 1 for node 1, granted by a quorum\n\
             promised log       4 (term 1, node 1)\n\
             promised purge     -\n\
             promised snapshot  -\n"
        )
    );
}

#[tokio::test]
async fn the_marks_of_the_snapshot_are_fifty_for_people_and_all_for_programs() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = guard.path().join("data");
    let settings = ["--auto-create", "--snapshot-entries", "100"];
    let log = guard.path().join("log");
    let node = Node::start(&log, with(serve(&data_dir), &settings));
    let url = wait_until_ready(&data_dir).await;
    let at = |path: &str| format!("{url}/v1/sequences/{path}");
    for (method, path, body) in [
        ("PUT", "gone", ""),
        ("POST", "gone/leases", "{\"count\":5}"),
        ("DELETE", "gone", ""),
        ("PUT", "wide", "{\"max_value\":\"18446744073709551615\"}"),
        ("POST", "wide/advance", "{\"to\":\"9007199254740993\"}"),
    ] {
        let answer = send(method, &at(path), body, &[]).await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.text);
    }
    // In one entry, so that the first snapshot has them all.
    let lease = |number| json!({ "sequence": format!("s{number:02}") });
    let body = Value::Array((0..50).map(lease).collect()).to_string();
    let granted = send("POST", &format!("{url}/v1/leases"), &body, &[]).await;
    assert_eq!(granted.status, 201, "{}", granted.text);
    wait_until("there is a snapshot", async || {
        send("POST", &at("busy/leases"), "", &[]).await;
        let cluster = send("GET", &format!("{url}/v1/cluster"), "", &[]).await;
        cluster.json()["members"][0]["snapshot_index"].is_u64()
    })
    .await;
    assert!(node.terminate().await.success());

    let told = inspected(&data_dir);
    let text = String::from_utf8(inspect(&[], &data_dir).stdout).unwrap();

    let marks = told["sequences"].as_array().unwrap();
    assert_eq!(marks.len(), 53, "{told:#}");
    assert_eq!(told["table"]["sequences"], 53);
    assert_eq!(
        marks[1],
        json!({"name": "gone", "high": 5, "next": null, "retired": true})
    );
    assert_eq!(
        marks[52],
        json!({"name": "wide", "high": "9007199254740993", "next": "9007199254740994", "retired": false})
    );
    let (_, table) = text.split_once("\nSEQUENCE ").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|row| row.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["HIGH", "NEXT", "RETIRED"]);
    assert_eq!(rows[2], ["gone", "5", "-", "yes"]);
    assert_eq!(rows[50], ["s47", "1", "2", "no"]);
    assert_eq!(rows[51].join(" "), "and 3 more: --json shows all");
    assert_eq!(rows.len(), 52);
}

#[tokio::test]
async fn a_members_directory_is_whole_after_its_end_and_after_its_death() {
    let guard = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(guard.path()).await;
    lease(&cluster.urls()).await;
    for last in ["its end", "its death"] {
        // Who is killed over a write may have more in its log than it has promised.
        wait_until_all_have_the_log(&cluster.urls()[0]).await;
        match last {
            "its end" => cluster.stop_all(PATIENCE).await.unwrap(),
            _ => cluster.kill(&[1, 2, 3]).await.unwrap(),
        }

        for node in 1..=3 {
            let told = inspected(cluster.data_dir(node).unwrap());
            assert_eq!(told["verdict"], "starts", "{last}: {told}");
            assert_eq!(told["identity"]["node"], node);
            assert_eq!(told["identity"]["members"].as_array().unwrap().len(), 3);
            // The log holds the grant on a quorum at least; what is promised is what is there.
            assert_eq!(
                told["superblock"]["last"], told["log"]["last"],
                "{last}: {told}"
            );
        }
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
        lease(&cluster.urls()).await;
    }
}

#[tokio::test]
async fn a_refused_directory_is_told_with_the_line_that_its_start_ends_with() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = made(guard.path(), "data").await;
    fs::write(data_dir.join("superblock"), [7; 8192]).unwrap();

    let told = inspected(&data_dir);
    let text = String::from_utf8(inspect(&[], &data_dir).stdout).unwrap();

    assert_eq!(told["verdict"], "refused");
    assert_eq!(told["superblock"], Value::Null);
    assert_eq!(told["unreadable"][0]["part"], "superblock");
    // What is whole is told all the same.
    assert_eq!(told["log"]["records"], 5);
    let reason = told["reason"].as_str().unwrap();
    assert!(
        text.starts_with(&format!("refused: {reason}\n\ncluster ")),
        "{text}"
    );
    assert!(
        text.contains("\nunreadable        superblock: as above\n"),
        "{text}"
    );
    let refusal = trouble("directory_refused", reason.to_owned());
    assert_refused(|more| started(with(serve(&data_dir), more)), &refusal).await;
}

#[tokio::test]
async fn an_empty_and_an_unformed_directory_would_start() {
    let guard = tempfile::tempdir().unwrap();
    let empty = inspect(&[], guard.path());
    assert_eq!(empty.status.code(), Some(0));
    assert_eq!(
        String::from_utf8(empty.stdout).unwrap(),
        "starts: it is empty, so a new node would be made\n\nvote      -\nsnapshot  -\n"
    );
    assert_eq!(fs::read_dir(guard.path()).unwrap().count(), 0);

    // A member that waits for the others, killed.
    let (data_dir, log) = (guard.path().join("data"), guard.path().join("log"));
    let file = guard.path().join("cluster.toml");
    let _ports = cluster_file(&file, &[1, 2, 3]);
    let node = Node::start(&log, member(&file, 1, &data_dir));
    node.wait_until_said("waiting for a member", 2).await;
    node.kill().await;
    let told = inspected(&data_dir);
    assert_eq!(told["verdict"], "starts");
    assert_eq!(told["identity"]["cluster"], Value::Null);
    let text = String::from_utf8(inspect(&[], &data_dir).stdout).unwrap();
    assert!(
        text.starts_with("starts: it belongs to no cluster yet\n"),
        "{text}"
    );
}

#[tokio::test]
async fn what_is_no_data_directory_or_in_use_is_one_line() {
    let guard = tempfile::tempdir().unwrap();
    fs::write(guard.path().join("file"), "mine").unwrap();
    let data_dir = guard.path().join("data");
    let node = Node::start(&guard.path().join("log"), serve(&data_dir));
    wait_until_ready(&data_dir).await;

    for (path, exit, what) in [
        (
            "data",
            1,
            "is in use by another process: stop it, or choose another data directory",
        ),
        ("file", 2, "is not a data directory: it is a file"),
        ("missing", 2, "is not a data directory: nothing is there"),
        (
            "",
            2,
            "is not a data directory: it holds other things than a node's",
        ),
    ] {
        let path = if path.is_empty() {
            guard.path().to_owned()
        } else {
            guard.path().join(path)
        };
        let refusal = Refusal {
            exit,
            code: "not_inspected",
            line: format!("{} {what}", path.display()),
        };
        assert_refused(
            |more| started(with(vec!["inspect".into(), path.clone().into()], more)),
            &refusal,
        )
        .await;
    }
    // The node has not noticed.
    assert!(node.terminate().await.success());
}

// A node that starts does not trip over one who looks.
#[tokio::test]
async fn a_node_starts_while_its_directory_is_inspected() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = made(guard.path(), "data").await;
    let held = fs::File::open(&data_dir).unwrap();
    held.try_lock_shared().unwrap();
    fs::remove_file(data_dir.join("ready.json")).unwrap();

    let mut node = Node::start(&guard.path().join("log"), serve(&data_dir));
    node.wait_until_opened(&data_dir).await;
    drop(held);

    wait_until_ready(&data_dir).await;
    assert!(node.terminate().await.success());
}
