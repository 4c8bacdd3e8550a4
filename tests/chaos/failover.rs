//! What the loss of a leader costs those who lease, measured: nobody gets an error, and how long grants pause.
//!
//! Here the runs are short and judge no times. `scripts/failover` makes long ones of the release binary, and judges.

use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use highwater::RangeCount;
use highwater::chaos::{ClusterSize, LinkFault, LocalCluster, Proxy};
use highwater::client::{Client, Spread};
use highwater::wire::{CreateBody, Number};
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::crowd::{Crowd, Taken};
use crate::settings::{program, setting};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections at each node that lives on.
const EACH: usize = 32;

/// Three nodes with the sequence `p`.
struct World {
    cluster: LocalCluster,
    _directory: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut cluster =
            LocalCluster::create(directory.path(), ClusterSize::Three, program()).unwrap();
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
        let world = Self {
            cluster,
            _directory: directory,
        };
        let name = "p".parse().unwrap();
        let settings = CreateBody::default();
        let created = world.client().create_sequence(&name, &settings).await;
        created.unwrap();
        world
    }

    /// A client of all nodes, each in its turn.
    fn client(&self) -> Client {
        let nodes = Client::builder().nodes(self.cluster.urls());
        nodes.spread(Spread::RoundRobin).build().unwrap()
    }

    async fn leader(&mut self) -> u64 {
        self.cluster.leader(PATIENCE).await.unwrap()
    }

    async fn restart(&mut self) {
        self.cluster.start_all().unwrap();
        self.cluster.all_ready(PATIENCE).await.unwrap();
    }

    /// Each request got one value, and no value is missing.
    async fn check(&self, mut values: Vec<u64>) {
        values.sort_unstable();
        let granted = values.len() as u64;
        assert!(values.into_iter().eq(1..=granted), "I1, and dense");
        let name = "p".parse().unwrap();
        let shown = self.client().sequence(&name).await.unwrap();
        assert_eq!(shown.high.and_then(Number::get), Some(granted));
    }
}

/// The longest pause between two grants of which the second came after this moment.
fn longest_pause(taken: &[Taken], since: Instant) -> Duration {
    let mut times: Vec<Instant> = taken.iter().map(|(_, at)| *at).collect();
    times.sort_unstable();
    let pauses = times.windows(2).filter(|pair| since <= pair[1]);
    pauses
        .map(|pair| pair[1] - pair[0])
        .max()
        .expect("grants went on")
}

/// The pauses of many rounds.
#[derive(Debug, Default)]
struct Pauses(Vec<Duration>);

impl Pauses {
    /// The pause that so many of a hundred do not exceed.
    fn percentile(&self, of: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * of).div_ceil(100).max(1) - 1;
        sorted[at].as_secs_f64()
    }

    /// Tells them where the script looks for them, and judges them where it says by what: median, 95th percentile and
    /// maximum in seconds.
    fn tell(&self, what: &str, variable: &str) {
        let found = [50, 95, 100].map(|of| self.percentile(of));
        let mut text = format!("{what}, {} times: pause", self.0.len());
        for (name, seconds) in ["median", "p95", "worst"].iter().zip(found) {
            write!(text, " {name} {seconds:.3} s").unwrap();
        }
        if let Some(path) = setting::<PathBuf>("FAILOVER_SUMMARY") {
            let mut told = std::fs::read_to_string(&path).unwrap_or_default();
            writeln!(told, "{text}").unwrap();
            std::fs::write(path, told).unwrap();
        }
        if let Some(limits) = setting::<String>(variable) {
            let limits = limits.split(',').map(|limit| limit.parse().unwrap());
            for (seconds, limit) in found.into_iter().zip(limits) {
                let limit: f64 = limit;
                assert!(seconds <= limit, "{text}: the limit is {limit} s");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_costs_those_at_other_nodes_a_pause_and_no_error() {
    let mut world = World::new().await;
    let (mut pauses, mut values) = (Pauses::default(), Vec::new());
    for _ in 0..setting("FAILOVER_KILLS").unwrap_or(2) {
        let leader = world.leader().await;
        let crowd = Crowd::at(&world.cluster.urls_without(leader), EACH);
        crowd.wait_until_granted(500).await;
        let gone = Instant::now();
        world.cluster.kill(&[leader]).await.unwrap();
        crowd.wait_until_granted(500).await;
        let taken = crowd.leave().await;
        pauses.0.push(longest_pause(&taken, gone));
        values.extend(taken.into_iter().map(|(value, _)| value));
        world.restart().await;
    }

    world.check(values).await;
    pauses.tell("leader killed", "FAILOVER_KILL_LIMITS");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_stop_costs_those_at_other_nodes_next_to_nothing() {
    let mut world = World::new().await;
    let (mut pauses, mut values) = (Pauses::default(), Vec::new());
    for _ in 0..setting("FAILOVER_STOPS").unwrap_or(2) {
        let leader = world.leader().await;
        let crowd = Crowd::at(&world.cluster.urls_without(leader), EACH);
        crowd.wait_until_granted(500).await;
        let told = Instant::now();
        let ended = world.cluster.terminate(&[leader], PATIENCE).await.unwrap();
        assert!(ended.iter().all(std::process::ExitStatus::success));
        crowd.wait_until_granted(500).await;
        let taken = crowd.leave().await;
        pauses.0.push(longest_pause(&taken, told));
        values.extend(taken.into_iter().map(|(value, _)| value));
        world.restart().await;
    }

    world.check(values).await;
    pauses.tell("leader told to stop", "FAILOVER_STOP_LIMITS");
}

/// Workers with the library, of all nodes, until told to stop. None of them may get an error.
struct Workers {
    stop: CancellationToken,
    leasing: JoinSet<Vec<u64>>,
}

impl Workers {
    fn of(world: &World, count: usize) -> Self {
        let stop = CancellationToken::new();
        let mut leasing = JoinSet::new();
        for _ in 0..count {
            let (client, stop) = (world.client(), stop.clone());
            leasing.spawn(async move {
                let name = "p".parse().unwrap();
                let mut values = Vec::new();
                while !stop.is_cancelled() {
                    let grant = client.lease(&name, RangeCount::ONE).await;
                    values.push(grant.expect("no lease fails").first());
                }
                assert!(values.is_sorted(), "I2");
                values
            });
        }
        Self { stop, leasing }
    }

    async fn leave(self) -> Vec<u64> {
        self.stop.cancel();
        self.leasing.join_all().await.concat()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_costs_workers_of_all_nodes_no_error_and_no_value() {
    let mut world = World::new().await;
    let workers = Workers::of(&world, 16);
    for _ in 0..setting("FAILOVER_ROLLS").unwrap_or(1) {
        for node in 1..=3 {
            let ended = world.cluster.terminate(&[node], PATIENCE).await.unwrap();
            assert!(ended.iter().all(std::process::ExitStatus::success));
            world.restart().await;
        }
    }

    let values = workers.leave().await;
    world.check(values).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_whose_own_node_dies_repeat_with_their_key_and_get_no_error_and_no_gap() {
    let mut world = World::new().await;
    let workers = Workers::of(&world, 16);
    for _ in 0..setting("FAILOVER_KEYED_KILLS").unwrap_or(3) {
        let leader = world.leader().await;
        world.cluster.kill(&[leader]).await.unwrap();
        world.restart().await;
    }

    let values = workers.leave().await;
    world.check(values).await;
}

/// A proxy in front of each node's API.
async fn proxies(world: &World) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    for url in world.cluster.urls() {
        let to = url.strip_prefix("http://").unwrap().parse().unwrap();
        proxies.push(Proxy::start(to).await.unwrap());
    }
    proxies
}

fn client_of(proxies: &[Proxy]) -> Client {
    let nodes = Client::builder().nodes(proxies.iter().map(Proxy::url));
    nodes.spread(Spread::RoundRobin).build().unwrap()
}

// The answer is lost after the commit, and the request sent again with its key at the next node.
#[tokio::test(flavor = "multi_thread")]
async fn of_leases_whose_answers_are_lost_each_is_granted_once() {
    let world = World::new().await;
    let proxies = proxies(&world).await;
    // Two of three answers that come at all.
    for (proxy, every) in proxies.iter().zip([1, 2, 2]) {
        let every = NonZeroU64::new(every).unwrap();
        proxy.set(LinkFault::LoseAnswers { every });
    }
    let client = client_of(&proxies);
    let name = "p".parse().unwrap();

    let mut values = Vec::new();
    let wanted = setting("FAILOVER_LOST_ANSWERS").unwrap_or(60);
    let lost = || proxies.iter().map(Proxy::lost).sum::<u64>();
    while lost() < wanted {
        let grant = client.lease(&name, RangeCount::ONE).await.unwrap();
        values.push(grant.first());
    }

    assert!(values.is_sorted(), "I2");
    world.check(values).await;
}

// A worker whose node is cut off without a word turns to another one within its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_vanishes_behind_its_workers_costs_them_no_error_and_no_value() {
    let world = World::new().await;
    let proxies = proxies(&world).await;
    let client = client_of(&proxies);
    let name = "p".parse().unwrap();
    let mut values = Vec::new();

    for proxy in &proxies {
        proxy.set(LinkFault::BlackHole);
        for _ in 0..3 {
            let grant = client.lease(&name, RangeCount::ONE).await.unwrap();
            values.push(grant.first());
        }
        proxy.set(LinkFault::Cut);
        for _ in 0..30 {
            let grant = client.lease(&name, RangeCount::ONE).await.unwrap();
            values.push(grant.first());
        }
        proxy.set(LinkFault::None);
    }

    assert!(values.is_sorted(), "I2");
    world.check(values).await;
}

/// For how long a leader stands still, in milliseconds.
fn standstills() -> Vec<u64> {
    let asked = setting::<String>("FAILOVER_STANDSTILLS_MS").unwrap_or_else(|| "700".to_owned());
    asked
        .split(',')
        .map(|millis| millis.parse().unwrap())
        .collect()
}

/// Nothing shows that this is over: it is how long the node is stopped.
async fn wait_while_it_stands(millis: u64) {
    sleep(Duration::from_millis(millis)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still_grants_nothing_that_was_granted_meanwhile() {
    let mut world = World::new().await;
    let crowd = Crowd::at(&world.cluster.urls(), 16);
    for millis in standstills() {
        let leader = world.leader().await;
        crowd.wait_until_granted(200).await;
        world.cluster.signal(leader, Signal::STOP).unwrap();
        wait_while_it_stands(millis).await;
        crowd.wait_until_granted(200).await;
        world.cluster.signal(leader, Signal::CONT).unwrap();
        world.cluster.all_ready(PATIENCE).await.unwrap();
    }

    let taken = crowd.leave().await;
    world
        .check(taken.into_iter().map(|(value, _)| value).collect())
        .await;
}
