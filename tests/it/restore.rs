//! `highwater restore`: a cluster that goes on above the old one, and is told from it by everybody.

use std::fs;
use std::path::{Path, PathBuf};

use highwater::chaos::ClaimedPort;
use highwater::client::{Client, ClientError, FenceReason, Grant, Spread};
use highwater::{RangeCount, SequenceName};
use serde_json::Value;

use crate::backup::backed_up;
use crate::cli::{Said, highwater};
use crate::inspect::inspected;
use crate::node::{
    Node, assert_refused, assert_unchanged, copy_tree, lease, made, member, misuse, serve,
    serve_at, started, tree, trouble, wait_until, wait_until_ready, words,
};
use crate::world::{send, three_nodes};

fn photos() -> SequenceName {
    "photos".parse().unwrap()
}

/// Restores, with these choices.
pub(crate) fn restored(file: &Path, data_dir: &Path, choices: &[&str]) -> Said {
    let mut arguments = vec!["restore", file.to_str().unwrap(), "--data-dir"];
    arguments.extend([data_dir.to_str().unwrap(), "--old-cluster-is-stopped"]);
    arguments.extend(choices);
    highwater(&arguments)
}

/// The same, which succeeds.
fn make(file: &Path, data_dir: &Path, choices: &[&str]) {
    let said = restored(file, data_dir, choices);
    assert_eq!(said.exit, 0, "{}", said.err);
}

/// A backup of a stopped node's directory.
fn backup_of(data_dir: &Path, file: &Path) {
    let (file, from) = (file.to_str().unwrap(), data_dir.to_str().unwrap());
    let said = highwater(&["backup", file, "--from-dir", from]);
    assert_eq!(said.exit, 0, "{}", said.err);
}

// pingcap/tidb#69781
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_restored_before_somebody_says_how_far_to_raise_and_that_the_old_cluster_is_stopped()
 {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = made(guard.path(), "data").await;
    let file = guard.path().join("photos.backup");
    backup_of(&data_dir, &file);
    let cluster = inspected(&data_dir)["identity"]["cluster"].clone();
    let target = guard.path().join("restored");
    let restore = |choices: &[&str]| {
        let arguments = ["restore", file.to_str().unwrap(), "--data-dir"];
        let to = [target.to_str().unwrap()];
        highwater(&[&arguments, &to[..], choices].concat())
    };
    let how_far = "how far the sequences are to be raised above the backup (--advance-by N, --floor NAME=VALUE or \
        --floors FILE; --no-advance only where nothing was granted after it)";
    let stopped = "that no node of the old cluster runs any more (--old-cluster-is-stopped)";

    for (choices, missing) in [
        (&[][..], format!("{how_far}, and {stopped}")),
        (&["--advance-by", "5"], stopped.to_owned()),
        (&["--no-advance"], stopped.to_owned()),
        (&["--old-cluster-is-stopped"], how_far.to_owned()),
    ] {
        let said = restore(choices);

        assert_eq!(said.exit, 2, "{choices:?}");
        assert_eq!(
            said.err,
            format!("highwater: nothing is restored: say {missing}\n")
        );
        let lines: Vec<&str> = said.out.lines().collect();
        let first = format!(
            "backup of cluster {}, epoch 1, up to log entry 4, ",
            cluster.as_str().unwrap()
        );
        assert!(lines[0].starts_with(&first), "{}", said.out);
        assert_eq!(
            lines[2],
            "SEQUENCE  LAST IN BACKUP  NEXT  RETIRED  SUGGESTED ADVANCE"
        );
        assert_eq!(lines[3], "photos    3               4     no       1000000");
        assert!(
            lines[5].ends_with("Suggested for all: --advance-by 1000000"),
            "{}",
            said.out
        );
    }
    let both = restore(&[
        "--no-advance",
        "--advance-by",
        "5",
        "--old-cluster-is-stopped",
    ]);
    assert_eq!(both.exit, 2, "{}", both.out);
    assert!(!target.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_restored_so_is_told_and_makes_nothing() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = made(guard.path(), "data").await;
    let file = guard.path().join("photos.backup");
    backup_of(&data_dir, &file);
    let csv = guard.path().join("floors.csv");
    fs::write(&csv, "photos,9\nphotos\n").unwrap();
    let csv = csv.to_str().unwrap();
    let target = guard.path().join("restored");
    let largest = (1_u64 << 53).to_string();
    let above = format!("photos={largest}");

    for (choices, exit, code, line) in [
        (
            &["--floor", "photo=9"][..],
            2,
            "not_restored",
            "the backup has no sequence photo: correct its name, or create it in the restored cluster with a start above its floor".to_owned(),
        ),
        (
            &["--floor", &above],
            2,
            "not_restored",
            format!("the floor {largest} of photos is above its max_value 9007199254740991: correct the floor"),
        ),
        (
            &["--floors", csv],
            2,
            "usage",
            format!("{csv}: line 2: \"photos\" is not a floor: write a name, ',' and a number up to 2^64 - 1 (--help tells more)"),
        ),
        (
            &["--floors", "/nowhere.csv"],
            2,
            "cannot_open",
            "/nowhere.csv cannot be opened: No such file or directory (os error 2)".to_owned(),
        ),
        (
            &["--no-advance", "--listen", "127.0.0.1:0"],
            2,
            "invalid_config",
            "address 127.0.0.1:0 has port 0: the other nodes must know the port, so choose one".to_owned(),
        ),
    ] {
        let command = |more: &[&str]| {
            let mut arguments = words(&["restore", "--old-cluster-is-stopped", "--data-dir"]);
            arguments.extend([target.clone().into(), file.clone().into()]);
            arguments.extend(words(choices).into_iter().chain(words(more)));
            started(arguments)
        };
        let refusal = crate::node::Refusal { exit, code, line };
        assert_refused(command, &refusal).await;
        assert!(!target.exists(), "{choices:?}");
    }

    let before = tree(&data_dir);
    let onto_a_node = restored(&file, &data_dir, &["--no-advance"]);
    assert_eq!(onto_a_node.exit, 4, "{}", onto_a_node.err);
    assert_unchanged(&data_dir, &before);
}

/// Each of them leases, or says why it does not take what was granted.
async fn ask(client: &Client) -> Result<Grant, FenceReason> {
    match client.lease(&photos(), RangeCount::constant(10)).await {
        Ok(grant) => Ok(grant),
        Err(ClientError::Fenced { reason, .. }) => Err(reason),
        Err(error) => panic!("{error}"),
    }
}

// yugabyte/yugabyte-db#16137: who leased from the old cluster is not taken in by what a restore has forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_knew_the_old_cluster_refuses_a_past_that_comes_back() {
    let guard = tempfile::tempdir().unwrap();
    let at = |name: &str| guard.path().join(name);
    let ports = ClaimedPort::claim(2).unwrap();
    let url = format!("http://{}", ports[0].address());
    let start = async |name: &str| {
        let node = serve_at(&ports, &at("log"), &at(name));
        assert_eq!(wait_until_ready(&at(name)).await, url);
        node
    };
    let client = Client::builder().nodes([&url]).build().unwrap();
    let file = at("photos.backup");

    // The old cluster grants after the backup.
    let node = start("old").await;
    lease(std::slice::from_ref(&url)).await;
    backed_up(&url, &file);
    let known = ask(&client).await.unwrap();
    assert_eq!((known.first(), known.epoch()), (4, 1));
    assert!(node.terminate().await.success());

    // Restored without an advance, a cluster grants it once more: 4 to 13.
    make(&file, &at("too-low"), &["--no-advance"]);
    let node = start("too-low").await;
    assert_eq!(
        ask(&client).await.unwrap_err(),
        FenceReason::NotAbove { highest: 13 }
    );
    assert!(node.terminate().await.success());

    // With the floor that this client knows, it goes on.
    make(&file, &at("restored"), &["--floor", "photos=13"]);
    let node = start("restored").await;
    let next = ask(&client).await.unwrap();
    assert_eq!(next.first(), 14);
    assert_ne!(next.cluster(), known.cluster());
    let seen = next.epoch();
    assert!(1_700_000_000 < seen, "{seen}");
    assert!(node.terminate().await.success());

    // The old one runs again.
    let node = start("old").await;
    assert_eq!(
        ask(&client).await.unwrap_err(),
        FenceReason::OldEpoch { seen }
    );
    assert!(node.terminate().await.success());

    // A client of the old epoch is not taken in by a new cluster either.
    let other = Client::builder().nodes([&url]).build().unwrap();
    let node = start("old").await;
    let old = ask(&other).await.unwrap();
    assert!(node.terminate().await.success());
    let _node = start("new").await;
    lease(std::slice::from_ref(&url)).await;
    let seen = old.cluster().to_owned();
    assert_eq!(
        ask(&other).await.unwrap_err(),
        FenceReason::OtherCluster { seen }
    );
}

/// What a cluster did before its backup.
const OLD_LIFE: &[&[&str]] = &[
    &["sequence", "create", "photos"],
    &["lease", "photos", "100"],
    &[
        "sequence",
        "create",
        "even",
        "--start",
        "2",
        "--increment",
        "2",
    ],
    &["lease", "even", "3"],
    &[
        "sequence",
        "create",
        "wide",
        "--max-value",
        "18446744073709551615",
    ],
    &["sequence", "advance", "wide", "9007199254740993"],
    &["sequence", "create", "gone"],
    &["lease", "gone", "5"],
    &["sequence", "retire", "gone"],
    &["sequence", "create", "small", "--max-value", "8"],
];

// etcd-io/etcd#6361: what is restored is a cluster of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_cluster_has_the_settings_and_grants_above_what_was_named_for_each() {
    let guard = tempfile::tempdir().unwrap();
    let at = |name: &str| guard.path().join(name);
    let node = Node::start(&at("log"), serve(&at("old")));
    let url = wait_until_ready(&at("old")).await;
    for arguments in OLD_LIFE {
        let said = highwater(&[arguments, &["--url", &url][..]].concat());
        assert_eq!(said.exit, 0, "{arguments:?}: {}", said.err);
    }
    let file = at("all.backup");
    backed_up(&url, &file);
    assert!(node.terminate().await.success());
    fs::write(at("floors.csv"), "photos,500\neven,7\n").unwrap();

    let csv = at("floors.csv");
    let choices = [
        "--advance-by",
        "10",
        "--floors",
        csv.to_str().unwrap(),
        "--floor",
        "photos=400",
    ];
    let said = restored(&file, &at("new"), &choices);

    assert_eq!(said.exit, 0, "{}", said.err);
    let (table, last) = said.out.split_once("\n\n").unwrap();
    assert_eq!(
        table,
        "SEQUENCE  LAST IN BACKUP    NEXT              RETIRED\n\
         even      6                 18                no\n\
         gone      5                 16                yes\n\
         photos    100               501               no\n\
         small     -                 -                 no\n\
         wide      9007199254740993  9007199254741004  no"
    );
    let serves = format!(": highwater serve --data-dir {}\n", at("new").display());
    assert!(
        last.starts_with("restored as cluster ") && last.ends_with(&serves),
        "{last}"
    );
    let _node = Node::start(&at("log"), serve(&at("new")));
    let url = wait_until_ready(&at("new")).await;
    let show = |arguments: &[&str]| highwater(&[arguments, &["--url", &url]].concat());
    assert_eq!(show(&["lease", "even", "2"]).out, "18 20\n");
    assert_eq!(show(&["lease", "photos"]).out, "501 501\n");
    assert_eq!(
        show(&["lease", "wide", "1"]).out,
        "9007199254741004 9007199254741004\n"
    );
    assert_eq!(show(&["lease", "gone"]).exit, 4);
    assert_eq!(show(&["lease", "small"]).exit, 5);
    let status: Value = serde_json::from_str(&show(&["cluster", "status", "--json"]).out).unwrap();
    assert_eq!(status["members"].as_array().unwrap().len(), 1);
    assert_eq!(status["tolerates_loss_of"], 0);
}

// Whatever a kill leaves is refused, or is all of it: at the next start and at the next restore.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_is_killed_leaves_a_directory_that_is_refused_or_whole() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = made(guard.path(), "data").await;
    let file = guard.path().join("photos.backup");
    backup_of(&data_dir, &file);
    for (round, part) in ["", "snapshots", "sled", "sled/db", "superblock", "identity"]
        .into_iter()
        .enumerate()
    {
        let target = guard.path().join(format!("restored-{round}"));
        let mut arguments = words(&["restore", "--old-cluster-is-stopped", "--no-advance"]);
        arguments.extend([
            file.clone().into(),
            "--data-dir".into(),
            target.clone().into(),
        ]);
        let mut process = started(arguments).spawn().unwrap();
        wait_until(part, async || target.join(part).exists()).await;
        process.kill().await.unwrap();

        let told = if fs::read_dir(&target).unwrap().next().is_none() {
            continue;
        } else {
            inspected(&target)
        };

        if target.join("identity").exists() {
            assert_eq!(told["verdict"], "starts", "{told:#}");
            continue;
        }
        let line = told["reason"].as_str().unwrap().to_owned();
        assert!(
            line.contains("identity is missing beside a store"),
            "{line}"
        );
        let command = |more: &[&str]| started(serve(&target).into_iter().chain(words(more)));
        assert_refused(command, &trouble("directory_refused", line)).await;
        let again = restored(&file, &target, &["--no-advance"]);
        assert_eq!(again.exit, 4, "{}", again.err);
    }
}

/// A cluster file of nodes at these ports, API and peer each.
fn file_of(path: &Path, ports: &[&[ClaimedPort]]) {
    let mut text = "[cluster]\nname = \"local\"\n".to_owned();
    for (id, ports) in (1..).zip(ports) {
        let (api, peer) = (ports[0].address(), ports[1].address());
        text.push_str(&format!(
            "[[node]]\nid = {id}\napi = \"{api}\"\npeer = \"{peer}\"\n"
        ));
    }
    fs::write(path, text).unwrap();
}

/// Three directories, restored from three backups that a node gave while it served.
async fn restored_from_three_backups(directory: &Path) -> Vec<PathBuf> {
    let at = |name: String| directory.join(name);
    let node = Node::start(&at("old.log".to_owned()), serve(&at("old".to_owned())));
    let url = wait_until_ready(&at("old".to_owned())).await;
    let mut restored = Vec::new();
    for number in 1..=3 {
        lease(std::slice::from_ref(&url)).await;
        let (file, target) = (
            at(format!("{number}.backup")),
            at(format!("restored-{number}")),
        );
        backed_up(&url, &file);
        make(&file, &target, &["--advance-by", "10"]);
        restored.push(target);
    }
    assert!(node.terminate().await.success());
    restored
}

// camunda/camunda#14509, etcd-io/etcd#9096: members that were restored from backups of different moments are no cluster.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_were_restored_each_by_itself_refuse_one_another_and_say_why() {
    let guard = tempfile::tempdir().unwrap();
    let at = |name: &str| guard.path().join(name);
    let directories = restored_from_three_backups(guard.path()).await;
    let ports = ClaimedPort::claim(6).unwrap();
    let ports: Vec<&[ClaimedPort]> = ports.chunks(2).collect();
    file_of(&at("cluster.toml"), &ports);
    let clusters: Vec<Value> = directories
        .iter()
        .map(|directory| inspected(directory)["identity"]["cluster"].clone())
        .collect();
    assert!(clusters[0] != clusters[1] && clusters[1] != clusters[2]);

    // As members of the cluster that they were: each is the first of its own.
    for (id, directory) in (2..).zip(&directories[1..]) {
        let command = |more: &[&str]| {
            let arguments = member(&at("cluster.toml"), id, directory);
            started(arguments.into_iter().chain(words(more)))
        };
        let line = format!(
            "this directory belongs to node 1, not to node {id}: start it as before, with --node 1 or --join, or give node {id} its own directory"
        );
        assert_refused(command, &trouble("cluster_refused", line)).await;
    }

    // As what they are, each is a cluster by itself, whatever file it is given.
    file_of(&at("other.toml"), &[ports[1], ports[0], ports[2]]);
    let mut nodes = Vec::new();
    let mut urls = Vec::new();
    for (place, file) in ["cluster.toml", "other.toml"].into_iter().enumerate() {
        let arguments = member(&at(file), 1, &directories[place]);
        nodes.push(Node::start(&at(&format!("log-{place}")), arguments));
        let url = wait_until_ready(&directories[place]).await;
        let shown = send("GET", &format!("{url}/v1/cluster"), "", &[])
            .await
            .json();
        assert_eq!(shown["cluster"], clusters[place]);
        assert_eq!(shown["members"].as_array().unwrap().len(), 1, "{shown:#}");
        // Its file promises more than there is.
        let alone = "no member of this cluster, which serves without: 2, 3; have each join";
        nodes[place].wait_until_said(alone, 1).await;
        urls.push(url);
    }
    // Who asks both is told that they are two.
    let client = Client::builder()
        .nodes(urls)
        .spread(Spread::RoundRobin)
        .build()
        .unwrap();
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(ask(&client).await);
    }
    assert_eq!(answers[0].as_ref().unwrap().cluster(), clusters[0]);
    // Which it is depends on the seconds in which they were restored.
    assert!(
        matches!(
            answers[1..],
            [_, Err(FenceReason::OldEpoch { .. })]
                | [
                    Err(FenceReason::OtherCluster { .. } | FenceReason::NotAbove { .. }),
                    _
                ]
        ),
        "{answers:?}"
    );
    for node in nodes {
        assert!(node.terminate().await.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_cluster_whose_quorum_is_lost_the_best_directory_becomes_the_next_cluster() {
    let guard = tempfile::tempdir().unwrap();
    let at = |name: &str| guard.path().join(name);
    fs::create_dir(at("cluster")).unwrap();
    let mut cluster = three_nodes(&at("cluster")).await;
    let grant = lease(&cluster.urls()).await;
    let client = Client::builder().nodes(cluster.urls()).build().unwrap();
    for _ in 0..20 {
        client
            .lease(&photos(), RangeCount::constant(7))
            .await
            .unwrap();
    }
    cluster.kill(&[1, 2, 3]).await.unwrap();
    let survivors = cluster.ids().into_iter().map(|id| {
        let copy = at(&format!("survivor-{id}"));
        copy_tree(cluster.data_dir(id).unwrap(), &copy);
        copy
    });
    // The one whose log goes furthest, as `inspect` shows it.
    let best = survivors
        .max_by_key(|survivor| {
            let last = inspected(survivor)["log"]["last"].clone();
            (last["term"].as_u64(), last["index"].as_u64())
        })
        .unwrap();
    let before = tree(&best);
    let file = at("last.backup");

    backup_of(&best, &file);
    make(&file, &at("restored"), &["--no-advance"]);

    assert_unchanged(&best, &before);
    let _node = Node::start(&at("log"), serve(&at("restored")));
    let url = wait_until_ready(&at("restored")).await;
    let next = lease(&[url]).await;
    assert_eq!(next.first(), grant.last() + 20 * 7 + 1);
    assert_ne!(next.cluster(), grant.cluster());
}

// pingcap/tidb#69485: what runs goes on from its own marks, whatever somebody restores.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_restored_into_the_directory_of_a_node_that_runs() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = guard.path().join("data");
    let _node = Node::start(&guard.path().join("log"), serve(&data_dir));
    let url = wait_until_ready(&data_dir).await;
    let first = lease(std::slice::from_ref(&url)).await;
    let file = guard.path().join("photos.backup");
    backed_up(&url, &file);

    let refused = restored(&file, &data_dir, &["--no-advance"]);

    assert_eq!(refused.exit, 1);
    let in_use = format!("{} is in use by another process", data_dir.display());
    assert!(refused.err.contains(&in_use), "{}", refused.err);
    assert_eq!(lease(&[url]).await.first(), first.last() + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_a_node_runs_on_or_that_holds_nothing_gives_no_backup() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = guard.path().join("data");
    let _node = Node::start(&guard.path().join("log"), serve(&data_dir));
    wait_until_ready(&data_dir).await;
    let file = guard.path().join("a.backup");
    let command = |from: &Path, more: &[&str]| {
        let mut arguments = words(&["backup", "--from-dir"]);
        arguments.extend([from.into(), file.clone().into()]);
        started(arguments.into_iter().chain(words(more)))
    };
    let empty = guard.path().join("empty");
    fs::create_dir(&empty).unwrap();

    let in_use = format!(
        "{} is in use by another process: stop it, or choose another data directory",
        data_dir.display()
    );
    assert_refused(
        |more| command(&data_dir, more),
        &trouble("not_inspected", in_use),
    )
    .await;
    let nothing = format!(
        "{} is not a data directory: nothing was ever stored in it",
        empty.display()
    );
    assert_refused(
        |more| command(&empty, more),
        &misuse("not_inspected", &nothing),
    )
    .await;
    assert!(!file.exists());
}
