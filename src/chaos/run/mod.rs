//! `highwater chaos`: a cluster of real processes to which everything happens at once, workers who go on all the while, and a
//! verdict over all that was seen.

mod backups;
mod coverage;
mod directories;
mod disks;
mod front;
mod harm;
mod healing;
mod kind;
mod lanes;
mod links;
mod members;
mod place;
mod processes;
mod recording;
mod schedule;
mod stage;
mod summary;
mod target;

use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, interval};

use self::disks::Disks;
use self::front::Front;
use self::place::run_at;
use self::recording::{Played, Recorded, Users, record};
use self::stage::Stage;
use self::summary::About;
use super::HarnessError;
use super::cluster::{ClusterSize, LocalCluster};
use super::node::Program;
use super::recorder::Progress;
use super::signals::interrupted;
use super::summary::Ended;
use super::worker::Worker;
use crate::client::Client;
use crate::history::Line;
use crate::sequence::SequenceName;
use crate::wire::CreateBody;

pub(crate) use kind::{Kind, Need};
pub(crate) use place::Place;
pub(crate) use schedule::Schedule;
pub(crate) use summary::{ChaosSummary, LeftOut};
pub(crate) use target::{TargetPlan, run_target};

/// Sequences that are leased from: their names, and where they start.
const SEQUENCES: [(&str, u64); 3] = [("chaos-a", 1), ("chaos-b", 1_000), (CACHED, 1)];
/// One of them has a cache, of so many values that a window lasts for a moment.
const CACHED: &str = "chaos-cached";
const CACHE: u64 = 500;
/// A first start forms the cluster.
const READY_WITHIN: Duration = Duration::from_secs(30);
const STOP_WITHIN: Duration = Duration::from_secs(10);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// What the nodes log where nobody says otherwise, as without a run.
const LOG_FILTER: &str = "info,openraft=error,sled=error";
/// Beside that, connections that are not let in: a wrong clock is seen by the times of these lines.
const LOG_FILTER_CLOCK: &str = "highwater::server::consensus::listener=debug";

/// What the run is to do.
#[derive(Debug, Clone)]
pub(crate) struct ChaosPlan {
    /// How many nodes there are to begin with.
    pub(crate) size: ClusterSize,
    /// What goes wrong when.
    pub(crate) schedule: Schedule,
    /// What could not be chosen here.
    pub(crate) left_out: Vec<LeftOut>,
    /// Where all that it writes is.
    pub(crate) place: Place,
    /// A fault of the harness.
    pub(crate) plant: ChaosPlant,
    /// The command that does it again.
    pub(crate) repeat: String,
}

/// A fault that is planted into the harness, to see that it can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChaosPlant {
    /// None.
    Nothing,
    /// No fault of the schedule is carried out.
    Idle,
    /// One grant is recorded a second time, for another worker.
    Duplicate,
}

/// Runs the plan to its verdict. `tell` is given a line about each thing that happens.
pub(crate) async fn run_chaos(plan: &ChaosPlan, tell: &dyn Fn(String)) -> Ended<ChaosSummary> {
    let started = Instant::now();
    let (recorded, kept) = run_at(&plan.place, async |path| run_in(plan, path, tell).await).await;
    let about = About {
        seed: Some(plan.schedule.seed),
        repeat: plan.repeat.clone(),
        left_out: plan.left_out.clone(),
        kept,
    };
    about.ended(recorded, started)
}

async fn run_in(plan: &ChaosPlan, directory: &Path, tell: &dyn Fn(String)) -> Recorded {
    record(&plan.place.history(directory), async |progress, lines| {
        let playing = async {
            match prepare((plan, tell), directory, lines).await {
                Ok((stage, failed)) => stage.run((progress, failed), lines).await,
                Err(error) => Played::failed(error),
            }
        };
        tokio::select! {
            played = Box::pin(playing) => played,
            () = interrupted() => Played::failed(HarnessError::Interrupted),
        }
    })
    .await
}

/// A cluster that serves, with workers at all nodes, and what makes one of them end the run.
async fn prepare<'a>(
    (plan, tell): (&'a ChaosPlan, &'a dyn Fn(String)),
    directory: &Path,
    lines: &mpsc::Sender<Line>,
) -> Result<(Stage<'a>, mpsc::Receiver<HarnessError>), HarnessError> {
    let disks = Disks::prepare(directory, &plan.schedule.kinds)?;
    let program = Program::this()?;
    let mut cluster = LocalCluster::create_with_network(directory, plan.size, program).await?;
    let libraries = disks.clone();
    let filter = std::env::var("HIGHWATER_LOG").unwrap_or_else(|_unset| LOG_FILTER.to_owned());
    let filter = format!("{filter},{LOG_FILTER_CLOCK}");
    cluster.set_environment(move |name| {
        let mut environment = libraries.environment(name);
        environment.push(("HIGHWATER_LOG".into(), filter.clone().into()));
        environment
    });
    let nodes = plan.size.nodes();
    tell(format!("starting {nodes} nodes in {}", directory.display()));
    cluster.start_all()?;
    cluster.all_ready(READY_WITHIN).await?;
    let sequences = create_sequences(&cluster).await?;
    read_first(&cluster.urls(), &sequences, lines).await?;
    let (front, failed) = Front::new(&sequences, lines);
    for node in cluster.ids() {
        if let Some(api) = cluster.api_address(node) {
            front.serve(node, api).await?;
        }
    }
    Ok((Stage::new((plan, tell), cluster, front, disks), failed))
}

async fn create_sequences(cluster: &LocalCluster) -> Result<Vec<SequenceName>, HarnessError> {
    let client = Client::builder()
        .nodes(cluster.urls())
        .deadline(READY_WITHIN)
        .build()?;
    let mut names = Vec::new();
    for (name, start) in SEQUENCES {
        let settings = CreateBody {
            start: Some(start.into()),
            cache: (name == CACHED).then(|| CACHE.into()),
            ..CreateBody::default()
        };
        #[expect(clippy::expect_used, reason = "a constant that every run parses")]
        let name: SequenceName = name.parse().expect("a sequence name");
        let step = "the run's sequences cannot be created";
        let created = client.create_sequence(&name, &settings).await;
        created.map_err(|source| HarnessError::Call { step, source })?;
        names.push(name);
    }
    Ok(names)
}

/// Records that nothing is granted yet, and with what grants begin.
async fn read_first(
    urls: &[String],
    sequences: &[SequenceName],
    lines: &mpsc::Sender<Line>,
) -> Result<(), HarnessError> {
    for sequence in sequences {
        let first = Worker::new("first".to_owned(), (1, urls), sequence, lines)?;
        let step = "the first mark";
        let read = first.read().await;
        read.map_err(|source| HarnessError::Call { step, source })?;
    }
    Ok(())
}

impl Stage<'_> {
    /// Plays the schedule, heals, and ends.
    async fn run(
        self,
        (progress, mut failed): (&Progress, mpsc::Receiver<HarnessError>),
        lines: &mpsc::Sender<Line>,
    ) -> Played {
        let played = async {
            self.play().await?;
            self.heal(lines).await
        };
        let outcome = tokio::select! {
            played = Box::pin(played) => played,
            // These only end by what ends the run.
            Err(error) = self.watch() => Err(error),
            Some(error) = failed.recv() => Err(error),
            () = self.tell_progress(progress) => Err(HarnessError::Interrupted),
        };
        let stopped = self.cluster.lock().await.stop_all(STOP_WITHIN).await;
        let missing = self.missing();
        let (healed, failure) = match (outcome, stopped) {
            (Err(error), _) => (None, Some(error)),
            (Ok(healed), Err(error)) => (Some(healed), Some(error)),
            (Ok(healed), Ok(())) if missing.is_empty() => (Some(healed), None),
            (Ok(healed), Ok(())) => {
                let kinds = missing.iter().map(|kind| kind.name()).collect();
                (Some(healed), Some(HarnessError::NeverHappened { kinds }))
            }
        };
        Played {
            coverage: self.coverage.into_inner(),
            tally: self.tally.into_inner(),
            findings: self.findings.into_inner(),
            healed,
            failure,
            users: Users::OwnOnly,
        }
    }

    async fn tell_progress(&self, progress: &Progress) {
        let mut ticks = interval(PROGRESS_INTERVAL);
        loop {
            ticks.tick().await;
            let (grants, unknown) = (progress.grants(), progress.unknown());
            self.say(format_args!("{grants} grants, {unknown} unknown"));
        }
    }
}
