//! Which faults happened, and what came of them.

use serde::Serialize;

use super::kind::Kind;

/// How often a kind was tried, and how often it was seen to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Covered {
    /// What.
    pub(crate) kind: Kind,
    /// How often the schedule came to it.
    pub(crate) tried: u64,
    /// How often it was seen: a process had ended, a sync had failed, a link had held something back.
    pub(crate) happened: u64,
}

/// The same of all kinds that were chosen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coverage {
    kinds: Vec<Covered>,
}

impl Coverage {
    /// None has happened.
    pub(crate) fn of(kinds: &[Kind]) -> Self {
        let none = |kind: &Kind| Covered {
            kind: *kind,
            tried: 0,
            happened: 0,
        };
        Self {
            kinds: kinds.iter().map(none).collect(),
        }
    }

    pub(super) fn tried(&mut self, kind: Kind) {
        self.count(kind, |covered| covered.tried += 1);
    }

    pub(super) fn happened(&mut self, kind: Kind) {
        self.count(kind, |covered| covered.happened += 1);
    }

    fn count(&mut self, kind: Kind, count: impl Fn(&mut Covered)) {
        let chosen = |covered: &&mut Covered| covered.kind == kind;
        self.kinds
            .iter_mut()
            .find(chosen)
            .into_iter()
            .for_each(count);
    }

    /// The chosen kinds that were never seen to happen.
    pub(crate) fn missing(&self) -> Vec<Kind> {
        let missing = |covered: &&Covered| covered.happened == 0;
        let missing = self.kinds.iter().filter(missing);
        missing.map(|covered| covered.kind).collect()
    }

    /// One entry a kind, in the order of the kinds.
    pub(crate) fn into_kinds(self) -> Vec<Covered> {
        self.kinds
    }
}

/// What came of the faults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    /// Processes that were killed.
    pub(crate) kills: u64,
    /// Processes that ended for a fault of their disk.
    pub(crate) disk_ends: u64,
    /// Times that the links between nodes were at fault.
    pub(crate) links: u64,
    /// Bits that were flipped in a store.
    pub(crate) flips: u64,
    /// Directories that a node refused, or was refused for.
    pub(crate) refused: u64,
    /// Harmed directories that a node started from: what it had promised was there.
    pub(crate) healed: u64,
    /// Nodes that joined.
    pub(crate) joined: u64,
    /// Nodes that left.
    pub(crate) left: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_tried_and_not_seen_is_missing() {
        let mut coverage = Coverage::of(&[Kind::Kill, Kind::Stop]);

        for kind in [Kind::Kill, Kind::Kill, Kind::Stop] {
            coverage.tried(kind);
        }
        coverage.happened(Kind::Kill);
        coverage.happened(Kind::Clock);

        assert_eq!(coverage.missing(), [Kind::Stop]);
        let counts = coverage.into_kinds();
        let counts = counts.iter().map(|kind| (kind.tried, kind.happened));
        assert_eq!(counts.collect::<Vec<_>>(), [(2, 1), (1, 0)]);
    }
}
