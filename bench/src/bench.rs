//! What all measurements of a run share: where the servers' data is, what was granted so far, and the samples.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::checker::{Marks, Received};
use crate::error::BenchError;
use crate::load::Workers;
use crate::measured::Window;
use crate::peers::Offer;
use crate::process::Server;
use crate::report::data::{Load, Sample, Work};
use crate::usage::Meter;

/// A run that goes on.
pub(crate) struct Bench {
    pub(crate) directory: PathBuf,
    /// Of each counter.
    marks: BTreeMap<&'static str, Marks>,
    /// How many grants were judged.
    pub(crate) verified: u64,
    pub(crate) samples: Vec<Sample>,
    warm: Duration,
    measured: Duration,
}

impl Bench {
    pub(crate) fn new(directory: &Path, warm: Duration, measured: Duration) -> Self {
        Self {
            directory: directory.to_owned(),
            marks: BTreeMap::new(),
            verified: 0,
            samples: Vec::new(),
            warm,
            measured,
        }
    }

    /// Judges everything that workers received from what was offered.
    ///
    /// # Errors
    /// Where a grant is not unique and rising.
    pub(crate) fn check(
        &mut self,
        offer: &Offer,
        received: &mut [Received],
    ) -> Result<(), BenchError> {
        self.verified += u64::try_from(received.len()).unwrap_or(u64::MAX);
        let checked = self.marks.entry(offer.counter).or_default().check(received);
        let subject = offer.subject;
        checked.map_err(|findings| BenchError::Broken { subject, findings })
    }

    /// Measures one load and keeps its sample.
    ///
    /// # Errors
    /// Where no worker can begin, a server ends, or a grant is not unique and rising.
    pub(crate) async fn load(
        &mut self,
        offer: &Offer,
        work: Work,
        servers: &[Server],
        round: u32,
    ) -> Result<(), BenchError> {
        let meter = Arc::new(Meter::new(servers, &self.directory));
        let subject = work.subject;
        let workers = Workers::begin(Arc::clone(&offer.source), work.workers).await;
        let workers = workers.map_err(|fault| BenchError::Worker { subject, fault })?;
        workers.go_on(self.warm).await;
        let begin_ns = workers.now_ns();
        let begin = read(&meter, Meter::read).await?;
        workers.go_on(self.measured).await;
        let end_ns = workers.now_ns();
        let end = read(&meter, Meter::read).await?;
        let memory = read(&meter, Meter::memory).await?;
        let mut seen = workers.stop().await;

        self.check(offer, &mut seen.received)?;
        let window = Window {
            begin_ns,
            end_ns,
            used: end.since(&begin),
            memory,
        };
        let load = window.sample(round, work, seen);
        tell(&line(&load));
        self.samples.push(Sample::Load(load));
        Ok(())
    }
}

/// Reads on a thread of its own: meanwhile the workers go on.
async fn read<T: Send + 'static>(
    meter: &Arc<Meter>,
    what: fn(&Meter) -> T,
) -> Result<T, BenchError> {
    let meter = Arc::clone(meter);
    let read = tokio::task::spawn_blocking(move || what(&meter)).await;
    read.map_err(|error| BenchError::file("/proc", "read")(error.into()))
}

fn line(load: &Load) -> String {
    let work = load.work;
    let mut what = work.subject.title().to_owned();
    if 1 < work.leases {
        what.push_str(&format!(", {} leases", work.leases));
    }
    if 1 < work.existing {
        what.push_str(&format!(
            ", {} of {} sequences",
            work.sequences, work.existing
        ));
    }
    let faults: u64 = load.faults.values().sum();
    format!(
        "round {} · {what} · c={} · {:.0}/s · p50 {:.3} ms · p99 {:.3} ms · CPU {:.1} µs · others {:.0} % · faults {faults}",
        load.round,
        work.workers,
        load.grants_per_second,
        load.p50_us / 1000.0,
        load.p99_us / 1000.0,
        load.server_cpu_us,
        load.others_busy * 100.0,
    )
}

/// Writes a line for whoever watches.
pub(crate) fn tell(line: &str) {
    // Nobody may watch any more; the samples are kept all the same.
    let _written = writeln!(std::io::stderr(), "{line}");
}
