//! Takes a batch to whoever leads, until it has outcomes or nobody can know them.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::request::Pending;
use super::{Committed, SubmitError};
#[cfg(test)]
use crate::planted::Bug;
use crate::sequence::{Answered, Batch, BatchHash, Command, Origin, Outcome, SessionId};
use crate::server::codec;
use crate::server::config::Timing;
use crate::server::consensus::{
    Call, CallError, Consensus, ForwardReply, Forwarded, Leader, Reply, left_ms,
};
use crate::server::store::DiskState;
use crate::server::types::{Member, NodeId};

/// How long the opening of a session is waited for before it is asked for again.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// A batch's session and number, and up to which number everything is settled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) session: SessionId,
    pub(super) number: u64,
    pub(super) ack: u64,
}

/// Takes batches to whoever leads.
#[derive(Debug, Clone)]
pub(super) struct Courier {
    pub(super) consensus: Consensus,
    pub(super) proposals: mpsc::Sender<Forwarded>,
}

/// What became of a batch.
#[derive(Debug)]
pub(super) enum Delivered {
    /// Everybody has an answer, or waits no more.
    Settled,
    /// Its session is over.
    SessionOver {
        /// Those who have no answer: what they ask was not applied.
        not_applied: Vec<Pending>,
    },
}

/// What became of the wish for a session.
#[derive(Debug)]
pub(super) enum Opening {
    /// Here it is.
    Opened(SessionId),
    /// Not now, nor soon: a disk stands in the way.
    Disk(SubmitError),
    /// Not now.
    NotYet,
}

impl Courier {
    /// Sends the batch until it has outcomes, nobody waits any more, or its session is over.
    pub(super) async fn deliver(&self, waiting: Vec<Pending>, place: Place) -> Delivered {
        let mut changes = self.consensus.changes();
        let mut parcel = Parcel::new(waiting, place);
        while parcel.is_wanted() {
            let leader = match self.find_leader() {
                Ok(leader) => leader,
                Err(Leaderless::DiskStuck) if parcel.is_unsent() => {
                    return parcel.refuse(SubmitError::DiskStuck);
                }
                Err(_) => {
                    self.consensus.settle(&mut changes).await;
                    continue;
                }
            };
            let Some((batch, deadlines)) = parcel.seal(self.consensus.timing()) else {
                continue;
            };
            let reply = self.send(&leader, batch.clone(), deadlines).await;
            match reply {
                ForwardReply::Applied(answered) => return parcel.settle(answered),
                ForwardReply::Stale => return parcel.come_back(),
                ForwardReply::DiskFull if parcel.is_unsent() => {
                    return parcel.refuse(SubmitError::DiskFull);
                }
                #[cfg(test)]
                ForwardReply::Unknown if Bug::BatchRenumbered.is_planted() => {
                    return parcel.come_back();
                }
                ForwardReply::Unknown => {
                    tracing::debug!(?place, ?leader, "a batch has no answer");
                    parcel.freeze(batch);
                }
                ForwardReply::NotLeader { .. }
                | ForwardReply::Overloaded
                | ForwardReply::Expired
                | ForwardReply::DiskFull => {
                    tracing::debug!(?place, ?leader, ?reply, "a batch was not taken");
                    parcel.reopen();
                }
            }
            // To the next leader at once; to the same one after a moment.
            if self.consensus.leader() == leader {
                self.consensus.settle(&mut changes).await;
            }
        }
        Delivered::Settled
    }

    /// Asks for the origin's session. It gets the same one however often it asks.
    pub(super) async fn open_session(&self, origin: Origin) -> Opening {
        let leader = match self.find_leader() {
            Ok(leader) => leader,
            Err(Leaderless::DiskStuck) => return Opening::Disk(SubmitError::DiskStuck),
            Err(Leaderless::Unknown) => return Opening::NotYet,
        };
        let outside = Place {
            session: SessionId::NONE,
            number: 0,
            ack: 0,
        };
        let batch = encode(vec![Command::OpenSession { origin }], outside);
        let until = Instant::now() + OPEN_TIMEOUT;
        let deadlines = Deadlines {
            propose_by: until,
            answer_by: until,
        };
        match self.send(&leader, batch, deadlines).await {
            ForwardReply::Applied(Answered { outcomes, .. }) => match *outcomes {
                [
                    Outcome::Opened {
                        session: Some(opened),
                    },
                ] => Opening::Opened(opened),
                _ => Opening::NotYet,
            },
            ForwardReply::DiskFull => Opening::Disk(SubmitError::DiskFull),
            _ => Opening::NotYet,
        }
    }

    /// Who leads, where it makes sense to send something there: a leader that no quorum answers would refuse, and so may
    /// one that was not heard of lately.
    fn find_leader(&self) -> Result<Leader, Leaderless> {
        let leader = self.consensus.leader();
        if leader != Leader::Unknown && self.consensus.in_touch() {
            return Ok(leader);
        }
        // A disk keeps this node from hearing of its leader, and will for a while: another node can serve.
        if self.consensus.disk().state() == DiskState::Stuck {
            return Err(Leaderless::DiskStuck);
        }
        Err(Leaderless::Unknown)
    }

    /// One send. Unknown: it may have been appended, and may still commit.
    async fn send(&self, leader: &Leader, batch: Bytes, deadlines: Deadlines) -> ForwardReply {
        match leader {
            Leader::Here(_) => self.propose(batch, deadlines).await,
            Leader::There(id, member) => {
                let forwarded = pin!(self.forward(*id, member, batch, deadlines));
                // A leader that was replaced may never answer, and nobody can tell whether it had the batch committed.
                match select(forwarded, pin!(self.consensus.superseded(leader))).await {
                    Either::Left((reply, _)) => reply,
                    Either::Right(((), _)) => ForwardReply::Unknown,
                }
            }
            Leader::Unknown => ForwardReply::NotLeader { leader: None },
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
                required: None,
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

/// Why nobody is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaderless {
    /// Nobody is known to lead with a quorum.
    Unknown,
    /// The same, and this node's own disk may be why.
    DiskStuck,
}

/// A batch on its way, with those who wait for it.
struct Parcel {
    waiting: Vec<Pending>,
    place: Place,
    /// Its bytes, once a send of it may have been appended: from then on its number is theirs.
    frozen: Option<Bytes>,
}

impl Parcel {
    fn new(waiting: Vec<Pending>, place: Place) -> Self {
        Self {
            waiting,
            place,
            frozen: None,
        }
    }

    fn is_wanted(&self) -> bool {
        self.waiting
            .iter()
            .any(|pending| !pending.ticket.is_abandoned())
    }

    /// Whether certainly nothing of it was appended.
    fn is_unsent(&self) -> bool {
        self.frozen.is_none()
    }

    /// The bytes to send, which no node on the way writes anew. Where nothing was appended so far, those who have given up
    /// are left out; `None` where all have.
    fn seal(&mut self, timing: Timing) -> Option<(Bytes, Deadlines)> {
        if let Some(frozen) = &self.frozen {
            return Some((frozen.clone(), self.last_deadline()?));
        }
        self.waiting.retain(|pending| pending.ticket.claim());
        let deadlines = deadlines(&self.waiting, timing)?;
        let commands = self.waiting.iter();
        let commands = commands.map(|pending| pending.command.clone());
        Some((encode(commands.collect(), self.place), deadlines))
    }

    /// A send of these bytes may have been appended.
    fn freeze(&mut self, batch: Bytes) {
        self.frozen = Some(batch);
    }

    /// The last send was refused. If every one was, its requests may still be given up.
    fn reopen(&mut self) {
        if self.is_unsent() {
            self.waiting.retain(|pending| pending.ticket.release());
        }
    }

    /// What was appended nobody needs to refuse any more: somebody may want to know to the last.
    fn last_deadline(&self) -> Option<Deadlines> {
        let last = self.waiting.iter().map(|pending| pending.deadline).max()?;
        Some(Deadlines {
            propose_by: last,
            answer_by: last,
        })
    }

    fn settle(self, Answered { entry, outcomes }: Answered) -> Delivered {
        if self.waiting.len() == outcomes.len() {
            for (pending, outcome) in self.waiting.into_iter().zip(outcomes) {
                pending.answer(Ok(Committed { outcome, entry }));
            }
        } else {
            let index = entry.index;
            tracing::error!(index, "a batch came back with another number of outcomes");
            self.waiting.into_iter().for_each(Pending::lose);
        }
        Delivered::Settled
    }

    fn refuse(self, why: SubmitError) -> Delivered {
        for pending in self.waiting {
            pending.answer(Err(why));
        }
        Delivered::Settled
    }

    /// The session is over. What was never appended can go with another.
    fn come_back(mut self) -> Delivered {
        self.reopen();
        let unsent = self.is_unsent();
        let (not_applied, lost) = self.waiting.into_iter().partition(|_| unsent);
        let lost: Vec<Pending> = lost;
        lost.into_iter().for_each(Pending::lose);
        Delivered::SessionOver { not_applied }
    }
}

/// The bytes of a batch.
pub(super) fn encode(commands: Vec<Command>, place: Place) -> Bytes {
    let Place {
        session,
        number,
        ack,
    } = place;
    let batch = Batch {
        session,
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
