//! The same workers and the same verdict over a cluster that somebody else breaks.

use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::healing::{HEALED_WITHIN, Healed, Nodes, one_state};
use super::place::{Place, run_at};
use super::recording::{Played, Users, record};
use super::summary::{About, ChaosSummary};
use crate::chaos::HarnessError;
use crate::chaos::recorder::Progress;
use crate::chaos::signals::interrupted;
use crate::chaos::summary::Ended;
use crate::chaos::worker::Worker;
use crate::client::Client;
use crate::history::Line;
use crate::sequence::SequenceName;
use crate::wire::CreateBody;

/// Where nobody names a sequence, one is made whose name begins so.
const NAME_PREFIX: &str = "chaos-";
const WORKERS_AT_EACH: usize = 2;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// What the run is to do.
#[derive(Debug, Clone)]
pub(crate) struct TargetPlan {
    /// Where the nodes serve.
    pub(crate) urls: Vec<String>,
    /// The sequence to lease from; one of its own, retired at the end, where none is named.
    pub(crate) sequence: Option<SequenceName>,
    /// How long workers lease.
    pub(crate) duration: Duration,
    /// Where all that it writes is.
    pub(crate) place: Place,
    /// The command that does it again.
    pub(crate) repeat: String,
}

/// Has workers lease, and judges what they saw. `tell` is given a line now and then about how it goes.
pub(crate) async fn run_target(plan: &TargetPlan, tell: &dyn Fn(String)) -> Ended<ChaosSummary> {
    let started = Instant::now();
    let run = async |directory: &Path| {
        record(&plan.place.history(directory), async |progress, lines| {
            let mut played = Played::default();
            match play(plan, (progress, lines), tell, &mut played).await {
                Ok(healed) => played.healed = Some(healed),
                Err(error) => played.failure = Some(error),
            }
            played
        })
        .await
    };
    let (recorded, kept) = run_at(&plan.place, run).await;
    let about = About {
        seed: None,
        repeat: plan.repeat.clone(),
        left_out: Vec::new(),
        kept,
    };
    about.ended(recorded, started)
}

async fn play(
    plan: &TargetPlan,
    (progress, lines): (&Progress, &mpsc::Sender<Line>),
    tell: &dyn Fn(String),
    played: &mut Played,
) -> Result<Healed, HarnessError> {
    let nodes = known(&plan.urls).await?;
    let client = Client::builder().nodes(&plan.urls).build()?;
    let sequence = match &plan.sequence {
        Some(named) => {
            played.users = Users::Others;
            named.clone()
        }
        None => own_sequence(&client).await?,
    };
    let first = Worker::new("first".to_owned(), (0, &plan.urls), &sequence, lines)?;
    let step = "the first mark";
    let read = first.read().await;
    read.map_err(|source| HarnessError::Call { step, source })?;
    let (stop, mut workers) = (CancellationToken::new(), JoinSet::new());
    for (node, url) in &nodes {
        for number in 0..WORKERS_AT_EACH {
            let nodes = (*node, std::slice::from_ref(url));
            let worker = Worker::new(format!("{node}.{number}"), nodes, &sequence, lines)?;
            workers.spawn(worker.run(stop.clone()));
        }
    }
    tell(format!(
        "workers lease from {sequence} at {} nodes for {:?}: break what you like, and have it whole at the end",
        nodes.len(),
        plan.duration
    ));
    tokio::select! {
        () = sleep(plan.duration) => {}
        // Whoever has seen enough gets the verdict over that.
        () = interrupted() => tell("ends sooner".to_owned()),
        () = tell_progress(progress, tell) => {}
        Some(Ok(Err(error))) = workers.join_next() => return Err(error),
    }
    stop.cancel();
    while let Some(ended) = workers.join_next().await {
        // A panic ends the process by the panic hook.
        ended.unwrap_or(Ok(()))?;
    }
    let begun = Instant::now();
    let (deadline, found) = (begun + HEALED_WITHIN, &mut played.findings);
    let (nodes, sequences) = (Nodes::new(nodes), [sequence]);
    tell("workers stopped; every node is to serve, and all to agree".to_owned());
    nodes
        .lease_last(&sequences, (lines, deadline), found)
        .await?;
    one_state(&client, deadline, found).await;
    nodes.read_last(&sequences, lines, found).await?;
    if let (None, [own]) = (&plan.sequence, &sequences) {
        let step = "the run's own sequence cannot be retired";
        let retired = client.retire_sequence(own).await;
        retired.map_err(|source| HarnessError::Call { step, source })?;
    }
    Ok(Healed {
        took: begun.elapsed(),
    })
}

/// Which node serves at each of these.
async fn known(urls: &[String]) -> Result<Vec<(u64, String)>, HarnessError> {
    let mut nodes = Vec::new();
    for url in urls {
        let client = Client::builder().nodes([url]).build()?;
        let step = "a node of the target does not say who it is";
        let shown = client.cluster().await;
        let shown = shown.map_err(|source| HarnessError::Call { step, source })?;
        nodes.push((shown.node, url.clone()));
    }
    Ok(nodes)
}

/// A sequence that nobody else has.
async fn own_sequence(client: &Client) -> Result<SequenceName, HarnessError> {
    let name = format!("{NAME_PREFIX}{:016x}", rand::random::<u64>());
    #[expect(clippy::expect_used, reason = "letters, digits and a hyphen")]
    let name: SequenceName = name.parse().expect("a sequence name");
    let step = "the run's own sequence cannot be created";
    let created = client.create_sequence(&name, &CreateBody::default()).await;
    created.map_err(|source| HarnessError::Call { step, source })?;
    Ok(name)
}

async fn tell_progress(progress: &Progress, tell: &dyn Fn(String)) {
    loop {
        sleep(PROGRESS_INTERVAL).await;
        let (grants, unknown) = (progress.grants(), progress.unknown());
        tell(format!("{grants} grants, {unknown} unknown"));
    }
}
