//! Step 2 of the walk: what waits at this node becomes one batch and goes to whoever leads.
//!
//! A few batches are in flight from a node at once. What arrives meanwhile makes the next one, so no timer is needed
//! and no request waits for a fuller batch. Every request is told exactly what became of it: a request that was never
//! sent, or whose every send was refused before an entry was appended, did not happen; of one that was sent and not
//! answered nobody knows (I5).

mod courier;
mod queue;
mod request;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use self::courier::{Courier, Place};
use self::queue::{Queue, size};
use self::request::{Pending, Ticket};
use super::consensus::{Consensus, Forwarded};
use super::types::LogId;
use crate::sequence::{Command, Outcome};

/// Requests that wait at a node for a batch. At 1,024 a batch this is some tens of milliseconds of work.
const QUEUE_MAX: usize = 16_384;
/// What these requests may take in memory. Some hundred of the largest are as much as all of the common ones.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Batches in flight at once. With only one, the first request after an answer would travel alone and all others wait
/// for its return; the leader merges what arrives meanwhile into one entry anyway.
const BATCHES_IN_FLIGHT_MAX: usize = 4;
/// An outcome with the entry that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Committed {
    /// What the table answered.
    pub(crate) outcome: Outcome,
    /// The entry, with the leadership that proposed it.
    pub(crate) log_id: LogId,
}

/// Why a request has no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmitError {
    /// Not applied: the node's queue is full.
    #[error("{QUEUE_MAX} requests wait at this node already")]
    Overloaded,
    /// Not applied: the requests at the node are too large together.
    #[error("requests of {QUEUE_BYTES_MAX} bytes wait at this node already")]
    OutOfRoom,
    /// Not applied: no leader took the request before its deadline.
    #[error("no leader took the request before its deadline")]
    NoLeader,
    /// Not applied: it waited behind others until its deadline.
    #[error("the request waited behind others until its deadline")]
    Crowded,
    /// Not applied: the node is going down.
    #[error("this node is going down")]
    Stopping,
    /// Unknown: it was sent, and the deadline passed without an answer.
    #[error("the request was sent, and its deadline passed without an answer")]
    TimedOut,
    /// Unknown: it was sent, and the leader was lost before it answered.
    #[error("the request was sent, and the leader was lost before it answered")]
    LeaderLost,
}

/// The way into the batcher. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    consensus: Consensus,
    queue: mpsc::Sender<Pending>,
    /// One permit for each byte that may wait.
    room: Arc<Semaphore>,
}

impl Handle {
    /// Has the command committed and applied, or says why not, by the deadline.
    ///
    /// # Errors
    /// [`SubmitError`], which says whether the command may have been applied.
    pub(crate) async fn submit(
        &self,
        command: Command,
        deadline: Instant,
    ) -> Result<Committed, SubmitError> {
        let room = reserve(&self.room, &command)?;
        let ticket = Arc::new(Ticket::default());
        let (reply, answer) = oneshot::channel();
        let pending = Pending {
            command,
            deadline,
            ticket: Arc::clone(&ticket),
            reply,
            _room: room,
        };
        self.queue
            .try_send(pending)
            .map_err(|refused| match refused {
                mpsc::error::TrySendError::Full(_) => SubmitError::Overloaded,
                mpsc::error::TrySendError::Closed(_) => SubmitError::Stopping,
            })?;
        match timeout_at(deadline, answer).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_gone)) if ticket.abandon() => Err(SubmitError::Stopping),
            Ok(Err(_gone)) => Err(SubmitError::LeaderLost),
            Err(_elapsed) if !ticket.abandon() => Err(SubmitError::TimedOut),
            Err(_elapsed) if !self.consensus.in_touch() => Err(SubmitError::NoLeader),
            Err(_elapsed) => Err(SubmitError::Crowded),
        }
    }
}

/// The task that forms batches and has them delivered.
#[derive(Debug)]
pub(crate) struct Batcher {
    queue: Queue,
    courier: Courier,
    /// The number of the last batch formed.
    number: u64,
    /// The numbers of the batches that are not settled.
    unsettled: BTreeSet<u64>,
}

impl Batcher {
    /// A batcher and the way into it. Batches for this node as leader go into `proposals`.
    pub(crate) fn new(consensus: Consensus, proposals: mpsc::Sender<Forwarded>) -> (Self, Handle) {
        let (sender, queue) = mpsc::channel(QUEUE_MAX);
        let handle = Handle {
            consensus: consensus.clone(),
            queue: sender,
            room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)),
        };
        let batcher = Self {
            queue: Queue::new(queue),
            courier: Courier {
                consensus,
                proposals,
            },
            number: 0,
            unsettled: BTreeSet::new(),
        };
        (batcher, handle)
    }

    /// Delivers batches until every handle is gone.
    pub(crate) async fn run(mut self) {
        let mut in_flight = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(settled) = in_flight.next() => {
                    self.unsettled.remove(&settled);
                }
                first = self.queue.next(), if in_flight.len() < BATCHES_IN_FLIGHT_MAX => {
                    let Some(first) = first else { return };
                    let (waiting, place) = (self.queue.fill(first), self.place());
                    let courier = self.courier.clone();
                    in_flight.push(async move {
                        courier.deliver(waiting, place).await;
                        place.number
                    });
                }
            }
        }
    }

    /// The next batch's place in this node's counting.
    fn place(&mut self) -> Place {
        self.number += 1;
        self.unsettled.insert(self.number);
        let oldest = self.unsettled.first().copied().unwrap_or(self.number);
        Place {
            number: self.number,
            ack: oldest - 1,
        }
    }
}

/// The command's share of the room, until it is answered.
fn reserve(room: &Arc<Semaphore>, command: &Command) -> Result<OwnedSemaphorePermit, SubmitError> {
    let size = u32::try_from(size(command)).unwrap_or(u32::MAX);
    let reserved = Arc::clone(room).try_acquire_many_owned(size);
    reserved.map_err(|_full| SubmitError::OutOfRoom)
}
