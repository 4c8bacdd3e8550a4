//! The log as readers see it: changed at once, while the writer makes it durable behind.
//!
//! The view knows which indices there are, and keeps the newest entries. An entry stays in memory until it is
//! durable; beyond that the newest [`TAIL_BYTES_MAX`] are kept, because replication and apply read the end of the
//! log. What is older is read from the database, which only a follower that lags or a start does (I9).

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::entry::RaftEntry;

use super::database::Database;
use super::sizes::{Sizes, Stretch};
use crate::server::types::{Entry, LogId, Vote};

/// How much of the durable log is kept in memory. With entries of some hundred bytes it is all of it.
pub(super) const TAIL_BYTES_MAX: usize = 32 * 1024 * 1024;

/// What an entry in memory takes beside its own bytes.
const KEPT_BYTES: usize = 256;

/// What the log's readers and its writer share.
#[derive(Debug)]
pub(super) struct Shared {
    view: Mutex<View>,
    pub(super) database: Arc<Database>,
}

/// The log, durable or not.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    pub(super) last: Option<LogId>,
    /// The indices that there are. They may begin above 0 where nothing was purged: openraft allows it.
    indices: Range<u64>,
    /// Of the records at these.
    sizes: Sizes,
    /// The bytes of all records that were appended since the start.
    pub(super) appended_bytes: u64,
    tail: VecDeque<Kept>,
    tail_bytes: usize,
    /// Entries below this index are in the database.
    durable: u64,
    /// Counts truncations: what was read from the database before one may be another log's.
    truncations: u64,
}

#[derive(Debug, Clone)]
struct Kept {
    entry: Entry,
    bytes: usize,
}

/// A read: what memory holds, and what is still to be read from the database.
#[derive(Debug)]
pub(super) struct Plan {
    /// Indices below those of `kept`, to be read from the database.
    pub(super) stored: Range<u64>,
    /// The end of what was asked for, with sizes.
    pub(super) kept: Vec<(usize, Entry)>,
    truncations: u64,
}

impl Shared {
    pub(super) fn new(view: View, database: Arc<Database>) -> Self {
        Self {
            view: Mutex::new(view),
            database,
        }
    }

    /// The view. No caller panics while it changes it, so a poisoned one is whole.
    pub(super) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    /// The view of a log that ends at `purged`, to which a start appends what it finds.
    pub(super) fn purged_to(purged: Option<LogId>) -> Self {
        let next = next_index(purged);
        Self {
            purged,
            last: purged,
            indices: next..next,
            durable: next,
            ..Self::default()
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// Where it does not follow the last: nothing may leave a hole.
    pub(super) fn append(&mut self, entry: Entry, bytes: usize) -> io::Result<()> {
        let log_id = entry.log_id();
        let index = log_id.index();
        let follows = match self.last {
            Some(last) => last < log_id && self.indices.end == index,
            None => true,
        };
        if !follows {
            return Err(io::Error::other(format!(
                "entry {log_id} does not follow {}",
                super::error::or_nothing(self.last)
            )));
        }
        if self.indices.is_empty() {
            self.indices = index..index;
            self.durable = self.durable.max(index);
        }
        self.indices.end = index + 1;
        self.sizes.push(bytes);
        self.last = Some(log_id);
        self.tail.push_back(Kept { entry, bytes });
        self.tail_bytes += KEPT_BYTES + bytes;
        self.shrink();
        Ok(())
    }

    /// Removes what follows `after`, and says whether there was anything.
    pub(super) fn truncate_after(&mut self, after: Option<LogId>) -> bool {
        let keep = next_index(after).max(self.indices.start);
        if self.indices.end <= keep {
            return false;
        }
        for _ in keep..self.indices.end {
            let Some(kept) = self.tail.pop_back() else {
                break;
            };
            self.tail_bytes -= KEPT_BYTES + kept.bytes;
        }
        self.indices.end = keep;
        self.sizes.truncate(self.count_below(keep));
        self.last = after.max(self.purged);
        self.truncations += 1;
        true
    }

    /// The truncation is durable: nothing above the log's end is in the database any more.
    pub(super) fn truncated(&mut self) {
        self.durable = self.durable.min(self.indices.end);
    }

    /// Forgets what is up to `upto`, which may be beyond the last entry.
    pub(super) fn purge(&mut self, upto: LogId) {
        if self.purged >= Some(upto) {
            return;
        }
        self.purged = Some(upto);
        self.last = self.last.max(Some(upto));
        let next = upto.index() + 1;
        while self.tail_start() < next {
            let Some(kept) = self.tail.pop_front() else {
                break;
            };
            self.tail_bytes -= KEPT_BYTES + kept.bytes;
        }
        self.sizes.remove_front(self.count_below(next));
        self.indices = self.indices.start.max(next)..self.indices.end.max(next);
        self.durable = self.durable.max(self.indices.start);
    }

    /// Entries up to `last` are in the database.
    pub(super) fn flushed(&mut self, last: LogId) {
        self.durable = self.durable.max(last.index() + 1);
        self.shrink();
    }

    /// All that is in it was read from the database.
    pub(super) fn flushed_all(&mut self) {
        self.durable = self.indices.end;
        self.shrink();
    }

    /// What the entries in memory take.
    #[cfg(test)]
    pub(super) fn tail_bytes(&self) -> usize {
        self.tail_bytes
    }

    /// The first index that there is, or would be.
    pub(super) fn first(&self) -> u64 {
        self.indices.start
    }

    /// Whether this index was purged or truncated, or never was.
    pub(super) fn lacks(&self, index: u64) -> bool {
        !self.indices.contains(&index)
    }

    /// The log from this index on.
    pub(super) fn stretch_from(&self, index: u64) -> Stretch {
        let start = index.clamp(self.indices.start, self.indices.end);
        Stretch {
            entries: self.indices.end - start,
            bytes: self.sizes.after(self.count_below(start)),
        }
    }

    /// Where so many bytes of a range end, after one entry at least.
    pub(super) fn end_of(&self, range: Range<u64>, bytes_max: u64) -> u64 {
        let from = |index| self.stretch_from(index).bytes;
        let fits = |end: &u64| from(range.start) - from(*end) <= bytes_max;
        let more = range.start.saturating_add(2)..=range.end;
        let end = more.take_while(fits).last();
        end.unwrap_or_else(|| range.end.min(range.start.saturating_add(1)))
    }

    /// How to read a range as it is now.
    pub(super) fn plan(&self, range: Range<u64>) -> Plan {
        let start = range.start.max(self.indices.start);
        let end = range.end.min(self.indices.end).max(start);
        let tail_start = self.tail_start().clamp(start, end);
        let skip = usize::try_from(tail_start.saturating_sub(self.tail_start()));
        let take = usize::try_from(end - tail_start);
        Plan {
            stored: start..tail_start,
            kept: self
                .tail
                .iter()
                .skip(skip.unwrap_or(usize::MAX))
                .take(take.unwrap_or(usize::MAX))
                .map(|kept| (kept.bytes, kept.entry.clone()))
                .collect(),
            truncations: self.truncations,
        }
    }

    /// Whether what was read by a plan is still this log.
    pub(super) fn is_current(&self, plan: &Plan) -> bool {
        self.truncations == plan.truncations
    }

    /// How many of the indices are below this one.
    fn count_below(&self, index: u64) -> usize {
        let below = index
            .min(self.indices.end)
            .saturating_sub(self.indices.start);
        usize::try_from(below).unwrap_or(usize::MAX)
    }

    fn tail_start(&self) -> u64 {
        self.indices.end - self.tail.len() as u64
    }

    fn shrink(&mut self) {
        while TAIL_BYTES_MAX < self.tail_bytes && self.tail_start() < self.durable {
            let Some(kept) = self.tail.pop_front() else {
                break;
            };
            self.tail_bytes -= KEPT_BYTES + kept.bytes;
        }
    }
}

pub(super) fn next_index(log_id: Option<LogId>) -> u64 {
    log_id.map_or(0, |log_id| log_id.index() + 1)
}
