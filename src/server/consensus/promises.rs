//! What the other nodes have promised this one, and a node that does not keep it (I7, I12).
//!
//! A node that granted a vote or acknowledged an entry has it on its disk. So no later process with the same directory can
//! begin with less. One that does was given an older copy of it, or there are two copies: it would vote twice, or be counted
//! for entries that it lacks. Whoever was told more refuses it. So does whoever is connected to another process of that node:
//! of two copies that hold the same, both would vote. What nobody remembers who runs cannot be seen.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::errors::{RPCError, Unreachable};
use openraft::raft::StreamAppendError;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::append::AppendResult;
use super::frame::Limits;
use super::handshake::{Party, PeerHello, Refusal};
#[cfg(test)]
use crate::planted::Bug;
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

/// For so many times of silence a process that is new has to be refused for another one of its node before it ends: by then
/// nobody is connected any more to one that is gone.
const TWICE_SILENCES: u32 = 4;

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
    /// Since when a peer has refused this process for another one.
    twice: Arc<Mutex<BTreeMap<NodeId, Instant>>>,
    own: watch::Sender<Option<Disowned>>,
}

/// A peer's word that this process must not be this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Disowned {
    /// Its directory is an older copy.
    #[error(
        "node {node} was given an older copy of its data directory, or there are two: it has promised node {told_by} {promised}, \
         and this copy holds {holds}; {WAY_OUT}"
    )]
    RolledBack {
        /// This node.
        node: NodeId,
        /// Whose word.
        told_by: NodeId,
        /// What the directory has promised that peer.
        promised: Promise,
        /// What it held when this process began.
        holds: Promise,
    },
    /// It is no member any more.
    #[error(
        "node {node} was removed from its cluster, as node {told_by} says: to have this machine serve again, start it with an empty \
         data directory and --join, and it becomes another node"
    )]
    Removed {
        /// This node.
        node: NodeId,
        /// Whose word: its own where its log says so.
        told_by: NodeId,
    },
    /// Another process is this node.
    #[error(
        "node {node} runs twice: node {told_by} is connected to it at {running}, and this process, at {given}, has the same data \
         directory or a copy of it; leave this one stopped, or stop the other one and move its directory here"
    )]
    Twice {
        /// This node.
        node: NodeId,
        /// Whose word.
        told_by: NodeId,
        /// Where the other process is.
        running: SocketAddr,
        /// Where this process is, as that peer sees it.
        given: SocketAddr,
    },
}

#[derive(Debug, Clone, Copy)]
struct Promised {
    incarnation: Incarnation,
    /// Which was met last.
    process: Option<Process>,
    promise: Promise,
    told: Option<LostEntries>,
}

/// A process of a node. What it holds by now is not compared with what it began with.
#[derive(Debug, Clone, Copy)]
struct Process {
    number: u64,
    at: SocketAddr,
    connections: usize,
}

/// A connection for calls with a process that was met. As long as there is one, no other process of that node is.
#[derive(Debug)]
pub(crate) struct Meeting {
    promises: Promises,
    party: Party,
    process: u64,
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let mut all = self.promises.lock();
        if let Some(promised) = all.get_mut(&self.party.node)
            && promised.incarnation == self.party.incarnation
            && let Some(process) = &mut promised.process
            && process.number == self.process
        {
            process.connections = process.connections.saturating_sub(1);
        }
    }
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
            twice: Arc::default(),
            own: watch::Sender::new(None),
        }
    }
}

impl Promises {
    /// Meets a node at this address, which says with what its process began.
    ///
    /// # Errors
    /// [`Refusal::RolledBack`] where its directory has promised more, and [`Refusal::Twice`] where there is a connection to
    /// another process of it.
    pub(super) fn meet(
        &self,
        party: Party,
        beginning: Beginning,
        at: SocketAddr,
    ) -> Result<Meeting, Refusal> {
        let mut all = self.lock();
        let promised = of(&mut all, party);
        let met = promised.process;
        let process = met.filter(|process| process.number == beginning.process);
        let known = process.is_some();
        #[cfg(test)]
        let known = known || Bug::WipedNodeVotes.is_planted();
        if !known {
            promised.admit(party.node, beginning.holds, at)?;
        }
        promised.process = Some(Process {
            number: beginning.process,
            at,
            connections: process.map_or(0, |process| process.connections) + 1,
        });
        Ok(Meeting {
            promises: self.clone(),
            party,
            process: beginning.process,
        })
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
    pub(super) fn refused(&self, hello: &PeerHello, refusal: Refusal, limits: Limits) {
        let (own, told_by) = (hello.from.node, hello.to.node);
        let disowned = match refusal {
            Refusal::RolledBack { node, promised } if node == own => Disowned::RolledBack {
                node,
                told_by,
                promised,
                holds: hello.beginning.holds,
            },
            Refusal::Twice {
                node,
                running,
                given,
            } if node == own => {
                let since = *self.twice().entry(told_by).or_insert_with(Instant::now);
                // A peer takes a moment to see that the process before this one is gone.
                if since.elapsed() < limits.silence * TWICE_SILENCES {
                    return;
                }
                Disowned::Twice {
                    node,
                    told_by,
                    running,
                    given,
                }
            }
            Refusal::Removed { node } if node == own => Disowned::Removed { node, told_by },
            _ => return,
        };
        self.own.send_replace(Some(disowned));
    }

    /// A peer took this node's call.
    pub(super) fn taken(&self, by: NodeId) {
        self.twice().remove(&by);
    }

    /// Resolves where a peer knows that this process must not be this node.
    pub(super) async fn disowned(&self) -> Disowned {
        let mut own = self.own.subscribe();
        loop {
            if let Some(disowned) = *own.borrow_and_update() {
                return disowned;
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

    fn twice(&self) -> MutexGuard<'_, BTreeMap<NodeId, Instant>> {
        // Nothing panics while it is held.
        self.twice.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Whether another process than the one before it may be this node.
    fn admit(&mut self, node: NodeId, holds: Promise, at: SocketAddr) -> Result<(), Refusal> {
        if !holds.keeps(self.promise) {
            let refusal = Refusal::RolledBack {
                node,
                promised: self.promise,
            };
            tracing::error!(peer = %node, error = %refusal, %holds, "peer refused");
            return Err(refusal);
        }
        let running = self.process.filter(|process| 0 < process.connections);
        if let Some(Process { at: running, .. }) = running {
            return Err(Refusal::Twice {
                node,
                running,
                given: at,
            });
        }
        // Its last entry may be one that no leader acknowledges.
        self.raise(holds.vote);
        Ok(())
    }

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
    use futures::FutureExt;
    use openraft::errors::NetworkError;

    use super::*;
    use crate::server::config::Timing;
    use crate::server::consensus::handshake::Purpose;
    use crate::server::consensus::tests::{fixed, id, incarnation, log_id, vote};

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

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    /// From node 1.
    fn hello() -> PeerHello {
        PeerHello {
            purpose: Purpose::Calls,
            cluster: fixed(0xc1),
            from: Party {
                node: id(1),
                incarnation: incarnation(1),
            },
            to: node_2(),
            beginning: Beginning::default(),
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
        let meet = |beginning| promises.meet(node_2(), beginning, at(1)).map(drop);
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
        let meet = |beginning| promises.meet(node_2(), beginning, at(1)).map(drop);
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

        promises.meet(node_2(), beginning, at(1)).unwrap();
    }

    #[test]
    fn what_a_process_began_with_may_be_truncated_before_the_next_begins() {
        let promises = Promises::default();
        promises
            .meet(node_2(), begins(1, vote(2, 3), log_id(1, 1, 9)), at(1))
            .unwrap();

        promises
            .meet(node_2(), begins(2, vote(2, 3), log_id(1, 1, 5)), at(1))
            .unwrap();
    }

    #[test]
    fn another_process_is_refused_as_long_as_the_one_before_it_is_connected() {
        let promises = Promises::default();
        let meet = |process, port| {
            let beginning = begins(process, vote(1, 1), log_id(1, 1, 3));
            promises.meet(node_2(), beginning, at(port))
        };
        let first = meet(1, 1000).unwrap();
        let second = meet(1, 1001).unwrap();
        drop(first);

        let refused = meet(2, 2000).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "node 2 runs already, at 127.0.0.1:1001: the process at 127.0.0.1:2000 has the same data directory or a copy of it"
        );
        drop(second);
        let other = meet(2, 2000).unwrap();
        // So it goes for the first, too.
        meet(1, 1002).unwrap_err();
        drop(other);
        meet(1, 1002).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_refused_for_another_for_long_must_not_run() {
        let promises = Promises::default();
        let (hello, limits) = (hello(), Timing::default().into());
        let refusal = Refusal::Twice {
            node: hello.from.node,
            running: at(1000),
            given: at(2000),
        };
        let refused = || promises.refused(&hello, refusal, limits);
        let is_disowned = || promises.disowned().now_or_never();

        refused();
        tokio::time::advance(limits.silence * TWICE_SILENCES / 2).await;
        refused();
        assert_eq!(
            is_disowned(),
            None,
            "the one before may have ended just now"
        );
        promises.taken(hello.to.node);
        tokio::time::advance(limits.silence * TWICE_SILENCES / 2).await;
        refused();
        assert_eq!(is_disowned(), None, "it was taken meanwhile");
        tokio::time::advance(limits.silence * TWICE_SILENCES).await;
        refused();

        let disowned = is_disowned().unwrap();
        assert_eq!(
            disowned.to_string(),
            "node 1 runs twice: node 2 is connected to it at 127.0.0.1:1000, and this process, at 127.0.0.1:2000, has the \
             same data directory or a copy of it; leave this one stopped, or stop the other one and move its directory here"
        );
    }

    #[test]
    fn another_incarnation_has_promised_nothing() {
        let promises = Promises::default();
        assert!(promises.check(node_2(), vote(9, 1), matching(7)).is_ok());
        let other = Party {
            incarnation: incarnation(5),
            ..node_2()
        };

        promises.meet(other, Beginning::default(), at(1)).unwrap();
    }
}
