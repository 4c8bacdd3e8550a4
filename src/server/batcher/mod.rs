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
/// What each lease of several costs besides its sequence's name: the name's length and the count.
const PART_BYTES: usize = 8 + 4;

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
    /// A request that did not fit into the last batch.
    held: Option<Pending>,
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
            held: None,
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
                first = self.next(), if in_flight.len() < BATCHES_IN_FLIGHT_MAX => {
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
        let mut room = BATCH_BYTES_MAX - ENVELOPE_BYTES;
        let mut waiting = Vec::new();
        let mut next = Some(first);
        while let Some(pending) = next {
            let size = size(&pending.command);
            if room < size {
                self.held = Some(pending);
                break;
            }
            room -= size;
            waiting.push(pending);
            if waiting.len() == BATCH_COMMANDS_MAX {
                break;
            }
            next = self.queue.try_recv().ok();
        }
        waiting
    }

    /// Who waits longest.
    async fn next(&mut self) -> Option<Pending> {
        match self.held.take() {
            Some(held) => Some(held),
            None => self.queue.recv().await,
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

/// An upper bound of a command's encoded size.
fn size(command: &Command) -> usize {
    match command {
        Command::Grant { sequence, .. }
        | Command::Create { sequence, .. }
        | Command::Advance { sequence, .. }
        | Command::Alter { sequence, .. }
        | Command::Retire { sequence } => COMMAND_BYTES + sequence.as_str().len(),
        Command::GrantAll { parts, .. } => {
            let sizes = parts.iter().map(|part| part.sequence.as_str().len());
            COMMAND_BYTES + sizes.map(|length| PART_BYTES + length).sum::<usize>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::{
        Batch, BatchHash, Changes, GRANT_PARTS_MAX, GrantPart, NAME_LENGTH_MAX, RangeCount,
        SequenceName, SessionId, Settings,
    };
    use crate::server::codec;

    /// As many leases as one command holds, of the longest names.
    fn largest_lease() -> Command {
        let part = GrantPart {
            sequence: "x".repeat(NAME_LENGTH_MAX).parse().unwrap(),
            count: RangeCount::ONE,
        };
        Command::GrantAll {
            parts: vec![part; GRANT_PARTS_MAX].try_into().unwrap(),
            create: Some(Settings::default()),
        }
    }

    #[test]
    fn no_command_is_larger_than_its_bound() {
        let sequence: SequenceName = "x".repeat(NAME_LENGTH_MAX).parse().unwrap();
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
                sequence: sequence.clone(),
                to: u64::MAX,
            },
            Command::Alter {
                sequence: sequence.clone(),
                changes: Changes {
                    start: Some(u64::MAX),
                    increment: Some(u64::MAX),
                    max_value: Some(u64::MAX),
                    cache: Some(u64::MAX),
                    max_lease: Some(RangeCount::ONE),
                },
            },
            Command::Retire {
                sequence: sequence.clone(),
            },
            largest_lease(),
        ];
        for command in commands {
            assert!(
                codec::encode(&command).len() <= size(&command),
                "{command:?}"
            );
        }
        assert!(ENVELOPE_BYTES + size(&largest_lease()) <= BATCH_BYTES_MAX);
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
