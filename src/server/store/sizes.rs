//! How many bytes of log there are, so that it is shortened before a disk or a start notices.
//!
//! Entries alone do not bound a log: one may have a hundred bytes or 64 KiB. The view keeps the sizes of its records,
//! and [`LogSize`] answers for those who decide when a snapshot is due and when a follower is too far behind.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::snapshots::CurrentSnapshot;
use super::view::{Shared, next_index};
use crate::server::types::LogId;

/// The sizes of consecutive records, as sums: what lies between two of them is a difference.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    /// What was counted before the first.
    before: u64,
    /// What was counted up to each and with it.
    sums: VecDeque<u64>,
}

impl Sizes {
    fn sum(&self) -> u64 {
        self.sums.back().copied().unwrap_or(self.before)
    }

    /// One more at the end.
    pub(super) fn push(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.sums.push_back(self.sum().saturating_add(bytes));
    }

    /// None but the first so many are left.
    pub(super) fn truncate(&mut self, length: usize) {
        self.sums.truncate(length);
    }

    /// The first so many go.
    pub(super) fn remove_front(&mut self, count: usize) {
        for _ in 0..count {
            let Some(sum) = self.sums.pop_front() else {
                break;
            };
            self.before = sum;
        }
    }

    /// The bytes without those of the first so many.
    pub(super) fn after(&self, count: usize) -> u64 {
        let skipped = match count.checked_sub(1) {
            None => self.before,
            Some(last) => self.sums.get(last).copied().unwrap_or(self.sum()),
        };
        self.sum().saturating_sub(skipped)
    }
}

/// Asks how much log there is. Clones ask of the same log, and none of them keeps it open.
#[derive(Debug, Clone)]
pub(crate) struct LogSize {
    shared: Weak<Shared>,
    snapshot: CurrentSnapshot,
}

/// A part of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// How many records there are in it.
    pub(crate) entries: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

impl LogSize {
    pub(super) fn new(shared: &Arc<Shared>, snapshot: CurrentSnapshot) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            snapshot,
        }
    }

    /// The last entry in the snapshot that counts.
    pub(crate) fn snapshot(&self) -> Option<LogId> {
        self.snapshot.last()
    }

    /// Its bytes; none where there is none.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        self.snapshot.length()
    }

    /// What follows this entry in the log; nothing once the store is closed.
    pub(crate) fn above(&self, log_id: Option<LogId>) -> Stretch {
        let shared = self.shared.upgrade();
        shared.map_or_else(Stretch::default, |shared| {
            shared.view().stretch_from(next_index(log_id))
        })
    }

    /// The bytes of all records that were appended since the store was opened.
    pub(crate) fn appended_bytes(&self) -> u64 {
        let shared = self.shared.upgrade();
        shared.map_or(0, |shared| shared.view().appended_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_follows_appends_truncations_and_purges() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.after(0), 0);
        for bytes in [10, 20, 30, 40] {
            sizes.push(bytes);
        }
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|n| sizes.after(n)),
            [100, 90, 70, 40, 0, 0]
        );

        sizes.truncate(3);
        assert_eq!([0, 2, 3].map(|n| sizes.after(n)), [60, 30, 0]);

        sizes.remove_front(2);
        assert_eq!([0, 1].map(|n| sizes.after(n)), [30, 0]);
        sizes.push(5);
        assert_eq!([0, 1, 2].map(|n| sizes.after(n)), [35, 5, 0]);

        sizes.remove_front(9);
        assert_eq!(sizes.after(0), 0);
        sizes.push(7);
        assert_eq!(sizes.after(0), 7);
    }
}
