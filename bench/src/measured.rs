//! What a window of a load comes to.

use std::time::Duration;

use crate::checker::Received;
use crate::load::Seen;
use crate::report::data::{Load, Work};
use crate::usage::{Used, load_average};

/// The times that requests took.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0
            .push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn per_second(&self, time: Duration) -> f64 {
        rounded(float(self.0.len()) / time.as_secs_f64())
    }

    /// The time that so many per cent of the requests did not exceed, in µs.
    pub(crate) fn percentile_us(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        let nanoseconds = sorted.get(rank).copied().unwrap_or_default();
        rounded(Duration::from_nanos(nanoseconds).as_secs_f64() * 1e6)
    }
}

/// From when to when it was measured, in the workers' nanoseconds, and what was used meanwhile.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) used: Used,
    /// Of all servers at the end, in bytes.
    pub(crate) memory: u64,
}

impl Window {
    /// The sample of a load whose grants were checked.
    pub(crate) fn sample(&self, round: u32, work: Work, seen: Seen) -> Load {
        let within = |grant: &&Received| {
            self.begin_ns <= grant.received_ns && grant.received_ns < self.end_ns
        };
        let grants = seen.received.iter().filter(within).count();
        let mut latencies = Latencies::default();
        for grant in seen.received.iter().filter(within) {
            latencies.add(Duration::from_nanos(grant.received_ns - grant.sent_ns));
        }
        let seconds = Duration::from_nanos(self.end_ns - self.begin_ns).as_secs_f64();
        let per_grant = |used: u64| rounded(wide(used) / float(grants).max(1.0));
        let processors = float(std::thread::available_parallelism().map_or(1, usize::from));
        let used = &self.used;
        Load {
            round,
            work,
            grants: u64::try_from(grants).unwrap_or(u64::MAX),
            grants_per_second: rounded(float(grants) / seconds),
            p50_us: latencies.percentile_us(50),
            p99_us: latencies.percentile_us(99),
            server_cpu_us: per_grant(used.servers_us),
            client_cpu_us: per_grant(used.own_us),
            syncs: used.disk.map(|disk| per_grant(disk.flushes)),
            written_bytes: used.disk.map(|disk| per_grant(disk.written_bytes)),
            memory_mib: mebibytes(self.memory),
            others_busy: rounded(wide(used.others_us) / 1e6 / seconds / processors),
            load_average: load_average(),
            faults: seen.faults,
        }
    }
}

pub(crate) fn mebibytes(bytes: u64) -> f64 {
    rounded(wide(bytes) / f64::from(1 << 20))
}

/// To four digits behind the point, which is more than a run repeats.
pub(crate) fn rounded(figure: f64) -> f64 {
    (figure * 1e4).round() / 1e4
}

#[expect(
    clippy::cast_precision_loss,
    reason = "2^53 of anything take longer than a run"
)]
pub(crate) fn wide(count: u64) -> f64 {
    count as f64
}

fn float(count: usize) -> f64 {
    wide(u64::try_from(count).unwrap_or(u64::MAX))
}
