//! Figures, told to whoever runs a script: how long grants pause, judged where the script says by what.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::settings::setting;

/// The pauses of many rounds.
#[derive(Debug, Default)]
pub(crate) struct Pauses(pub(crate) Vec<Duration>);

impl Pauses {
    /// The pause that so many of a hundred do not exceed.
    fn percentile(&self, of: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * of).div_ceil(100).max(1) - 1;
        sorted[at].as_secs_f64()
    }

    /// Tells them where the script looks for them, and judges them where it says by what: median, 95th percentile and
    /// maximum in seconds.
    pub(crate) fn tell(&self, what: &str, variable: &str) {
        if self.0.is_empty() {
            return;
        }
        let found = [50, 95, 100].map(|of| self.percentile(of));
        let mut text = format!("{what}, {} times:", self.0.len());
        for (name, seconds) in ["median", "p95", "worst"].iter().zip(found) {
            write!(text, " {name} {seconds:.3} s").unwrap();
        }
        tell(&text);
        if let Some(limits) = setting::<String>(variable) {
            let limits = limits.split(',').map(|limit| limit.parse().unwrap());
            for (seconds, limit) in found.into_iter().zip(limits) {
                let limit: f64 = limit;
                assert!(seconds <= limit, "{text}: the limit is {limit} s");
            }
        }
    }
}

/// Adds a line where the script looks for it.
pub(crate) fn tell(text: &str) {
    if let Some(path) = setting::<PathBuf>("FAILOVER_SUMMARY") {
        let mut told = std::fs::read_to_string(&path).unwrap_or_default();
        writeln!(told, "{text}").unwrap();
        std::fs::write(path, told).unwrap();
    }
}
