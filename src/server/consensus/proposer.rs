//! Merges what waits for the leader into entries: one entry carries many batches, its own node's among them.
//!
//! No timer collects a group. Whatever arrived while the last entry was in flight becomes the next one, so a
//! lone request waits for nobody and a crowd shares one round of syncs.

use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResponse;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::{Consensus, ForwardReply, Forwarded, Leader};
#[cfg(test)]
use crate::planted::Bug;
use crate::sequence::{Applied, Batch, BatchOutcome};
use crate::server::codec;
use crate::server::tasks::gather;
use crate::server::types::{
    BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, Leadership, PROPOSAL_BYTES_MAX, Proposal, TypeConfig,
};

/// Batches that wait for a proposal: a few in flight from each node, and room for more nodes.
const QUEUE_MAX: usize = 256;
/// What each batch costs in a proposal besides its bytes: its length.
const BATCH_FRAME_BYTES: usize = 8;

/// The one task of a node that proposes.
#[derive(Debug)]
pub(crate) struct Proposer {
    consensus: Consensus,
    queue: mpsc::Receiver<Forwarded>,
    /// A batch that did not fit into the last entry.
    held: Option<Forwarded>,
    /// How many requests the last entry answered.
    crowd: usize,
    /// This node's latest leadership, and when it proposed last: what state time is counted from.
    proposed: Option<(Leadership, Instant)>,
}

impl Proposer {
    /// A queue for batches, and its receiving end for [`Proposer::new`].
    pub(crate) fn queue() -> (mpsc::Sender<Forwarded>, mpsc::Receiver<Forwarded>) {
        mpsc::channel(QUEUE_MAX)
    }

    /// A proposer for what arrives in the queue.
    pub(crate) fn new(consensus: Consensus, queue: mpsc::Receiver<Forwarded>) -> Self {
        Self {
            consensus,
            queue,
            held: None,
            crowd: 0,
            proposed: None,
        }
    }

    /// Proposes until every sender of the queue is gone. One entry is in flight at a time: on the machines measured,
    /// more of them were no faster, because what waits for the first one shares the second.
    pub(crate) async fn run(mut self) {
        while let Some(first) = self.next().await {
            gather(self.crowd).await;
            let group = self.collect(first);
            // While leadership is being handed over nothing new is proposed: whoever asks waits for the next leader.
            let consensus = self.consensus.clone();
            let Some(_turn) = consensus.turn.try_take() else {
                answer_all(group, &ForwardReply::NotLeader { leader: None });
                continue;
            };
            if let Some(staged) = self.stage(group) {
                self.crowd = staged.serve(&consensus).await;
            }
        }
    }

    async fn next(&mut self) -> Option<Forwarded> {
        match self.held.take() {
            Some(held) => Some(held),
            None => self.queue.recv().await,
        }
    }

    /// What fits into one entry, of what has arrived by now. Refuses what is too late or not a batch.
    fn collect(&mut self, first: Forwarded) -> Vec<Forwarded> {
        let mut group = Vec::new();
        let mut room = PROPOSAL_BYTES_MAX;
        let mut next = Some(first);
        while let Some(forwarded) = next {
            let size = forwarded.batch.len() + BATCH_FRAME_BYTES;
            if room < size && !group.is_empty() {
                self.held = Some(forwarded);
                break;
            }
            if let Some(forwarded) = admit(forwarded, &self.consensus) {
                room = room.saturating_sub(size);
                group.push(forwarded);
            }
            next = self.queue.try_recv().ok();
        }
        group
    }

    /// The group as a proposal under the present leadership. Where this node does not lead, or its disk is full, it is
    /// told so.
    fn stage(&mut self, mut group: Vec<Forwarded>) -> Option<Staged> {
        let Leader::Here(leadership) = self.consensus.leader() else {
            answer_all(group, &not_leader(&self.consensus));
            return None;
        };
        let others = group.extract_if(.., |forwarded| {
            forwarded
                .required
                .is_some_and(|required| required != leadership)
        });
        answer_all(others.collect(), &ForwardReply::NotLeader { leader: None });
        let deadline = group.iter().map(|forwarded| forwarded.deadline).max()?;
        if let Some(refusal) = self.consensus.full_disk_refusal() {
            answer_all(group, &refusal);
            return None;
        }
        Some(Staged {
            elapsed_ms: self.elapsed_ms(leadership),
            leadership,
            deadline,
            group,
        })
    }

    /// Milliseconds since this leadership's previous proposal, 0 for its first.
    fn elapsed_ms(&mut self, leadership: Leadership) -> u32 {
        let now = Instant::now();
        let elapsed = match self.proposed {
            Some((previous, at)) if previous == leadership => now.saturating_duration_since(at),
            _ => Duration::ZERO,
        };
        self.proposed = Some((leadership, now));
        u32::try_from(elapsed.as_millis()).unwrap_or(u32::MAX)
    }
}

/// What is about to become an entry.
struct Staged {
    leadership: Leadership,
    elapsed_ms: u32,
    /// The entry is not proposed after this.
    deadline: Instant,
    group: Vec<Forwarded>,
}

impl Staged {
    /// Has the entry committed and gives everyone their outcomes, or the reason why there are none. How many outcomes there were.
    async fn serve(self, consensus: &Consensus) -> usize {
        #[cfg(test)]
        if Bug::ReplyBeforeCommit.is_planted() {
            self.answer_early(consensus).await;
            return 0;
        }
        let refusal = match self.commit(consensus).await {
            Ok(applied) if applied.batches.len() == self.group.len() => {
                return answer_each(self.group, applied.batches);
            }
            Ok(_) => {
                tracing::error!("an entry was applied without its outcomes");
                ForwardReply::Unknown
            }
            Err(refusal) => refusal,
        };
        answer_all(self.group, &refusal);
        0
    }

    /// Answers what the entry would come to, and then proposes it.
    #[cfg(test)]
    async fn answer_early(mut self, consensus: &Consensus) {
        use crate::sequence::{EntryId, Position};
        let (mut table, applied) = consensus.tables().table_at();
        let decoded = self.group.iter();
        let decoded = decoded.map(|one| codec::decode::<Batch, BATCH_BYTES_MAX>(&one.batch));
        let batches: Vec<Batch> = decoded.collect::<Result<_, _>>().unwrap();
        let entry = EntryId {
            term: self.leadership.term,
            index: applied.map_or(0, |last| last.index() + 1),
        };
        let elapsed_ms = self.elapsed_ms;
        let position = Position { entry, elapsed_ms };
        let outcomes = table.apply(position, &batches).batches;
        for (forwarded, outcome) in self.group.iter_mut().zip(outcomes) {
            let (nobody, _) = tokio::sync::oneshot::channel();
            let asked = std::mem::replace(&mut forwarded.reply, nobody);
            asked.send(reply(outcome)).ok();
        }
        drop(self.commit(consensus).await);
    }

    async fn commit(&self, consensus: &Consensus) -> Result<Applied, ForwardReply> {
        match self.write(consensus).await? {
            Ok(response) => Ok(response.data),
            // Nothing was appended: another node leads, or the quorum was slow for an election time-out. In that case
            // the same leadership may serve a moment later, so the batches' origins send them again.
            Err(ClientWriteError::ForwardToLeader(_)) => Err(not_leader(consensus)),
            Err(
                ClientWriteError::LogEntryDiscarded(_)
                | ClientWriteError::ChangeMembershipError(_)
                | ClientWriteError::PreconditionFailed(_),
            ) => Err(ForwardReply::Unknown),
        }
    }

    /// One write. The outer error is an outcome that nobody knows: the entry may still commit.
    async fn write(&self, consensus: &Consensus) -> Result<Written, ForwardReply> {
        let batches = self.group.iter().map(|forwarded| forwarded.batch.clone());
        let proposal = Proposal {
            elapsed_ms: self.elapsed_ms,
            batches: batches.collect(),
        };
        let (responder, answer) = ProgressResponder::complete_only();
        let write = consensus.raft().write(proposal);
        let sent = write
            .with_leader(self.leadership)
            .responder(responder)
            .await;
        if sent.is_err() {
            return Err(ForwardReply::Unknown);
        }
        // An isolated leader's write hangs until it heals, so the wait has its own end: a heartbeat after the deadline,
        // when nobody waits for an outcome any more and a refusal has come, or the end of the leadership, after which
        // somebody else decides about the entry.
        let end = self.deadline + consensus.timing().heartbeat();
        let deposed = pin!(deposed(consensus, self.leadership));
        match timeout_at(end, select(answer, deposed)).await {
            Ok(Either::Left((Ok(written), _))) => Ok(written),
            Ok(Either::Left((Err(_), _)) | Either::Right(_)) | Err(_) => Err(ForwardReply::Unknown),
        }
    }
}

type Written = Result<ClientWriteResponse<TypeConfig>, ClientWriteError<TypeConfig>>;

/// Resolves a heartbeat after this node no longer leads by this leadership: long enough for a refusal that is on its
/// way.
async fn deposed(consensus: &Consensus, leadership: Leadership) {
    let mut changes = consensus.changes();
    while consensus.leader() == Leader::Here(leadership) {
        consensus.settle(&mut changes).await;
    }
    tokio::time::sleep(consensus.timing().heartbeat()).await;
}

fn reply(outcome: BatchOutcome) -> ForwardReply {
    match outcome {
        BatchOutcome::Applied(answered) => ForwardReply::Applied(answered),
        BatchOutcome::Stale => ForwardReply::Stale,
    }
}

fn not_leader(consensus: &Consensus) -> ForwardReply {
    let leader = match consensus.leader() {
        Leader::There(id, _) => Some(id),
        Leader::Here(_) | Leader::Unknown => None,
    };
    ForwardReply::NotLeader { leader }
}

/// The batch again where it may be proposed; otherwise its sender is told why not. The windows of what it changes end here,
/// before it is proposed and in the order in which batches are.
fn admit(forwarded: Forwarded, consensus: &Consensus) -> Option<Forwarded> {
    if forwarded.deadline <= Instant::now() {
        answer(forwarded, ForwardReply::Expired);
        return None;
    }
    // What does not decode would stop every node that applies it, so it is stopped here.
    let decoded = codec::decode::<Batch, BATCH_BYTES_MAX>(&forwarded.batch);
    if let Ok(batch) = decoded
        && batch.commands.len() <= BATCH_COMMANDS_MAX
    {
        consensus.cached.close(&batch.commands);
        return Some(forwarded);
    }
    tracing::error!("a forwarded batch does not decode: the sender runs another version");
    answer(forwarded, ForwardReply::Overloaded);
    None
}

fn answer(forwarded: Forwarded, reply: ForwardReply) {
    // A sender that is gone has given its requests their answer: unknown, at its own deadline.
    drop(forwarded.reply.send(reply));
}

/// Gives each its outcomes, and counts these.
fn answer_each(group: Vec<Forwarded>, outcomes: Vec<BatchOutcome>) -> usize {
    let mut count = 0;
    for (forwarded, outcome) in group.into_iter().zip(outcomes) {
        if let BatchOutcome::Applied(answered) = &outcome {
            count += answered.outcomes.len();
        }
        answer(forwarded, reply(outcome));
    }
    count
}

fn answer_all(group: Vec<Forwarded>, reply: &ForwardReply) {
    for forwarded in group {
        answer(forwarded, reply.clone());
    }
}
