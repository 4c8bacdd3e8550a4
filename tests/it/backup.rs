//! `highwater backup`: a whole file from whichever node, or none.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

use highwater::RangeCount;
use serde_json::Value;

use crate::cli::highwater;
use crate::node::{
    Node, assert_refused, lease, made, serve, started, trouble, wait_until, wait_until_ready, words,
};
use crate::world::{self, send, three_nodes};

/// Takes a backup from this node, and tells what was said of it.
pub(crate) fn backed_up(url: &str, file: &Path) -> Value {
    let file = file.to_str().unwrap();
    let said = highwater(&["backup", file, "--url", url, "--json"]);
    assert_eq!((said.exit, said.err.as_str()), (0, ""), "{}", said.out);
    serde_json::from_str(&said.out).unwrap()
}

/// What a refused restore shows of a backup.
fn advice(file: &Path) -> Value {
    let file = file.to_str().unwrap();
    let said = highwater(&["restore", file, "--data-dir", "/nowhere", "--json"]);
    assert_eq!(said.exit, 2, "{}", said.err);
    serde_json::from_str(&said.out).unwrap()
}

/// Its sequences, each with its last value.
fn marks(file: &Path) -> Vec<(String, Value)> {
    let advice = advice(file);
    let rows = advice["sequences"].as_array().unwrap().iter();
    rows.map(|row| {
        (
            row["sequence"].as_str().unwrap().to_owned(),
            row["high"].clone(),
        )
    })
    .collect()
}

/// A node that has its data here and has granted something, and where it serves.
async fn leased_from(directory: &Path) -> (Node, String) {
    let data_dir = directory.join("data");
    let node = Node::start(&directory.join("log"), serve(&data_dir));
    let url = wait_until_ready(&data_dir).await;
    lease(std::slice::from_ref(&url)).await;
    (node, url)
}

/// What is in a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_gives_a_backup_that_has_all_that_was_answered_before() {
    let directory = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let leader = cluster.leader(world::PATIENCE).await.unwrap();
    let sequence = world::sequence(&cluster, "photos").await;
    let client = world::client(&cluster);
    for (id, url) in (1..).zip(cluster.urls()) {
        let grant = client
            .lease(&sequence, RangeCount::constant(100))
            .await
            .unwrap();
        let file = files.path().join(format!("{id}.backup"));

        let told = backed_up(&url, &file);

        assert_eq!(told["cluster"], grant.cluster());
        assert_eq!(told["epoch"], 1);
        assert!(grant.index() <= told["index"].as_u64().unwrap(), "{told}");
        assert_eq!(told["bytes"], fs::metadata(&file).unwrap().len());
        let marks = marks(&file);
        assert_eq!(
            marks,
            [("photos".to_owned(), grant.last().into())],
            "{id}, led by {leader}"
        );
    }
    assert_eq!(names(files.path()), ["1.backup", "2.backup", "3.backup"]);
}

// What it would give might lack what the others have granted since (I6).
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_reaches_no_quorum_gives_no_backup() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    lease(&cluster.urls()).await;
    cluster.kill(&[1, 2]).await.unwrap();
    let file = directory.path().join("photos.backup");
    let (path, url) = (file.to_str().unwrap(), &cluster.urls()[2]);

    let said = highwater(&["backup", path, "--url", url, "--timeout", "2s"]);

    assert_eq!(said.exit, 8, "{}", said.err);
    assert!(said.err.contains("no_leader"), "{}", said.err);
    assert!(!file.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_replaced_only_where_that_is_asked_for() {
    let guard = tempfile::tempdir().unwrap();
    let (_node, url) = leased_from(guard.path()).await;
    let file = guard.path().join("photos.backup");
    fs::write(&file, "mine").unwrap();
    let path = file.to_str().unwrap();

    let refused = highwater(&["backup", path, "--url", &url]);
    let forced = highwater(&["backup", path, "--url", &url, "--force"]);

    assert_eq!(refused.exit, 4);
    assert_eq!(
        refused.err,
        format!(
            "highwater: {path} is there already: choose another name, or replace it with --force\n"
        )
    );
    assert_eq!(forced.exit, 0, "{}", forced.err);
    assert!(
        forced
            .out
            .starts_with(&format!("{path}: 1 sequences of cluster ")),
        "{}",
        forced.out
    );
    assert_eq!(marks(&file), [("photos".to_owned(), 3.into())]);
}

/// A node that answers one request with this.
fn answers_once(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        stream.write_all(&answer).unwrap();
    });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_does_not_come_whole_leaves_nothing_and_replaces_nothing() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = made(guard.path(), "data").await;
    let whole = guard.path().join("whole.backup");
    let from_dir = ["--from-dir", data_dir.to_str().unwrap()];
    let path = whole.to_str().unwrap();
    assert_eq!(
        highwater(&[&["backup", path], &from_dir[..]].concat()).exit,
        0
    );
    let bytes = fs::read(&whole).unwrap();
    let files = guard.path().join("files");
    fs::create_dir(&files).unwrap();
    let file = files.join("photos.backup");
    fs::write(&file, "mine").unwrap();
    let path = file.to_str().unwrap();
    let answer = |announced: usize, sent: usize| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {announced}\r\n\r\n");
        [head.as_bytes(), &bytes[..sent]].concat()
    };

    for (answer, exit, line) in [
        (answer(bytes.len(), 100), 8, "lost the connection"),
        (answer(100, 100), 1, "damaged or cut off"),
    ] {
        let url = answers_once(answer);
        let said = highwater(&["backup", path, "--force", "--url", &url, "--timeout", "1s"]);

        assert_eq!(said.exit, exit, "{}", said.err);
        assert!(said.err.contains(line), "{}", said.err);
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert_eq!(names(&files), ["photos.backup"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_whole_backup_of_a_known_version_is_refused_with_one_line() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = made(guard.path(), "data").await;
    let file = guard.path().join("photos.backup");
    let path = file.to_str().unwrap();
    let arguments = ["backup", path, "--from-dir", data_dir.to_str().unwrap()];
    assert_eq!(highwater(&arguments).exit, 0);
    let bytes = fs::read(&file).unwrap();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 8;
    let mut later = bytes[..bytes.len() - 32].to_vec();
    later[7] += 1;
    later.extend(blake3::hash(&later).as_bytes());
    let damaged = "it is damaged or cut off, its checksum does not match: use another backup";
    let restored = guard.path().join("restored");

    for (content, line) in [
        (flipped, damaged),
        (bytes[..bytes.len() - 1].to_vec(), damaged),
        (Vec::new(), damaged),
        (later, "it was written by a later version: use that one"),
        (
            b"CREATE SEQUENCE photos START 1 INCREMENT 1;".to_vec(),
            "it is no backup of Highwater's, or damaged where it begins",
        ),
    ] {
        fs::write(&file, content).unwrap();
        let command = |more: &[&str]| {
            let target = restored.to_str().unwrap();
            let arguments = words(&["restore", path, "--data-dir", target, "--no-advance"]);
            started(
                arguments
                    .into_iter()
                    .chain(words(&["--old-cluster-is-stopped"]))
                    .chain(words(more)),
            )
        };

        assert_refused(
            command,
            &trouble("invalid_backup", format!("{path}: {line}")),
        )
        .await;

        assert!(!restored.exists(), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_no_larger_than_its_sequences() {
    let guard = tempfile::tempdir().unwrap();
    let (_node, url) = leased_from(guard.path()).await;
    let bytes = |name: &str| {
        backed_up(&url, &guard.path().join(name))["bytes"]
            .as_u64()
            .unwrap()
    };
    let before = bytes("before");
    for number in 0..20 {
        let leases = format!("{url}/v1/sequences/photos/leases");
        let key = format!("Idempotency-Key: {number}");
        assert_eq!(send("POST", &leases, "", &[&key]).await.status, 201);
    }

    let after = bytes("after");

    // Keys and what sessions were answered are no part of it. One sequence has risen meanwhile, which has its rate.
    assert!(after - before < 64, "{before} {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_says_how_fast_sequences_rose_and_a_restore_makes_a_suggestion_of_it() {
    let guard = tempfile::tempdir().unwrap();
    let (_node, url) = leased_from(guard.path()).await;
    let file = guard.path().join("photos.backup");
    let advance = [
        "sequence",
        "advance",
        "photos",
        "1000000000000000",
        "--url",
        &url,
    ];
    assert_eq!(highwater(&advance).exit, 0);

    // In its first second a node knows no rate.
    wait_until("rates are known", async || {
        let path = file.to_str().unwrap();
        let said = highwater(&["backup", path, "--force", "--url", &url]);
        assert_eq!(said.exit, 0, "{}", said.err);
        !advice(&file)["window_seconds"].is_null()
    })
    .await;

    let suggested = advice(&file)["suggested_advance"].as_u64().unwrap();
    assert!(
        1_000_000 < suggested,
        "more than a largest lease: {suggested}"
    );
}
