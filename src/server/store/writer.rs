//! The one thread that writes the superblock, its journal and the database.
//!
//! Step 4 of the walk. Whatever waits when the disk is free becomes one group: its changes go into the journal, are durable
//! there, and everybody who waits is told (I3). What is too large for one sync is split, and each part is made durable by
//! itself. Once the journal, or what goes between two syncs of the database, has no room for a further group, all groups
//! since the last time are settled: they go to the database together, are made durable, then the superblock slot.
//!
//! What rises (append, vote, purge) goes to the database first and to the slot second; what falls (truncation) to the slot
//! first, and nothing falls that is not settled. After a first error nothing is written any more and nothing tried again:
//! who waits and who comes later gets the error, openraft ends, and with it the process.

mod removing;
#[cfg(test)]
mod simulated;
mod waiting;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use openraft::storage::IOFlushed;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use self::waiting::Waiting;
use super::database::{Changes, META_BYTES_MAX, MetaKey};
use super::failure::{Failed, FailureReport};
use super::snapshot::SnapshotName;
use super::superblock::{Promised, Superblock};
use super::view::Shared;
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
    pub(super) bytes: Bytes,
}

/// Changes on their way to one sync.
#[derive(Default)]
struct Part {
    changes: Changes,
    waiting: Vec<Waiting>,
}

/// What the journal has and the database has not.
#[derive(Default)]
struct Unsettled {
    changes: Changes,
    /// What is promised with it.
    promised: Promised,
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
    unsettled: Unsettled,
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
            unsettled: Unsettled {
                changes: Changes::default(),
                promised,
            },
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
                self.settle()?;
                self.truncate(after)
            }
            Command::Purge { upto } => self.purge(upto),
            Command::NameSnapshot { name, done } => {
                self.current = Some(Waiting::Done(done));
                self.settle()?;
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
        let changes = std::mem::take(&mut self.part.changes);
        if !self.superblock.has_room(&changes) || !self.unsettled.changes.has_room_for(&changes) {
            self.settle_journal()?;
        }
        self.superblock.write_group(&self.promised, &changes)?;
        self.unsettled.changes.extend(changes);
        self.unsettled.promised = self.promised;
        self.tell();
        Ok(())
    }

    /// The same, and leaves nothing to the journal.
    fn settle(&mut self) -> io::Result<()> {
        self.finish()?;
        self.settle_journal()
    }

    /// Moves what the journal has to the database.
    fn settle_journal(&mut self) -> io::Result<()> {
        let Unsettled { changes, promised } = &mut self.unsettled;
        if changes.is_empty() {
            return Ok(());
        }
        self.shared.database.commit(std::mem::take(changes))?;
        self.superblock.write(promised)?;
        if let Some(last) = promised.last {
            self.shared.view().flushed(last);
        }
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
        self.settle()
    }

    fn tell(&mut self) {
        for waiting in self.part.waiting.drain(..) {
            waiting.tell(Ok(()));
        }
    }
}
