//! Hands leadership to another voter, by asking that one to stand for election now (Raft dissertation §3.10).
//!
//! The request goes out over our own connection and not by openraft's trigger. That one marks the leader, which from
//! then on neither writes nor sends heartbeats, and nothing ever clears the mark: where the other node does not take
//! over, and no third one can, the cluster is without a leader for good. Here the leader stays a whole one until it sees
//! the election that it asked for; it only holds back its own proposals, for as long as the attempt lasts.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::at_leader::{LeaderError, LeaderReply};
use super::protocol::{HandOverRefusal, TransferLeaderReply};
use super::{Call, Consensus, Leader, Reply};
use crate::server::store::DiskState;
use crate::server::types::{Leadership, LogId, Member, NodeId};

/// The right to append as the leader: the proposer has it while an entry is in flight, a transfer until it has ended.
#[derive(Debug)]
pub(super) struct Turn(Semaphore);

impl Default for Turn {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

impl Turn {
    /// The turn, unless somebody has it or waits for it.
    pub(super) fn try_take(&self) -> Option<SemaphorePermit<'_>> {
        self.0.try_acquire().ok()
    }

    async fn take(&self, deadline: Instant) -> Option<SemaphorePermit<'_>> {
        timeout_at(deadline, self.0.acquire()).await.ok()?.ok()
    }
}

/// Why leadership was not handed over. This node leads on, unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TransferError {
    /// There is nothing to hand over.
    #[error("this node does not lead")]
    NotLeader,
    /// The named one cannot lead.
    #[error("node {to} is no voter of this cluster")]
    NoVoter {
        /// Who was named.
        to: NodeId,
    },
    /// Nobody can take it.
    #[error("no other voter is fit to lead: {why}")]
    NobodyFit {
        /// What is wrong with each.
        why: String,
    },
    /// An entry is in flight and does not commit.
    #[error("an entry is in flight: it was not committed within {within:?}")]
    InFlight {
        /// How long was waited.
        within: Duration,
    },
    /// Those who are fit lack entries.
    #[error("no voter that is fit to lead has the last entry within {within:?}")]
    Behind {
        /// How long was waited.
        within: Duration,
    },
    /// The chosen one refused or did not answer.
    #[error("node {to} does not take over: {reason}")]
    Refused {
        /// Who was asked.
        to: NodeId,
        /// In words.
        reason: String,
    },
    /// The chosen one accepted, and did not win an election.
    #[error("node {to} was asked to lead, and nobody else led within {within:?}")]
    NotTaken {
        /// Who was asked.
        to: NodeId,
        /// How long was waited.
        within: Duration,
    },
}

/// Who leads, or why nobody else does.
pub(crate) type HandOverReply = LeaderReply<NodeId, HandOverRefusal>;
/// Why another node does not lead.
pub(crate) type HandOverError = LeaderError<HandOverRefusal>;

impl Consensus {
    /// Hands leadership to this voter, or to whichever is fit: its disk is, it answers within one heartbeat and has the
    /// last entry. Returns who leads instead.
    ///
    /// Ends within about four of the longest election time-outs, whatever happens.
    ///
    /// # Errors
    /// [`TransferError`]. Nothing has to be undone: whoever leads can propose.
    pub(crate) async fn transfer_leader(
        &self,
        to: Option<NodeId>,
    ) -> Result<NodeId, TransferError> {
        let Leader::Here(leadership) = self.leader() else {
            return Err(TransferError::NotLeader);
        };
        let within = self.timing().election_max();
        let fit = self.fit_voters(to, Instant::now() + within).await?;

        // From here on nothing new is proposed, so that the last entry stays the last one.
        let until = Instant::now() + within;
        let Some(_turn) = self.turn.take(until).await else {
            return Err(TransferError::InFlight { within });
        };
        let Some((successor, last)) = self.caught_up(&fit, until).await else {
            return Err(TransferError::Behind { within });
        };
        self.ask_to_lead(successor, &fit, last).await?;
        self.successor_of(leadership, successor).await
    }

    /// Has whoever leads hand over to this voter, or to whichever is fit. Returns who leads then; a node that leads already
    /// stays.
    ///
    /// # Errors
    /// [`HandOverError`], which says whether another may lead later.
    pub(crate) async fn hand_over(
        &self,
        to: Option<NodeId>,
        deadline: Instant,
    ) -> Result<NodeId, HandOverError> {
        let reply_of = |reply| match reply {
            Reply::HandOver(reply) => Some(reply),
            _ => None,
        };
        self.at_leader(deadline, |_left_ms| Call::HandOver { to }, reply_of)
            .await
    }

    /// Hands this node's own leadership over, if it has it.
    pub(super) async fn hand_over_own(&self, to: Option<NodeId>) -> HandOverReply {
        if to == Some(self.node()) && matches!(self.leader(), Leader::Here(_)) {
            return HandOverReply::Done(self.node());
        }
        match self.transfer_leader(to).await {
            Ok(leader) => HandOverReply::Done(leader),
            Err(TransferError::NotLeader) => HandOverReply::NotLeader,
            Err(TransferError::NoVoter { to }) => {
                HandOverReply::Refused(HandOverRefusal::NoVoter { to })
            }
            Err(error @ TransferError::NotTaken { .. }) => HandOverReply::Unknown {
                reason: error.to_string(),
            },
            Err(error) => HandOverReply::Refused(HandOverRefusal::NobodyFit {
                reason: error.to_string(),
            }),
        }
    }

    /// Hands leadership over because this node is about to end, where it leads and is not alone: the others go on at once
    /// instead of missing it first. Where nobody can take over, they elect a leader once it is gone.
    pub(crate) async fn resign(&self) {
        if self.raft().voter_ids().eq([self.node()]) {
            return;
        }
        match self.transfer_leader(None).await {
            Ok(peer) => {
                tracing::info!(%peer, "leadership handed over before this node ends");
            }
            Err(TransferError::NotLeader) => {}
            Err(error) => {
                tracing::warn!(%error, "leadership not handed over before this node ends");
            }
        }
    }

    /// The voters that could lead, and how to reach them.
    async fn fit_voters(
        &self,
        to: Option<NodeId>,
        until: Instant,
    ) -> Result<BTreeMap<NodeId, Member>, TransferError> {
        let voters: BTreeMap<NodeId, Member> = {
            let metrics = self.raft().server_metrics();
            let metrics = metrics.borrow_watched();
            let members = metrics.membership_config.membership();
            let others = members.voter_ids().filter(|id| *id != self.node());
            let wanted = others.filter(|id| to.is_none_or(|to| to == *id));
            wanted
                .filter_map(|id| Some((id, members.get_node(&id)?.clone())))
                .collect()
        };
        if let Some(to) = to
            && voters.is_empty()
        {
            return Err(TransferError::NoVoter { to });
        }
        loop {
            let asked = voters.iter().map(async |(id, member)| {
                let disk = self.disk_of(*id, member).await;
                (*id, member, disk)
            });
            let answers = join_all(asked).await;
            let is_fit = |disk: &Option<DiskState>| *disk == Some(DiskState::Fit);
            let fit: BTreeMap<NodeId, Member> = answers
                .iter()
                .filter(|(_, _, disk)| is_fit(disk))
                .map(|(id, member, _)| (*id, (*member).clone()))
                .collect();
            if !fit.is_empty() {
                return Ok(fit);
            }
            // One that is slow once may be quick the next time; a disk does not change so soon.
            let silent = answers.iter().any(|(_, _, disk)| disk.is_none());
            if !silent || until <= Instant::now() {
                let why = answers.iter().map(|(id, _, disk)| unfit(*id, *disk));
                return Err(TransferError::NobodyFit {
                    why: listed(why.collect()),
                });
            }
        }
    }

    /// How a voter's disk is, where it answers within one heartbeat.
    async fn disk_of(&self, id: NodeId, member: &Member) -> Option<DiskState> {
        let deadline = Instant::now() + self.timing().heartbeat();
        match self.call(id, member, Call::Status, deadline).await {
            Ok(Reply::Status(status)) => Some(status.disk),
            Ok(_) | Err(_) => {
                // A connection that is down says so at once.
                tokio::time::sleep_until(deadline).await;
                None
            }
        }
    }

    /// Waits for a voter of these that has the last entry on its disk; with that entry.
    async fn caught_up(
        &self,
        fit: &BTreeMap<NodeId, Member>,
        until: Instant,
    ) -> Option<(NodeId, Option<LogId>)> {
        let mut changes = self.raft().data_metrics();
        loop {
            let found = {
                let metrics = changes.borrow_watched();
                let last = metrics.last_log;
                let matched = metrics.replication.iter().flatten();
                let mut ready =
                    matched.filter(|(id, matched)| fit.contains_key(id) && **matched == last);
                ready.next().map(|(id, _)| (*id, last))
            };
            if found.is_some() {
                return found;
            }
            timeout_at(until, changes.changed()).await.ok()?.ok()?;
        }
    }

    async fn ask_to_lead(
        &self,
        to: NodeId,
        fit: &BTreeMap<NodeId, Member>,
        last: Option<LogId>,
    ) -> Result<(), TransferError> {
        let refused = |reason: String| Err(TransferError::Refused { to, reason });
        let Some(member) = fit.get(&to) else {
            return refused("it is not a member".to_owned());
        };
        let vote = self.raft().server_metrics().borrow_watched().vote;
        let request = TransferLeaderRequest::new(vote, to, last);
        // It may wait for its own disk before it answers.
        let deadline = Instant::now() + self.timing().election_max();
        let call = Call::TransferLeader(request.into());
        match self.call(to, member, call, deadline).await {
            // It has seen another vote: then there is, or will be, another leader.
            Ok(Reply::TransferLeader(
                TransferLeaderReply::Accepted | TransferLeaderReply::VoteChanged { .. },
            )) => Ok(()),
            Ok(Reply::TransferLeader(TransferLeaderReply::LogNotFlushed { .. })) => {
                refused("it lacks the last entry".to_owned())
            }
            Ok(Reply::Failed { reason }) => refused(reason),
            Ok(_) => refused("it answered another question".to_owned()),
            Err(error) => refused(error.to_string()),
        }
    }

    /// Waits until somebody else is seen to lead, two election time-outs at most.
    async fn successor_of(
        &self,
        leadership: Leadership,
        to: NodeId,
    ) -> Result<NodeId, TransferError> {
        let within = self.timing().election_max() * 2;
        let until = Instant::now() + within;
        let mut changes = self.changes();
        while Instant::now() < until {
            match self.leader() {
                Leader::There(id, _) => return Ok(id),
                // It was deposed and won again.
                Leader::Here(now) if now != leadership => break,
                Leader::Here(_) | Leader::Unknown => self.settle(&mut changes).await,
            }
        }
        Err(TransferError::NotTaken { to, within })
    }
}

fn unfit(id: NodeId, disk: Option<DiskState>) -> String {
    match disk {
        None => format!("node {id} does not answer"),
        Some(DiskState::Fit) => format!("node {id} is"),
        Some(DiskState::Full) => format!("node {id} has a full disk"),
        Some(DiskState::Stuck) => format!("node {id} has a disk that does not answer"),
    }
}

fn listed(why: Vec<String>) -> String {
    if why.is_empty() {
        return "there is none".to_owned();
    }
    why.join(", ")
}
