//! Many sequences: what a large table costs in grants, memory and time to start.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use tokio::task::JoinSet;

use crate::bench::{Bench, tell};
use crate::error::BenchError;
use crate::http::{HttpConnection, request};
use crate::leases::{Form, HttpSource, spread_name};
use crate::load::Fault;
use crate::measured::{mebibytes, rounded};
use crate::peers::{self, Highwater, Offer, Peer};
use crate::plan::Plan;
use crate::report::data::{Sample, Subject, Work};
use crate::usage::Meter;

/// Who ask for grants.
const WORKERS: usize = 64;
/// A table between one sequence and all of them.
const SOME: u32 = 1000;
/// So many rounds show it: what they cost is mostly starts of a large table.
const ROUNDS_MAX: u32 = 3;
/// How many sequences are made by one request, which is the most that a node takes.
const MADE_AT_ONCE: u32 = 128;
const MAKERS: u32 = 16;

/// Measures tables of one, a thousand and as many sequences as asked for, in turn. Its rounds are counted on from those
/// that went before, so that a figure is compared with its neighbours only.
///
/// # Errors
/// Where a node does not serve, or a grant is not unique and rising.
pub(crate) async fn run(bench: &mut Bench, plan: &Plan) -> Result<(), BenchError> {
    let mut sizes = vec![1, SOME, plan.sequences];
    sizes.sort_unstable();
    sizes.dedup();
    let mut tables = Vec::new();
    for existing in sizes {
        let directory = bench.directory.join(format!("sequences-{existing}"));
        tables.push((existing, table(plan, &directory, existing).await?));
    }
    for round in 1..=plan.rounds.min(ROUNDS_MAX) {
        for (existing, cluster) in &mut tables {
            measure(bench, cluster, *existing, plan.rounds + round).await?;
        }
    }
    Ok(())
}

/// A cluster that has so many sequences, and does not run.
async fn table(plan: &Plan, directory: &Path, existing: u32) -> Result<Highwater, BenchError> {
    std::fs::create_dir_all(directory).map_err(BenchError::file(directory, "made"))?;
    let mut cluster = Highwater::new(plan.program.clone(), directory.to_owned())?;
    let servers = peers::start(&mut cluster).await?;
    if 1 < existing {
        let begun = Instant::now();
        let leader = peers::leader(&cluster).await?;
        make(&cluster.from(leader), existing).await?;
        tell(&format!(
            "{existing} sequences made in {:.1} s",
            begun.elapsed().as_secs_f64()
        ));
    }
    peers::end(&cluster, servers).await?;
    Ok(cluster)
}

/// Makes all sequences, by the import verb.
async fn make(addresses: &[SocketAddr], existing: u32) -> Result<(), BenchError> {
    let mut makers = JoinSet::new();
    for (maker, address) in (0..MAKERS).zip(addresses.iter().cycle().copied()) {
        makers.spawn(make_part(address, maker, existing));
    }
    for made in makers.join_all().await {
        made.map_err(|fault| BenchError::Worker {
            subject: Subject::Highwater,
            fault,
        })?;
    }
    Ok(())
}

async fn make_part(address: SocketAddr, maker: u32, existing: u32) -> Result<(), Fault> {
    let mut http = HttpConnection::open(address).await?;
    let all: Vec<u32> = (0..existing)
        .filter(|number| number % MAKERS == maker)
        .collect();
    let at_once = usize::try_from(MADE_AT_ONCE).unwrap_or(1);
    for numbers in all.chunks(at_once) {
        let sequence = |number: &u32| json!({"sequence": spread_name(*number), "at_least": 0});
        let body: Vec<_> = numbers.iter().map(sequence).collect();
        let body = json!(body).to_string();
        let (status, said) = http
            .exchange(&request("POST", "/v1/sequences", &body))
            .await?;
        if status != 200 {
            return Err(Fault::lost(String::from_utf8_lossy(said).into_owned()));
        }
    }
    Ok(())
}

async fn measure(
    bench: &mut Bench,
    cluster: &mut Highwater,
    existing: u32,
    round: u32,
) -> Result<(), BenchError> {
    let begun = Instant::now();
    let mut servers = (0..cluster.nodes())
        .map(|node| cluster.start(node))
        .collect::<Result<Vec<_>, _>>()?;
    cluster.serving(&mut servers).await?;
    let seconds = rounded(begun.elapsed().as_secs_f64());
    let memory_mib = mebibytes(Meter::new(&servers, &bench.directory).memory());
    tell(&format!(
        "{existing} sequences · started in {seconds:.2} s · {memory_mib:.0} MiB"
    ));
    bench.samples.push(Sample::Start {
        existing,
        seconds,
        memory_mib,
    });

    let addresses = cluster.from(peers::leader(cluster).await?);
    let plain = Work::plain(Subject::Highwater, WORKERS);
    if existing == 1 {
        let source = HttpSource::new(addresses, Form::One("photos"));
        let offer = Offer::new(
            Subject::Highwater,
            "the only sequence of a small table",
            source,
        );
        bench.load(&offer, plain, &servers, round).await?;
    } else {
        let source = HttpSource::new(addresses, Form::Spread(existing));
        let counter = if existing == SOME {
            "some sequences"
        } else {
            "many sequences"
        };
        let offer = Offer::new(Subject::Highwater, counter, source);
        let work = Work {
            sequences: existing,
            existing,
            ..plain
        };
        bench.load(&offer, work, &servers, round).await?;
    }
    peers::end(cluster, servers).await
}
