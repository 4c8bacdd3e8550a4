//! How long the log may get (I9): when a snapshot takes the place of its older part, and how far a follower may lag
//! before it is sent that snapshot.
//!
//! openraft takes a snapshot every so many entries, however large they are, and does not purge what a follower is
//! being sent, however long that takes. Both would leave the log without a bound in bytes: the first with large
//! batches, the second with one disk that is slower than the others or hangs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::ready;
use futures::stream::{once, select};
use futures::{Stream, StreamExt};
use openraft::async_runtime::WatchReceiver;
use openraft::errors::NetworkError;
use tokio::time::sleep;

use super::Consensus;
use super::append::AppendResult;
use crate::server::config::SnapshotInterval;
use crate::server::store::{LogSize, Stretch};
use crate::server::types::LogId;

/// A snapshot is taken after this many bytes of applied log, if its entries are large.
const LOG_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Entries below a snapshot that are kept for followers which are a little behind, or a tenth of the interval where that
/// is less. The largest have 64 KiB, so this is at most 64 MiB.
const KEPT_ENTRIES_MAX: u64 = 1_000;
/// A follower that holds back a purge and is further behind than so many intervals gets the snapshot, if that is smaller
/// than what it lacks: more than one, or healthy ones would get it too.
const LAG_INTERVALS_MAX: u64 = 2;
/// The same in bytes, whatever the snapshot has. Nor does the log get larger above a snapshot that is being sent.
const LAG_BYTES_MAX: u64 = 4 * LOG_BYTES_MAX;

/// What is decided by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    /// What is applied above a snapshot before the next is taken.
    pub(super) snapshot: Stretch,
    /// How many entries below it are kept.
    pub(super) kept: u64,
    /// How far behind a follower may be that holds back a purge.
    pub(super) lag: Stretch,
}

impl Retention {
    /// With a snapshot after so many entries.
    pub(crate) fn with(interval: SnapshotInterval) -> Self {
        let entries = interval.entries();
        Self {
            snapshot: Stretch {
                entries,
                bytes: LOG_BYTES_MAX,
            },
            kept: KEPT_ENTRIES_MAX.min(entries / 10),
            lag: Stretch {
                entries: LAG_INTERVALS_MAX * entries,
                bytes: LAG_BYTES_MAX,
            },
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self::with(SnapshotInterval::default())
    }
}

impl Consensus {
    /// Has a snapshot taken whenever that many bytes were applied since the last one. openraft itself counts the entries.
    pub(crate) async fn keep_log_short(self) {
        let mut changes = self.raft.data_metrics();
        // Above which snapshot the last one was asked for, and after how many such stretches: while one is being sent none is
        // taken, so it is asked for again.
        let mut asked = None;
        loop {
            let applied = changes.borrow_watched().last_applied;
            let snapshot = self.log_size.snapshot();
            let (after_snapshot, after_applied) =
                (self.log_size.above(snapshot), self.log_size.above(applied));
            let bytes = after_snapshot.bytes.saturating_sub(after_applied.bytes);
            let due = bytes.checked_div(self.retention.snapshot.bytes);
            if Some(0) < due && asked != Some((snapshot, due)) {
                // Where one is being taken already, this does nothing, and is asked again once that one counts.
                if self.raft.trigger().snapshot().await.is_err() {
                    return;
                }
                asked = Some((snapshot, due));
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Finds followers that hold back a purge from too far behind.
#[derive(Debug, Clone)]
pub(crate) struct LagLimit {
    log_size: LogSize,
    retention: Retention,
}

impl LagLimit {
    pub(super) fn new(log_size: LogSize, retention: Retention) -> Self {
        Self {
            log_size,
            retention,
        }
    }

    /// Whether a follower that has answered up to here is too far behind. Where no purge waits for it, it is not: it could
    /// not get a snapshot that takes it further. Nor while it lacks less than a snapshot has: that would take longer.
    fn is_passed(&self, matched: Option<LogId>) -> bool {
        let Retention { kept, lag, .. } = self.retention;
        let purge = self.log_size.snapshot().map(|last| last.index());
        let purge = purge.and_then(|last| last.checked_sub(kept));
        let behind = self.log_size.above(matched);
        matched.map(|matched| matched.index()) < purge
            && (lag.bytes <= behind.bytes
                || lag.entries <= behind.entries && self.log_size.snapshot_bytes() <= behind.bytes)
    }
}

/// How far a follower has answered in one append stream. Clones are of the same stream.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// None before the first request.
    matched: Arc<Mutex<Option<Option<LogId>>>>,
}

impl Progress {
    /// A request builds on this entry, so the follower has it.
    pub(super) fn begin(&self, prev: Option<LogId>) {
        self.lock().get_or_insert(prev);
    }

    fn advance(&self, result: &AppendResult) {
        if let Ok(Ok(matching)) = result {
            *self.lock() = Some(*matching);
        }
    }

    /// The stream's results, up to an error where the follower has come too far behind. openraft then purges what waited
    /// for it, and sends it the snapshot.
    pub(super) fn watched<'a>(
        self,
        results: impl Stream<Item = AppendResult> + Send + 'a,
        limit: LagLimit,
        every: Duration,
    ) -> impl Stream<Item = AppendResult> + Send + 'a {
        let answered = self.clone();
        let results = results.inspect(move |result| answered.advance(result));
        let given_up = async move {
            loop {
                sleep(every).await;
                let matched = *self.lock();
                if matched.is_some_and(|matched| limit.is_passed(matched)) {
                    return Some(Err(NetworkError::from_string(
                        "it is too far behind the log: it gets a snapshot",
                    )
                    .into()));
                }
            }
        };
        // Whichever ends first ends the stream.
        let ends = results.map(Some).chain(once(ready(None)));
        select(ends, once(given_up))
            .take_while(|result| ready(result.is_some()))
            .filter_map(ready)
            .scan(false, |ended, result| {
                if *ended {
                    return ready(None);
                }
                *ended = !matches!(result, Ok(Ok(_)));
                ready(Some(result))
            })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Option<LogId>>> {
        // Nothing panics while it is changed.
        self.matched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
