//! The rounds: in each everybody is started, measured at each concurrency and ended, one after another. So only who is
//! measured runs, and what slows the machine down for a minute slows all.

use std::time::Duration;

use crate::bench::{Bench, tell};
use crate::error::BenchError;
use crate::limits;
use crate::peers::{self, Peer};
use crate::plan::{Plan, Who};
use crate::report::data::{LimitKind, Sample, Work};

/// Nothing is gained by measuring those as long as a load.
const LIMIT_TIME_MAX: Duration = Duration::from_millis(500);

/// Measures all of them in turn.
///
/// # Errors
/// Where one does not serve, or does not keep its promises.
pub(crate) async fn run(
    bench: &mut Bench,
    plan: &Plan,
    peers: &mut [(Who, Box<dyn Peer>)],
) -> Result<(), BenchError> {
    for round in 1..=plan.rounds {
        for (who, peer) in peers.iter_mut() {
            if *who == Who::Limits {
                limits(bench, plan, round)?;
            }
            measure(bench, plan, peer.as_mut(), round).await?;
        }
    }
    for (_, peer) in peers {
        if let Some((subject, why)) = peer.skipped() {
            let what = subject.title().to_owned();
            bench.samples.push(Sample::Skipped { what, why });
        }
    }
    Ok(())
}

fn limits(bench: &mut Bench, plan: &Plan, round: u32) -> Result<(), BenchError> {
    for kind in LimitKind::ALL {
        let time = plan.measured().min(LIMIT_TIME_MAX);
        let limit = limits::measure(kind, &bench.directory, time, round)?;
        tell(&format!(
            "round {round} · {} · {:.0}/s · p50 {:.3} ms · p99 {:.3} ms",
            kind.title(),
            limit.per_second,
            limit.p50_us / 1000.0,
            limit.p99_us / 1000.0
        ));
        bench.samples.push(Sample::Limit(limit));
    }
    Ok(())
}

async fn measure(
    bench: &mut Bench,
    plan: &Plan,
    peer: &mut dyn Peer,
    round: u32,
) -> Result<(), BenchError> {
    let servers = peers::start(peer).await?;
    let leader = peers::leader(peer).await?;
    for offer in peer.offers(leader) {
        let asked = |workers: &&usize| offer.workers.contains(workers);
        for workers in plan.conc.iter().filter(asked).copied() {
            let work = Work {
                leases: offer.leases,
                ..Work::plain(offer.subject, workers)
            };
            bench.load(&offer, work, &servers, round).await?;
        }
    }
    peers::end(peer, servers).await
}
