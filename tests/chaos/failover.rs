//! What the loss of a leader costs those who lease, measured: nobody gets an error, and how long grants pause.
//!
//! Here the runs are short and judge no times. `scripts/failover` makes long ones of the release binary, and judges.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use highwater::RangeCount;
use highwater::chaos::{FlowFault, Proxy};
use highwater::client::{Client, Spread};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::crowd::{self, Crowd, Taken};
use crate::pauses::{Pauses, tell};
use crate::settings::setting;
use crate::world::{PATIENCE, World, proxy_before};

/// Connections at each node that lives on, for values of each sequence.
const EACH: usize = 16;

/// The longest pause between two grants of which the second came after this moment.
fn longest_pause(taken: &[Taken], since: Instant) -> Duration {
    let mut times: Vec<Instant> = taken.iter().map(|taken| taken.at).collect();
    times.sort_unstable();
    let pauses = times.windows(2).filter(|pair| since <= pair[1]);
    pauses
        .map(|pair| pair[1] - pair[0])
        .max()
        .expect("grants went on")
}

/// A crowd for each kind of sequence: `p`, and the cached one.
struct Crowds([Crowd; 2]);

impl Crowds {
    /// So many of each at each of these nodes.
    fn at(urls: &[String], each: usize) -> Self {
        Self([Crowd::at(urls, each), Crowd::of_cached(urls, each)])
    }

    /// Waits for so many more grants of each.
    async fn wait_until_granted(&self, more: u64) {
        let [plain, cached] = &self.0;
        tokio::join!(
            plain.wait_until_granted(more),
            cached.wait_until_granted(more)
        );
    }

    async fn leave(self) -> [Vec<Taken>; 2] {
        let [plain, cached] = self.0;
        let (plain, cached) = tokio::join!(plain.leave(), cached.leave());
        [plain, cached]
    }
}

/// What crowds got in many rounds.
#[derive(Default)]
struct Seen {
    taken: [Vec<Taken>; 2],
    pauses: [Pauses; 2],
}

impl Seen {
    fn take(&mut self, taken: [Vec<Taken>; 2]) {
        for (all, more) in self.taken.iter_mut().zip(taken) {
            all.extend(more);
        }
    }

    fn pauses(&mut self, taken: &[Vec<Taken>; 2], since: Instant) {
        for (pauses, taken) in self.pauses.iter_mut().zip(taken) {
            pauses.0.push(longest_pause(taken, since));
        }
    }

    /// Of `p` no value is missing; what a leader had reserved of the other is.
    async fn check(&mut self, world: &World) {
        let [plain, cached] = std::mem::take(&mut self.taken);
        world.check(crowd::values(&plain)).await;
        crowd::check_order(plain);
        crowd::check_order(cached);
    }

    fn tell(&self, what: &str, variable: &str) {
        let [plain, cached] = &self.pauses;
        plain.tell(what, variable);
        cached.tell(&format!("{what}, of a cached sequence"), variable);
    }
}

// KanishJebaMathewM/Truxify#10682: what may have been appended is sent again, and applied once.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_costs_those_at_other_nodes_a_pause_and_no_error() {
    let mut world = World::with_cached().await;
    let mut seen = Seen::default();
    for _ in 0..setting("FAILOVER_KILLS").unwrap_or(2) {
        let leader = world.leader().await;
        let crowds = Crowds::at(&world.cluster.urls_without(leader), EACH);
        crowds.wait_until_granted(250).await;
        let gone = Instant::now();
        world.cluster.kill(&[leader]).await.unwrap();
        crowds.wait_until_granted(250).await;
        let taken = crowds.leave().await;
        seen.pauses(&taken, gone);
        seen.take(taken);
        world.restart().await;
    }

    seen.check(&world).await;
    seen.tell("leader killed", "FAILOVER_KILL_LIMITS");
}

/// How often a leader may be deposed before it is told to stop.
const DEPOSED_MAX: u32 = 3;

// rqlite/rqlite#1132, tikv/pd#3734: who is asked to end hands over first.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_stop_costs_those_at_other_nodes_next_to_nothing() {
    let mut world = World::with_cached().await;
    let mut seen = Seen::default();
    let mut stops = setting("FAILOVER_STOPS").unwrap_or(2);
    let mut deposed = 0;
    while 0 < stops {
        let leader = world.leader().await;
        let crowds = Crowds::at(&world.cluster.urls_without(leader), EACH);
        crowds.wait_until_granted(250).await;
        let (told, before) = (Instant::now(), world.log_of(leader).len());
        let ended = world.cluster.terminate(&[leader], PATIENCE).await.unwrap();
        assert!(ended.iter().all(std::process::ExitStatus::success));
        let said = world.log_of(leader).split_off(before);
        crowds.wait_until_granted(250).await;
        let taken = crowds.leave().await;
        if said.contains("leadership handed over before this node ends") {
            seen.pauses(&taken, told);
            stops -= 1;
        } else {
            // On a busy machine there may have been an election in between. It has nothing to hand over then.
            deposed += 1;
            assert!(!said.contains("leadership not handed over"), "{said}");
            assert!(deposed <= DEPOSED_MAX, "{said}");
        }
        seen.take(taken);
        world.restart().await;
    }

    seen.check(&world).await;
    seen.tell("leader told to stop", "FAILOVER_STOP_LIMITS");
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

// alibaba/GraphScope#3702: the next node goes on where the dead one was.
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
        proxies.push(proxy_before(&url).await);
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
        proxy.link().answers.set(FlowFault::LoseEvery(every));
    }
    let client = client_of(&proxies);
    let name = "p".parse().unwrap();

    let mut values = Vec::new();
    let wanted = setting("FAILOVER_LOST_ANSWERS").unwrap_or(60);
    let lost = || {
        proxies
            .iter()
            .map(|proxy| proxy.link().answers.lost())
            .sum::<u64>()
    };
    while lost() < wanted {
        let grant = client.lease(&name, RangeCount::ONE).await.unwrap();
        values.push(grant.first());
    }

    assert!(values.is_sorted(), "I2");
    world.check(values).await;
}

// etcd-io/etcd#8673: a worker whose node is cut off without a word turns to another one within its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_vanishes_behind_its_workers_costs_them_no_error_and_no_value() {
    let world = World::new().await;
    let proxies = proxies(&world).await;
    let client = client_of(&proxies);
    let name = "p".parse().unwrap();
    let mut values = Vec::new();

    for proxy in &proxies {
        proxy.link().set(FlowFault::Hold);
        for _ in 0..3 {
            let grant = client.lease(&name, RangeCount::ONE).await.unwrap();
            values.push(grant.first());
        }
        proxy.link().set(FlowFault::Cut);
        for _ in 0..30 {
            let grant = client.lease(&name, RangeCount::ONE).await.unwrap();
            values.push(grant.first());
        }
        proxy.link().set(FlowFault::None);
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

// tikv/pd#1661: it stands still between a request and its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still_grants_nothing_that_was_granted_meanwhile() {
    let mut world = World::with_cached().await;
    let crowds = Crowds::at(&world.cluster.urls(), 8);
    for millis in standstills() {
        let leader = world.leader().await;
        crowds.wait_until_granted(100).await;
        world.cluster.freeze(leader, PATIENCE).await.unwrap();
        wait_while_it_stands(millis).await;
        crowds.wait_until_granted(100).await;
        world.cluster.thaw(leader).unwrap();
        world.all_ready().await;
        // What it had proposed was answered by another meanwhile, and it sends that once more as the leader it is again.
        let led = world.client().transfer_leader(Some(leader)).await;
        assert_eq!(led.unwrap().leader, leader);
        crowds.wait_until_granted(100).await;
    }

    let mut seen = Seen::default();
    seen.take(crowds.leave().await);
    seen.check(&world).await;
}

/// Latencies of one kind of time.
#[derive(Debug, Default)]
struct Latencies(Vec<Duration>);

impl Latencies {
    fn percentile(&self, of: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted[(sorted.len() - 1) * of / 100].as_secs_f64()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_stands_still_costs_the_others_nothing() {
    let mut world = World::new().await;
    let (mut quiet, mut broken) = (Latencies::default(), Latencies::default());
    let mut values = Vec::new();
    let grants = setting("FAILOVER_WINDOW_GRANTS").unwrap_or(500);
    for _ in 0..setting("FAILOVER_STOPPED_FOLLOWERS").unwrap_or(1) {
        let leader = world.leader().await;
        let stopped = leader % 3 + 1;
        for latencies in [&mut quiet, &mut broken] {
            let crowd = Crowd::at(&world.cluster.urls_without(stopped), 8);
            crowd.wait_until_granted(grants).await;
            let taken = crowd.leave().await;
            latencies.0.extend(taken.iter().map(|taken| taken.after));
            values.extend(crowd::values(&taken));
            world.cluster.freeze(stopped, PATIENCE).await.unwrap();
        }
        world.cluster.thaw(stopped).unwrap();
        world.all_ready().await;
    }

    world.check(values).await;
    let limits = setting::<String>("FAILOVER_STOPPED_LIMITS");
    for (of, at) in [50, 99].into_iter().zip(0..) {
        let (quiet, broken) = (quiet.percentile(of), broken.percentile(of));
        let ratio = broken / quiet;
        let text = format!(
            "follower stopped: p{of} {:.2} ms, {ratio:.2} of the {:.2} ms when all run",
            broken * 1e3,
            quiet * 1e3,
        );
        tell(&text);
        if let Some(limits) = &limits {
            let limit: f64 = limits.split(',').nth(at).unwrap().parse().unwrap();
            assert!(ratio <= limit, "{text}: the limit is {limit}");
        }
    }
}

// One setting gives the election time-out: it is long enough where nobody stands for election under steady load.
#[tokio::test(flavor = "multi_thread")]
async fn under_steady_load_every_lease_is_granted_once_and_by_one_leader() {
    let world = World::new().await;
    let led = world.client().cluster().await.unwrap();
    let workers = Workers::of(&world, 8);
    let seconds = setting::<u64>("FAILOVER_STEADY_SECONDS");
    wait_while_it_stands(seconds.unwrap_or(2) * 1000).await;

    let values = workers.leave().await;
    let leads = world.client().cluster().await.unwrap();
    let elections = leads.term - led.term;
    tell(&format!(
        "steady load: {} grants, {elections} elections",
        values.len()
    ));
    world.check(values).await;
    // On a machine that does other things besides, an election is nobody's fault.
    if seconds.is_some() {
        assert_eq!((leads.term, leads.leader), (led.term, led.leader));
    }
}
