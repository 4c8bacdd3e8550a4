//! What a follower has acknowledged to this leader, and a follower that has it no more (I7).
//!
//! An acknowledged entry is on the follower's disk, and counts for a quorum. A follower that lacks it later has lost what it
//! promised: its disk was rolled back, or replaced by an older copy. openraft takes for granted that this does not happen,
//! and ends the leader over it. Here such a follower is served no more, and the leader says why.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::errors::{RPCError, Unreachable};
use openraft::raft::StreamAppendError;

use super::append::AppendResult;
use crate::server::types::{LogId, NodeId, TypeConfig, Vote};

/// The last entry that a follower has acknowledged. Clones are of the same follower.
#[derive(Debug, Clone)]
pub(super) struct Acknowledged {
    by: NodeId,
    /// Under which vote, which is one leadership's; another one begins anew.
    last: Arc<Mutex<Option<(Vote, LogId)>>>,
    told: Arc<Mutex<Option<LostEntries>>>,
}

/// It has acknowledged more than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {node} has lost entries: it acknowledged all up to {acknowledged}, and lacks {lacks}. Its disk was rolled back or \
     replaced by an older copy; it is sent nothing more. Stop it, and do not start it with this directory again"
)]
pub(super) struct LostEntries {
    node: NodeId,
    acknowledged: LogId,
    lacks: u64,
}

impl Acknowledged {
    pub(super) fn by(node: NodeId) -> Self {
        Self {
            by: node,
            last: Arc::default(),
            told: Arc::default(),
        }
    }

    /// Looks at the answer to a request under this vote. An answer that shows a loss becomes an error.
    pub(super) fn check(&self, vote: Vote, result: AppendResult) -> AppendResult {
        match &result {
            Ok(Ok(Some(matching))) => self.raise(vote, *matching),
            Ok(Err(StreamAppendError::Conflict(prev))) => self.refuse(vote, prev.index())?,
            Ok(Ok(None) | Err(StreamAppendError::HigherVote(_))) | Err(_) => {}
        }
        result
    }

    fn raise(&self, vote: Vote, matching: LogId) {
        let mut last = lock(&self.last);
        match &mut *last {
            Some((known, last)) if *known == vote => *last = matching.max(*last),
            _ => *last = Some((vote, matching)),
        }
    }

    fn refuse(&self, vote: Vote, lacks: u64) -> Result<(), RPCError<TypeConfig>> {
        let lost = match *lock(&self.last) {
            Some((known, acknowledged)) if known == vote && lacks <= acknowledged.index() => {
                LostEntries {
                    node: self.by,
                    acknowledged,
                    lacks,
                }
            }
            _ => return Ok(()),
        };
        if lock(&self.told).replace(lost) != Some(lost) {
            tracing::error!("{lost}");
        }
        Err(Unreachable::new(&lost).into())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use openraft::errors::NetworkError;

    use super::*;
    use crate::server::consensus::tests::{id, log_id, vote};

    fn conflict(index: u64) -> AppendResult {
        Ok(Err(StreamAppendError::Conflict(log_id(1, 1, index))))
    }

    fn matching(index: u64) -> AppendResult {
        Ok(Ok(Some(log_id(1, 1, index))))
    }

    #[test]
    fn who_lacks_what_it_acknowledged_is_unreachable_and_who_is_behind_is_not() {
        let acknowledged = Acknowledged::by(id(2));
        let check = |result: AppendResult| acknowledged.check(vote(1, 1), result);

        // It has never acknowledged anything.
        assert_eq!(check(conflict(5)), conflict(5));
        assert_eq!(check(matching(7)), matching(7));
        // An older answer that comes late takes nothing back.
        assert_eq!(check(matching(6)), matching(6));
        assert_eq!(check(conflict(8)), conflict(8));
        let lost = check(conflict(7)).unwrap_err();

        assert!(matches!(lost, RPCError::Unreachable(_)), "{lost:?}");
        assert!(lost.to_string().contains(
            "node 2 has lost entries: it acknowledged all up to T1-N1.7, and lacks 7. Its disk was rolled back"
        ), "{lost}");
        let broken: AppendResult = Err(NetworkError::from_string("cut").into());
        assert!(check(broken).is_err());
        assert!(check(conflict(7)).is_err(), "it still has not");
    }

    #[test]
    fn under_another_vote_what_was_acknowledged_may_have_been_truncated() {
        let acknowledged = Acknowledged::by(id(2));
        assert!(acknowledged.check(vote(1, 1), matching(7)).is_ok());

        let later = acknowledged.check(vote(2, 1), conflict(5));

        assert_eq!(later, conflict(5));
    }
}
