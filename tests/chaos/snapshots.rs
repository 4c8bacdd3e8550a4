//! Snapshots that are built, sent and installed all the time, over links that are slow, by nodes that are killed.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use highwater::chaos::{ClusterSize, Connection, FlowFault};
use highwater::wire::MemberBody;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::crowd::{self, Crowd};
use crate::settings::setting;
use crate::world::{PATIENCE, POLL_INTERVAL, Watched, World};

/// As often as nodes can be told to, so that there is one at every moment.
const SETTINGS: [&str; 3] = ["--snapshot-entries", "100", "--auto-create"];
/// The most leases of one request.
const LEASES_MAX: usize = 256;
/// Who make the sequences.
const MAKERS: usize = 8;
/// Longer than a node takes to write a snapshot of its own.
const ARRIVING_MIN: Duration = Duration::from_millis(300);

/// Nodes with so many sequences, each of which adds some 80 bytes to a snapshot.
async fn world_with_sequences(count: usize) -> World {
    let world = World::with_network_and(ClusterSize::Three, &SETTINGS).await;
    make_sequences(&world.url(1), count).await;
    world
}

/// Has so many sequences made by leases: of all ways the quickest.
pub(crate) async fn make_sequences(url: &str, count: usize) {
    let names: Vec<String> = (0..count).map(|number| format!("s{number}")).collect();
    let mut making = JoinSet::new();
    for names in names.chunks(count.div_ceil(MAKERS).max(1)) {
        making.spawn(lease_from_all(url.to_owned(), names.to_vec()));
    }
    making.join_all().await;
}

async fn lease_from_all(url: String, names: Vec<String>) {
    let mut connection = Connection::open(&url).await.unwrap();
    for names in names.chunks(LEASES_MAX) {
        let leases = names
            .iter()
            .map(|name| serde_json::json!({ "sequence": name }));
        let body = serde_json::Value::from_iter(leases).to_string();
        let path = "/v1/leases?timeout=60s";
        let answer = connection.ask("POST", path, &body).await.unwrap();
        assert_eq!(answer.status, 201);
    }
}

/// No more than so many bytes a second arrive on each connection.
fn slow(bytes_per_second: u64) -> FlowFault {
    let bytes_per_second = NonZeroU64::new(bytes_per_second).unwrap();
    FlowFault::Throttle { bytes_per_second }
}

/// Waits until the leader says this of the node, and tells how it is then.
pub(crate) async fn wait_until_member(
    world: &World,
    node: u64,
    is_so: impl Fn(&MemberBody) -> bool,
) -> MemberBody {
    let client = world.client();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = client.cluster().await.unwrap();
        let mut members = shown.members.iter();
        let member = members.find(|member| member.id == node);
        if let Some(member) = member.filter(|member| is_so(member)) {
            return member.clone();
        }
        assert!(Instant::now() < deadline, "{shown:#?}");
        sleep(POLL_INTERVAL).await;
    }
}

// databendlabs/openraft#1706: the log above the snapshot is purged while that is on its way, so that the next one has to be sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_far_behind_catches_up_over_a_slow_link_while_the_others_serve() {
    let mut world = world_with_sequences(setting("SNAPSHOT_SEQUENCES").unwrap_or(10_000)).await;
    let leader = world.leader().await;
    let behind = leader % 3 + 1;
    let crowd = Crowd::at(&world.cluster.urls_without(behind), 1);
    world.cluster.kill(&[behind]).await.unwrap();
    let left = wait_until_member(&world, leader, |member| member.snapshot_index.is_some()).await;
    let missed = left.match_index.unwrap() + setting("SNAPSHOT_MISSED_ENTRIES").unwrap_or(500);
    wait_until_member(&world, leader, |member| {
        Some(missed) < member.snapshot_index
    })
    .await;

    world.network().set_to(behind, slow(200_000));
    world.cluster.start_all().unwrap();
    let begun = Instant::now();
    let normal = |member: &MemberBody| {
        Some(missed) < member.snapshot_index && member.lag.is_some_and(|lag| lag < 64)
    };
    wait_until_member(&world, behind, normal).await;
    eprintln!("caught up after {:?}", begun.elapsed());
    crowd.wait_until_granted(100).await;

    let taken = crowd.leave().await;
    world.check(crowd::values(&taken)).await;
}

// Nothing is answered while an append arrives, and a connection on which nothing comes is cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_lacks_large_entries_catches_up_over_a_slow_link() {
    let mut world = World::with_network_and(ClusterSize::Three, &["--auto-create"]).await;
    let leader = world.leader().await;
    let behind = leader % 3 + 1;
    world.cluster.kill(&[behind]).await.unwrap();
    make_sequences(&world.url(leader), 50_000).await;

    world.network().set_to(behind, slow(200_000));
    world.cluster.start_all().unwrap();
    let caught_up = |member: &MemberBody| member.lag == Some(0);
    wait_until_member(&world, behind, caught_up).await;

    world.wait_for_one_state().await;
}

/// The snapshots in a node's directory.
pub(crate) struct Files {
    directory: PathBuf,
}

impl Files {
    pub(crate) fn of(world: &World, node: u64) -> Self {
        let directory = world.cluster.data_dir(node).unwrap().join("snapshots");
        Self { directory }
    }

    /// Those with this extension, and their bytes. What goes while it is looked at is not there.
    fn with(&self, extension: &str) -> BTreeMap<PathBuf, u64> {
        let entries = std::fs::read_dir(&self.directory).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.extension().is_some_and(|found| found == extension))
            .filter_map(|path| Some((path.clone(), std::fs::metadata(&path).ok()?.len())))
            .collect()
    }

    /// Whether one is being written.
    pub(crate) fn is_one_unfinished(&self) -> bool {
        !self.with("new").is_empty()
    }

    fn whole(&self) -> BTreeMap<PathBuf, u64> {
        self.with("snapshot")
    }

    /// Those of which so much is there, beside a whole one of about their size.
    fn unfinished(&self, percent: u64) -> impl Iterator<Item = PathBuf> {
        let whole = self.whole().into_values().max().unwrap_or(0);
        let enough = move |bytes| 0 < bytes && whole * percent / 100 <= bytes;
        let files = self.with("new").into_iter();
        files.filter_map(move |(path, bytes)| enough(bytes).then_some(path))
    }

    /// Waits until so much of one is written.
    async fn wait_until_unfinished(&self, percent: u64) {
        self.wait_until(|files| files.unfinished(percent).next().is_some())
            .await;
    }

    /// Waits until so much of one has come over a slow link.
    async fn wait_until_arrived(&self, percent: u64) {
        let mut seen = BTreeMap::new();
        self.wait_until(|files| {
            let begun = |path| *seen.entry(path).or_insert_with(Instant::now);
            let mut since = files.unfinished(0).map(begun);
            since.any(|since| ARRIVING_MIN < since.elapsed())
        })
        .await;
        self.wait_until_unfinished(percent).await;
    }

    async fn wait_until(&self, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{}", self.directory.display());
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// What becomes of a snapshot while a node is killed.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// The node that builds it is killed.
    Built,
    /// The leader that sends it.
    Sent,
    /// The node that receives it.
    Received,
    /// That one when it has all of it.
    Installed,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Built, Self::Sent, Self::Received, Self::Installed];

    /// Kills the node as soon as so much of the snapshot is there, and says whether it was hit then.
    async fn hit(self, world: &mut World, watched: &Watched, percent: u64) -> bool {
        let leader = world.leader().await;
        if matches!(self, Self::Built) {
            // At a leader, and at a follower that builds its own.
            let builder = if percent < 50 { leader } else { leader % 3 + 1 };
            let files = Files::of(world, builder);
            files.wait_until_unfinished(percent).await;
            world.cluster.kill(&[builder]).await.unwrap();
            return files.is_one_unfinished();
        }
        let behind = leader % 3 + 1;
        fall_behind(world, watched, behind).await;
        let files = Files::of(world, behind);
        let before = files.whole();
        match self {
            Self::Built | Self::Received => {
                files.wait_until_arrived(percent).await;
                world.cluster.kill(&[behind]).await.unwrap();
                files.is_one_unfinished()
            }
            Self::Sent => {
                files.wait_until_arrived(percent).await;
                world.cluster.kill(&[leader]).await.unwrap();
                // What the leader has given to the network does not arrive either.
                world.network().set_to(behind, FlowFault::Cut);
                files.whole() == before
            }
            Self::Installed => {
                files.wait_until_arrived(percent).await;
                files.wait_until(|files| files.whole() != before).await;
                world.cluster.kill(&[behind]).await.unwrap();
                // The one before it goes when it counts no more.
                files.whole().len() == 2
            }
        }
    }
}

/// Up to where its log is purged.
fn purged(member: &MemberBody) -> Option<u64> {
    member.match_index?.checked_sub(member.log_entries?)
}

/// Stops this node until what it lacks is purged, and starts it where only a snapshot brings it back, slowly.
async fn fall_behind(world: &mut World, watched: &Watched, node: u64) {
    world.cluster.kill(&[node]).await.unwrap();
    watched.wait_until_granted(1).await;
    let leader = world.leader().await;
    let now = wait_until_member(world, leader, |leader| leader.match_index.is_some()).await;
    let has = now.match_index.unwrap();
    // A snapshot above it is not enough: what the node lacks is kept for it as long as that is less than a snapshot.
    wait_until_member(world, leader, |leader| {
        purged(leader).is_some_and(|purged| has < purged)
    })
    .await;
    // About two seconds for whatever there is to send.
    let bytes = Files::of(world, leader).whole().into_values().max();
    world.network().set_to(node, slow(bytes.unwrap() / 2));
    world.cluster.start(&[node]).unwrap();
}

// databendlabs/openraft#753, rqlite/rqlite#2759, canonical/raft#199: whoever is killed with half a snapshot starts again by itself,
// and holds what the others hold.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_killed_while_a_snapshot_is_built_sent_or_installed_start_again_with_one_state()
 {
    let mut world = world_with_sequences(1_000).await;
    let watched = Watched::at_each(&world, 1);
    for round in 0..setting("SNAPSHOT_KILLS").unwrap_or(4) {
        let phase = Phase::ALL[round % Phase::ALL.len()];
        // Another point of it each time.
        let percent = u64::try_from(round * 37 % 100).unwrap();
        let mut tries = 0;
        loop {
            let hit = phase.hit(&mut world, &watched, percent).await;
            world.network().heal();
            world.restart().await;
            tries += 1;
            if hit {
                break;
            }
            assert!(tries < 20, "{phase:?} was never hit");
        }
        eprintln!("round {round}: {phase:?} at {percent} %, {tries} tries");
        for node in world.cluster.ids() {
            watched.lease_at(&world, node).await;
        }
    }

    watched.leave(&world).await;
}
