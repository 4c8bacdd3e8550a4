//! The history of a run, and what was seen beside it.

use std::path::Path;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::coverage::{Coverage, Tally};
use super::healing::Healed;
use super::stage::Finding;
use crate::chaos::HarnessError;
use crate::chaos::recorder::{Progress, Recorder};
use crate::history::{Checker, GapRule, Line, Report, Source};

/// What was seen beside the history.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub(super) coverage: Coverage,
    pub(super) tally: Tally,
    pub(super) findings: Vec<Finding>,
    /// None where the run broke off.
    pub(super) healed: Option<Healed>,
    pub(super) failure: Option<HarnessError>,
    pub(super) users: Users,
}

/// Who leases from the sequences of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Users {
    /// The run's workers.
    #[default]
    OwnOnly,
    /// Whoever else may.
    Others,
}

impl Played {
    /// Nothing was.
    pub(super) fn failed(failure: HarnessError) -> Self {
        Self {
            failure: Some(failure),
            ..Self::default()
        }
    }
}

/// What the checker found, where there is a history, and what was seen beside it.
pub(super) type Recorded = (Option<Report>, Played);

/// Makes the history and judges it, also where the run broke off.
pub(super) async fn record(
    path: &Path,
    playing: impl AsyncFnOnce(&Progress, &mpsc::Sender<Line>) -> Played,
) -> Recorded {
    let (recorder, lines) = match Recorder::create(path) {
        Ok(created) => created,
        Err(error) => return (None, Played::failed(error)),
    };
    let progress = recorder.progress();
    let mut recording = JoinSet::new();
    recording.spawn(recorder.run());
    let mut played = playing(&progress, &lines).await;
    // The last sender: the recorder ends.
    drop(lines);
    match recording.join_next().await {
        Some(Ok(Ok(()))) => {}
        Some(Ok(Err(error))) => {
            played.failure.get_or_insert(error);
            return (None, played);
        }
        // A panic ends the process by the panic hook.
        Some(Err(_)) | None => return (None, played),
    }
    let gap_rule = match (&played.healed, played.users) {
        (Some(_), Users::OwnOnly) => GapRule::MustBeExplained,
        // Leases under way, or other users' leases, were not recorded: they would be gaps without an explanation.
        _ => GapRule::Allowed,
    };
    match Checker::new(gap_rule).source(Source::file(path)).check() {
        Ok(report) => (Some(report), played),
        Err(error) => {
            played.failure.get_or_insert(error.into());
            (None, played)
        }
    }
}
