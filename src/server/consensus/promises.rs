//! What the other nodes have promised this one, and a node that does not keep it (I7, I12).
//!
//! A node that granted a vote or acknowledged an entry has it on its disk. So no later process with the same directory can
//! begin with less. One that does was given an older copy of it, or there are two copies: it would vote twice, or be counted
//! for entries that it lacks. Whoever was told more refuses it. What nobody remembers who runs cannot be seen.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::errors::{RPCError, Unreachable};
use openraft::raft::StreamAppendError;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::append::AppendResult;
use super::handshake::{Party, PeerHello, Refusal};
use crate::server::formats::{LeadershipFormat, LogIdFormat};
use crate::server::store::WAY_OUT;
use crate::server::types::{Incarnation, LogId, NodeId, TypeConfig, Vote};

/// What a directory holds of its promises.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promise {
    /// For whom it voted last.
    vote: Option<LeadershipFormat>,
    /// The last entry.
    last: Option<LogIdFormat>,
}

impl Promise {
    /// By a vote and a log's last entry.
    pub(crate) fn new(vote: Option<Vote>, last: Option<LogId>) -> Self {
        Self {
            vote: vote.map(|vote| (*vote.leader_id()).into()),
            last: last.map(Into::into),
        }
    }

    /// Whether a directory that has promised the other can hold this. Under a newer vote entries may have been truncated by a
    /// leader; under the same one nobody takes back what was acknowledged.
    fn keeps(self, other: Self) -> bool {
        other.vote < self.vote || (other.vote == self.vote && other.last <= self.last)
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vote {
            Some(vote) => write!(f, "vote {vote}")?,
            None => f.write_str("no vote")?,
        }
        match self.last {
            Some(last) => write!(f, ", entries up to {last}", last = LogId::from(last)),
            None => f.write_str(", no entry"),
        }
    }
}

/// With what a process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beginning {
    /// Another number for each process.
    pub(crate) process: u64,
    /// What its directory held.
    pub(crate) holds: Promise,
}

/// What all others have promised, and what they say of this node's promises. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Promises {
    others: Arc<Mutex<BTreeMap<NodeId, Promised>>>,
    own: watch::Sender<Option<RolledBack>>,
    removed: watch::Sender<Option<NodeId>>,
}

/// A peer's word that this node's directory is an older copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {node} was given an older copy of its data directory, or there are two: it has promised node {told_by} {promised}, and \
     this copy holds {holds}; {WAY_OUT}"
)]
pub(crate) struct RolledBack {
    /// This node.
    pub(crate) node: NodeId,
    /// Whose word.
    pub(crate) told_by: NodeId,
    /// What the directory has promised that peer.
    pub(crate) promised: Promise,
    /// What it held when this process began.
    pub(crate) holds: Promise,
}

#[derive(Debug, Clone, Copy)]
struct Promised {
    incarnation: Incarnation,
    /// The process that was met last; what it said is not compared with what it began with.
    process: Option<u64>,
    promise: Promise,
    told: Option<LostEntries>,
}

/// A running process that lacks what it acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {node} has lost entries: it acknowledged all up to {acknowledged}, and lacks {lacks}. It is sent nothing more. Stop it, \
     and do not start it with this directory again"
)]
struct LostEntries {
    node: NodeId,
    acknowledged: LogId,
    lacks: u64,
}

impl Default for Promises {
    fn default() -> Self {
        Self {
            others: Arc::default(),
            own: watch::Sender::new(None),
            removed: watch::Sender::new(None),
        }
    }
}

impl Promises {
    /// Meets a node, which says with what its process began.
    ///
    /// # Errors
    /// [`Refusal::RolledBack`] where its directory has promised more.
    pub(super) fn meet(&self, party: Party, beginning: Beginning) -> Result<(), Refusal> {
        let mut all = self.lock();
        let promised = of(&mut all, party);
        if promised.process == Some(beginning.process) {
            return Ok(());
        }
        if !beginning.holds.keeps(promised.promise) {
            let refusal = Refusal::RolledBack {
                node: party.node,
                promised: promised.promise,
            };
            let holds = beginning.holds;
            tracing::error!(peer = %party.node, error = %refusal, %holds, "peer refused");
            return Err(refusal);
        }
        promised.process = Some(beginning.process);
        // Its last entry may be one that no leader acknowledges.
        promised.raise(beginning.holds.vote);
        Ok(())
    }

    /// It granted a vote.
    pub(super) fn voted(&self, party: Party, vote: Vote) {
        of(&mut self.lock(), party).raise(Some((*vote.leader_id()).into()));
    }

    /// Looks at its answer to an append under this vote. One that shows a loss becomes an error: openraft takes for granted
    /// that there is none, and ends the leader over it.
    pub(super) fn check(&self, party: Party, vote: Vote, result: AppendResult) -> AppendResult {
        let leadership = LeadershipFormat::from(*vote.leader_id());
        let mut all = self.lock();
        let promised = of(&mut all, party);
        match &result {
            Ok(Ok(Some(matching))) => {
                promised.raise(Some(leadership));
                promised.acknowledge(leadership, *matching);
            }
            Ok(Err(StreamAppendError::Conflict(prev))) => {
                promised.refuse(party.node, leadership, prev.index())?;
            }
            Ok(Ok(None) | Err(StreamAppendError::HigherVote(_))) | Err(_) => {}
        }
        result
    }

    /// A peer refused this node's call.
    pub(super) fn refused(&self, hello: &PeerHello, refusal: Refusal) {
        if refusal
            == (Refusal::Removed {
                node: hello.from.node,
            })
        {
            self.removed.send_replace(Some(hello.to.node));
        }
        if let Refusal::RolledBack { node, promised } = refusal
            && node == hello.from.node
        {
            self.own.send_replace(Some(RolledBack {
                node,
                told_by: hello.to.node,
                promised,
                holds: hello.beginning.holds,
            }));
        }
    }

    /// Resolves where a peer says that this node was removed: which one.
    pub(super) async fn removed(&self) -> NodeId {
        let mut removed = self.removed.subscribe();
        loop {
            if let Some(told_by) = *removed.borrow_and_update() {
                return told_by;
            }
            // The sender is this very one.
            drop(removed.changed().await);
        }
    }

    /// Resolves where a peer knows more of this node's promises than its directory holds.
    pub(super) async fn rolled_back(&self) -> RolledBack {
        let mut own = self.own.subscribe();
        loop {
            if let Some(rolled_back) = *own.borrow_and_update() {
                return rolled_back;
            }
            // The sender is this very one.
            drop(own.changed().await);
        }
    }

    /// Forgets all but these.
    pub(super) fn retain(&self, stays: impl Fn(&NodeId) -> bool) {
        self.lock().retain(|id, _| stays(id));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Promised>> {
        // Nothing panics while it is held.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What this one has promised. Another incarnation has promised nothing.
fn of(all: &mut BTreeMap<NodeId, Promised>, party: Party) -> &mut Promised {
    let unknown = Promised {
        incarnation: party.incarnation,
        process: None,
        promise: Promise::default(),
        told: None,
    };
    let promised = all.entry(party.node).or_insert(unknown);
    if promised.incarnation != party.incarnation {
        *promised = unknown;
    }
    promised
}

impl Promised {
    fn raise(&mut self, vote: Option<LeadershipFormat>) {
        if self.promise.vote < vote {
            self.promise = Promise { vote, last: None };
        }
    }

    fn acknowledge(&mut self, leadership: LeadershipFormat, matching: LogId) {
        if self.promise.vote == Some(leadership) {
            self.promise.last = self.promise.last.max(Some(matching.into()));
        }
    }

    fn refuse(
        &mut self,
        node: NodeId,
        leadership: LeadershipFormat,
        lacks: u64,
    ) -> Result<(), RPCError<TypeConfig>> {
        let acknowledged = match self.promise {
            Promise {
                vote: Some(vote),
                last: Some(last),
            } if vote == leadership => LogId::from(last),
            _ => return Ok(()),
        };
        if acknowledged.index() < lacks {
            return Ok(());
        }
        let lost = LostEntries {
            node,
            acknowledged,
            lacks,
        };
        if self.told.replace(lost) != Some(lost) {
            tracing::error!("{lost}");
        }
        Err(Unreachable::new(&lost).into())
    }
}

#[cfg(test)]
mod tests {
    use openraft::errors::NetworkError;

    use super::*;
    use crate::server::consensus::tests::{id, incarnation, log_id, vote};

    fn conflict(index: u64) -> AppendResult {
        Ok(Err(StreamAppendError::Conflict(log_id(1, 1, index))))
    }

    fn matching(index: u64) -> AppendResult {
        Ok(Ok(Some(log_id(1, 1, index))))
    }

    fn node_2() -> Party {
        Party {
            node: id(2),
            incarnation: incarnation(2),
        }
    }

    fn begins(process: u64, vote: Vote, last: LogId) -> Beginning {
        Beginning {
            process,
            holds: Promise::new(Some(vote), Some(last)),
        }
    }

    #[test]
    fn who_lacks_what_it_acknowledged_is_unreachable_and_who_is_behind_is_not() {
        let promises = Promises::default();
        let check = |result: AppendResult| promises.check(node_2(), vote(1, 1), result);

        // It has never acknowledged anything.
        assert_eq!(check(conflict(5)), conflict(5));
        assert_eq!(check(matching(7)), matching(7));
        // An older answer that comes late takes nothing back.
        assert_eq!(check(matching(6)), matching(6));
        assert_eq!(check(conflict(8)), conflict(8));
        let lost = check(conflict(7)).unwrap_err();

        assert!(matches!(lost, RPCError::Unreachable(_)), "{lost:?}");
        let told = "node 2 has lost entries: it acknowledged all up to T1-N1.7, and lacks 7. It is sent nothing more";
        assert!(lost.to_string().contains(told), "{lost}");
        let broken: AppendResult = Err(NetworkError::from_string("cut").into());
        assert!(check(broken).is_err());
        assert!(check(conflict(7)).is_err(), "it still has not");
    }

    #[test]
    fn under_another_vote_what_was_acknowledged_may_have_been_truncated() {
        let promises = Promises::default();
        assert!(promises.check(node_2(), vote(1, 1), matching(7)).is_ok());

        let later = promises.check(node_2(), vote(2, 1), conflict(5));

        assert_eq!(later, conflict(5));
    }

    #[test]
    fn a_later_process_that_begins_with_less_than_was_acknowledged_is_refused() {
        let promises = Promises::default();
        let meet = |beginning| promises.meet(node_2(), beginning);
        meet(begins(1, vote(1, 1), log_id(1, 1, 3))).unwrap();
        assert!(promises.check(node_2(), vote(1, 1), matching(7)).is_ok());

        // The same process connects again: it says with what it began, and has more by now.
        meet(begins(1, vote(1, 1), log_id(1, 1, 3))).unwrap();
        let refused = meet(begins(2, vote(1, 1), log_id(1, 1, 6))).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "node 2 was given an older copy of its data directory: it has promised vote T1-N1, entries up to T1-N1.7"
        );
        meet(begins(3, vote(1, 1), log_id(1, 1, 7))).unwrap();
    }

    #[test]
    fn a_later_process_that_begins_with_an_older_vote_is_refused() {
        let promises = Promises::default();
        let meet = |beginning| promises.meet(node_2(), beginning);
        promises.voted(node_2(), vote(4, 3));

        meet(begins(1, vote(3, 1), log_id(1, 1, 90))).unwrap_err();
        meet(begins(2, vote(4, 3), log_id(1, 1, 3))).unwrap();
    }

    #[test]
    fn under_a_newer_vote_a_process_may_begin_with_less() {
        let promises = Promises::default();
        assert!(promises.check(node_2(), vote(1, 1), matching(7)).is_ok());

        // Its new leader had truncated what was not committed, and it ended before it was sent anything else.
        let beginning = begins(1, vote(2, 3), log_id(1, 1, 5));

        promises.meet(node_2(), beginning).unwrap();
    }

    #[test]
    fn what_a_process_began_with_may_be_truncated_before_the_next_begins() {
        let promises = Promises::default();
        promises
            .meet(node_2(), begins(1, vote(2, 3), log_id(1, 1, 9)))
            .unwrap();

        promises
            .meet(node_2(), begins(2, vote(2, 3), log_id(1, 1, 5)))
            .unwrap();
    }

    #[test]
    fn another_incarnation_has_promised_nothing() {
        let promises = Promises::default();
        assert!(promises.check(node_2(), vote(9, 1), matching(7)).is_ok());
        let other = Party {
            incarnation: incarnation(5),
            ..node_2()
        };

        promises.meet(other, Beginning::default()).unwrap();
    }
}
