//! `highwater demo`: shows that the guarantees hold, on real processes.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::args::parse_duration;
use super::error::{CliError, Exit};
use super::output::{Output, Table};
use super::verify;
use crate::chaos::{ClusterSize, DemoPlan, Ended, Plant, RunVerdict, Summary, run_demo};
use crate::history::Report;

const EXAMPLES: &str = "\
Examples:
  highwater demo
  highwater demo --nodes 5 --duration 1m
  highwater demo --json              ends with one object on standard output
  highwater demo --history run.ndjson && highwater verify run.ndjson
  highwater demo --plant-duplicate   the checker must find it: exit code 10

Exit codes: 0 all guarantees held, 10 one did not, 1 the run was not finished";

/// With a terminal a line a second; a log wants fewer.
const PROGRESS_INTERVAL_WATCHED: Duration = Duration::from_secs(1);
const PROGRESS_INTERVAL_LOGGED: Duration = Duration::from_secs(5);
/// A shorter run kills no leader.
const DURATION_MIN: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// How long workers lease while leaders are killed, 2s or more
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = parse_run_duration)]
    duration: Duration,
    /// How many nodes: 3, of which the leader is killed, or 5, of which the leader and one more
    #[arg(long, value_name = "N", default_value = "3", value_parser = parse_size)]
    nodes: ClusterSize,
    /// Keep the history of all leases there, for `highwater verify`
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Record one grant twice, to see the checker find it
    #[arg(long)]
    plant_duplicate: bool,
}

pub(super) fn run(args: Args, output: &Output) -> Result<Exit, CliError> {
    let plan = DemoPlan {
        size: args.nodes,
        duration: args.duration,
        history: args.history,
        plant: if args.plant_duplicate {
            Plant::Duplicate
        } else {
            Plant::Nothing
        },
        progress_interval: if output.is_watched() {
            PROGRESS_INTERVAL_WATCHED
        } else {
            PROGRESS_INTERVAL_LOGGED
        },
    };
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| CliError::Runtime { source })?
        .block_on(run_demo(&plan, &|line| output.note(line)));
    let (verdict, text) = (ended.summary.verdict, text(&ended));
    conclude(ended, (verdict, text), output)
}

/// Shows what a run came to, which is also the exit code.
pub(super) fn conclude<S: Serialize>(
    ended: Ended<S>,
    (verdict, text): (RunVerdict, String),
    output: &Output,
) -> Result<Exit, CliError> {
    if let Some(kept) = &ended.kept {
        let kept = kept.display();
        output.note(format_args!("data, logs and history are left in {kept}"));
    }
    tell_violations(ended.report.as_ref(), output);
    output.data(text, &ended.summary)?;
    match (verdict, ended.failure) {
        (RunVerdict::Violated, _) => Ok(Exit::VerificationFailed),
        (RunVerdict::HarnessFailure, Some(failure)) => Err(failure.into()),
        (RunVerdict::HarnessFailure, None) => Ok(Exit::Internal),
        (RunVerdict::Holds, _) => Ok(Exit::Ok),
    }
}

/// What shows a violation is for people: the summary holds counts only.
fn tell_violations(report: Option<&Report>, output: &Output) {
    let Some(report) = report else { return };
    if !report.violations.is_empty() {
        output.note(verify::text(report).trim_end());
    }
}

fn text(ended: &Ended<Summary>) -> String {
    let summary = &ended.summary;
    let verdict = summary.verdict;
    let table = Table::new()
        .row(["grants", &summary.grants.to_string()])
        .row(["unknown", &summary.unknown.to_string()])
        .row(["leader kills", &summary.leader_kills.to_string()])
        .row(["granted twice (I1)", &summary.overlaps.to_string()])
        .row(["out of order (I2)", &summary.order_violations.to_string()])
        .row(["gaps", &summary.gaps.to_string()])
        .row(["seconds", &summary.seconds.to_string()]);
    format!("{verdict}\n{table}")
}

pub(super) fn parse_size(text: &str) -> Result<ClusterSize, String> {
    match text {
        "3" => Ok(ClusterSize::Three),
        "5" => Ok(ClusterSize::Five),
        _ => Err("use 3 or 5".to_owned()),
    }
}

fn parse_run_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|error| error.to_string())?;
    if duration < DURATION_MIN {
        return Err(format!(
            "{text} is too short to kill a leader: use 2s or more"
        ));
    }
    Ok(duration)
}
