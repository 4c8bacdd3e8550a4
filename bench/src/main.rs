//! Measures Highwater beside the limits of the machine and beside what else gives numbers, all on one machine, and makes
//! docs/benchmarks of it. `scripts/bench` installs what is missing, builds both, and runs this.
//!
//! A run walks through [`rounds`], [`sequences`] and [`failover`]. Each starts servers ([`peers`], [`process`]), has
//! [`load`] ask them, has everything that was received judged by [`checker`], and keeps samples, of which [`report`] makes
//! the tables and the plot.

mod bench;
mod checker;
mod docs;
mod error;
mod failover;
mod http;
mod leases;
mod limits;
mod load;
mod machine;
mod measured;
mod peers;
mod plan;
mod process;
mod report;
mod rounds;
mod sequences;
mod usage;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use bench::{Bench, tell};
use error::BenchError;
use plan::{Arguments, Part, Plan, Verb, Who};
use report::data::Run;

fn main() -> ExitCode {
    let done = match Arguments::parse().verb {
        Verb::Run(plan) => measured(&plan),
        Verb::Page { docs } => docs::make(&docs),
        Verb::Handler { listen } => handler(listen),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut cause: Option<&dyn std::error::Error> = Some(&error);
            while let Some(error) = cause {
                tell(&error.to_string());
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

/// Workers share one thread: most of a small machine is the servers'.
fn measured(plan: &Plan) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let run = runtime
        .map_err(BenchError::file("a runtime", "started"))?
        .block_on(run(plan))?;
    let written = std::io::stdout().write_all(report::tables(&run).as_bytes());
    written.map_err(BenchError::file("standard output", "written"))?;
    match &plan.docs {
        Some(docs) => docs::write(docs, &run),
        None => Ok(()),
    }
}

async fn run(plan: &Plan) -> Result<Run, BenchError> {
    let directory =
        tempfile::tempdir().map_err(BenchError::file("a temporary directory", "made"))?;
    let directory = directory.path();
    let mut versions = BTreeMap::new();
    let mut all = Vec::new();
    for who in plan.all() {
        tell(&format!("{who:?} …"));
        all.push((who, peers::make(who, plan, directory, &mut versions)?));
    }
    let about = machine::about(plan, directory, versions)?;
    let mut bench = Bench::new(directory, plan.warm(), plan.measured());
    if plan.asks(Part::Load) {
        rounds::run(&mut bench, plan, &mut all).await?;
    }
    if plan.asks(Part::Sequences) && plan.all().any(|who| who == Who::Ours) {
        sequences::run(&mut bench, plan).await?;
    }
    if plan.asks(Part::Failover) {
        for (who, peer) in all.iter_mut().filter(|(_, peer)| 1 < peer.nodes()) {
            let losses = match who {
                Who::Ours => plan.losses,
                _ => plan.losses.div_ceil(4),
            };
            failover::run(&mut bench, peer.as_mut(), losses).await?;
        }
    }
    Ok(Run {
        about,
        verified: bench.verified,
        samples: bench.samples,
    })
}

/// With as many threads as the system has processors, as any server of this kind.
fn handler(listen: std::net::SocketAddr) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(BenchError::file("a runtime", "started"))?;
    let served = runtime.block_on(limits::serve_counter(listen));
    served.map_err(BenchError::file(listen.to_string(), "listened on"))
}
