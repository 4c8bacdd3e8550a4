//! Takes a batch to whoever leads, until it has outcomes or nobody can know them.

use std::pin::pin;

use bytes::Bytes;
use futures::future::{Either, select};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::request::Pending;
use super::{Committed, SubmitError};
use crate::sequence::{Batch, BatchHash, Command, Outcome, SessionId};
use crate::server::codec;
use crate::server::config::Timing;
use crate::server::consensus::{
    Call, CallError, Consensus, ForwardReply, Forwarded, Leader, Reply, left_ms,
};
use crate::server::store::DiskState;
use crate::server::types::{LogId, Member, NodeId};

/// A batch's number, and up to which number everything is settled. Outside a session they only tell batches apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) ack: u64,
}

/// Takes batches to whoever leads.
#[derive(Debug, Clone)]
pub(super) struct Courier {
    pub(super) consensus: Consensus,
    pub(super) proposals: mpsc::Sender<Forwarded>,
}

impl Courier {
    /// Sends the batch until it has outcomes, nobody knows them, or nobody waits any more.
    pub(super) async fn deliver(&self, mut waiting: Vec<Pending>, place: Place) {
        let mut changes = self.consensus.changes();
        loop {
            waiting.retain(|pending| !pending.ticket.is_abandoned());
            if waiting.is_empty() {
                return;
            }
            let leader = self.consensus.leader();
            // A leader that no quorum answers would refuse, and so may one that was not heard of lately.
            if leader == Leader::Unknown || !self.consensus.in_touch() {
                if self.consensus.disk().state() == DiskState::Stuck {
                    // It keeps this node from hearing of its leader, and will for a while: another node can serve.
                    return waiting.into_iter().for_each(|pending| {
                        pending.answer(Err(SubmitError::DiskStuck));
                    });
                }
                self.consensus.settle(&mut changes).await;
                continue;
            }
            waiting.retain(|pending| pending.ticket.claim());
            let Some(deadlines) = deadlines(&waiting, self.consensus.timing()) else {
                continue;
            };
            let batch = freeze(&waiting, place);
            match self.send(leader, batch, deadlines).await {
                Sent::Applied { log_id, outcomes } => return settle(waiting, log_id, outcomes),
                Sent::Unknown => return waiting.into_iter().for_each(Pending::lose),
                Sent::DiskFull => {
                    return waiting.into_iter().for_each(|pending| {
                        pending.answer(Err(SubmitError::DiskFull));
                    });
                }
                Sent::Refused => {
                    waiting.retain(|pending| pending.ticket.release());
                    self.consensus.settle(&mut changes).await;
                }
            }
        }
    }

    async fn send(&self, leader: Leader, batch: Bytes, deadlines: Deadlines) -> Sent {
        let reply = match leader {
            Leader::Here(_) => self.propose(batch, deadlines).await,
            Leader::There(id, ref member) => {
                let forwarded = pin!(self.forward(id, member, batch, deadlines));
                // A leader that was replaced may never answer, and nobody can tell whether it had the batch committed.
                match select(forwarded, pin!(self.consensus.superseded(&leader))).await {
                    Either::Left((reply, _)) => reply,
                    Either::Right(((), _)) => ForwardReply::Unknown,
                }
            }
            Leader::Unknown => return Sent::Refused,
        };
        match reply {
            ForwardReply::Applied { log_id, outcomes } => Sent::Applied {
                log_id: log_id.into(),
                outcomes,
            },
            ForwardReply::NotLeader { .. } | ForwardReply::Overloaded | ForwardReply::Expired => {
                Sent::Refused
            }
            ForwardReply::Unknown => Sent::Unknown,
            ForwardReply::DiskFull => Sent::DiskFull,
        }
    }

    async fn propose(&self, batch: Bytes, deadlines: Deadlines) -> ForwardReply {
        let (reply, answer) = oneshot::channel();
        let deadline = deadlines.propose_by;
        if self
            .proposals
            .try_send(Forwarded {
                batch,
                deadline,
                reply,
            })
            .is_err()
        {
            return ForwardReply::Overloaded;
        }
        answer.await.unwrap_or(ForwardReply::Unknown)
    }

    async fn forward(
        &self,
        id: NodeId,
        member: &Member,
        batch: Bytes,
        Deadlines {
            propose_by,
            answer_by,
        }: Deadlines,
    ) -> ForwardReply {
        let call = Call::Forward {
            batch,
            left_ms: left_ms(propose_by),
        };
        match self.consensus.call(id, member, call, answer_by).await {
            Ok(Reply::Forward(reply)) => reply,
            Ok(_) | Err(CallError::Lost { .. }) => ForwardReply::Unknown,
            Err(CallError::NotSent { .. }) => ForwardReply::NotLeader { leader: None },
        }
    }
}

/// The batch's bytes, which no node on the way writes anew. One that was refused may be frozen again without those who
/// have given up: under its number nothing was appended.
pub(super) fn freeze(waiting: &[Pending], Place { number, ack }: Place) -> Bytes {
    let commands: Vec<Command> = waiting
        .iter()
        .map(|pending| pending.command.clone())
        .collect();
    let batch = Batch {
        session: SessionId::NONE,
        number,
        ack,
        hash: hash(&commands),
        commands,
    };
    codec::encode(&batch).into()
}

/// When the last waiter gives up, and when the batch may last be proposed: a little before the first one does, because
/// a refusal at the last moment must be known while its waiter can still be told so. What is refused goes again without
/// those who have given up.
fn deadlines(waiting: &[Pending], timing: Timing) -> Option<Deadlines> {
    let deadlines = || waiting.iter().map(|pending| pending.deadline);
    let (first, answer_by) = (deadlines().min()?, deadlines().max()?);
    let left = first.saturating_duration_since(Instant::now());
    let margin = timing.heartbeat().min(left / 4);
    Some(Deadlines {
        propose_by: first - margin,
        answer_by,
    })
}

/// A batch's last moments.
#[derive(Debug, Clone, Copy)]
struct Deadlines {
    propose_by: Instant,
    answer_by: Instant,
}

/// What became of a batch.
enum Sent {
    Applied {
        log_id: LogId,
        outcomes: Vec<Outcome>,
    },
    /// Certainly not appended.
    Refused,
    /// Certainly not appended, and not soon.
    DiskFull,
    Unknown,
}

fn settle(waiting: Vec<Pending>, log_id: LogId, outcomes: Vec<Outcome>) {
    if waiting.len() != outcomes.len() {
        tracing::error!(
            index = log_id.index(),
            "a batch came back with another number of outcomes"
        );
        return waiting.into_iter().for_each(Pending::lose);
    }
    for (pending, outcome) in waiting.into_iter().zip(outcomes) {
        pending.answer(Ok(Committed { outcome, log_id }));
    }
}

/// BLAKE3 of the encoded commands, cut to 128 bits.
fn hash(commands: &[Command]) -> BatchHash {
    let full = blake3::hash(&codec::encode(&commands));
    let mut short = [0; 16];
    for (to, from) in short.iter_mut().zip(full.as_bytes()) {
        *to = *from;
    }
    BatchHash(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_commands_have_another_hash() {
        let one = Command::Advance {
            sequence: "p".parse().unwrap(),
            to: 1,
        };
        let two = Command::Advance {
            sequence: "p".parse().unwrap(),
            to: 2,
        };

        let (there, back) = ([one.clone(), two.clone()], [two, one]);
        assert_ne!(hash(&there[..1]), hash(&back[..1]));
        assert_ne!(hash(&there), hash(&back));
    }
}
