//! The fence against a past that comes back: a cluster that was restored with too small an advance, or an old one that
//! runs on beside its successor.
//!
//! A client knows what it was granted, so it can tell a cluster that has forgotten it. Only real time counts (I2): of leases
//! that are under way at once, the answers may come in any order.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{ClientError, Grant};
use crate::sequence::SequenceName;
use crate::wire::GrantBody;

/// Why a client does not take a grant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FenceReason {
    /// Before it was asked for, this client was granted as much or more.
    #[error(
        "it is not above {highest}, which this client was granted before: the cluster was restored with too small an \
         advance; raise the sequence above all that was ever granted (highwater sequence advance)"
    )]
    NotAbove {
        /// The highest value that it was granted before.
        highest: u64,
    },
    /// It is of an earlier generation of the cluster's history than what this client has seen.
    #[error(
        "this client has seen epoch {seen}: an old cluster runs on beside the restored one; stop it"
    )]
    OldEpoch {
        /// The latest that it has seen.
        seen: u64,
    },
    /// It is of another cluster than what this client has seen of the same epoch.
    #[error("this client belongs to cluster {seen}: give it the addresses of one cluster only")]
    OtherCluster {
        /// The one that it has seen.
        seen: String,
    },
}

/// What a client has been granted so far.
#[derive(Debug, Default)]
pub(super) struct Fence {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The latest epoch, and the cluster that it was seen of.
    history: Option<(u64, String)>,
    /// By sequence, of which a cluster has a bounded number.
    sequences: BTreeMap<SequenceName, Known>,
}

/// What a client knows of a sequence by what it was granted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// The highest value so far: what is asked for from now on has to be above it.
    pub(super) highest: Option<u64>,
    /// Whether it had a cache.
    pub(super) cached: bool,
}

impl Fence {
    /// What the grants so far say of a sequence.
    pub(super) fn known(&self, sequence: &SequenceName) -> Known {
        let seen = self.lock();
        seen.sequences.get(sequence).copied().unwrap_or_default()
    }

    /// Lets a grant through where it is above what had been granted when it was asked for.
    ///
    /// # Errors
    /// [`ClientError::Fenced`] where it is not, or is of a past epoch or another cluster.
    pub(super) fn pass(&self, grant: Grant, before: Option<u64>) -> Result<Grant, ClientError> {
        let mut seen = self.lock();
        if let Some(reason) = seen.refusal(&grant, before) {
            let grant = Box::new(grant);
            return Err(ClientError::Fenced { grant, reason });
        }
        seen.remember(&grant);
        Ok(grant)
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics while it is changed.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn refusal(&self, grant: &Grant, before: Option<u64>) -> Option<FenceReason> {
        match &self.history {
            // Epochs never fall, however long an answer was under way.
            Some((epoch, _)) if grant.epoch() < *epoch => {
                return Some(FenceReason::OldEpoch { seen: *epoch });
            }
            Some((epoch, cluster)) if grant.epoch() == *epoch && grant.cluster() != cluster => {
                let seen = cluster.clone();
                return Some(FenceReason::OtherCluster { seen });
            }
            _ => {}
        }
        before
            .filter(|highest| grant.first() <= *highest)
            .map(|highest| FenceReason::NotAbove { highest })
    }

    fn remember(&mut self, grant: &Grant) {
        if self.history.as_ref().map(|(epoch, _)| *epoch) < Some(grant.epoch()) {
            self.history = Some((grant.epoch(), grant.cluster().to_owned()));
        }
        let GrantBody {
            sequence, cached, ..
        } = grant.body();
        let before = self.sequences.get_mut(sequence);
        let known = match before {
            Some(known) => known,
            None => self.sequences.entry(sequence.clone()).or_default(),
        };
        known.highest = known.highest.max(Some(grant.last()));
        known.cached = *cached;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::RangeCount;
    use crate::wire::Number;

    fn name() -> SequenceName {
        "photos".parse().unwrap()
    }

    /// Ten values from `first` on.
    fn grant(first: u64, epoch: u64, cluster: &str) -> Grant {
        let body = GrantBody {
            sequence: name(),
            first: Number::from(first),
            last: Number::from(first + 9),
            count: 10,
            increment: Number::from(1),
            epoch,
            cluster: cluster.to_owned(),
            term: 1,
            index: 1,
            cached: false,
        };
        Grant::from_answer(body, None, &name(), RangeCount::constant(10)).unwrap()
    }

    fn reason(passed: Result<Grant, ClientError>) -> FenceReason {
        match passed.unwrap_err() {
            ClientError::Fenced { reason, .. } => reason,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn what_is_asked_for_after_an_answer_has_to_be_above_it() {
        let fence = Fence::default();
        let before = fence.known(&name()).highest;
        fence.pass(grant(11, 1, "a"), before).unwrap();

        let before = fence.known(&name()).highest;

        assert_eq!(before, Some(20));
        let repeated = fence.pass(grant(11, 1, "a"), before);
        assert_eq!(reason(repeated), FenceReason::NotAbove { highest: 20 });
        let overlapping = fence.pass(grant(20, 2, "b"), before).unwrap_err();
        assert_eq!(
            overlapping.to_string(),
            "the cluster granted 20 to 29 of photos in epoch 2, which must not be used: it is not above 20, which this \
             client was granted before: the cluster was restored with too small an advance; raise the sequence above all \
             that was ever granted (highwater sequence advance)"
        );
        fence.pass(grant(21, 1, "a"), before).unwrap();
    }

    #[test]
    fn answers_of_leases_that_were_under_way_together_come_in_any_order() {
        let fence = Fence::default();
        let before = [fence.known(&name()).highest, fence.known(&name()).highest];

        fence.pass(grant(11, 1, "a"), before[0]).unwrap();
        fence.pass(grant(1, 1, "a"), before[1]).unwrap();

        assert_eq!(fence.known(&name()).highest, Some(20));
    }

    #[test]
    fn a_past_epoch_is_refused_whatever_its_values_are_and_however_long_it_was_under_way() {
        let fence = Fence::default();
        let before = fence.known(&name()).highest;
        fence.pass(grant(1, 7, "b"), before).unwrap();

        let late = fence.pass(grant(100, 6, "a"), before);

        assert_eq!(reason(late), FenceReason::OldEpoch { seen: 7 });
        // And a later one is what a restore makes.
        fence.pass(grant(11, 8, "c"), Some(10)).unwrap();
    }

    #[test]
    fn another_cluster_of_the_same_epoch_is_refused() {
        let fence = Fence::default();
        fence.pass(grant(1, 1, "a"), None).unwrap();

        let other = fence.pass(grant(100, 1, "b"), None);

        let seen = "a".to_owned();
        assert_eq!(reason(other), FenceReason::OtherCluster { seen });
        assert_eq!(
            fence.known(&name()).highest,
            Some(10),
            "what is refused counts for nothing"
        );
    }
}
