//! What the tests share: a cluster with one sequence, its network, and those who lease from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use highwater::chaos::{
    ClusterSize, Connection, HarnessError, LocalCluster, Network, Program, Progress, Proxy,
    Recorder, Worker, monotonic_ns,
};
use highwater::client::{Client, Spread};
use highwater::history::{Checker, GapRule, Line, Mark, Operation, Source, Verdict, read_history};
use highwater::wire::{CreateBody, Number};
use highwater::{RangeCount, SequenceName};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::settings::program;

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is looked at again.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Nodes with the sequence `p`.
pub(crate) struct World {
    pub(crate) cluster: LocalCluster,
    pub(crate) directory: tempfile::TempDir,
}

impl World {
    /// Three nodes.
    pub(crate) async fn new() -> Self {
        Self::with(&[]).await
    }

    /// The same, with a sequence `cached` beside the other, of which a window lasts for a moment.
    pub(crate) async fn with_cached() -> Self {
        let world = Self::new().await;
        let settings = CreateBody {
            cache: Some(500.into()),
            ..CreateBody::default()
        };
        let cached = "cached".parse().unwrap();
        let created = world.client().create_sequence(&cached, &settings).await;
        created.unwrap();
        world
    }

    /// The same, started with these settings.
    pub(crate) async fn with(settings: &[&str]) -> Self {
        Self::of(program(), settings).await
    }

    /// The same, of this program.
    pub(crate) async fn of(program: Program, settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let cluster = LocalCluster::create(directory.path(), ClusterSize::Three, program);
        let mut cluster = cluster.unwrap();
        cluster.serve_with(settings);
        Self::start(cluster, directory).await
    }

    /// Nodes with a network between them that can be made to fail.
    pub(crate) async fn with_network(size: ClusterSize) -> Self {
        Self::with_network_and(size, &[]).await
    }

    /// The same, started with these settings.
    pub(crate) async fn with_network_and(size: ClusterSize, settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let cluster = LocalCluster::create_with_network(directory.path(), size, program()).await;
        let mut cluster = cluster.unwrap();
        cluster.serve_with(settings);
        Self::start(cluster, directory).await
    }

    async fn start(cluster: LocalCluster, directory: tempfile::TempDir) -> Self {
        let mut world = Self { cluster, directory };
        world.restart().await;
        let settings = CreateBody::default();
        let created = world.client().create_sequence(&p(), &settings).await;
        created.unwrap();
        world
    }

    pub(crate) fn network(&self) -> &Network {
        self.cluster.network().unwrap()
    }

    pub(crate) fn url(&self, node: u64) -> String {
        self.cluster.url(node).unwrap()
    }

    /// A client of all nodes, each in its turn.
    pub(crate) fn client(&self) -> Client {
        let nodes = Client::builder().nodes(self.cluster.urls());
        nodes.spread(Spread::RoundRobin).build().unwrap()
    }

    pub(crate) fn log_of(&self, node: u64) -> String {
        let log = self.directory.path().join(format!("node-{node}.log"));
        std::fs::read_to_string(log).unwrap()
    }

    pub(crate) async fn leader(&mut self) -> u64 {
        self.cluster.leader(PATIENCE).await.unwrap()
    }

    pub(crate) async fn restart(&mut self) {
        self.cluster.start_all().unwrap();
        self.all_ready().await;
    }

    pub(crate) async fn all_ready(&mut self) {
        self.cluster.all_ready(PATIENCE).await.unwrap();
    }

    /// The mark of the sequence.
    pub(crate) async fn high(&self) -> u64 {
        let shown = self.client().sequence(&p()).await.unwrap();
        shown.high.and_then(Number::get).unwrap()
    }

    /// Each request got one value, no value is missing, and all nodes hold one state.
    pub(crate) async fn check(&self, values: Vec<u64>) {
        self.check_values(values).await;
        self.wait_for_one_state().await;
    }

    /// The same, where a node lacks the state.
    pub(crate) async fn check_values(&self, mut values: Vec<u64>) {
        values.sort_unstable();
        let granted = values.len() as u64;
        assert!(values.into_iter().eq(1..=granted), "I1, and dense");
        assert_eq!(self.high().await, granted);
    }

    /// Tells what each node says of itself and of the others.
    async fn tell(&self) {
        for (url, path) in self
            .cluster
            .urls()
            .iter()
            .flat_map(|url| [(url, "/readyz"), (url, "/v1/cluster")])
        {
            let asked = async {
                let mut connection = Connection::open(url).await?;
                connection.ask("GET", path, "").await
            };
            let said = timeout(Duration::from_secs(2), asked).await;
            let said =
                said.map(|said| said.map(|said| String::from_utf8_lossy(&said.body).into_owned()));
            eprintln!("{url}{path}: {said:?}");
        }
    }

    pub(crate) async fn wait_for_one_state(&self) {
        wait_for_one_state(&self.client(), PATIENCE).await;
    }
}

/// Waits until every node has applied the same entries; all must hold the same state then (I8). Tells its hash.
pub(crate) async fn wait_for_one_state(client: &Client, within: Duration) -> String {
    let deadline = Instant::now() + within;
    loop {
        let shown = client.cluster().await.unwrap();
        let (first, others) = shown.members.split_first().unwrap();
        let index = first.applied_index;
        if index.is_some() && others.iter().all(|other| other.applied_index == index) {
            let mut others = others.iter();
            let same = others.all(|other| other.state_hash == first.state_hash);
            assert!(same, "I8: {shown:#?}");
            return first.state_hash.clone().unwrap();
        }
        assert!(Instant::now() < deadline, "{shown:#?}");
        sleep(POLL_INTERVAL).await;
    }
}

impl Drop for World {
    /// What went wrong is in the logs.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.directory.disable_cleanup(true);
            eprintln!("left: {}", self.directory.path().display());
        }
    }
}

pub(crate) fn p() -> SequenceName {
    "p".parse().unwrap()
}

/// Workers that lease until told to stop, and a history of all that they saw.
pub(crate) struct Watched {
    path: PathBuf,
    stop: CancellationToken,
    progress: Arc<Progress>,
    leasing: JoinSet<Result<(), HarnessError>>,
    recording: JoinSet<Result<(), HarnessError>>,
    lines: mpsc::Sender<Line>,
}

/// What they saw.
pub(crate) struct Seen {
    lines: Vec<Line>,
}

impl Watched {
    /// So many at each node, of which each asks no other.
    pub(crate) fn at_each(world: &World, workers: usize) -> Self {
        let urls = world.cluster.urls();
        let mut watched = Self::new(world.directory.path());
        for (id, url) in (1..).zip(urls.chunks(1)) {
            for number in 0..workers {
                watched.add(format!("{id}.{number}"), (id, url));
            }
        }
        watched
    }

    fn new(directory: &Path) -> Self {
        let path = directory.join("history.ndjson");
        let (recorder, lines) = Recorder::create(&path).unwrap();
        let start = Some(1);
        lines
            .try_send(shown(Operation::Read(Mark {
                start,
                ..Mark::default()
            })))
            .unwrap();
        let progress = recorder.progress();
        let mut recording = JoinSet::new();
        recording.spawn(recorder.run());
        Self {
            path,
            stop: CancellationToken::new(),
            progress,
            leasing: JoinSet::new(),
            recording,
            lines,
        }
    }

    /// One more, who asks these nodes, of which the first has this id.
    pub(crate) fn add(&mut self, name: String, nodes: (u64, &[String])) {
        let worker = Worker::new(name, nodes, &p(), &self.lines).unwrap();
        self.leasing.spawn(worker.run(self.stop.clone()));
    }

    /// Waits for so many more grants.
    pub(crate) async fn wait_until_granted(&self, more: u64) {
        let enough = self.progress.grants() + more;
        let deadline = Instant::now() + PATIENCE;
        while self.progress.grants() < enough {
            assert!(Instant::now() < deadline, "grants do not go on");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Has one value leased at this node, however often it takes to ask.
    pub(crate) async fn lease_at(&self, world: &World, node: u64) {
        let name = format!("once-{node}");
        let nodes = (node, &[world.url(node)][..]);
        let worker = Worker::new(name, nodes, &p(), &self.lines).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = worker.lease(RangeCount::ONE).await {
            if deadline < Instant::now() {
                world.tell().await;
                panic!("node {node}: {error}");
            }
        }
    }

    /// Ends it, and has every guarantee checked.
    pub(crate) async fn leave(mut self, world: &World) -> Seen {
        self.rest().await;
        let seen = self.check(world.high().await).await;
        world.wait_for_one_state().await;
        seen
    }

    /// Has nobody lease any more, until more are added.
    pub(crate) async fn rest(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.leasing.join_next().await {
            ended.unwrap().unwrap();
        }
        self.stop = CancellationToken::new();
    }

    /// Has every guarantee checked, of a sequence whose mark is this at last.
    pub(crate) async fn check(mut self, high: u64) -> Seen {
        let high = Some(high);
        let last = shown(Operation::FinalRead(Mark {
            high,
            ..Mark::default()
        }));
        self.lines.send(last).await.unwrap();
        drop(self.lines);
        self.recording.join_next().await.unwrap().unwrap().unwrap();
        let checker = Checker::new(GapRule::MustBeExplained).source(Source::file(&self.path));
        let report = checker.check().unwrap();
        assert_eq!(report.verdict(), Verdict::Holds, "{report:#?}");
        let file = std::fs::File::open(&self.path).unwrap();
        let lines = read_history(std::io::BufReader::new(file));
        Seen {
            lines: lines.map(|read| read.unwrap().1).collect(),
        }
    }
}

impl Seen {
    /// What was asked and not granted.
    pub(crate) fn not_granted(&self) -> usize {
        let leases = self.lines.iter().filter(|line| line.lease().is_some());
        leases.filter(|line| !line.is_grant()).count()
    }

    /// What was granted by a node of what was asked and answered within this time.
    pub(crate) fn granted_by(&self, node: u64, (from_ns, to_ns): (u64, u64)) -> usize {
        let lines = self.lines.iter();
        let within = |line: &&Line| from_ns <= line.sent_ns && line.received_ns <= to_ns;
        lines
            .filter(|line| line.node == Some(node))
            .filter(within)
            .filter(|line| line.is_grant())
            .count()
    }
}

/// What the harness knows of the sequence's mark at this moment.
fn shown(operation: Operation) -> Line {
    let now = monotonic_ns();
    Line {
        worker: "harness".to_owned(),
        node: None,
        sequence: p(),
        sent_ns: now,
        received_ns: now,
        operation,
    }
}

/// A proxy in front of this node's API.
pub(crate) async fn proxy_before(url: &str) -> Proxy {
    let to = url.strip_prefix("http://").unwrap().parse().unwrap();
    Proxy::start(to).await.unwrap()
}

/// Waits until this node is ready.
pub(crate) async fn wait_until_ready(url: &str) {
    let deadline = Instant::now() + PATIENCE * 10;
    loop {
        if let Ok(mut connection) = Connection::open(url).await
            && let Ok(answer) = connection.ask("GET", "/readyz", "").await
            && answer.status == 200
        {
            return;
        }
        assert!(Instant::now() < deadline, "{url} is not ready");
        sleep(POLL_INTERVAL).await;
    }
}

/// Waits until a node says that it is not ready.
pub(crate) async fn wait_until_not_ready(url: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut connection = Connection::open(url).await.unwrap();
        let answer = connection.ask("GET", "/readyz", "").await.unwrap();
        if answer.status == 503 {
            return;
        }
        assert!(Instant::now() < deadline, "{url} says that it is ready");
        sleep(POLL_INTERVAL).await;
    }
}
