//! Reads that show everything answered before they were sent: ReadIndex (Raft dissertation §6.4).

use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::raft::linearizable_read::LinearizerOption;
use tokio::time::{Instant, timeout_at};

use super::{Call, Consensus, Leader, ReadIndexReply, Reply, left_ms};
#[cfg(test)]
use crate::planted::Bug;
use crate::server::types::{LogId, Member, NodeId};

/// Why a read could not be proved to be fresh. A read changes nothing, so all of these are safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadError {
    /// No leader proved itself before the deadline.
    #[error("no leader proved itself in time")]
    NoLeader,
    /// It waited behind others until its deadline.
    #[error("the read waited behind others until its deadline")]
    Crowded,
    /// Raft ended; the process is about to.
    #[error("raft has stopped")]
    Stopped,
}

impl Consensus {
    /// Waits until this node's table holds everything that was committed when the call began (ReadIndex, Raft
    /// dissertation §6.4), by asking whoever leads.
    ///
    /// # Errors
    /// [`ReadError`] where no leader proved itself before the deadline.
    pub(crate) async fn linearize(&self, deadline: Instant) -> Result<(), ReadError> {
        #[cfg(test)]
        if Bug::ReadUnproved.is_planted() {
            return Ok(());
        }
        let _place = self.reads.read(deadline).await?;
        let mut changes = self.changes();
        while Instant::now() < deadline {
            let leader = self.leader();
            let proof = pin!(self.proof_of(&leader, deadline));
            let superseded = pin!(self.superseded(&leader));
            // Elapsed: the deadline is what is looked at next. Superseded: the other one is asked.
            if let Ok(Either::Left((ReadIndexReply::Leads { read }, _))) =
                timeout_at(deadline, select(proof, superseded)).await
            {
                return self
                    .await_applied(LogId::from(read).index(), deadline)
                    .await;
            }
            self.settle(&mut changes).await;
        }
        Err(ReadError::NoLeader)
    }

    async fn proof_of(&self, leader: &Leader, deadline: Instant) -> ReadIndexReply {
        match leader {
            Leader::Here(_) => self.read_index(deadline).await,
            Leader::There(id, member) => self.ask_read_index(*id, member, deadline).await,
            Leader::Unknown => ReadIndexReply::Unproved,
        }
    }

    /// Proves that this node leads, by a quorum's answers to heartbeats sent after now.
    pub(crate) async fn read_index(&self, deadline: Instant) -> ReadIndexReply {
        let wait = deadline
            .saturating_duration_since(Instant::now())
            .min(self.timing.election_max());
        let option = LinearizerOption::new(Some(Duration::ZERO), true).with_wait_timeout(wait);
        match self.raft.get_read_linearizer(option).await {
            Ok(proof) => ReadIndexReply::Leads {
                read: (*proof.read_log_id().log_id()).into(),
            },
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                ReadIndexReply::NotLeader {
                    leader: forward.leader_id,
                }
            }
            Err(
                RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))
                | RaftError::Fatal(_),
            ) => ReadIndexReply::Unproved,
        }
    }

    async fn ask_read_index(
        &self,
        id: NodeId,
        member: &Member,
        deadline: Instant,
    ) -> ReadIndexReply {
        let call = Call::ReadIndex {
            left_ms: left_ms(deadline),
        };
        match self.call(id, member, call, deadline).await {
            Ok(Reply::ReadIndex(reply)) => reply,
            Ok(_) | Err(_) => ReadIndexReply::Unproved,
        }
    }

    async fn await_applied(&self, index: u64, deadline: Instant) -> Result<(), ReadError> {
        let raft = self.raft.wait(None);
        let applied = raft.applied_index_at_least(Some(index), "read");
        match timeout_at(deadline, applied).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_stopped)) => Err(ReadError::Stopped),
            Err(_elapsed) => Err(ReadError::NoLeader),
        }
    }

    /// Waits until a quorum has committed, and this node applied, all that its log held when it started, or what a
    /// later leadership has put in its place (openraft#1511): before that its table may be older than what it once
    /// answered (I6).
    pub(crate) async fn recovered(&self, started_with: Option<LogId>) -> Result<(), ReadError> {
        let raft = self.raft.wait(None);
        let waited = raft.metrics(
            |metrics| {
                // Whole log ids: of a tail that was truncated, a shorter log of a later leadership covers everything.
                let committed = metrics.cluster_committed;
                committed.is_some()
                    && started_with <= committed
                    && started_with <= metrics.last_applied
            },
            "recovered",
        );
        waited
            .await
            .map(drop)
            .map_err(|_stopped| ReadError::Stopped)
    }
}
