//! Full disks: nothing is promised that cannot be kept, and what was refused is served again once there is room.

use std::path::Path;
use std::time::Instant;

use highwater::RangeCount;
use highwater::chaos::{ClusterSize, DiskAction, DiskFault, LocalCluster, Program};
use highwater::wire::ProblemOutcome;

use crate::load::Load;
use crate::mounts::{self, SmallDisk};
use crate::pages::{assert_prints, printing};
use crate::preload::Faults;
use crate::world::{
    self, PATIENCE, POLL_INTERVAL, send, wait_until_all_have_the_log, wait_until_it_says,
    wait_until_led_by_another, wait_until_one_ends,
};

const MIB: u64 = 1024 * 1024;
/// Room for a node's database, its ballast and the floor.
const DISK_MIB: u64 = 96;
/// The floor of these nodes: in MiB.
const FLOOR: u64 = 24;

/// What fills the last of a segment in a few seconds: many workers, and a name as long as can be.
const CROWD: usize = 32;

fn long_name() -> String {
    "p".repeat(highwater::NAME_LENGTH_MAX)
}

fn floor(mib: u64) -> String {
    format!("HIGHWATER_DISK_FREE_MIB_MIN={mib}")
}

/// The program, told this floor.
fn program(floor_mib: u64) -> Program {
    let arguments = [floor(floor_mib), env!("CARGO_BIN_EXE_highwater").to_owned()];
    Program {
        path: "/usr/bin/env".into(),
        arguments: arguments.map(Into::into).to_vec(),
    }
}

/// A cluster of which each node has a small disk of its own, running.
async fn start(
    directory: &Path,
    size: ClusterSize,
    program: Program,
) -> (LocalCluster, Vec<SmallDisk>) {
    let mut cluster = LocalCluster::create(directory, size, program).unwrap();
    let mount = |id| SmallDisk::mount(cluster.data_dir(id).unwrap(), DISK_MIB);
    let disks = cluster.ids().into_iter().map(mount).collect();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    (cluster, disks)
}

fn of<T>(all: &[T], node: u64) -> &T {
    &all[usize::try_from(node - 1).unwrap()]
}

/// What the node says of itself.
async fn readiness(url: &str) -> (u16, String) {
    let answer = send("GET", &format!("{url}/readyz"), "", &[]).await;
    (answer.status, answer.text)
}

async fn wait_until_logged(directory: &Path, node: u64, text: &str) {
    let log = directory.join(format!("node-{node}.log"));
    let deadline = Instant::now() + PATIENCE;
    while !std::fs::read_to_string(&log).unwrap().contains(text) {
        assert!(Instant::now() < deadline, "never logged: {text}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_leaves_a_disk_below_its_floor_and_grants_go_on() {
    if !mounts::are_private("disk_full::leadership_leaves_a_disk_below_its_floor_and_grants_go_on")
    {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (mut cluster, disks) = start(directory.path(), ClusterSize::Three, program(FLOOR)).await;
    let sequence = world::sequence(&cluster, "p").await;
    let load = Load::start(&cluster, &sequence, 4, directory.path());
    load.wait_until_granted(50).await;

    // Twice, because the second leader's disk may be the one that is filled next.
    for _ in 0..2 {
        let full = cluster.leader(PATIENCE).await.unwrap();
        of(&disks, full).fill((FLOOR - 2) * MIB);

        wait_until_led_by_another(&mut cluster, full).await;
        load.wait_until_granted(100).await;
        let url = of(&cluster.urls(), full).clone();
        wait_until_it_says(&url, 503, "disk full\n").await;
        let read = send("GET", &format!("{url}/v1/sequences/p"), "", &[]).await;
        assert_eq!(read.status, 200, "{}", read.text);

        of(&disks, full).clear();
        wait_until_it_says(&url, 200, "ok\n").await;
    }

    load.verify(&cluster).await;
}

// ArcadeData/arcadedb#5345, baidu/braft#200: a full disk refuses, and is forgotten once there is room.
#[tokio::test(flavor = "multi_thread")]
async fn where_every_disk_is_full_leases_are_refused_and_reads_answered_until_there_is_room() {
    if !mounts::are_private(
        "disk_full::where_every_disk_is_full_leases_are_refused_and_reads_answered_until_there_is_room",
    ) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (mut cluster, disks) = start(directory.path(), ClusterSize::Three, program(FLOOR)).await;
    let sequence = world::sequence(&cluster, "p").await;
    let client = world::client(&cluster);
    let before = client.lease(&sequence, RangeCount::ONE).await.unwrap();
    let leader = cluster.leader(PATIENCE).await.unwrap();

    for disk in &disks {
        disk.fill((FLOOR - 2) * MIB);
    }
    for url in cluster.urls() {
        wait_until_it_says(&url, 503, "disk full\n").await;
        let refused = refused_for_its_disk(&url).await;
        assert_eq!(refused.field("outcome"), "not_applied");
        assert_eq!(refused.field("retryable"), "true");
        assert_eq!(refused.headers["retry-after"], "1");
        assert_eq!(
            refused.field("detail"),
            "the leader's disk is full, and no node with room can lead"
        );
        assert_eq!(
            refused.field("hint"),
            "free space on the nodes' disks: grants resume by themselves"
        );
        let read = send("GET", &format!("{url}/v1/sequences/p"), "", &[]).await;
        assert_eq!((read.status, read.field("high").as_str()), (200, "1"));
    }

    // Room for one that does not lead is room for the cluster.
    let other = cluster.ids().into_iter().find(|id| *id != leader).unwrap();
    of(&disks, other).clear();
    let deadline = Instant::now() + PATIENCE;
    let after = loop {
        match client.lease(&sequence, RangeCount::ONE).await {
            Ok(grant) => break grant,
            Err(error) => assert_eq!(error.outcome(), ProblemOutcome::NotApplied, "{error}"),
        }
        assert!(Instant::now() < deadline, "room at a follower is not used");
    };
    assert_eq!(
        after.first(),
        before.last() + 1,
        "the refused leases used up nothing"
    );
    assert_eq!(cluster.leader(PATIENCE).await.unwrap(), other);
}

/// The first refusal that is for the disk: those before it may still wait for another leader.
async fn refused_for_its_disk(url: &str) -> world::Answer {
    let deadline = Instant::now() + PATIENCE;
    let leases = format!("{url}/v1/sequences/p/leases?timeout=2s");
    loop {
        let answer = send("POST", &leases, "", &[]).await;
        assert_eq!(answer.status, 503, "{}", answer.text);
        if answer.field("code") == "disk_full" {
            return answer;
        }
        assert!(Instant::now() < deadline, "{}", answer.text);
    }
}

// tikv/raft-engine#344, databendlabs/databend#18988: starts on the disk that is still full, and needs no repair after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_filled_to_its_last_byte_ends_the_node_and_its_start_needs_no_repair() {
    if !mounts::are_private(
        "disk_full::a_disk_filled_to_its_last_byte_ends_the_node_and_its_start_needs_no_repair",
    ) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // Without a floor, so that only the last byte counts.
    let (mut cluster, disks) = start(directory.path(), ClusterSize::One, program(0)).await;
    let sequence = world::sequence(&cluster, &long_name()).await;
    let load = Load::start(&cluster, &sequence, CROWD, directory.path());
    load.wait_until_granted(100).await;
    let data_dir = cluster.data_dir(1).unwrap().to_owned();
    let full = format!(
        "highwater: the disk of {} is full: free some, then start the node again: ",
        data_dir.display()
    );
    assert!(data_dir.join("ballast").exists());

    disks[0].fill_whole();
    let ended = wait_until_one_ends(&mut cluster).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.last_line.starts_with(&full), "{ended:?}");

    // The ballast makes room for a start, and for as much as fits into it.
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    assert!(!data_dir.join("ballast").exists());
    load.wait_until_granted(10).await;
    disks[0].fill_whole();
    let ended = wait_until_one_ends(&mut cluster).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.last_line.starts_with(&full), "{ended:?}");

    // Now there is none left. The node waits for room, and then serves.
    cluster.start_all().unwrap();
    wait_until_logged(
        directory.path(),
        1,
        "no room for a start: the node waits for it",
    )
    .await;
    let url = cluster.urls().remove(0);
    assert_eq!(readiness(&url).await, (503, "starting\n".to_owned()));
    disks[0].clear();
    cluster.all_ready(PATIENCE).await.unwrap();
    load.wait_until_granted(100).await;
    // And is prepared for the next time.
    wait_until_there(&data_dir.join("ballast")).await;

    load.verify(&cluster).await;
}

async fn wait_until_there(path: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} is not made", path.display());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_disk_is_full_ends_and_returns_while_the_others_grant() {
    if !mounts::are_private(
        "disk_full::a_follower_whose_disk_is_full_ends_and_returns_while_the_others_grant",
    ) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (mut cluster, disks) = start(directory.path(), ClusterSize::Three, program(FLOOR)).await;
    let sequence = world::sequence(&cluster, &long_name()).await;
    let load = Load::start(&cluster, &sequence, CROWD, directory.path());
    load.wait_until_granted(50).await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let follower = cluster.ids().into_iter().find(|id| *id != leader).unwrap();

    of(&disks, follower).fill_whole();
    let ended = wait_until_one_ends(&mut cluster).await;
    assert_eq!((ended.node, ended.code), (follower, Some(1)), "{ended:?}");
    assert!(
        ended
            .last_line
            .contains(" is full: free some, then start the node again: "),
        "{ended:?}"
    );
    load.wait_until_granted(100).await;

    cluster.start_all().unwrap();
    of(&disks, follower).clear();
    cluster.all_ready(PATIENCE).await.unwrap();
    load.wait_until_granted(100).await;
    load.verify(&cluster).await;
}

/// The term and the leader in it, as this node sees them.
async fn leadership(url: &str) -> (String, String) {
    let shown = send("GET", &format!("{url}/v1/cluster"), "", &[]).await;
    (shown.field("term"), shown.field("leader"))
}

// A hand-over that the chosen node does not carry out leaves a leader that can grant, and no election.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_hand_over_comes_to_nothing_leads_on() {
    if !mounts::are_private("disk_full::a_leader_whose_hand_over_comes_to_nothing_leads_on") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::new(directory.path());
    let program = faults.program(&[&floor(FLOOR)]);
    let (mut cluster, disks) = start(directory.path(), ClusterSize::Three, program).await;
    let sequence = world::sequence(&cluster, "p").await;
    let client = world::client(&cluster);
    client.lease(&sequence, RangeCount::ONE).await.unwrap();
    let leader = cluster.leader(PATIENCE).await.unwrap();
    let url = of(&cluster.urls(), leader).clone();
    let before = leadership(&url).await;
    // Then the next thing that a follower has to store is a vote.
    wait_until_all_have_the_log(&url).await;

    // One follower cannot store a vote, and nobody knows yet; the other one's disk is full as well.
    let (hung, full) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    faults.plant(DiskFault {
        call: "fdatasync",
        path: &format!("/node-{hung}/"),
        nth: 1,
        action: DiskAction::Hang,
    });
    of(&disks, full).fill((FLOOR - 2) * MIB);
    of(&disks, leader).fill((FLOOR - 2) * MIB);
    refused_for_its_disk(&url).await;
    faults.wait_until_hit().await;
    let in_vain = format!("node {hung} was asked to lead, and nobody else led within");
    wait_until_logged(directory.path(), leader, &in_vain).await;

    of(&disks, leader).clear();
    let leases = format!("{url}/v1/sequences/p/leases");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = send("POST", &leases, "", &[]).await;
        if answer.status == 201 {
            break;
        }
        assert!(Instant::now() < deadline, "it has room: {}", answer.text);
    }
    assert_eq!(leadership(&url).await, before);
    faults.lift();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_on_the_page_about_full_disks_does_what_it_says() {
    if !mounts::are_private(
        "disk_full::every_command_on_the_page_about_full_disks_does_what_it_says",
    ) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (cluster, disks) = start(path, ClusterSize::One, program(FLOOR)).await;
    let sequence = world::sequence(&cluster, "photos").await;
    let client = world::client(&cluster);
    client.lease(&sequence, RangeCount::ONE).await.unwrap();
    std::fs::create_dir(path.join("data")).unwrap();
    std::os::unix::fs::symlink(cluster.data_dir(1).unwrap(), path.join("data/1")).unwrap();
    let url = cluster.urls().remove(0);
    disks[0].fill((FLOOR - 2) * MIB);
    wait_until_it_says(&url, 503, "disk full\n").await;

    let examples = printing(include_str!("../../docs/disk-full.md"));

    assert_eq!(examples.len(), 7, "the page has its commands");
    for (command, output) in examples {
        let command = command.replace("http://127.0.0.1:7101", &url);
        assert_prints(path, &url, &command, &output);
    }
}
