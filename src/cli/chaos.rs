//! `highwater chaos`: everything goes wrong at once, on real processes, and every promise is checked.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::args::parse_duration;
use super::demo::{conclude, parse_size};
use super::error::{CliError, Exit};
use super::output::{Output, Table};
use crate::chaos::{
    ChaosPlan, ChaosPlant, ChaosSummary, ClusterSize, Ended, HarnessError, Kind, LeftOut, Need,
    Place, Schedule, TargetPlan, run_chaos, run_target,
};
use crate::sequence::SequenceName;

const EXAMPLES: &str = "\
Examples:
  highwater chaos                                a minute, with all faults that this machine can make
  highwater chaos --seed 7                       the same schedule each time
  highwater chaos --duration 20s --faults kill-all,isolate,stop,backup
  highwater chaos --nodes 5 --duration 10m --faults all
  highwater chaos --target http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103
  highwater chaos --json --history run.ndjson    ends with one object on standard output

Each kind of fault that was chosen has to happen, or the run has failed. All of them take
about a minute on two cores: a shorter run takes as long as one round of each needs.

Exit codes: 0 all promises held, 10 one did not, 1 the run was not finished, or a fault
that was chosen did not happen, 2 usage";

/// A shorter run is no more than its start and its end.
const DURATION_MIN: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// What chooses the schedule: the same one gives the same; by chance where it is not given
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How long faults happen, 1s or more; longer where one round of each kind takes longer
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_run_duration)]
    duration: Duration,
    /// How many nodes: 3 or 5
    #[arg(long, value_name = "N", default_value = "3", value_parser = parse_size)]
    nodes: ClusterSize,
    /// Kinds of faults, or all: those that this machine cannot make fail the run. Without it, all that it can make
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = faults())]
    faults: Vec<Chosen>,
    /// Keep the history of all leases there, for `highwater verify`
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Make this directory, and leave data, logs and history in it
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Instead of a cluster of its own, have workers lease at these nodes, which you break by your own means
    #[arg(
        long,
        value_name = "URL,…",
        value_delimiter = ',',
        conflicts_with_all = ["seed", "nodes", "faults", "plant"]
    )]
    target: Vec<String>,
    /// The sequence to lease from at the target; one of its own, retired at the end, where none is named
    #[arg(long, value_name = "NAME", requires = "target")]
    sequence: Option<SequenceName>,
    /// Break the harness, to see that it can fail: idle carries out no fault, duplicate records a grant twice
    #[arg(long, hide = true, value_parser = parse_plant)]
    plant: Option<ChaosPlant>,
}

/// What stands in that list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chosen {
    All,
    One(Kind),
}

pub(super) fn run(args: Args, output: &Output) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| CliError::Runtime { source })?;
    let tell = |line| output.note(line);
    let ended = if args.target.is_empty() {
        let plan = plan(args)?;
        output.note(format_args!("seed {}", plan.schedule.seed));
        runtime.block_on(run_chaos(&plan, &tell))
    } else {
        runtime.block_on(run_target(&target_plan(args), &tell))
    };
    let (verdict, text) = (ended.summary.verdict, text(&ended));
    conclude(ended, (verdict, text), output)
}

fn plan(args: Args) -> Result<ChaosPlan, CliError> {
    let (kinds, left_out) = choose(&args.faults, args.nodes)?;
    let schedule = Schedule {
        seed: args.seed.unwrap_or_else(rand::random),
        kinds,
        duration: args.duration,
    };
    Ok(ChaosPlan {
        size: args.nodes,
        repeat: repeat(&schedule, args.nodes, &args.faults),
        schedule,
        left_out,
        place: Place {
            history: args.history,
            directory: args.directory,
        },
        plant: args.plant.unwrap_or(ChaosPlant::Nothing),
    })
}

fn target_plan(args: Args) -> TargetPlan {
    let mut repeat = format!(
        "highwater chaos --target {} --duration {}ms",
        args.target.join(","),
        args.duration.as_millis()
    );
    if let Some(sequence) = &args.sequence {
        repeat.push_str(&format!(" --sequence {sequence}"));
    }
    TargetPlan {
        urls: args.target,
        sequence: args.sequence,
        duration: args.duration,
        place: Place {
            history: args.history,
            directory: args.directory,
        },
        repeat,
    }
}

/// The kinds that are chosen, and those that cannot be had here. What was asked for must be there.
fn choose(chosen: &[Chosen], size: ClusterSize) -> Result<(Vec<Kind>, Vec<LeftOut>), HarnessError> {
    let all = chosen.contains(&Chosen::All);
    let (mut kinds, mut left_out) = (Vec::new(), Vec::new());
    for kind in Kind::ALL.iter().copied() {
        let named = chosen.contains(&Chosen::One(kind));
        if !(named || all || chosen.is_empty()) {
            continue;
        }
        match kind.need().lacking(size) {
            None => kinds.push(kind),
            // All is all that there can be among so many nodes.
            Some(why) if !named && (!all || kind.need() == Need::FiveNodes) => {
                left_out.push(LeftOut { kind, why });
            }
            Some(why) => {
                let kind = kind.name();
                return Err(HarnessError::NotHere { kind, why });
            }
        }
    }
    Ok((kinds, left_out))
}

fn repeat(schedule: &Schedule, size: ClusterSize, chosen: &[Chosen]) -> String {
    let names = chosen.iter().map(|chosen| match chosen {
        Chosen::All => "all",
        Chosen::One(kind) => kind.name(),
    });
    let names: Vec<&str> = names.collect();
    let mut command = format!(
        "highwater chaos --seed {} --duration {}ms --nodes {}",
        schedule.seed,
        schedule.duration.as_millis(),
        size.nodes()
    );
    if !names.is_empty() {
        command.push_str(" --faults ");
        command.push_str(&names.join(","));
    }
    command
}

fn text(ended: &Ended<ChaosSummary>) -> String {
    let summary = &ended.summary;
    let verdict = summary.verdict;
    let mut faults = Table::new().row(["FAULT", "HAPPENED", "TRIED", "WHAT"]);
    for covered in &summary.faults {
        let (happened, tried) = (covered.happened.to_string(), covered.tried.to_string());
        faults = faults.row([covered.kind.name(), &happened, &tried, covered.kind.what()]);
    }
    let (tally, mut table) = (&summary.tally, Table::new());
    for (what, count) in [
        ("grants", summary.grants),
        ("unknown", summary.unknown),
        ("gaps", summary.gaps),
        ("granted twice (I1)", summary.overlaps),
        ("out of order (I2)", summary.order_violations),
        ("processes killed", tally.kills),
        ("processes ended by their disk", tally.disk_ends),
        ("times that links failed", tally.links),
        ("bits flipped", tally.flips),
        ("directories refused", tally.refused),
        ("harmed directories that had lost nothing", tally.healed),
        ("nodes that joined", tally.joined),
        ("nodes that left", tally.left),
    ] {
        table = table.row([what, &count.to_string()]);
    }
    let mut text = format!("{faults}\n{table}\n");
    for LeftOut { kind, why } in &summary.left_out {
        text.push_str(&format!("left out: {kind}, because {why}\n"));
    }
    for finding in &summary.findings {
        text.push_str(&format!("found: {finding}\n"));
    }
    if let Some(seconds) = summary.healing_seconds {
        text.push_str(&format!("all was well {seconds} s after the last fault\n"));
    }
    let (seconds, repeat) = (summary.seconds, &summary.repeat);
    format!("{text}again: {repeat}\n{verdict} after {seconds} s\n")
}

/// What can stand in the list of faults, each with what happens.
fn faults() -> impl TypedValueParser<Value = Chosen> {
    let all = PossibleValue::new("all").help("all that there can be among so many nodes");
    let kinds = Kind::ALL.iter();
    let kinds = kinds.map(|kind| PossibleValue::new(kind.name()).help(kind.what()));
    let values = PossibleValuesParser::new(std::iter::once(all).chain(kinds));
    values.map(|name| Kind::named(&name).map_or(Chosen::All, Chosen::One))
}

fn parse_plant(text: &str) -> Result<ChaosPlant, String> {
    match text {
        "idle" => Ok(ChaosPlant::Idle),
        "duplicate" => Ok(ChaosPlant::Duplicate),
        _ => Err("use idle or duplicate".to_owned()),
    }
}

fn parse_run_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|error| error.to_string())?;
    if duration < DURATION_MIN {
        return Err(format!("{text} is too short: use 1s or more"));
    }
    Ok(duration)
}
