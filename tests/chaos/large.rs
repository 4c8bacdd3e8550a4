//! A table of many sequences: grants go on while it is saved, and a node that has it starts soon.
//!
//! Here a smaller one. `scripts/snapshots` has a million sequences, and prints what that costs.

use std::time::{Duration, Instant};

use highwater::chaos::{ClusterSize, ProcessUse};
use tokio::time::sleep;

use crate::crowd::{self, Crowd};
use crate::settings::setting;
use crate::snapshots::{Files, make_sequences};
use crate::world::{PATIENCE, World, wait_until_ready};

/// How many sequences; `HIGHWATER_TEST_LARGE_SEQUENCES` asks for more, one less than a table takes at most.
const SEQUENCES: usize = 20_000;
/// After how many entries they are saved; `HIGHWATER_TEST_LARGE_INTERVAL` says another number.
const INTERVAL: u64 = 500;
/// How often they are saved while it is watched.
const SAVES: u64 = 3;
/// Who lease meanwhile.
const WORKERS: usize = 32;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);

/// Grants, and the time in which they were made.
#[derive(Debug, Default)]
struct Rate {
    grants: u64,
    time: Duration,
}

impl Rate {
    fn add(&mut self, grants: u64, time: Duration) {
        self.grants += grants;
        self.time += time;
    }

    fn per_second(&self) -> u64 {
        let millis = u64::try_from(self.time.as_millis()).unwrap().max(1);
        self.grants * 1000 / millis
    }
}

/// Watches until the table was saved so often: grants while the leader saves it, and while it does not.
async fn wait_until_saved(crowd: &Crowd, files: &Files) -> (Rate, Rate) {
    let (mut saving, mut idle) = (Rate::default(), Rate::default());
    let (mut saves, mut saved_before) = (0, false);
    let (mut granted, mut at) = (crowd.granted(), Instant::now());
    let deadline = at + PATIENCE * 10;
    while saves < SAVES {
        sleep(SAMPLE_INTERVAL).await;
        assert!(Instant::now() < deadline, "saved {saves} times only");
        let saves_now = files.is_one_unfinished();
        let (now, granted_now) = (Instant::now(), crowd.granted());
        let rate = if saved_before { &mut saving } else { &mut idle };
        rate.add(granted_now - granted, now - at);
        if saved_before && !saves_now {
            saves += 1;
        }
        (granted, at, saved_before) = (granted_now, now, saves_now);
    }
    (saving, idle)
}

/// Prints how much memory each node has.
pub(crate) fn tell_memory(world: &World) {
    for node in world.cluster.ids() {
        let used = ProcessUse::of(world.cluster.pid(node).unwrap()).unwrap();
        let (now, peak) = (used.memory >> 20, used.memory_peak >> 20);
        eprintln!("node {node}: {now} MiB, at most {peak} MiB");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_many_sequences_is_saved_while_grants_go_on_and_is_there_after_a_restart() {
    let interval = setting("LARGE_INTERVAL").unwrap_or(INTERVAL).to_string();
    let settings = ["--auto-create", "--snapshot-entries", &interval];
    let mut world = World::with_network_and(ClusterSize::Three, &settings).await;
    let sequences = setting("LARGE_SEQUENCES").unwrap_or(SEQUENCES);
    let begun = Instant::now();
    make_sequences(&world.url(1), sequences).await;
    eprintln!("{sequences} sequences made in {:?}", begun.elapsed());
    let leader = world.leader().await;

    let crowd = Crowd::at(&[world.url(leader)], WORKERS);
    let (saving, idle) = wait_until_saved(&crowd, &Files::of(&world, leader)).await;
    let (with, without) = (saving.per_second(), idle.per_second());
    eprintln!(
        "grants/s while it is saved {with} (for {:?}), else {without}",
        saving.time
    );
    tell_memory(&world);
    let taken = crowd.leave().await;

    let follower = leader % 3 + 1;
    world.cluster.kill(&[follower]).await.unwrap();
    let begun = Instant::now();
    world.cluster.start(&[follower]).unwrap();
    wait_until_ready(&world.url(follower)).await;
    let restart = begun.elapsed();
    eprintln!("restarted within {restart:?}");
    // Only where scripts ask for it: a busy machine is slow.
    if let Some(percent) = setting::<u64>("LARGE_PERCENT_MIN") {
        assert!(
            without * percent <= with * 100,
            "{with} of {without} grants/s"
        );
    }
    if let Some(seconds) = setting("LARGE_RESTART_SECONDS_MAX") {
        assert!(restart <= Duration::from_secs(seconds));
    }
    world.check(crowd::values(&taken)).await;
}
