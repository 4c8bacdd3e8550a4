//! The loss of the leader: it is killed, or told to end, while workers ask the other nodes.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::bench::{Bench, tell};
use crate::checker::Received;
use crate::error::BenchError;
use crate::load::Workers;
use crate::measured::rounded;
use crate::peers::{self, Offer, Peer};
use crate::process::{PATIENCE, POLL_INTERVAL, Server};
use crate::report::data::{Ending, Failover, Sample};

const WORKERS: usize = 8;
/// Before the leader ends, and after the next grant.
const STEADY: Duration = Duration::from_millis(300);
/// A node that came back has what it missed by then, and all follow one leader.
const SETTLED: Duration = Duration::from_millis(1000);

/// Loses the leader so often in each way.
///
/// # Errors
/// Where nothing is granted any more, or a grant is not unique and rising.
pub(crate) async fn run(
    bench: &mut Bench,
    peer: &mut dyn Peer,
    losses: u32,
) -> Result<(), BenchError> {
    let mut servers = peers::start(peer).await?;
    for ending in [Ending::Killed, Ending::Told] {
        for _ in 0..losses {
            sleep(SETTLED).await;
            let leader = peers::leader(peer).await?;
            let Some(offer) = peer.offers(leader).into_iter().next() else {
                continue;
            };
            let Some(source) = peer.without(leader) else {
                continue;
            };
            let offer = Offer { source, ..offer };
            lose(bench, &offer, servers.get(leader), ending).await?;
            // Gone before another has its ports.
            servers.remove(leader).end(Signal::KILL).await?;
            servers.insert(leader, peer.start(leader)?);
            peer.ready(&mut servers).await?;
        }
    }
    peers::end(peer, servers).await
}

async fn lose(
    bench: &mut Bench,
    offer: &Offer,
    leader: Option<&Server>,
    ending: Ending,
) -> Result<(), BenchError> {
    let subject = offer.subject;
    let workers = Workers::begin(Arc::clone(&offer.source), WORKERS).await;
    let workers = workers.map_err(|fault| BenchError::Worker { subject, fault })?;
    workers.go_on(STEADY).await;
    let lost_ns = workers.now_ns();
    if let Some(leader) = leader {
        leader.signal(match ending {
            Ending::Killed => Signal::KILL,
            Ending::Told => Signal::TERM,
        })?;
    }
    let deadline = Instant::now() + PATIENCE;
    while workers.latest_sent_ns() <= lost_ns && Instant::now() < deadline {
        sleep(POLL_INTERVAL).await;
    }
    workers.go_on(STEADY).await;
    let mut seen = workers.stop().await;

    let (next_grant_ms, gap_ms) = times(&seen.received, lost_ns).ok_or(BenchError::NoGrant {
        subject,
        within: PATIENCE,
    })?;
    bench.check(offer, &mut seen.received)?;
    tell(&format!(
        "{} · {ending:?} · next grant after {next_grant_ms:.0} ms · longest gap {gap_ms:.0} ms · faults {:?}",
        subject.title(),
        seen.faults
    ));
    bench.samples.push(Sample::Failover(Failover {
        subject,
        ending,
        next_grant_ms,
        gap_ms,
        faults: seen.faults.values().sum(),
    }));
    Ok(())
}

/// In milliseconds, the time until the first answer to a request that was sent after the loss, and the longest time from
/// one answer to the next; nothing where there was none.
fn times(received: &[Received], lost_ns: u64) -> Option<(f64, f64)> {
    let later = received.iter().filter(|grant| lost_ns < grant.sent_ns);
    let next_ns = later.map(|grant| grant.received_ns).min()?;
    let mut answers: Vec<u64> = received.iter().map(|grant| grant.received_ns).collect();
    answers.sort_unstable();
    let gaps = answers
        .windows(2)
        .filter_map(|pair| Some(pair.last()? - pair.first()?));
    let ms = |nanoseconds| rounded(Duration::from_nanos(nanoseconds).as_secs_f64() * 1000.0);
    Some((ms(next_ns - lost_ns), ms(gaps.max()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_was_under_way_when_the_leader_ended_is_not_the_next_grant() {
        let grant = |sent_ms: u64, received_ms: u64| Received {
            sequence: 0,
            first: received_ms,
            last: received_ms,
            sent_ns: sent_ms * 1_000_000,
            received_ns: received_ms * 1_000_000,
        };
        let received = [grant(1, 2), grant(9, 11), grant(12, 300), grant(300, 301)];

        assert_eq!(times(&received, 10_000_000), Some((290.0, 289.0)));
        assert_eq!(times(&received[..2], 10_000_000), None);
    }
}
