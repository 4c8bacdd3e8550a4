//! The one thread that writes the database and the superblock.
//!
//! Step 4 of the walk. Whatever waits when the disk is free becomes one group: its changes go to the database,
//! are made durable, then the superblock slot, then everybody who waits is told (I3). What is too large for one
//! sync is split, and each part is made durable by itself.
//!
//! What rises (append, vote, purge, snapshot) goes to the database first and to the slot second; what falls
//! (truncation) to the slot first. After a first error nothing is written any more and nothing tried again:
//! who waits and who comes later gets the error, openraft ends, and with it the process.

#[cfg(test)]
mod simulated;
mod waiting;

use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

use openraft::storage::IOFlushed;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use self::waiting::Waiting;
use super::database::{Changes, End, META_BYTES_MAX, MetaKey};
use super::failure::{Failed, FailureReport};
use super::snapshot::SnapshotName;
use super::superblock::{Promised, Superblock};
use super::view::{Shared, next_index};
#[cfg(test)]
use crate::planted::Bug;
use crate::server::formats::{LogIdFormat, VoteFormat};
use crate::server::types::{LogId, TypeConfig, Vote};

/// The most commands that wait. Appends are also bounded in bytes, where they are queued.
pub(super) const QUEUE_COMMANDS_MAX: usize = 1024;

/// Told when it is durable, or why it never will be.
pub(super) type Done = oneshot::Sender<io::Result<()>>;

/// What the writer is asked to do, in this order.
pub(super) enum Command {
    Append {
        records: Vec<Encoded>,
        flushed: IOFlushed<TypeConfig>,
        /// The queue's bytes, given back when they are written.
        permit: OwnedSemaphorePermit,
    },
    SaveVote {
        vote: Vote,
        done: Done,
    },
    /// Goes with the next group: it only makes a start shorter.
    SaveCommitted {
        committed: LogId,
    },
    Truncate {
        after: Option<LogId>,
        done: Done,
    },
    Purge {
        upto: LogId,
    },
    NameSnapshot {
        name: SnapshotName,
        done: Done,
    },
}

/// An encoded record.
pub(super) struct Encoded {
    pub(super) log_id: LogId,
    pub(super) bytes: Vec<u8>,
}

/// Changes on their way to one sync.
#[derive(Default)]
struct Part {
    changes: Changes,
    waiting: Vec<Waiting>,
    /// The last record in it.
    last: Option<LogId>,
}

/// The thread's state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    superblock: Superblock,
    /// As it will be when the part is durable.
    promised: Promised,
    /// Not written yet.
    committed: Option<LogId>,
    /// Records up to this index are to be removed.
    removing: Option<u64>,
    part: Part,
    /// Who waits for a command that is not wholly in the part yet.
    current: Option<Waiting>,
    failed: FailureReport,
}

impl Writer {
    /// A writer that goes on from what was promised, and first finishes a purge.
    pub(super) fn new(
        shared: Arc<Shared>,
        superblock: Superblock,
        promised: Promised,
        failed: FailureReport,
    ) -> Self {
        Self {
            shared,
            superblock,
            promised,
            committed: None,
            removing: promised.purged.map(|purged| purged.index()),
            part: Part::default(),
            current: None,
            failed,
        }
    }

    /// Starts the thread. It ends when all senders are gone.
    pub(super) fn start(self) -> io::Result<mpsc::Sender<Command>> {
        let (sender, queue) = mpsc::channel(QUEUE_COMMANDS_MAX);
        #[cfg(test)]
        if crate::server::host::is_simulated() {
            crate::server::tasks::Tasks::default().spawn(self.run_simulated(queue));
            return Ok(sender);
        }
        std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || self.run(queue))?;
        Ok(sender)
    }

    fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        let Err(error) = self.serve(&mut queue) else {
            return;
        };
        // First, so that whoever is told ends for the reason that there is.
        self.failed.send(&error);
        let failed = Failed::from(&error);
        let fail = || Err(io::Error::other(failed.clone()));
        let waiting = self.part.waiting.drain(..);
        for waiting in waiting.chain(self.current.take()) {
            waiting.tell(fail());
        }
        while let Some(command) = queue.blocking_recv() {
            if let Some(waiting) = command.into_waiting() {
                waiting.tell(fail());
            }
        }
        // Closed, sled would write and sync once more. The database stays open until the process is gone.
        loop {
            std::thread::park();
        }
    }

    fn serve(&mut self, queue: &mut mpsc::Receiver<Command>) -> io::Result<()> {
        // Where no record follows the purged ones, they go before any may follow.
        if self.promised.last == self.promised.purged {
            self.remove_all()?;
        }
        while let Some(first) = self.next(queue)? {
            self.write_group(first, queue)?;
        }
        self.close()
    }

    /// Makes durable what waits by now, and removes a part of what was purged.
    fn write_group(
        &mut self,
        first: Command,
        queue: &mut mpsc::Receiver<Command>,
    ) -> io::Result<()> {
        self.add(first)?;
        for _ in 1..QUEUE_COMMANDS_MAX {
            let Ok(command) = queue.try_recv() else {
                break;
            };
            self.add(command)?;
        }
        self.finish()?;
        self.remove_some()
    }

    /// The next command. While there is none, purged records are removed.
    fn next(&mut self, queue: &mut mpsc::Receiver<Command>) -> io::Result<Option<Command>> {
        while self.removing.is_some() {
            match queue.try_recv() {
                Ok(command) => return Ok(Some(command)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) => self.remove_some()?,
            }
        }
        Ok(queue.blocking_recv())
    }

    fn add(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Append {
                records,
                flushed,
                permit,
            } => {
                self.current = Some(Waiting::Appended(flushed, permit));
                self.append(records)
            }
            Command::SaveVote { vote, done } => {
                self.current = Some(Waiting::Done(done));
                self.save_vote(vote)
            }
            Command::SaveCommitted { committed } => {
                self.committed = Some(committed);
                Ok(())
            }
            Command::Truncate { after, done } => {
                self.current = Some(Waiting::Done(done));
                self.finish()?;
                self.truncate(after)
            }
            Command::Purge { upto } => self.purge(upto),
            Command::NameSnapshot { name, done } => {
                self.current = Some(Waiting::Done(done));
                self.finish()?;
                self.name_snapshot(name)
            }
        }?;
        // Where nothing is left to be made durable, there is nothing to wait for either.
        self.part.waiting.extend(self.current.take());
        if self.part.changes.is_empty() {
            self.tell();
        }
        Ok(())
    }

    fn append(&mut self, records: Vec<Encoded>) -> io::Result<()> {
        for Encoded { log_id, bytes } in records {
            self.make_room(bytes.len())?;
            self.part.changes.put_record(log_id.index(), bytes);
            self.part.last = Some(log_id);
            self.promised.last = Some(log_id);
        }
        Ok(())
    }

    fn save_vote(&mut self, vote: Vote) -> io::Result<()> {
        let format = VoteFormat::from(vote);
        if Some(format) < self.promised.vote.map(Into::into) {
            return Err(io::Error::other(format!(
                "I7: the vote would fall to {vote}"
            )));
        }
        self.make_room(META_BYTES_MAX)?;
        self.part.changes.put_meta(MetaKey::Vote, &format);
        self.promised.vote = Some(vote);
        Ok(())
    }

    /// The marker rises first; the records below it go later, a part at a time.
    fn purge(&mut self, upto: LogId) -> io::Result<()> {
        if Some(upto) <= self.promised.purged {
            return Ok(());
        }
        self.make_room(META_BYTES_MAX)?;
        self.part
            .changes
            .put_meta(MetaKey::Purged, &LogIdFormat::from(upto));
        self.promised.purged = Some(upto);
        self.removing = Some(upto.index());
        if next_index(self.promised.last) <= upto.index() {
            // Beyond the last record: the next one appended would leave a hole behind those below the marker.
            self.promised.last = Some(upto);
            self.finish()?;
            self.remove_all()?;
        }
        Ok(())
    }

    /// The promise falls first; then the records go from the end backward, so no part of it leaves a hole.
    fn truncate(&mut self, after: Option<LogId>) -> io::Result<()> {
        let last = after.max(self.promised.purged);
        if self.promised.last <= last {
            return Ok(());
        }
        self.promised.last = last;
        #[cfg(test)]
        if Bug::TruncateNotSynced.is_planted() {
            while self.remove(next_index(last).., End::Back)? == Removed::Some {}
            return Ok(());
        }
        self.write_both_slots()?;
        while self.remove(next_index(last).., End::Back)? == Removed::Some {}
        Ok(())
    }

    fn name_snapshot(&mut self, name: SnapshotName) -> io::Result<()> {
        self.promised.snapshot = Some(name);
        self.write_both_slots()
    }

    /// What the older slot means is about to be removed. Should the newer one be damaged later, the older one
    /// must not promise what is gone on purpose.
    fn write_both_slots(&mut self) -> io::Result<()> {
        self.superblock.write(&self.promised)?;
        self.superblock.write(&self.promised)
    }

    fn remove_some(&mut self) -> io::Result<()> {
        if let Some(upto) = self.removing
            && self.remove(..=upto, End::Front)? == Removed::Nothing
        {
            self.removing = None;
        }
        Ok(())
    }

    fn remove_all(&mut self) -> io::Result<()> {
        while self.removing.is_some() {
            self.remove_some()?;
        }
        Ok(())
    }

    fn remove(&self, range: impl RangeBounds<u64>, end: End) -> io::Result<Removed> {
        let changes = self.shared.database.removals(range, end)?;
        if changes.is_empty() {
            return Ok(Removed::Nothing);
        }
        self.shared.database.commit(changes)?;
        Ok(Removed::Some)
    }

    fn make_room(&mut self, value_bytes: usize) -> io::Result<()> {
        if self.part.changes.has_room(value_bytes) {
            return Ok(());
        }
        self.finish()
    }

    /// Makes the part durable and tells who waits for it.
    fn finish(&mut self) -> io::Result<()> {
        if self.part.changes.is_empty() {
            return Ok(());
        }
        self.put_committed();
        self.shared
            .database
            .commit(std::mem::take(&mut self.part.changes))?;
        self.superblock.write(&self.promised)?;
        if let Some(last) = self.part.last.take() {
            self.shared.view().flushed(last);
        }
        self.tell();
        Ok(())
    }

    fn put_committed(&mut self) {
        if let Some(committed) = self.committed.take() {
            let format = LogIdFormat::from(committed);
            self.part.changes.put_meta(MetaKey::Committed, &format);
        }
    }

    /// Nobody waits any more. What was queued without a sync of its own is written now.
    fn close(&mut self) -> io::Result<()> {
        self.put_committed();
        if self.part.changes.is_empty() {
            return Ok(());
        }
        self.shared
            .database
            .commit(std::mem::take(&mut self.part.changes))
    }

    fn tell(&mut self) {
        for waiting in self.part.waiting.drain(..) {
            waiting.tell(Ok(()));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removed {
    Nothing,
    Some,
}
