//! Bad surroundings: whatever a node cannot start with is one line (what, where, the way out), the right exit code, and
//! changes nothing.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use highwater::chaos::{HarnessError, LocalCluster};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::inspect::inspected;
use crate::node::{
    Node, Refusal, assert_refused, assert_unchanged, cluster_file, copy_tree, ended, lease, made,
    member, misuse, serve, started, started_by, tree, trouble, wait_until, wait_until_ready, with,
    words,
};
use crate::world::{PATIENCE, send, three_nodes, wait_until_one_ends};

const WAY_OUT: &str =
    "put the whole directory back as it last was, or replace the node by a new one";

// --- the data directory

#[tokio::test]
async fn a_missing_directory_is_made_with_all_above_it() {
    let directory = tempfile::tempdir().unwrap();

    let data_dir = made(directory.path(), "some/where/else").await;

    assert!(data_dir.join("identity").is_file());
}

// spacejam/sled#823: an operator's mistake is told by name, and is no panic.
#[tokio::test]
async fn what_is_no_directory_is_refused_by_name() {
    let guard = tempfile::tempdir().unwrap();
    let (file, link) = (guard.path().join("file"), guard.path().join("link"));
    fs::write(&file, "mine").unwrap();
    // Whatever is quoted, a refusal is one line.
    let two_lines = guard.path().join("two\nlines");
    fs::write(&two_lines, "mine").unwrap();
    let target = guard.path().join("not-mounted");
    symlink(&target, &link).unwrap();
    let before = tree(guard.path());

    let no_directory = |path: &Path| {
        let path = path.display().to_string().replace('\n', " ");
        format!("{path} is not a directory: move it away, or choose another data directory")
    };
    let leads_nowhere = format!(
        "{} is a link to {}, where nothing is: mount or make that, or choose another data directory",
        link.display(),
        target.display()
    );
    for (data_dir, line) in [
        (file.clone(), no_directory(&file)),
        (file.join("below"), no_directory(&file)),
        (two_lines.clone(), no_directory(&two_lines)),
        (link.clone(), leads_nowhere.clone()),
        (link.join("below/it"), leads_nowhere),
    ] {
        let refusal = trouble("directory_refused", line);
        assert_refused(|more| started(with(serve(&data_dir), more)), &refusal).await;
        assert_unchanged(guard.path(), &before);
    }
}

/// What starts a program so that permissions bind it: as root without the capabilities that go past them.
fn without_capabilities() -> Vec<String> {
    if !geteuid().is_root() {
        return Vec::new();
    }
    ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
        .map(Into::into)
        .to_vec()
}

#[tokio::test]
async fn what_the_nodes_user_may_not_use_is_refused_by_name() {
    let guard = tempfile::tempdir().unwrap();
    let whole = made(guard.path(), "whole").await;
    let user = "give it to the user that runs this node: Permission denied (os error 13)";

    // What of a copy may not be used, by which permissions, with which data directory, and what is said of which path.
    for (restricted, mode, data_dir, what, refused) in [
        ("data", 0o000, "data", "open the data directory", "data"),
        ("data", 0o500, "data", "write", "data"),
        ("data/sled", 0o500, "data", "write", "data/sled"),
        ("data/sled/db", 0o400, "data", "write", "data/sled/db"),
        ("data/superblock", 0o400, "data", "write", "data/superblock"),
        ("data/snapshots", 0o500, "data", "write", "data/snapshots"),
        ("data/identity", 0o000, "data", "read", "data/identity"),
        (
            "data",
            0o500,
            "data/new",
            "create the data directory",
            "data/new",
        ),
    ] {
        let copy = tempfile::tempdir().unwrap();
        copy_tree(&whole, &copy.path().join("data"));
        let before = tree(copy.path());
        let restricted = copy.path().join(restricted);
        let allowed = fs::metadata(&restricted).unwrap().permissions();
        fs::set_permissions(&restricted, Permissions::from_mode(mode)).unwrap();

        let path = copy.path().join(refused);
        let refusal = trouble(
            "directory_refused",
            format!("cannot {what} {}: {user}", path.display()),
        );
        let arguments = serve(&copy.path().join(data_dir));
        let wrapper = without_capabilities();
        assert_refused(
            |more| started_by(&wrapper, with(arguments.clone(), more)),
            &refusal,
        )
        .await;

        fs::set_permissions(&restricted, allowed).unwrap();
        assert_unchanged(copy.path(), &before);
    }
}

/// What starts a program where this directory is on a file system that is mounted read-only: root has a mount namespace
/// of its own, everybody else one within a user namespace.
fn on_read_only_disk(directory: &Path) -> Vec<String> {
    let ways: [&[&str]; 2] = [
        &["unshare", "--mount"],
        &["unshare", "--user", "--map-root-user", "--mount"],
    ];
    let works = |way: &&&[&str]| {
        let tried = std::process::Command::new(way[0])
            .args(&way[1..])
            .arg("true")
            .output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    let way = ways.iter().find(works);
    let way =
        way.expect("this test needs mount namespaces: run it as root, or allow user namespaces");
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" || exit 98
        if touch \"$0/new\" 2>/dev/null; then exit 99; fi
        exec \"$@\"";
    let mut words: Vec<String> = way.iter().map(|&word| word.to_owned()).collect();
    words.extend(["sh", "-c", script].map(Into::into));
    words.push(directory.display().to_string());
    words
}

#[tokio::test]
async fn a_read_only_disk_is_refused_by_name() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = made(guard.path(), "data").await;
    let before = tree(guard.path());
    let advice = "mount its disk for writing, or choose another data directory: Read-only file system (os error 30)";

    for (data_dir, what) in [
        (data_dir.clone(), "write"),
        (guard.path().join("new/data"), "create the data directory"),
    ] {
        let line = format!("cannot {what} {}: {advice}", data_dir.display());
        let refusal = trouble("directory_refused", line);
        let wrapper = on_read_only_disk(guard.path());
        let command = |more: &[&str]| started_by(&wrapper, with(serve(&data_dir), more));
        assert_refused(command, &refusal).await;
        assert_unchanged(guard.path(), &before);
    }
}

#[tokio::test]
async fn a_directory_of_another_node_or_cluster_is_refused_and_left_alone() {
    let guard = tempfile::tempdir().unwrap();
    let own = made(guard.path(), "own").await;
    let other = made(guard.path(), "other").await;
    let file = guard.path().join("cluster.toml");
    let _ports = cluster_file(&file, &[1, 2, 3]);
    let mixed = guard.path().join("mixed");
    copy_tree(&own, &mixed);
    fs::copy(other.join("superblock"), mixed.join("superblock")).unwrap();
    // The store of one directory beside the identity of another, which is in no cluster yet.
    let unformed = guard.path().join("unformed");
    let node = Node::start(&guard.path().join("log"), member(&file, 1, &unformed));
    node.wait_until_said("waiting for a member", 2).await;
    node.kill().await;
    let incarnation_of = |dir: &Path| {
        let identity = &inspected(dir)["identity"];
        identity["incarnation"].as_str().unwrap().to_owned()
    };
    let new = incarnation_of(&unformed);
    let identity = fs::read(unformed.join("identity")).unwrap();
    copy_tree(&own, &unformed);
    fs::write(unformed.join("identity"), identity).unwrap();
    let cluster_of = |dir: &Path| {
        inspected(dir)["identity"]["cluster"]
            .as_str()
            .unwrap()
            .to_owned()
    };

    let superblock = mixed.join("superblock");
    let unformed_superblock = unformed.join("superblock");
    for (arguments, data_dir, code, line) in [
        (
            member(&file, 2, &own),
            &own,
            "cluster_refused",
            "this directory belongs to node 1, not to node 2: start it as before, with --node 1 or --join, or give node 2 its own directory"
                .to_owned(),
        ),
        (
            serve(&mixed),
            &mixed,
            "directory_refused",
            format!(
                "{} belongs to another cluster ({}) than the identity file beside it ({}): {WAY_OUT}",
                superblock.display(),
                cluster_of(&other),
                cluster_of(&own)
            ),
        ),
        (
            serve(&unformed),
            &unformed,
            "directory_refused",
            format!(
                "{} belongs to another incarnation ({}) than the identity file beside it ({new}): {WAY_OUT}",
                unformed_superblock.display(),
                incarnation_of(&own)
            ),
        ),
    ] {
        let before = tree(data_dir);
        let refusal = trouble(code, line);
        assert_refused(|more| started(with(arguments.clone(), more)), &refusal).await;
        assert_unchanged(data_dir, &before);
    }
}

/// The same frame, in the version after its own: the last byte of its mark raised, and the checksum made right.
fn raised(frame: &[u8], mark_length: usize) -> Vec<u8> {
    let (mark, rest) = frame.split_at(mark_length);
    let mut mark = mark.to_vec();
    *mark.last_mut().unwrap() += 1;
    let body = &rest[4..];
    let sum = crc32c::crc32c_append(crc32c::crc32c(&mark), body);
    [&mark, &sum.to_le_bytes()[..], body].concat()
}

/// Opens a node's database, as the node does.
fn database(data_dir: &Path) -> sled::Db {
    let config = sled::Config::new().path(data_dir.join("sled"));
    let config = config.segment_size(8 * 1024 * 1024).flush_every_ms(None);
    // A process that has just ended may hold the lock for a moment.
    config.open().unwrap()
}

fn contents(database: &sled::Db) -> Vec<(sled::IVec, sled::IVec)> {
    ["log", "meta"]
        .iter()
        .flat_map(|tree| database.open_tree(tree).unwrap().iter().map(Result::unwrap))
        .collect()
}

// databendlabs/databend#19794: an older version never touches what a newer one wrote.
#[tokio::test]
async fn a_directory_of_a_newer_format_is_refused_and_left_alone() {
    let guard = tempfile::tempdir().unwrap();
    let whole = made(guard.path(), "whole").await;

    for newer in ["identity", "superblock", "log", "meta"] {
        let data_dir = guard.path().join(newer);
        copy_tree(&whole, &data_dir);
        let file = match newer {
            "identity" | "superblock" => data_dir.join(newer),
            _ => data_dir.join("sled"),
        };
        let mut before = Vec::new();
        if file.is_dir() {
            let database = database(&data_dir);
            let tree = database.open_tree(newer).unwrap();
            let (key, value) = tree.last().unwrap().unwrap();
            tree.insert(key, raised(&value, 1)).unwrap();
            database.flush().unwrap();
            before = contents(&database);
        } else {
            let bytes = fs::read(&file).unwrap();
            let (frame, rest) = bytes.split_at(bytes.len().min(4096));
            fs::write(&file, [&raised(frame, 8), rest].concat()).unwrap();
        }
        let files = tree(&data_dir);

        let line = format!(
            "{} was written by a later version: start that version, or {WAY_OUT}",
            file.display()
        );
        let refusal = trouble("directory_refused", line);
        assert_refused(|more| started(with(serve(&data_dir), more)), &refusal).await;

        // sled notes for itself that it was opened.
        let outside = |(path, _): &(PathBuf, _)| !file.is_dir() || !path.starts_with(&file);
        let after = tree(&data_dir);
        assert!(
            after
                .into_iter()
                .filter(outside)
                .eq(files.into_iter().filter(outside))
        );
        if file.is_dir() {
            assert_eq!(contents(&database(&data_dir)), before);
        }
    }
}

#[tokio::test]
async fn a_directory_in_use_is_refused_and_its_node_goes_on() {
    let guard = tempfile::tempdir().unwrap();
    let data_dir = guard.path().join("data");
    let node = Node::start(&guard.path().join("log"), serve(&data_dir));
    let url = wait_until_ready(&data_dir).await;
    let before = lease(std::slice::from_ref(&url)).await;

    let line = format!(
        "{} is in use by another process: stop it, or choose another data directory",
        data_dir.display()
    );
    let refusal = trouble("directory_refused", line);
    assert_refused(|more| started(with(serve(&data_dir), more)), &refusal).await;

    assert_eq!(wait_until_ready(&data_dir).await, url);
    assert_eq!(lease(&[url]).await.first(), before.last() + 1);
    assert!(node.terminate().await.success());
}

#[tokio::test]
async fn a_directory_of_another_cluster_is_refused_by_those_of_the_cluster_file() {
    let guard = tempfile::tempdir().unwrap();
    let foreign = made(guard.path(), "foreign").await;
    let mut cluster = three_nodes(guard.path()).await;
    lease(&cluster.urls()).await;
    let own = inspected(&foreign)["identity"]["cluster"]
        .as_str()
        .unwrap()
        .to_owned();
    let url = format!("{}/v1/cluster", cluster.urls()[1]);
    let other = send("GET", &url, "", &[]).await.field("cluster");
    cluster.kill(&[1]).await.unwrap();
    let data_dir = cluster.data_dir(1).unwrap().to_path_buf();
    fs::remove_dir_all(&data_dir).unwrap();
    copy_tree(&foreign, &data_dir);
    let before = tree(&data_dir);
    let log = guard.path().join("node-1.log");
    fs::write(&log, "").unwrap();

    cluster.start(&[1]).unwrap();
    let refused = wait_until_died(&mut cluster).await;

    assert!(
        matches!(refused, HarnessError::Died { node: 1, .. }),
        "{refused}"
    );
    assert_eq!(
        fs::read_to_string(&log).unwrap(),
        format!(
            "highwater: this directory belongs to cluster {own}, but the nodes in the cluster file to cluster {other}: \
             give node 1 its own data directory, or its own cluster's file\n"
        )
    );
    assert_unchanged(&data_dir, &before);
    // Two of three go on.
    lease(&cluster.urls()[1..]).await;
}

#[tokio::test]
async fn a_directory_of_another_cluster_is_refused_also_where_the_others_come_later() {
    let guard = tempfile::tempdir().unwrap();
    let foreign = made(guard.path(), "foreign").await;
    fs::remove_file(foreign.join("ready.json")).unwrap();
    let mut cluster = three_nodes(guard.path()).await;
    lease(&cluster.urls()).await;
    cluster.stop_all(PATIENCE).await.unwrap();
    let data_dir = cluster.data_dir(1).unwrap().to_path_buf();
    fs::remove_dir_all(&data_dir).unwrap();
    copy_tree(&foreign, &data_dir);

    // By itself it is a cluster of one, and nobody tells it otherwise.
    cluster.start(&[1]).unwrap();
    wait_until_ready(&data_dir).await;
    cluster.start(&[2, 3]).unwrap();
    let ended = wait_until_one_ends(&mut cluster).await;

    assert_eq!((ended.node, ended.code), (1, Some(1)), "{ended:?}");
    let line = "but the nodes in the cluster file to cluster";
    assert!(ended.last_line.contains(line), "{ended:?}");
    lease(&cluster.urls()[1..]).await;
}

async fn wait_until_died(cluster: &mut LocalCluster) -> HarnessError {
    let mut died = None;
    wait_until("a node ends by itself", async || {
        died = cluster.check_alive().err();
        died.is_some()
    })
    .await;
    died.unwrap()
}

/// What a crash between the adoption of the formation record and the first promise leaves: the identity, which does not
/// say yet that a store was made.
fn back_to_adoption(data_dir: &Path) {
    let identity = fs::read(data_dir.join("identity")).unwrap();
    fs::remove_dir_all(data_dir).unwrap();
    fs::create_dir(data_dir).unwrap();
    let (mark, body) = (&identity[..8], &identity[12..]);
    let mut body = body.to_vec();
    assert_eq!(
        body.pop(),
        Some(1),
        "the last field says that a store was made"
    );
    body.push(0);
    let sum = crc32c::crc32c_append(crc32c::crc32c(mark), &body);
    fs::write(
        data_dir.join("identity"),
        [mark, &sum.to_le_bytes()[..], &body].concat(),
    )
    .unwrap();
}

// dgraph-io/dgraph#1828: a cluster that cannot finish forming says so, and how it can begin again.
#[tokio::test]
async fn members_that_wait_for_one_that_lost_its_disk_before_the_first_grant_are_told_the_way_out()
{
    let guard = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(guard.path()).await;
    cluster.stop_all(PATIENCE).await.unwrap();
    for node in [1, 2] {
        back_to_adoption(cluster.data_dir(node).unwrap());
    }
    fs::remove_dir_all(cluster.data_dir(3).unwrap()).unwrap();
    for node in 1..=3 {
        fs::write(guard.path().join(format!("node-{node}.log")), "").unwrap();
    }

    cluster.start_all().unwrap();
    let refused = wait_until_died(&mut cluster).await;
    let log = guard.path().join("node-1.log");
    let line = "waiting for a member to form the cluster node=3 error=\"does not answer: start it; if it lost its \
                directory and the cluster never served, empty the directories of all members and start them again\"";
    wait_until("node 1 says what it waits for", async || {
        fs::read_to_string(&log).unwrap().contains(line)
    })
    .await;
    assert!(
        refused.to_string().contains("node 3 has lost its data"),
        "{refused}"
    );

    // The way out is one.
    cluster.stop_all(PATIENCE).await.unwrap();
    for node in 1..=3 {
        fs::remove_dir_all(cluster.data_dir(node).unwrap()).unwrap();
    }
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    lease(&cluster.urls()).await;
}

// --- addresses

// opentdf/platform#1460, devsu/condor-framework#35: the process ends, and names the address and which port it is.
#[tokio::test]
async fn a_port_that_is_taken_is_refused_before_anything_is_made() {
    let guard = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();

    for (what, flag, other) in [
        ("API", "--listen", "--peer-listen"),
        ("peer", "--peer-listen", "--listen"),
    ] {
        let mut arguments = words(&["serve", flag, &address, other, "127.0.0.1:0", "--data-dir"]);
        arguments.push(guard.path().join("data").into());
        let line = format!(
            "{what} address {address} cannot be listened on: stop what listens there, or choose another by {flag} or \
             in the cluster file: Address already in use (os error 98)"
        );
        let refusal = trouble("cannot_listen", line);
        assert_refused(|more| started(with(arguments.clone(), more)), &refusal).await;
        assert_eq!(fs::read_dir(guard.path()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn an_address_that_cannot_be_had_is_refused_before_anything_is_made() {
    let guard = tempfile::tempdir().unwrap();
    // By strace, because a system may let everybody listen below 1024.
    let denied = "strace -f -qq -e trace=bind -e inject=bind:error=EACCES -o /dev/null";
    let denied: Vec<String> = denied.split(' ').map(Into::into).collect();

    for (wrapper, address, exit, code, line) in [
        (
            &denied[..],
            "127.0.0.1:443",
            1,
            "cannot_listen",
            "peer address 127.0.0.1:443 cannot be listened on: give the node the right to it (ports below 1024 need one), \
             or choose another by --peer-listen or in the cluster file: Permission denied (os error 13)",
        ),
        (
            &[],
            // For documentation: of no machine.
            "192.0.2.1:7201",
            1,
            "cannot_listen",
            "peer address 192.0.2.1:7201 cannot be listened on: give this machine that address, or choose another by \
             --peer-listen or in the cluster file: Cannot assign requested address (os error 99)",
        ),
        (
            &[],
            "no-such-host.invalid:7201",
            2,
            "invalid_config",
            "address no-such-host.invalid:7201 does not resolve: correct its host, or make this machine know it: ",
        ),
    ] {
        let mut arguments = words(&["serve", "--insecure", "--listen", "127.0.0.1:0"]);
        arguments.extend(words(&["--peer-listen", address, "--data-dir"]));
        arguments.push(guard.path().join("data").into());
        let mut line = line.to_owned();
        if exit == 2 {
            // What the resolver says differs from machine to machine.
            let output = ended(started(arguments.clone())).await;
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.starts_with(&format!("highwater: {line}")), "{said}");
            line = said.trim_end().trim_start_matches("highwater: ").to_owned();
        }

        let refusal = Refusal { exit, code, line };
        assert_refused(
            |more| started_by(wrapper, with(arguments.clone(), more)),
            &refusal,
        )
        .await;
        assert_eq!(fs::read_dir(guard.path()).unwrap().count(), 0);
    }
}

// --- the cluster file and the flags

#[expect(clippy::too_many_lines, reason = "a table of cases")]
#[tokio::test]
async fn a_cluster_file_that_cannot_be_used_is_refused_before_anything_is_made() {
    let guard = tempfile::tempdir().unwrap();
    let file = guard.path().join("cluster.toml");
    let path = file.display();
    let node = |id: u64, api: u64, peer: u64| {
        format!("[[node]]\nid = {id}\napi = \"127.0.0.1:{api}\"\npeer = \"127.0.0.1:{peer}\"\n")
    };
    let head = "[cluster]\nname = \"local\"\n".to_owned();
    let two = head.clone() + &node(1, 7101, 7201) + &node(2, 7102, 7202);
    let ten: String = (1..=10).map(|id| node(id, 7100 + id, 7200 + id)).collect();
    let help = "(highwater serve --help shows a cluster file)";

    for (text, line) in [
        (
            None,
            format!(
                "{path} cannot be read: name the cluster file with --cluster: No such file or directory (os error 2)"
            ),
        ),
        (
            Some("cluster: local".to_owned()),
            format!("{path}: line 1: key with no value, expected `=` {help}"),
        ),
        (
            Some(two.replace("id = 2", "id = 2\nrack = 7")),
            format!(
                "{path}: line 9: unknown field `rack`, expected one of `id`, `api`, `peer` {help}"
            ),
        ),
        (
            Some(head.clone() + &node(1, 7101, 7201) + &node(1, 7102, 7202)),
            format!("{path}: node id 1 is given twice: every node needs its own"),
        ),
        (
            Some(head.clone() + &node(1, 7101, 7201) + &node(2, 7101, 7202)),
            format!("{path}: address 127.0.0.1:7101 is given twice: every listener needs its own"),
        ),
        (
            Some(head.clone() + &node(1, 7101, 7201) + &node(2, 7102, 7101)),
            format!("{path}: address 127.0.0.1:7101 is given twice: every listener needs its own"),
        ),
        (
            Some(head.clone() + &node(1, 7101, 7101)),
            format!("{path}: address 127.0.0.1:7101 is given twice: every listener needs its own"),
        ),
        (
            Some(head.clone() + &node(0, 7101, 7201)),
            format!("{path}: node id 0 is no id: number the nodes from 1 on"),
        ),
        (
            Some(head.clone() + &node(1, 0, 7201)),
            format!(
                "{path}: address 127.0.0.1:0 has port 0: the other nodes must know the port, so choose one"
            ),
        ),
        (
            Some(head.clone()),
            format!("{path}: 0 nodes are named: name 1 to 9, best 3 or 5"),
        ),
        (
            Some(head.clone() + &ten),
            format!("{path}: 10 nodes are named: name 1 to 9, best 3 or 5"),
        ),
        (
            Some(head + &node(2, 7102, 7202) + &node(3, 7103, 7203)),
            "the cluster file has no node 1, only 2, 3: correct --node or the file".to_owned(),
        ),
    ] {
        if let Some(text) = &text {
            fs::write(&file, text).unwrap();
        }
        let before = tree(guard.path());

        let refusal = misuse("invalid_config", &line);
        let command = |more: &[&str]| {
            let mut command = started(with(words(&["serve", "--node", "1"]), more));
            command
                .arg("--cluster")
                .arg(&file)
                .current_dir(guard.path());
            command
        };
        assert_refused(command, &refusal).await;
        assert_unchanged(guard.path(), &before);
    }
}

#[tokio::test]
async fn flags_and_settings_that_contradict_are_refused_before_anything_is_made() {
    let guard = tempfile::tempdir().unwrap();
    let both = "--cluster and --node go together: give both or neither (--help tells more)";
    fs::write(
        guard.path().join("settings.toml"),
        "node = 1\nlisten = 7101\n",
    )
    .unwrap();

    for (arguments, environment, code, line) in [
        (&["--cluster", "c.toml"][..], None, "usage", both),
        (&["--node", "1"], None, "usage", both),
        (&[], Some(("HIGHWATER_NODE", "1")), "usage", both),
        (
            &[
                "--listen",
                "127.0.0.1:7301",
                "--peer-listen",
                "127.0.0.1:7301",
            ],
            None,
            "invalid_config",
            "address 127.0.0.1:7301 is given twice: every listener needs its own",
        ),
        (
            &["--heartbeat-ms", "5"],
            None,
            "invalid_config",
            "a heartbeat of 5 ms is out of bounds: use 10 to 10000 ms",
        ),
        (
            &["--listen", "7101"],
            None,
            "usage",
            "invalid value '7101' for '--listen <ADDR>': \"7101\" is not an address: write host:port, for example \
             127.0.0.1:7101 (--help tells more)",
        ),
        (
            &["--node", "1", "--node", "2"],
            None,
            "usage",
            "the argument '--node <N>' cannot be used multiple times Usage: highwater serve [OPTIONS] (--help tells more)",
        ),
        (
            &[],
            Some(("HIGHWATER_INSECURE", "perhaps")),
            "usage",
            "invalid value 'perhaps' for '--insecure[=<BOOL>]': value was not a boolean (--help tells more)",
        ),
        (
            &["--config", "nothing.toml"],
            None,
            "cannot_open",
            "nothing.toml cannot be opened: No such file or directory (os error 2)",
        ),
        (
            &["--config", "settings.toml"],
            None,
            "usage",
            "settings.toml: line 2: invalid type: integer `7101`, expected a string (--help tells more)",
        ),
    ] {
        let before = tree(guard.path());

        let refusal = misuse(code, line);
        let command = |more: &[&str]| {
            let mut command = started(with(with(words(&["serve"]), arguments), more));
            command.current_dir(guard.path()).envs(environment);
            command
        };
        assert_refused(command, &refusal).await;
        assert_unchanged(guard.path(), &before);
    }
}

// --- what a node lives with

#[tokio::test]
async fn an_even_number_of_nodes_is_served_with_one_warning_and_an_odd_one_with_none() {
    for (nodes, warning) in [
        (1_u64, None),
        (
            2,
            Some("2 nodes tolerate the loss of none, no more than 1 would"),
        ),
        (
            4,
            Some("4 nodes tolerate the loss of 1, no more than 3 would"),
        ),
    ] {
        let guard = tempfile::tempdir().unwrap();
        let file = guard.path().join("cluster.toml");
        let _ports = cluster_file(&file, &(1..=nodes).collect::<Vec<_>>());
        let data_dir = |node: u64| guard.path().join(node.to_string());
        let running: Vec<Node> = (1..=nodes)
            .map(|node| {
                let log = guard.path().join(format!("{node}.log"));
                Node::start(&log, member(&file, node, &data_dir(node)))
            })
            .collect();

        let mut urls = Vec::new();
        for node in 1..=nodes {
            urls.push(wait_until_ready(&data_dir(node)).await);
        }
        lease(&urls).await;

        for node in running {
            let said = node.said();
            assert_eq!(
                said.matches("even number of nodes").count(),
                usize::from(warning.is_some()),
                "{said}"
            );
            assert!(said.contains(warning.unwrap_or_default()), "{said}");
            node.kill().await;
        }
    }
}

// scylladb/scylladb#16682: a wait for others ends when it is told to.
#[tokio::test]
async fn a_node_that_waits_for_the_others_ends_when_it_is_told() {
    for signal in [Signal::TERM, Signal::INT] {
        let guard = tempfile::tempdir().unwrap();
        let file = guard.path().join("cluster.toml");
        let _ports = cluster_file(&file, &[1, 2, 3]);
        let node = Node::start(
            &guard.path().join("log"),
            member(&file, 1, &guard.path().join("1")),
        );
        node.wait_until_said("waiting for a member to form the cluster", 2)
            .await;

        assert_eq!(node.end_by(signal).await.code(), Some(0), "{signal:?}");
    }
}

#[tokio::test]
async fn a_node_that_serves_ends_well_by_either_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let guard = tempfile::tempdir().unwrap();
        let data_dir = guard.path().join("data");
        let node = Node::start(&guard.path().join("log"), serve(&data_dir));
        lease(&[wait_until_ready(&data_dir).await]).await;

        assert_eq!(node.end_by(signal).await.code(), Some(0), "{signal:?}");
    }
}

// What is still open is waited for, but not by somebody in a hurry.
#[tokio::test]
async fn a_second_signal_ends_a_node_that_waits_for_its_open_requests() {
    let guard = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(guard.path()).await;
    lease(&cluster.urls()).await;
    cluster.kill(&[2, 3]).await.unwrap();
    let pid = Pid::from_raw(cluster.pid(1).unwrap().try_into().unwrap()).unwrap();
    let address = cluster.urls()[0].replace("http://", "");
    let mut stream = TcpStream::connect(address).await.unwrap();
    // Nobody grants it, so it is open until its deadline. The answer before it says that both have been read.
    let requests = "GET /livez HTTP/1.1\r\nHost: node\r\n\r\n\
         POST /v1/sequences/photos/leases?timeout=4s HTTP/1.1\r\nHost: node\r\n\r\n";
    stream.write_all(requests.as_bytes()).await.unwrap();
    let mut answered = vec![0; 4096];
    let length = stream.read(&mut answered).await.unwrap();
    assert!(answered[..length].starts_with(b"HTTP/1.1 200"));

    kill_process(pid, Signal::TERM).unwrap();
    let log = guard.path().join("node-1.log");
    wait_until("the node is stopping", async || {
        let said = fs::read_to_string(&log).unwrap();
        said.lines().any(|line| line.ends_with("stopping"))
    })
    .await;
    kill_process(pid, Signal::TERM).unwrap();
    let mut rest = Vec::new();
    let ended = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;

    // However the connection ends, no answer came.
    drop(ended.expect("the node closes the connection"));
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains("HTTP/1.1"), "it was waited for: {rest}");
    let ended = wait_until_one_ends(&mut cluster).await;
    assert_eq!((ended.node, ended.code), (1, Some(0)), "{ended:?}");
}

#[tokio::test]
async fn ready_json_tells_where_a_node_listens_and_which_process_it_is() {
    let guard = tempfile::tempdir().unwrap();
    let file = guard.path().join("cluster.toml");
    let _ports = cluster_file(&file, &[7]);
    let (alone, of_seven) = (guard.path().join("alone"), guard.path().join("seven"));

    for (data_dir, arguments, id) in [
        (&alone, serve(&alone), 1),
        (&of_seven, member(&file, 7, &of_seven), 7),
    ] {
        let node = Node::start(&guard.path().join("log"), arguments);
        let url = wait_until_ready(data_dir).await;

        let ready = fs::read_to_string(data_dir.join("ready.json")).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
        assert_eq!(ready["node"], id, "{ready}");
        assert_eq!(ready["pid"], node.child.id().unwrap(), "{ready}");
        let shown = send("GET", &format!("{url}/v1/cluster"), "", &[]).await;
        let member = &shown.json()["members"][0];
        assert_eq!(
            (&ready["api"], &ready["peer"]),
            (&member["api"], &member["peer"])
        );
        assert!(node.terminate().await.success());
    }
}

#[tokio::test]
async fn a_node_whose_standard_error_cannot_be_written_serves_and_ends_well() {
    let reader_gone = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let disk_full = || Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap());
    for stderr in [&reader_gone as &dyn Fn() -> Stdio, &disk_full] {
        let guard = tempfile::tempdir().unwrap();
        let data_dir = guard.path().join("data");
        let mut command = started(serve(&data_dir));
        command.env("HIGHWATER_LOG", "debug").stderr(stderr());
        let node = Node {
            child: command.spawn().unwrap(),
            stderr: guard.path().join("nowhere"),
        };

        lease(&[wait_until_ready(&data_dir).await]).await;

        assert_eq!(node.terminate().await.code(), Some(0));
    }
}
