//! Step 2 of the walk: what waits at this node becomes one batch and goes to whoever leads.
//!
//! A few batches are in flight from a node at once. What arrives meanwhile makes the next one, so no timer is needed
//! and no request waits for a fuller batch. Every request is told exactly what became of it: a request that was never
//! sent, or whose every send was refused before an entry was appended, did not happen; of one that was sent and not
//! answered nobody knows (I5).

mod courier;
mod request;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use self::courier::{Courier, Place};
use self::request::{Pending, Ticket};
use super::consensus::{Consensus, Forwarded};
use super::types::{BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, LogId};
use crate::sequence::{Command, Outcome};

/// Requests that wait at a node for a batch. At 1,024 a batch this is some tens of milliseconds of work.
const QUEUE_MAX: usize = 16_384;
/// Batches in flight at once. With only one, the first request after an answer would travel alone and all others wait
/// for its return; the leader merges what arrives meanwhile into one entry anyway.
const BATCHES_IN_FLIGHT_MAX: usize = 4;
/// What a batch costs besides its commands: session, number, ack, hash and length.
const ENVELOPE_BYTES: usize = 8 + 8 + 8 + 16 + 8;
/// What a command costs at most besides its sequence's name.
const COMMAND_BYTES: usize = 64;

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
    /// Not applied: no leader took the request before its deadline.
    #[error("no leader took the request before its deadline")]
    NoLeader,
    /// Not applied: it waited behind others until its deadline.
    #[error("the request waited behind others until its deadline")]
    Crowded,
    /// Not applied: the leader's disk is full.
    #[error("the leader's disk is full, and no node with room can lead")]
    DiskFull,
    /// Not applied: this node's disk does not answer, and so it does not hear of its leader.
    #[error("this node's disk does not answer")]
    DiskStuck,
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
        let ticket = Arc::new(Ticket::default());
        let (reply, answer) = oneshot::channel();
        let pending = Pending {
            command,
            deadline,
            ticket: Arc::clone(&ticket),
            reply,
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
    queue: mpsc::Receiver<Pending>,
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
        };
        let batcher = Self {
            queue,
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
                first = self.queue.recv(), if in_flight.len() < BATCHES_IN_FLIGHT_MAX => {
                    let Some(first) = first else { return };
                    let (waiting, place) = (self.fill(first), self.place());
                    let courier = self.courier.clone();
                    in_flight.push(async move {
                        courier.deliver(waiting, place).await;
                        place.number
                    });
                }
            }
        }
    }

    /// What has arrived by now, up to a batch.
    fn fill(&mut self, first: Pending) -> Vec<Pending> {
        let mut room = BATCH_BYTES_MAX - ENVELOPE_BYTES - size(&first.command);
        let mut waiting = vec![first];
        // A command's size is bounded by its name's, so asking for the largest possible leaves none held back.
        while size_max() <= room && waiting.len() < BATCH_COMMANDS_MAX {
            let Ok(pending) = self.queue.try_recv() else {
                break;
            };
            room -= size(&pending.command);
            waiting.push(pending);
        }
        waiting
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

/// An upper bound of a command's encoded size.
fn size(command: &Command) -> usize {
    let (Command::Grant { sequence, .. }
    | Command::Create { sequence, .. }
    | Command::Advance { sequence, .. }) = command;
    COMMAND_BYTES + sequence.as_str().len()
}

const fn size_max() -> usize {
    COMMAND_BYTES + crate::sequence::NAME_LENGTH_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::{Batch, BatchHash, RangeCount, SequenceName, SessionId, Settings};
    use crate::server::codec;

    #[test]
    fn no_command_is_larger_than_its_bound() {
        let sequence: SequenceName = "x"
            .repeat(crate::sequence::NAME_LENGTH_MAX)
            .parse()
            .unwrap();
        let commands = [
            Command::Grant {
                sequence: sequence.clone(),
                count: RangeCount::ONE,
            },
            Command::Create {
                sequence: sequence.clone(),
                settings: Settings::default(),
            },
            Command::Advance {
                sequence,
                to: u64::MAX,
            },
        ];
        for command in commands {
            assert!(
                codec::encode(&command).len() <= size(&command),
                "{command:?}"
            );
            assert!(size(&command) <= size_max());
        }
    }

    #[test]
    fn the_envelope_is_as_large_as_it_is_counted() {
        let batch = Batch {
            session: SessionId::NONE,
            number: u64::MAX,
            ack: u64::MAX,
            hash: BatchHash([0; 16]),
            commands: Vec::new(),
        };

        assert_eq!(codec::encode(&batch).len(), ENVELOPE_BYTES);
    }
}
