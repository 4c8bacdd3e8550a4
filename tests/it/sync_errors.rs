//! Disks that fail or hang: one failure ends the node and acknowledges nothing, a hung one costs nothing but its copy.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use highwater::chaos::{ClusterSize, Connection, DiskAction, DiskFault, LocalCluster, Program};
use highwater::client::{Client, ClientError};
use highwater::wire::ProblemOutcome;
use highwater::{RangeCount, SequenceName};
use tokio::time::timeout;

use crate::load::Load;
use crate::preload::Faults;
use crate::world::{
    self, Ended, PATIENCE, POLL_INTERVAL, send, three_nodes_of, wait_until_all_have_the_log,
    wait_until_it_says, wait_until_led_by_another, wait_until_one_ends,
};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The calls by which a group gets to the disk, in their order.
const STEPS: [(&str, &str); 5] = [
    ("pwrite", "/sled/db"),
    ("sync_file_range", "/sled/db"),
    ("fdatasync", "/sled/db"),
    ("pwrite", "/superblock"),
    ("fdatasync", "/superblock"),
];

/// How long a lease waits that no node can serve.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// How often all steps fail in turn, each time at another call; `HIGHWATER_TEST_FAULTS` asks for more.
fn rounds() -> u32 {
    std::env::var("HIGHWATER_TEST_FAULTS").map_or(1, |text| text.parse().unwrap())
}

fn fail<'a>(call: &'a str, path: &'a str, nth: u32) -> DiskFault<'a> {
    let action = DiskAction::Fail(EIO);
    DiskFault {
        call,
        path,
        nth,
        action,
    }
}

/// A cluster of one whose disk can fail.
async fn lone(faults: &Faults, directory: &Path) -> LocalCluster {
    lone_of(faults.program(&[]), directory).await
}

async fn lone_of(program: Program, directory: &Path) -> LocalCluster {
    let mut cluster = LocalCluster::create(directory, ClusterSize::One, program).unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    cluster
}

/// Leases one value after another until a lease fails, and tells how that one ended. `last` is the last value granted.
async fn lease_until_one_fails(
    client: &Client,
    sequence: &SequenceName,
    (faults, what): (&Faults, &str),
    last: &mut u64,
) -> ClientError {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let failed = faults.is_hit();
        match client.lease(sequence, RangeCount::ONE).await {
            Ok(grant) => {
                assert!(!failed, "I3: {} granted after {what} failed", grant.first());
                assert!(*last < grant.first(), "I1, I2");
                *last = grant.last();
            }
            Err(error) => return error,
        }
        assert!(Instant::now() < deadline, "no call met the fault");
    }
}

/// What the node asked of its disk after the call that failed, as far as it was a sync. Forgets what was traced.
fn syncs_after_the_failure(calls: &Path) -> Vec<String> {
    let traced = fs::read_to_string(calls).unwrap();
    fs::remove_file(calls).unwrap();
    let lines = traced.lines();
    let after = lines.skip_while(|line| !line.starts_with("failed "));
    let after: Vec<&str> = after.collect();
    assert!(!after.is_empty(), "the library failed nothing: {traced}");
    let is_sync = |line: &&str| line.starts_with("fsync ") || line.starts_with("fdatasync ");
    after
        .into_iter()
        .filter(is_sync)
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn the_library_stands_between_a_node_and_every_write_and_sync() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let (tracing, calls) = faults.tracing();
    let program = faults.program(&tracing.each_ref().map(String::as_str));
    let mut cluster = LocalCluster::create(directory.path(), ClusterSize::One, program).unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let sequence = world::sequence(&cluster, "p").await;
    world::client(&cluster)
        .lease(&sequence, RangeCount::ONE)
        .await
        .unwrap();
    // So that the database has what the journal has.
    cluster.stop_all(PATIENCE).await.unwrap();

    let node = directory.path().join("node-1");
    let calls = fs::read_to_string(calls).unwrap();
    let calls: BTreeSet<&str> = calls.lines().collect();
    let made = [
        ("write", "/identity.new"),
        ("fsync", "/identity.new"),
        ("fsync", ""),
        ("write", "/superblock.new"),
        ("fsync", "/sled/conf"),
    ];
    for (call, path) in STEPS.into_iter().chain(made) {
        let line = format!("{call} {}{path}", node.display());
        assert!(calls.contains(line.as_str()), "{line}: {calls:#?}");
    }
}

// redis/redis#8111, wiredtiger/wiredtiger#4095: after a failed sync a later one that succeeds means nothing.
#[tokio::test]
async fn one_failed_write_or_sync_ends_a_lone_node_before_it_acknowledges_anything() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let (tracing, calls) = faults.tracing();
    let program = faults.program(&tracing.each_ref().map(String::as_str));
    let mut cluster = lone_of(program, directory.path()).await;
    let sequence = world::sequence(&cluster, "p").await;
    // A lease is lost in each round, and nobody else can serve it.
    let client = Client::builder()
        .nodes(cluster.urls())
        .deadline(LOST_AFTER)
        .build()
        .unwrap();
    let data_dir = cluster.data_dir(1).unwrap().display().to_string();

    let mut last = 0;
    for round in 1..=rounds() {
        for ((call, path), number) in STEPS.into_iter().zip(round..) {
            faults.plant(fail(call, path, 1 + number * 3 % 7));
            let what = format!("{call} {path}");
            let on = (&faults, what.as_str());
            let error = lease_until_one_fails(&client, &sequence, on, &mut last).await;

            assert_eq!(
                error.outcome(),
                ProblemOutcome::Unknown,
                "{call} {path}: {error}"
            );
            faults.wait_until_hit().await;
            let Ended {
                code,
                last_line: line,
                ..
            } = wait_until_one_ends(&mut cluster).await;
            assert_eq!(code, Some(1), "{call} {path}: {line}");
            let said = format!(
                "highwater: the disk of {data_dir} failed: look at it, then start the node again: "
            );
            assert!(line.starts_with(&said), "{call} {path}: {line}");
            let reason = "then start the node again: Input/output error (os error 5)";
            assert!(line.ends_with(reason), "{call} {path}: {line}");
            let syncs = syncs_after_the_failure(&calls);
            assert!(
                syncs.is_empty(),
                "{call} {path} failed, and then: {syncs:?}"
            );

            faults.lift();
            cluster.start_all().unwrap();
            cluster.all_ready(PATIENCE).await.unwrap();
            let after = client.lease(&sequence, RangeCount::ONE).await.unwrap();
            assert!(
                last < after.first() && after.first() <= last + 2,
                "{call} {path}: {} after {last}: the one that failed may be a gap",
                after.first()
            );
            last = after.last();
        }
    }
    let log = fs::read_to_string(directory.path().join("node-1.log")).unwrap();
    let lines = log.lines().filter(|line| line.starts_with("highwater: "));
    let ends = usize::try_from(rounds()).unwrap() * STEPS.len();
    assert_eq!(lines.count(), ends, "one line each time: {log}");
}

// What it was asked waits for a leader, and would for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_failed_does_not_wait_for_what_nobody_serves() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let mut cluster = three_nodes_of(directory.path(), faults.program(&[])).await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let (failing, other) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let url = cluster.urls().remove(usize::try_from(failing - 1).unwrap());
    let mut waiting = Connection::open(&url).await.unwrap();
    waiting.ask("GET", "/livez", "").await.unwrap();
    let path = format!("/node-{failing}/");
    faults.plant(DiskFault {
        action: DiskAction::FailLate(EIO, 3_000),
        ..fail("fdatasync", &path, 1)
    });

    world::sequence(&cluster, "p").await;
    faults.wait_until_hit().await;
    cluster.kill(&[leader, other]).await.unwrap();
    let lease = "/v1/sequences/p/leases?timeout=60s";
    waiting.send("POST", lease, "").await.unwrap();
    let ends = wait_until_one_ends(&mut cluster);
    let ended = timeout(Duration::from_secs(30), ends).await;

    let ended = ended.expect("it waits for the request");
    assert!(ended.last_line.contains(" failed: "), "{ended:?}");
}

// deventlab/d-engine#404: whichever node's disk it is.
#[tokio::test(flavor = "multi_thread")]
async fn one_failed_write_or_sync_of_three_nodes_ends_that_node_and_the_others_grant() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let mut cluster = three_nodes_of(directory.path(), faults.program(&[])).await;
    let sequence = world::sequence(&cluster, "p").await;
    let load = Load::start(&cluster, &sequence, 4, directory.path());

    for (number, (call, path)) in (0..rounds()).flat_map(|_| STEPS.into_iter().enumerate()) {
        load.wait_until_granted(50).await;
        let leader = cluster.leader(PATIENCE).await.unwrap();
        // The leader and a follower in turn.
        let node = if number % 2 == 0 {
            leader
        } else {
            leader % 3 + 1
        };
        let path = format!("/node-{node}{path}");
        faults.plant(DiskFault {
            action: DiskAction::Fail(if number == 4 { ENOSPC } else { EIO }),
            ..fail(call, &path, 2)
        });

        let Ended {
            node: ended,
            code,
            last_line: line,
        } = wait_until_one_ends(&mut cluster).await;
        assert_eq!((ended, code), (node, Some(1)), "{call} {path}: {line}");
        let why = if number == 4 { "is full" } else { "failed" };
        assert!(
            line.starts_with(&format!(
                "highwater: the disk of {} {why}: ",
                cluster.data_dir(node).unwrap().display()
            )),
            "{call} {path}: {line}"
        );
        load.wait_until_granted(50).await;
        faults.lift();
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
    }

    load.verify(&cluster).await;
}

#[tokio::test]
async fn a_failed_write_of_the_identity_is_told_and_leaves_a_directory_that_starts() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let mut cluster =
        LocalCluster::create(directory.path(), ClusterSize::One, faults.program(&[])).unwrap();
    let data_dir = cluster.data_dir(1).unwrap().to_owned();

    // Made with the directory, with the cluster, and with the store.
    for (nth, calls) in [
        (1, ["write"].as_slice()),
        (2, &["fsync"]),
        (3, &["write", "fsync"]),
    ] {
        for call in calls {
            faults.plant(fail(call, "/identity.new", nth));
            cluster.start_all().unwrap();

            let Ended {
                code,
                last_line: line,
                ..
            } = wait_until_one_ends(&mut cluster).await;
            assert_eq!(code, Some(1));
            assert_eq!(
                line,
                format!(
                    "highwater: cannot write {}/identity: look at its disk and how that is mounted: Input/output error (os error 5)",
                    data_dir.display()
                )
            );
            faults.lift();
            cluster.start_all().unwrap();
            cluster.all_ready(PATIENCE).await.unwrap();
            world::sequence(&cluster, "p").await;
            cluster.stop_all(PATIENCE).await.unwrap();
            fs::remove_dir_all(&data_dir).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_or_sync_of_a_snapshot_ends_the_node_and_the_next_start_takes_it() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let mut cluster = lone(&faults, directory.path()).await;
    let sequence = world::sequence(&cluster, "p").await;
    let snapshots = cluster.data_dir(1).unwrap().join("snapshots");
    cluster.kill(&[1]).await.unwrap();
    cluster.serve_with(&["--snapshot-entries", "500"]);
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let load = Load::start(&cluster, &sequence, 4, directory.path());

    // It is due after 500 entries, and where it failed, at once after the next start.
    for call in ["write", "fsync"] {
        faults.plant(fail(call, "/snapshots/", 1));
        cluster.start_all().unwrap();
        let ended = wait_until_one_ends(&mut cluster).await;
        assert_eq!(ended.code, Some(1), "{call}: {ended:?}");
        assert!(
            ended
                .last_line
                .contains(" failed: look at it, then start the node again: Input/output error"),
            "{call}: {ended:?}"
        );
        assert_eq!(fs::read_dir(&snapshots).unwrap().count(), 0, "{call}");
        faults.lift();
    }

    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    load.wait_until_granted(10).await;
    wait_until_there(&snapshots).await;
    load.verify(&cluster).await;
}

async fn wait_until_there(snapshots: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while fs::read_dir(snapshots).unwrap().count() == 0 {
        assert!(Instant::now() < deadline, "no snapshot");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

// sled 0.34 wakes nobody when a batch's first write fails after those behind it succeeded.
#[tokio::test]
async fn an_error_that_the_database_sleeps_over_ends_the_node_too() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let mut cluster = lone(&faults, directory.path()).await;
    let sequence = world::sequence(&cluster, "p").await;
    let client = world::client(&cluster);

    let mut last = 0;
    for nth in 1..=rounds() {
        faults.plant(DiskFault {
            action: DiskAction::FailLate(EIO, 500),
            ..fail("pwrite", "/sled/db", nth)
        });
        lease_until_one_fails(&client, &sequence, (&faults, "pwrite"), &mut last).await;

        let Ended {
            code,
            last_line: line,
            ..
        } = wait_until_one_ends(&mut cluster).await;
        assert_eq!(code, Some(1), "{line}");
        assert!(line.contains("Input/output error"), "{line}");
        faults.lift();
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_leaders_disk_hangs_another_node_leads_and_grants() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let mut cluster = three_nodes_of(directory.path(), faults.program(&[])).await;
    let sequence = world::sequence(&cluster, "p").await;
    let load = Load::start(&cluster, &sequence, 2, directory.path());
    load.wait_until_granted(50).await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let url = cluster.urls().remove(usize::try_from(leader - 1).unwrap());

    faults.plant(DiskFault {
        action: DiskAction::Hang,
        ..fail("fdatasync", &format!("/node-{leader}/"), 1)
    });
    faults.wait_until_hit().await;
    let relieved = async {
        wait_until_led_by_another(&mut cluster, leader).await;
        load.wait_until_granted(20).await;
    };
    timeout(Duration::from_secs(15), relieved)
        .await
        .expect("another node leads and grants");
    wait_until_it_says(&url, 503, "disk does not answer\n").await;

    // The disk answers again: the node goes on, and was never gone.
    faults.lift();
    cluster.all_ready(PATIENCE).await.unwrap();
    load.wait_until_granted(50).await;
    load.verify(&cluster).await;
}

// Under load its queue fills soon, and it falls silent by itself. With little to do it would lead on for as long as its
// disk hangs, and then be silent at the worst moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_with_little_to_do_whose_disk_hangs_hands_over() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let mut cluster = three_nodes_of(directory.path(), faults.program(&[])).await;
    let sequence = world::sequence(&cluster, "p").await;
    let client = world::client(&cluster);
    let leader = cluster.leader(PATIENCE).await.unwrap();

    faults.plant(DiskFault {
        action: DiskAction::Hang,
        ..fail("fdatasync", &format!("/node-{leader}/"), 1)
    });
    // Its followers are a quorum without it.
    let before = client.lease(&sequence, RangeCount::ONE).await.unwrap();
    faults.wait_until_hit().await;
    wait_until_led_by_another(&mut cluster, leader).await;
    let after = client.lease(&sequence, RangeCount::ONE).await.unwrap();

    assert_eq!(after.first(), before.last() + 1);
    faults.lift();
    cluster.all_ready(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followers_hung_disk_costs_nothing_but_its_copy() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let mut cluster = three_nodes_of(directory.path(), faults.program(&[])).await;
    let sequence = world::sequence(&cluster, "p").await;
    let load = Load::start(&cluster, &sequence, 4, directory.path());
    load.wait_until_granted(50).await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let follower = leader % 3 + 1;
    let url = cluster
        .urls()
        .remove(usize::try_from(follower - 1).unwrap());

    faults.plant(DiskFault {
        action: DiskAction::Hang,
        ..fail("fdatasync", &format!("/node-{follower}/"), 1)
    });
    faults.wait_until_hit().await;
    load.wait_until_granted(200).await;
    wait_until_it_says(&url, 503, "disk does not answer\n").await;
    assert_eq!(cluster.leader(PATIENCE).await.unwrap(), leader);

    faults.lift();
    cluster.all_ready(PATIENCE).await.unwrap();
    load.verify(&cluster).await;
}

// scylladb/scylladb#16682: it ends when asked, also where its disk never answers.
#[tokio::test]
async fn a_node_whose_disk_hangs_says_so_and_ends_when_it_is_asked_to() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let mut cluster = lone(&faults, directory.path()).await;
    let sequence = world::sequence(&cluster, "p").await;
    let client = world::client(&cluster);
    let before = client.lease(&sequence, RangeCount::ONE).await.unwrap();
    let url = cluster.urls().remove(0);

    faults.plant(DiskFault {
        action: DiskAction::Hang,
        ..fail("fdatasync", "/node-1/", 1)
    });
    let lost = send(
        "POST",
        &format!("{url}/v1/sequences/p/leases?timeout=100ms"),
        "",
        &[],
    )
    .await;
    assert_eq!(
        (lost.status, lost.field("outcome").as_str()),
        (504, "unknown")
    );
    wait_until_it_says(&url, 503, "disk does not answer\n").await;
    let ended = cluster.terminate_all(PATIENCE).await.unwrap();

    assert!(ended.iter().all(|status| status.success()), "{ended:?}");
    faults.lift();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let after = client.lease(&sequence, RangeCount::ONE).await.unwrap();
    assert!(before.last() < after.first() && after.first() <= before.last() + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_waits_for_its_vote_to_be_stored_ends_when_it_is_asked_to() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let mut cluster = three_nodes_of(directory.path(), faults.program(&[])).await;
    world::sequence(&cluster, "p").await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    wait_until_all_have_the_log(&cluster.urls()[0]).await;

    // The next that it has to store is a vote.
    let voter = leader % 3 + 1;
    faults.plant(DiskFault {
        action: DiskAction::Hang,
        ..fail("fdatasync", &format!("/node-{voter}/"), 1)
    });
    cluster.kill(&[leader]).await.unwrap();
    faults.wait_until_hit().await;
    let ended = cluster.terminate(&[voter], Duration::from_secs(30)).await;

    let ended = ended.expect("it waits for its disk");
    assert!(ended.iter().all(ExitStatus::success), "{ended:?}");
    faults.lift();
}
