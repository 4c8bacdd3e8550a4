//! What all measurements of a run share: where the servers' data is, what was granted so far, and the samples.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::checker::Marks;
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
    marks: BTreeMap<String, Marks>,
    pub(crate) samples: Vec<Sample>,
    warm: Duration,
    measured: Duration,
}

impl Bench {
    pub(crate) fn new(directory: &Path, warm: Duration, measured: Duration) -> Self {
        Self {
            directory: directory.to_owned(),
            marks: BTreeMap::new(),
            samples: Vec::new(),
            warm,
            measured,
        }
    }

    /// What a counter has given so far.
    pub(crate) fn marks(&mut self, counter: &str) -> &mut Marks {
        self.marks.entry(counter.to_owned()).or_default()
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
        let meter = Meter::new(servers.iter().map(Server::pid).collect(), &self.directory);
        let subject = work.subject;
        let workers = Workers::begin(offer.source.clone(), work.workers).await;
        let workers = workers.map_err(|fault| BenchError::Worker { subject, fault })?;
        workers.go_on(self.warm).await;
        let begin = meter.read()?;
        let begin_ns = workers.now_ns();
        workers.go_on(self.measured).await;
        let end_ns = workers.now_ns();
        let end = meter.read()?;
        let mut seen = workers.stop().await;

        let checked = self.marks(offer.counter).check(&mut seen.received);
        checked.map_err(|findings| BenchError::Broken { subject, findings })?;
        let window = Window {
            begin_ns,
            end_ns,
            begin,
            end,
        };
        let mut load = window.sample(round, work, &seen.received);
        load.faults = seen.faults;
        tell(&line(&load));
        self.samples.push(Sample::Load(load));
        Ok(())
    }
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
