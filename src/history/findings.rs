//! How often a rule is broken, and the lines that show it first.

use super::op::Op;

/// What was found of one rule in one sequence.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// How often it is broken.
    pub(super) count: u64,
    /// The case that shows it first.
    pub(super) shown: Option<Shown>,
}

/// A case that shows a broken rule.
#[derive(Debug)]
pub(super) struct Shown {
    /// What is wrong, in words.
    pub(super) text: String,
    /// The lines that show it, perhaps more than are needed.
    pub(super) entries: Vec<u64>,
    /// When the last of them was known.
    visible_ns: u64,
}

impl Findings {
    /// Counts one case, and shows it where it became visible before the one shown so far.
    pub(super) fn add(&mut self, lines: &[&Op], text: impl FnOnce() -> String) {
        self.count = self.count.saturating_add(1);
        let visible_ns = lines.iter().map(|op| op.received_ns).max().unwrap_or(0);
        let shown = self.shown.as_ref();
        if shown.is_none_or(|shown| visible_ns < shown.visible_ns) {
            self.shown = Some(Shown {
                text: text(),
                entries: lines.iter().map(|op| op.entry).collect(),
                visible_ns,
            });
        }
    }

    /// Adds what was found of the same rule in another way.
    pub(super) fn merge(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        let visible_ns =
            |shown: &Option<Shown>| shown.as_ref().map_or(u64::MAX, |shown| shown.visible_ns);
        if visible_ns(&other.shown) < visible_ns(&self.shown) || self.shown.is_none() {
            self.shown = other.shown;
        }
    }
}
