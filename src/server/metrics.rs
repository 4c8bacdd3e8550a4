//! What a node counts for `/metrics`: each part counts in what it is given here, and the text is made when somebody asks.
//!
//! Counters begin at 0 with the process. Labels take fixed values only (I9).

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// The content type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All that a node counts. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    /// What becomes of windows.
    pub(crate) windows: WindowMetrics,
}

impl Metrics {
    /// The text, in the format of OpenMetrics.
    #[expect(
        clippy::expect_used,
        reason = "only a writer can fail, and a string takes whatever is written"
    )]
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes whatever is written");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("highwater");
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "The program", Info::new(version));
        let windows = WindowMetrics::default();
        windows.register(&mut registry);
        Self {
            registry: Arc::new(registry),
            windows,
        }
    }
}

/// Counts the values of windows. They are counted when a window opens or ends and not as they are granted, which costs nothing.
#[derive(Debug, Clone)]
pub(crate) struct WindowMetrics {
    reserved: Counter,
    lost: Family<[(&'static str, Loss); 1], Counter>,
}

impl WindowMetrics {
    /// So many values were reserved.
    pub(crate) fn reserved(&self, values: u64) {
        self.reserved.inc_by(values);
    }

    /// So many values that were reserved will be granted to nobody.
    pub(crate) fn lost(&self, loss: Loss, values: u64) {
        self.lost.get_or_create(&[("reason", loss)]).inc_by(values);
    }

    /// How many were reserved.
    #[cfg(test)]
    pub(crate) fn count_reserved(&self) -> u64 {
        self.reserved.get()
    }

    /// How many are lost, for any of these reasons.
    #[cfg(test)]
    pub(crate) fn count_lost(&self, losses: &[Loss]) -> u64 {
        let labels = losses.iter().map(|loss| [("reason", *loss)]);
        labels
            .map(|labels| self.lost.get_or_create(&labels).get())
            .sum()
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "window_values_reserved",
            "Values of cached sequences that this node reserved as leader",
            self.reserved.clone(),
        );
        registry.register(
            "window_values_lost",
            "Values that this node reserved and that nobody is granted",
            self.lost.clone(),
        );
    }
}

impl Default for WindowMetrics {
    fn default() -> Self {
        let windows = Self {
            reserved: Counter::default(),
            lost: Family::default(),
        };
        // All are there from the first reading on: what appears later is an increase that nobody sees.
        Loss::ALL.into_iter().for_each(|loss| windows.lost(loss, 0));
        windows
    }
}

/// Why values of a window are granted to nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Loss {
    /// The leadership that reserved them is over.
    Leadership,
    /// Another command on their sequence ended the window.
    Command,
    /// The next lease did not fit into what was left.
    Remainder,
    /// Too many other sequences were leased from since.
    Unused,
    /// Their reservation was answered when something had ended it already.
    Late,
    /// They were taken, and leadership was not proved then.
    Unproved,
    /// They were taken for an entry that did not grant them.
    Refused,
}

impl Loss {
    pub(crate) const ALL: [Self; 7] = [
        Self::Leadership,
        Self::Command,
        Self::Remainder,
        Self::Unused,
        Self::Late,
        Self::Unproved,
        Self::Refused,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Leadership => "leadership",
            Self::Command => "command",
            Self::Remainder => "remainder",
            Self::Unused => "unused",
            Self::Late => "late",
            Self::Unproved => "unproved",
            Self::Refused => "refused",
        }
    }
}

impl EncodeLabelValue for Loss {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.name().encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_told_in_the_format_of_openmetrics() {
        let metrics = Metrics::default();
        metrics.windows.reserved(1_000);
        metrics.windows.lost(Loss::Command, 900);
        metrics.windows.lost(Loss::Command, 90);

        let text = metrics.text();

        let version = env!("CARGO_PKG_VERSION");
        for line in [
            "# TYPE highwater_build info",
            &format!("highwater_build_info{{version=\"{version}\"}} 1"),
            "# TYPE highwater_window_values_reserved counter",
            "highwater_window_values_reserved_total 1000",
            "# TYPE highwater_window_values_lost counter",
            "highwater_window_values_lost_total{reason=\"command\"} 990",
            "highwater_window_values_lost_total{reason=\"leadership\"} 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn each_reason_is_told_from_the_start_and_explained_in_the_docs() {
        let text = Metrics::default().text();
        let docs = include_str!("../../docs/cached-sequences.md");

        for loss in Loss::ALL {
            let (name, told) = (loss.name(), "highwater_window_values_lost_total");
            assert!(
                text.contains(&format!("{told}{{reason=\"{name}\"}} 0\n")),
                "{text}"
            );
            assert!(docs.contains(&format!("\n| `{name}` | ")), "{name}");
        }
        for (name, _) in text.lines().filter_map(|line| line.split_once(['{', ' '])) {
            assert!(name == "#" || docs.contains(name) || name == "highwater_build_info");
        }
    }
}
