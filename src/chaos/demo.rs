//! The demo: a cluster of real processes, workers on all nodes, leaders killed, and the checker over all that was seen.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rand::seq::IndexedRandom as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::HarnessError;
use super::clock::monotonic_ns;
use super::cluster::{ClusterSize, LocalCluster};
use super::node::Program;
use super::recorder::{Progress, Recorder};
use super::signals::interrupted;
use super::summary::{Ended, RunVerdict, Summary};
use super::worker::Worker;
use crate::client::{Client, Grant};
use crate::history::{Checker, GapRule, LeaseOutcome, Line, Operation, Report, Source, Verdict};
use crate::sequence::{RangeCount, SequenceName};
use crate::wire::CreateBody;

/// Each with its cache: half of the workers lease from each.
const SEQUENCES: [(&str, u64); 2] = [("demo", 0), ("demo-cached", 100)];
const SEQUENCE_START: u64 = 1;
const WORKERS: usize = 8;
/// A first start forms the cluster; a restart replays a log. Both take well under a second on a quiet machine.
const READY_WITHIN: Duration = Duration::from_secs(30);
const LEADER_WITHIN: Duration = Duration::from_secs(15);
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// From kill to kill, as a part of the run and within bounds: several kills also in a short run.
const BEATS_PER_RUN: u32 = 6;
const BEAT_MIN: Duration = Duration::from_secs(1);
const BEAT_MAX: Duration = Duration::from_secs(5);
/// How often the nodes are looked at while nothing else happens.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// What the demo is to do.
#[derive(Debug, Clone)]
pub(crate) struct DemoPlan {
    /// How many nodes. Of three the leader is killed, of five the leader and one more.
    pub(crate) size: ClusterSize,
    /// How long workers lease and leaders are killed.
    pub(crate) duration: Duration,
    /// Where the history is kept; in the run's directory, removed with it, where none is named.
    pub(crate) history: Option<PathBuf>,
    /// A fault for the checker to find.
    pub(crate) plant: Plant,
    /// How often to tell how it goes.
    pub(crate) progress_interval: Duration,
}

/// A fault that is planted into the history, to see the checker find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// None.
    Nothing,
    /// One grant that is recorded a second time, for another worker.
    Duplicate,
}

/// Runs the demo to its verdict. `tell` is given a line now and then about how it goes.
pub(crate) async fn run_demo(plan: &DemoPlan, tell: &dyn Fn(String)) -> Ended<Summary> {
    let started = Instant::now();
    let kills = Cell::new(0);
    let directory = tempfile::Builder::new()
        .prefix("highwater-demo-")
        .tempdir()
        .map_err(|source| HarnessError::File {
            path: std::env::temp_dir(),
            action: "written",
            source,
        });
    let (outcome, kept) = match directory {
        Err(error) => ((None, Some(error)), None),
        Ok(directory) => {
            let outcome = record(plan, directory.path(), &kills, tell).await;
            let held =
                matches!(&outcome, (Some(report), None) if report.verdict() == Verdict::Holds);
            // Removed when it is dropped; of a run that went wrong it is all there is to look at.
            let kept = (!held).then(|| directory.keep());
            (outcome, kept)
        }
    };
    let (report, failure) = outcome;
    let verdict = match (report.as_ref().map(Report::verdict), &failure) {
        (Some(Verdict::Violated), _) => RunVerdict::Violated,
        (Some(Verdict::Holds), None) => RunVerdict::Holds,
        (Some(Verdict::Holds), Some(_)) | (None, _) => RunVerdict::HarnessFailure,
    };
    let count = |of: fn(&Report) -> u64| report.as_ref().map_or(0, of);
    let summary = Summary {
        verdict,
        grants: count(|report| report.grants),
        unknown: count(|report| report.unknown),
        leader_kills: kills.get(),
        overlaps: count(|report| report.overlaps),
        order_violations: count(|report| report.order_violations),
        gaps: count(|report| report.gaps),
        seconds: (started.elapsed().as_secs_f64() * 10.0).round() / 10.0,
    };
    Ended {
        summary,
        report,
        failure,
        kept,
    }
}

/// Makes the history and judges it, also where the run broke off.
async fn record(
    plan: &DemoPlan,
    directory: &Path,
    kills: &Cell<u64>,
    tell: &dyn Fn(String),
) -> (Option<Report>, Option<HarnessError>) {
    let in_directory = || directory.join("history.ndjson");
    let path = plan.history.clone().unwrap_or_else(in_directory);
    let (recorder, lines) = match Recorder::create(&path) {
        Ok(created) => created,
        Err(error) => return (None, Some(error)),
    };
    let progress = recorder.progress();
    let mut recording = JoinSet::new();
    recording.spawn(recorder.run());
    let run = Run {
        plan,
        directory,
        kills,
        tell,
        progress,
        lines,
    };
    let played = tokio::select! {
        played = run.play() => played,
        () = interrupted() => Err(HarnessError::Interrupted),
    };
    // The last sender: the recorder ends.
    drop(run);
    let Some(Ok(recorded)) = recording.join_next().await else {
        return (None, played.err());
    };
    if let Err(error) = recorded {
        return (None, Some(error));
    }
    let (gap_rule, failure) = match played {
        Ok(()) => (GapRule::MustBeExplained, None),
        // Leases under way were not recorded: they would be gaps without an explanation.
        Err(error) => (GapRule::Allowed, Some(error)),
    };
    match Checker::new(gap_rule).source(Source::file(&path)).check() {
        Ok(report) => (Some(report), failure),
        Err(error) => (None, failure.or(Some(error.into()))),
    }
}

/// One run, from the first process to the last.
struct Run<'a> {
    plan: &'a DemoPlan,
    directory: &'a Path,
    kills: &'a Cell<u64>,
    tell: &'a dyn Fn(String),
    progress: Arc<Progress>,
    lines: mpsc::Sender<Line>,
}

impl Run<'_> {
    async fn play(&self) -> Result<(), HarnessError> {
        let size = self.plan.size;
        let mut cluster = LocalCluster::create(self.directory, size, Program::this()?)?;
        // Whoever tries something beside the workers need not create it first.
        cluster.serve_with(&["--auto-create"]);
        let directory = self.directory.display();
        self.say(format_args!(
            "starting {} nodes in {directory}",
            size.nodes()
        ));
        cluster.start_all()?;
        cluster.all_ready(READY_WITHIN).await?;
        let sequences = create_sequences(&cluster).await?;
        self.read_first(&cluster, &sequences).await?;
        let stop = CancellationToken::new();
        let mut workers = self.start_workers(&cluster, &sequences, &stop)?;
        self.say(format_args!(
            "{WORKERS} workers lease from all nodes for {:?}",
            self.plan.duration
        ));
        tokio::select! {
            faults = self.kill_leaders(&mut cluster) => faults?,
            ended = joined(&mut workers) => ended?,
            () = self.tell_progress() => {}
        }
        stop.cancel();
        while !workers.is_empty() {
            joined(&mut workers).await?;
        }
        self.finish(&mut cluster, &sequences).await?;
        cluster.stop_all(STOP_WITHIN).await
    }

    /// Records that nothing is granted yet, and with what grants begin.
    async fn read_first(
        &self,
        cluster: &LocalCluster,
        sequences: &[SequenceName],
    ) -> Result<(), HarnessError> {
        let urls = cluster.urls();
        for sequence in sequences {
            let first = Worker::new("first".to_owned(), (1, &urls), sequence, &self.lines)?;
            let step = "the first mark";
            let read = first.read().await;
            read.map_err(|source| HarnessError::Call { step, source })?;
        }
        Ok(())
    }

    fn start_workers(
        &self,
        cluster: &LocalCluster,
        sequences: &[SequenceName],
        stop: &CancellationToken,
    ) -> Result<JoinSet<Result<(), HarnessError>>, HarnessError> {
        let urls = cluster.urls();
        let mut workers = JoinSet::new();
        for (number, sequence) in (1..=WORKERS).zip(sequences.iter().cycle()) {
            let worker = Worker::new(format!("w{number}"), (1, &urls), sequence, &self.lines)?;
            workers.spawn(worker.run(stop.clone()));
        }
        Ok(workers)
    }

    /// Kills the leader again and again, of five nodes one more with it, and restarts what it killed.
    async fn kill_leaders(&self, cluster: &mut LocalCluster) -> Result<(), HarnessError> {
        let until = Instant::now() + self.plan.duration;
        let beat = (self.plan.duration / BEATS_PER_RUN).clamp(BEAT_MIN, BEAT_MAX);
        let mut next = Instant::now() + beat / 2;
        // After the last kill there is time to see that service resumed.
        while next + beat <= until {
            rest(cluster, next).await?;
            let leader = cluster.leader(LEADER_WITHIN).await?;
            let victims = victims(cluster, leader, self.plan.size);
            cluster.kill(&victims).await?;
            self.kills.set(self.kills.get() + 1);
            let others = match victims.get(1..) {
                Some([other, ..]) => format!(", and node {other}"),
                _ => String::new(),
            };
            self.say(format_args!("killed node {leader}, the leader{others}"));
            rest(cluster, Instant::now() + beat / 3).await?;
            cluster.start_all()?;
            cluster.all_ready(READY_WITHIN).await?;
            self.say("all nodes are ready again");
            next = (next + beat).max(Instant::now() + beat / 3);
        }
        rest(cluster, until).await
    }

    /// All nodes serve again, and what was acknowledged is below what they grant now.
    async fn finish(
        &self,
        cluster: &mut LocalCluster,
        sequences: &[SequenceName],
    ) -> Result<(), HarnessError> {
        self.say("workers stopped; one more lease of each kind from each node");
        cluster.start_all()?;
        cluster.all_ready(READY_WITHIN).await?;
        let urls = cluster.urls();
        let mut last = None;
        for sequence in sequences {
            for (id, url) in cluster.ids().into_iter().zip(urls.chunks(1)) {
                let worker = Worker::new(format!("last-{id}"), (id, url), sequence, &self.lines)?;
                let leased = worker.lease(RangeCount::ONE).await;
                let step = "the last lease at a node";
                let grant = leased.map_err(|source| HarnessError::Call { step, source })?;
                last = Some((grant, sequence));
            }
        }
        if let (Plant::Duplicate, Some((grant, sequence))) = (self.plan.plant, last) {
            self.say("planting a duplicate: the last grant is recorded a second time");
            // The recorder lives as long as this sender.
            drop(self.lines.send(duplicate_of(&grant, sequence)).await);
        }
        for sequence in sequences {
            let last = Worker::new("last".to_owned(), (1, &urls), sequence, &self.lines)?;
            let step = "the final mark";
            let read = last.read_finally().await;
            read.map_err(|source| HarnessError::Call { step, source })?;
        }
        Ok(())
    }

    async fn tell_progress(&self) {
        let started = Instant::now();
        let mut ticks = interval(self.plan.progress_interval);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.say(format_args!(
                "{:>4} s  {} grants, {} unknown, {} leader kills",
                started.elapsed().as_secs(),
                self.progress.grants(),
                self.progress.unknown(),
                self.kills.get(),
            ));
        }
    }

    fn say(&self, text: impl ToString) {
        (self.tell)(text.to_string());
    }
}

async fn create_sequences(cluster: &LocalCluster) -> Result<Vec<SequenceName>, HarnessError> {
    let step = "the demo's sequences cannot be created";
    let client = Client::builder()
        .nodes(cluster.urls())
        .deadline(READY_WITHIN)
        .build()?;
    let mut sequences = Vec::new();
    for (name, cache) in SEQUENCES {
        let settings = CreateBody {
            start: Some(SEQUENCE_START.into()),
            cache: Some(cache.into()),
            ..CreateBody::default()
        };
        #[expect(clippy::expect_used, reason = "a constant that every run parses")]
        let name: SequenceName = name.parse().expect("a sequence name");
        let created = client.create_sequence(&name, &settings).await;
        created.map_err(|source| HarnessError::Call { step, source })?;
        sequences.push(name);
    }
    Ok(sequences)
}

/// The leader first, then as many others as the cluster can lose with it.
fn victims(cluster: &LocalCluster, leader: u64, size: ClusterSize) -> Vec<u64> {
    let mut others = cluster.ids();
    others.retain(|id| *id != leader);
    let more = others
        .choose_multiple(&mut rand::rng(), size.losses() - 1)
        .copied();
    std::iter::once(leader).chain(more).collect()
}

/// Waits, and says so where a node ends by itself meanwhile.
async fn rest(cluster: &mut LocalCluster, until: Instant) -> Result<(), HarnessError> {
    while Instant::now() < until {
        cluster.check_alive()?;
        let left = until.saturating_duration_since(Instant::now());
        sleep(left.min(WATCH_INTERVAL)).await;
    }
    sleep_until(until).await;
    Ok(())
}

/// Waits for one worker. A panic in it ends the process by the panic hook; else it says itself how it ended.
async fn joined(workers: &mut JoinSet<Result<(), HarnessError>>) -> Result<(), HarnessError> {
    match workers.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(_)) | None => Ok(()),
    }
}

pub(super) fn duplicate_of(grant: &Grant, sequence: &SequenceName) -> Line {
    let now = monotonic_ns();
    Line {
        worker: "planted".to_owned(),
        node: grant.node(),
        sequence: sequence.clone(),
        sent_ns: now,
        received_ns: now,
        operation: Operation::Lease {
            count: RangeCount::ONE,
            key: None,
            outcome: LeaseOutcome::Granted {
                first: grant.first(),
                last: grant.last(),
                increment: grant.increment(),
            },
        },
    }
}
