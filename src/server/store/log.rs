//! The Raft log as openraft sees it.
//!
//! An append changes the view, hands the records to the writer and returns; the callback comes when they are
//! durable. A vote and a truncation are durable before they return. A purge changes the view, is queued and
//! returns at once: openraft awaits it in its core loop, where a slow purge would be an election.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, TryStreamExt, stream};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::record;
use super::view::{Plan, Shared, next_index};
use super::writer::{Command, Done, Encoded};
#[cfg(test)]
use crate::planted::Bug;
use crate::server::host;
use crate::server::types::{Entry, LogId, TypeConfig, Vote};

/// The most entries of one append to a peer.
const PAGE_ENTRIES_MAX: u64 = 64;
/// The most bytes of records of one append to a peer, as many as one record may have: a peer behind a slow link answers
/// nothing while one append arrives, and is not to be taken for silent. One record is always given.
const PAGE_BYTES_MAX: u64 = 64 * 1024;
/// The most bytes of records that wait for the writer; beyond it an append waits, and with it openraft.
const QUEUE_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// The log.
#[derive(Debug)]
pub(crate) struct LogStore {
    reader: LogReader,
    queue: mpsc::Sender<Command>,
    queue_bytes: Arc<Semaphore>,
    /// What found the queue full and must not wait: it goes before the next command.
    deferred: Deferred,
}

#[derive(Debug, Default)]
struct Deferred {
    purge: Option<LogId>,
    committed: Option<LogId>,
}

/// Reads the log beside the one that writes it. Clones read the same log.
#[derive(Debug, Clone)]
pub(crate) struct LogReader {
    shared: Arc<Shared>,
}

impl LogStore {
    pub(super) fn new(shared: Arc<Shared>, queue: mpsc::Sender<Command>) -> Self {
        Self {
            reader: LogReader { shared },
            queue,
            queue_bytes: Arc::new(Semaphore::new(QUEUE_BYTES_MAX as usize)),
            deferred: Deferred::default(),
        }
    }

    /// How many commands more the writer's queue takes, for tests.
    #[cfg(test)]
    pub(super) fn queue_room(&self) -> usize {
        self.queue.capacity()
    }

    /// For tests that look below.
    #[cfg(test)]
    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.reader.shared)
    }

    /// Encodes the entries and shows them to readers.
    fn show(&self, entries: impl IntoIterator<Item = Entry>) -> io::Result<Vec<Encoded>> {
        let mut records = Vec::new();
        let mut view = self.reader.shared.view();
        for entry in entries {
            let log_id = entry.log_id();
            let bytes = Bytes::from(record::encode(&entry, view.last)?);
            view.append(entry, bytes.len())?;
            view.appended_bytes += bytes.len() as u64;
            records.push(Encoded { log_id, bytes });
        }
        Ok(records)
    }

    async fn room_for(&self, records: &[Encoded]) -> io::Result<OwnedSemaphorePermit> {
        let bytes: usize = records.iter().map(|record| record.bytes.len()).sum();
        let bytes = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(QUEUE_BYTES_MAX);
        Arc::clone(&self.queue_bytes)
            .acquire_many_owned(bytes)
            .await
            .map_err(io::Error::other)
    }

    async fn send(&mut self, command: Command) -> io::Result<()> {
        let Deferred { purge, committed } = std::mem::take(&mut self.deferred);
        let purge = purge.map(|upto| Command::Purge { upto });
        let committed = committed.map(|committed| Command::SaveCommitted { committed });
        for command in purge.into_iter().chain(committed).chain([command]) {
            self.queue.send(command).await.map_err(|_closed| ended())?;
        }
        Ok(())
    }

    /// Sends a command and waits until it is durable.
    async fn send_and_wait(&mut self, command: impl FnOnce(Done) -> Command) -> io::Result<()> {
        let (done, answer) = oneshot::channel();
        self.send(command(done)).await?;
        answer.await.map_err(|_closed| ended())?
    }

    /// Queues without waiting what is left in `deferred`.
    fn send_deferred(&mut self) -> io::Result<()> {
        if let Some(upto) = self.deferred.purge {
            match self.queue.try_send(Command::Purge { upto }) {
                Ok(()) => self.deferred.purge = None,
                Err(TrySendError::Full(_)) => return Ok(()),
                Err(TrySendError::Closed(_)) => return Err(ended()),
            }
        }
        if let Some(committed) = self.deferred.committed {
            match self.queue.try_send(Command::SaveCommitted { committed }) {
                Ok(()) => self.deferred.committed = None,
                Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Closed(_)) => return Err(ended()),
            }
        }
        Ok(())
    }
}

/// The writer only ends after the last who could ask it, or by a panic, which ends the process.
fn ended() -> io::Error {
    io::Error::other("the store's writer has ended")
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let view = self.reader.shared.view();
        Ok(LogState {
            last_purged_log_id: view.purged,
            last_log_id: view.last,
        })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.reader.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = *vote;
        #[cfg(test)]
        if Bug::VoteNotSynced.is_planted() {
            let (done, _) = oneshot::channel();
            self.send(Command::SaveVote { vote, done }).await?;
            self.reader.shared.view().vote = Some(vote);
            return Ok(());
        }
        self.send_and_wait(|done| Command::SaveVote { vote, done })
            .await?;
        self.reader.shared.view().vote = Some(vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.reader.shared.view().committed = committed;
        self.deferred.committed = committed.or(self.deferred.committed);
        self.send_deferred()
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let view = self.reader.shared.view();
        // It may be ahead of the log, because openraft commits what others made durable before we did; beyond
        // the log's end it would end the start.
        Ok(view.committed.min(view.last))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records = self.show(entries)?;
        let permit = self.room_for(&records).await?;
        self.send(Command::Append {
            records,
            flushed: callback,
            permit,
        })
        .await
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        if !self.reader.shared.view().truncate_after(last_log_id) {
            return Ok(());
        }
        self.send_and_wait(|done| Command::Truncate {
            after: last_log_id,
            done,
        })
        .await?;
        self.reader.shared.view().truncated();
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.reader.shared.view().purge(log_id);
        self.deferred.purge = self.deferred.purge.max(Some(log_id));
        self.send_deferred()
    }
}

impl LogReader {
    /// The entries of a range that there are, with sizes.
    async fn read(&self, range: Range<u64>) -> io::Result<Vec<(usize, Entry)>> {
        loop {
            let plan = self.shared.view().plan(range.clone());
            if plan.stored.is_empty() {
                return Ok(plan.kept);
            }
            let stored = self.read_stored(plan.stored.clone()).await?;
            if let Some(entries) = self.join(plan, stored)? {
                return Ok(entries);
            }
        }
    }

    /// Reads from the database, on a thread that may wait for the disk.
    async fn read_stored(&self, range: Range<u64>) -> io::Result<Vec<(usize, Entry)>> {
        let shared = Arc::clone(&self.shared);
        host::blocking(move || {
            shared
                .database
                .records(range)
                .map(|found| found.map(|(bytes, record)| (bytes, record.entry)))
                .collect::<Result<_, _>>()
                .map_err(io::Error::other)
        })
        .await?
    }

    /// Both parts of a read, or `None` where the log was truncated meanwhile. What was purged meanwhile may be
    /// missing; anything else that is missing is damage.
    fn join(
        &self,
        plan: Plan,
        stored: Vec<(usize, Entry)>,
    ) -> io::Result<Option<Vec<(usize, Entry)>>> {
        let view = self.shared.view();
        if !view.is_current(&plan) {
            return Ok(None);
        }
        let start = plan.stored.start.max(next_index(view.purged));
        let mut entries: Vec<_> = stored.into_iter().chain(plan.kept).collect();
        entries.retain(|(_, entry)| start <= entry.index());
        for (expected, (_, entry)) in (start..plan.stored.end).zip(&entries) {
            if entry.index() != expected {
                return Err(missing(expected));
            }
        }
        let there = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        if there < plan.stored.end.saturating_sub(start) {
            return Err(missing(start + there));
        }
        Ok(Some(entries))
    }

    /// The first entries of a range, as many as one append to a peer may have.
    async fn page(&self, range: Range<u64>) -> io::Result<Vec<Entry>> {
        let page = {
            let view = self.shared.view();
            let start = range.start.max(view.first());
            let end = range.end.min(start.saturating_add(PAGE_ENTRIES_MAX));
            start..view.end_of(start..end, PAGE_BYTES_MAX)
        };
        let entries = self.read(page).await?.into_iter();
        Ok(entries.map(|(_, entry)| entry).collect())
    }
}

fn missing(index: u64) -> io::Error {
    io::Error::other(format!("the log record at index {index} is missing"))
}

impl RaftLogReader<TypeConfig> for LogReader {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let entries = self.read(indices(&range)).await?;
        Ok(entries.into_iter().map(|(_, entry)| entry).collect())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let entries = self.page(start..end).await?;
        let starts = entries.first().map(RaftEntry::index) == Some(start);
        if starts || end <= start {
            return Ok(entries);
        }
        // Truncated or purged since the range was computed: the leadership that wanted it is over, or a snapshot goes
        // instead. openraft finds that out by itself once it has an answer.
        if self.shared.view().lacks(start) {
            return Ok(Vec::new());
        }
        Err(missing(start))
    }

    /// A page at a time, so that applying a long log does not hold it in memory.
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let Range { start, end } = indices(&range);
        stream::try_unfold((self.clone(), start), move |(reader, at)| async move {
            let page = reader.page(at..end).await?;
            let next = page.last().map(|last| last.index() + 1);
            io::Result::Ok(
                next.map(|next| (stream::iter(page.into_iter().map(Ok)), (reader, next))),
            )
        })
        .try_flatten()
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.view().vote)
    }
}

fn indices(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}
