//! A long run: many grants through a cluster of real processes, with snapshots and purges all the while. Every value is
//! checked; memory, disk and log must level off; all nodes must end in one state; a restart must be short.
//!
//! Here it is a short one. `scripts/soak` runs ten million grants on the release binary.

mod ledger;
mod load;
mod samples;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use highwater::SequenceName;
use highwater::chaos::{ClusterSize, Connection, LocalCluster};
use highwater::client::Client;
use highwater::wire::{ClusterBody, GrantBody, Number, SequenceBody};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::load::Load;
use self::samples::{NodeSample, Sample, levels_off, series, snapshots, table};
use crate::settings::{program, setting};
use crate::world::wait_for_one_state;

/// Longer than anything takes on a busy machine, but for the run itself.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Grants of a short run. `HIGHWATER_TEST_SOAK_GRANTS` asks for more.
const GRANTS: u64 = 60_000;
/// The interval of snapshots in a short run, so that there are several on every node.
const SNAPSHOT_ENTRIES: &str = "500";
/// Workers that lease one value at a time, and those that lease many at once.
const SINGLE_WORKERS: usize = 6;
const SEVERAL_WORKERS: usize = 3;
/// Sequences they share.
const SEQUENCES: usize = 64;
/// Samples of a run, evenly spaced in grants.
const SAMPLES: u64 = 60;
/// With so many snapshots a run is long enough to judge whether what it uses levels off.
const LEVEL_SNAPSHOTS_MIN: usize = 6;

/// What a node may use in any run.
const MEMORY_MAX: u64 = 384 * 1024 * 1024;
const DISK_MAX: u64 = 768 * 1024 * 1024;
/// A snapshot is due after 10,000 entries or 64 MiB, and 1,000 entries are kept below it; beside that there is what comes
/// while one is being written.
const LOG_ENTRIES_MAX: u64 = 16_000;
const LOG_BYTES_MAX: u64 = 160 * 1024 * 1024;

async fn ask(url: &str, method: &str, path: &str) -> (u16, Vec<u8>) {
    let asked = async {
        let mut connection = Connection::open(url).await.unwrap();
        connection.ask(method, path, "").await.unwrap()
    };
    let answer = timeout(PATIENCE, asked).await.unwrap();
    (answer.status, answer.body)
}

async fn shown(url: &str) -> ClusterBody {
    let (status, body) = ask(url, "GET", "/v1/cluster").await;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    serde_json::from_slice(&body).unwrap()
}

/// Waits for the end of the load, and looks at the nodes meanwhile.
async fn wait_and_sample(cluster: &mut LocalCluster, load: &Load, wanted: u64) -> Vec<Sample> {
    let begun = Instant::now();
    let url = cluster.urls().remove(0);
    let mut samples = Vec::new();
    while !load.is_done() {
        let next = wanted / SAMPLES * samples.len() as u64;
        while load.grants() < next && !load.is_done() {
            cluster.check_alive().unwrap();
            sleep(POLL_INTERVAL).await;
        }
        let shown = shown(&url).await;
        // While there is no leader, nobody knows how the members are.
        if shown
            .members
            .iter()
            .all(|member| member.log_bytes.is_some())
        {
            let now = (begun.elapsed(), load.grants());
            samples.push(Sample::of(cluster, &shown, now));
        }
    }
    samples
}

/// Has the grants leased.
async fn run(cluster: &mut LocalCluster, load: &Arc<Load>, wanted: u64) -> Vec<Sample> {
    let mut workers = JoinSet::new();
    for number in 0..SINGLE_WORKERS {
        workers.spawn(Arc::clone(load).lease_singles(number));
    }
    for number in 0..SEVERAL_WORKERS {
        workers.spawn(Arc::clone(load).lease_several(number));
    }
    let failed = async {
        while let Some(ended) = workers.join_next().await {
            ended.unwrap().unwrap();
        }
    };
    let (samples, ()) = tokio::join!(wait_and_sample(cluster, load, wanted), failed);
    samples
}

/// Whether the marks are what was granted, and nothing is missing that was not lost on the way.
async fn check_marks(url: &str, load: &Load) {
    let mut missing = 0;
    for (name, (granted, gaps)) in load.granted() {
        let (status, body) = ask(url, "GET", &format!("/v1/sequences/{name}")).await;
        assert_eq!(status, 200);
        let sequence: SequenceBody = serde_json::from_slice(&body).unwrap();
        let high = sequence.high.and_then(Number::get).unwrap_or(0);
        assert!(granted <= high, "I3: {name} fell to {high} from {granted}");
        missing += gaps + high - granted;
    }
    let unknown = load.unknown();
    assert!(
        missing <= unknown,
        "{missing} values are missing, and {unknown} were lost on the way"
    );
}

/// Stops all nodes in good order and starts them again; how long they took to be ready.
async fn restart(cluster: &mut LocalCluster) -> Duration {
    let ended = cluster.terminate_all(PATIENCE).await.unwrap();
    assert!(ended.iter().all(|status| status.success()), "{ended:?}");
    let begun = Instant::now();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    begun.elapsed()
}

/// The next value of each sequence follows its mark.
async fn check_continuation(url: &str, load: &Load) {
    for name in load.granted().into_keys() {
        let (_, before) = ask(url, "GET", &format!("/v1/sequences/{name}")).await;
        let before: SequenceBody = serde_json::from_slice(&before).unwrap();
        let (status, body) = ask(url, "POST", &format!("/v1/sequences/{name}/leases")).await;
        assert_eq!(status, 201, "{}", String::from_utf8_lossy(&body));
        let grant: GrantBody = serde_json::from_slice(&body).unwrap();
        load.check(&grant).unwrap();
        let high = before.high.and_then(Number::get).unwrap_or(0);
        assert_eq!(grant.first.get(), Some(high + 1), "{name} has a gap");
    }
}

fn check_use(samples: &[Sample]) {
    for node in 0..samples[0].nodes.len() {
        let of = |what: fn(&NodeSample) -> u64| series(samples, node, what);
        let limits: [(&str, Vec<u64>, u64); 4] = [
            ("memory", of(|node| node.used.memory), MEMORY_MAX),
            ("disk", of(|node| node.disk), DISK_MAX),
            ("log entries", of(|node| node.log_entries), LOG_ENTRIES_MAX),
            ("log bytes", of(|node| node.log_bytes), LOG_BYTES_MAX),
        ];
        for (what, values, limit) in limits {
            let most = values.iter().copied().max().unwrap_or_default();
            let node = node + 1;
            assert!(
                most <= limit,
                "{what} of node {node}: {most}, limit {limit}"
            );
            if LEVEL_SNAPSHOTS_MIN <= snapshots(samples, node - 1) {
                levels_off(&format!("{what} of node {node}"), &values).unwrap();
            }
        }
    }
}

struct Outcome<'a> {
    load: &'a Load,
    samples: &'a [Sample],
    seconds: f64,
    state_hash: String,
    restart: Duration,
}

impl Outcome<'_> {
    fn text(&self) -> String {
        let last = self.samples.last().unwrap();
        let (load, grants) = (self.load, self.load.grants());
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = grants as f64 / self.seconds;
        let each = |of: &dyn Fn(usize) -> String| {
            let nodes: Vec<_> = (0..last.nodes.len()).map(of).collect();
            nodes.join(" / ")
        };
        let amplification = |at: usize| format!("{:.1}", last.nodes[at].write_amplification());
        let written = |at: usize| (last.nodes[at].used.written >> 20).to_string();
        let appended = |at: usize| (last.nodes[at].appended >> 20).to_string();
        let peak = |at: usize| (last.nodes[at].used.memory_peak >> 20).to_string();
        format!(
            "{grants} grants ({} leased by themselves) in {:.1} s, {rate:.0} a second\n\
             each value once, every mark is what was granted; {} values of unknown outcome, {} requests refused and sent again\n\
             one state on all nodes: {}\n\
             snapshots: {}; restart of all nodes: ready after {:.2} s\n\
             written to disk by each process: {} MiB, for {} MiB of log records: write amplification {}\n\
             memory peak: {} MiB\n\n{}",
            load.singles(),
            self.seconds,
            load.unknown(),
            load.refused(),
            self.state_hash,
            each(&|at| snapshots(self.samples, at).to_string()),
            self.restart.as_secs_f64(),
            each(&written),
            each(&appended),
            each(&amplification),
            each(&peak),
            table(self.samples, 20),
        )
    }

    fn json(&self) -> String {
        let last = self.samples.last().unwrap();
        let amplification = last.nodes.iter().map(NodeSample::write_amplification);
        json!({
            "grants": self.load.grants(),
            "singles": self.load.singles(),
            "unknown": self.load.unknown(),
            "refused": self.load.refused(),
            "seconds": self.seconds,
            "state_hash": self.state_hash,
            "restart_seconds": self.restart.as_secs_f64(),
            "write_amplification": amplification.collect::<Vec<_>>(),
            "samples": samples::to_json(self.samples),
        })
        .to_string()
    }

    /// Leaves it where the script looks for it.
    fn write(&self) {
        if let Some(path) = setting::<PathBuf>("SOAK_SUMMARY") {
            std::fs::write(path.with_extension("txt"), self.text()).unwrap();
            std::fs::write(path.with_extension("json"), self.json()).unwrap();
        }
    }
}

// sebadob/hiqlite v0.11.0: log files that are never cleaned. databendlabs/openraft#1273: memory and disk that grow.
#[tokio::test(flavor = "multi_thread")]
async fn memory_disk_and_log_level_off_and_every_value_is_granted_once() {
    let asked = setting("SOAK_GRANTS");
    let wanted = asked.unwrap_or(GRANTS);
    let directory = tempfile::tempdir().unwrap();
    let mut cluster =
        LocalCluster::create(directory.path(), ClusterSize::Three, program()).unwrap();
    if asked.is_none() {
        cluster.serve_with(&["--snapshot-entries", SNAPSHOT_ENTRIES]);
    }
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let url = cluster.urls().remove(0);
    let client = Client::builder().nodes([&url]).build().unwrap();
    let names = (0..SEQUENCES).map(|number| format!("soak.sequence-{number:02}"));
    let names: Vec<SequenceName> = names.map(|name| name.parse().unwrap()).collect();
    for name in &names {
        assert_eq!(
            ask(&url, "PUT", &format!("/v1/sequences/{name}")).await.0,
            201
        );
    }
    let load = Arc::new(Load::new(cluster.urls(), names, wanted));
    let begun = Instant::now();

    let samples = run(&mut cluster, &load, wanted).await;

    let seconds = begun.elapsed().as_secs_f64();
    wait_for_one_state(&client, PATIENCE).await;
    check_marks(&url, &load).await;
    let sequences = ask(&url, "GET", "/v1/sequences").await;
    let restart = restart(&mut cluster).await;
    let outcome = Outcome {
        load: &load,
        samples: &samples,
        seconds,
        state_hash: wait_for_one_state(&client, PATIENCE).await,
        restart,
    };
    outcome.write();
    // Each start opens a session, so the state as a whole is another.
    let after = ask(&url, "GET", "/v1/sequences").await;
    assert!(after == sequences, "a restart changed the sequences");
    check_continuation(&url, &load).await;
    wait_for_one_state(&client, PATIENCE).await;
    check_use(&samples);
    for node in 0..3 {
        assert!(0 < snapshots(&samples, node), "too short for a snapshot");
    }
    if let Some(limit) = setting::<f64>("SOAK_RESTART_SECONDS_MAX") {
        let took = restart.as_secs_f64();
        assert!(took <= limit, "ready after {took} s, the limit is {limit}");
    }
}
