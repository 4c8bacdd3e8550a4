//! Proofs that this node leads, of which any number of requests share one.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

#[cfg(test)]
use crate::planted::Bug;
use crate::server::consensus::{Consensus, ReadIndexReply};
use crate::server::tasks::gather;
use crate::server::types::{Leadership, LogId};

/// Who takes what a proof comes to: by which leadership this node leads, if by any.
type Asker = oneshot::Sender<Option<Leadership>>;

/// Those who wait for the next proof. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Proofs(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    askers: Mutex<Vec<Asker>>,
    asked: Notify,
    /// When the last round proved something.
    last: Mutex<Option<Instant>>,
}

impl Proofs {
    /// By which leadership this node leads, proved by a round that begins after this call.
    pub(super) async fn next(&self) -> Option<Leadership> {
        let (asker, proved) = oneshot::channel();
        self.lock().push(asker);
        self.0.asked.notify_one();
        // Without an answer nothing is proved.
        proved.await.ok().flatten()
    }

    /// One round after the other: who asks while one is under way shares the next.
    async fn serve<P: Future<Output = Option<Leadership>>>(self, prove: impl Fn() -> P) {
        let mut crowd = 0;
        loop {
            self.0.asked.notified().await;
            gather(crowd).await;
            // They are taken before the round begins. One that had begun when its askers took their values would prove that
            // this node led before that, and another may have granted higher values since.
            let askers = self.take();
            crowd = askers.len();
            let proved = prove().await;
            if proved.is_some() {
                *self.last() = Some(Instant::now());
            }
            #[cfg(test)]
            let askers = askers
                .into_iter()
                .chain(match Bug::ProofTooEarly.is_planted() {
                    true => self.take(),
                    false => Vec::new(),
                });
            for asker in askers {
                // Who does not wait any more has lost its values.
                asker.send(proved).ok();
            }
        }
    }

    fn take(&self) -> Vec<Asker> {
        mem::take(&mut self.lock())
    }

    /// Whether something was proved less than this long ago.
    pub(super) fn within(&self, limit: Duration) -> bool {
        self.last().is_some_and(|last| last.elapsed() < limit)
    }

    fn last(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Asker>> {
        let askers = self.0.askers.lock();
        askers.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Consensus {
    /// Proves leadership for all who ask.
    pub(crate) async fn prove_leases(self) {
        let proofs = self.cached.proofs.clone();
        let consensus = &self;
        proofs.serve(move || consensus.prove_lead()).await;
    }

    async fn prove_lead(&self) -> Option<Leadership> {
        let deadline = Instant::now() + self.timing().election_max();
        match self.read_index(deadline).await {
            ReadIndexReply::Leads { read } => Some(*LogId::from(read).committed_leader_id()),
            ReadIndexReply::NotLeader { .. } | ReadIndexReply::Unproved => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;
    use openraft::vote::RaftLeaderId as _;
    use tokio::sync::mpsc;

    use super::*;
    use crate::server::tasks::run_until_it_waits;

    #[tokio::test]
    async fn who_asks_while_a_proof_is_under_way_shares_the_next_one() {
        let proofs = Proofs::default();
        let (begin, mut begun) = mpsc::unbounded_channel();
        let mut serving = pin!(proofs.clone().serve(|| {
            let (end, ended) = oneshot::channel();
            begin.send(end).unwrap();
            async { ended.await.unwrap() }
        }));
        let mut asks = [(); 3].map(|()| Box::pin(proofs.next()));
        let [first, second, third] = &mut asks;
        assert!(poll!(&mut *first).is_pending());
        run_until_it_waits(serving.as_mut()).await;
        let round = begun.try_recv().unwrap();
        for late in [&mut *second, &mut *third] {
            assert!(poll!(late).is_pending());
        }

        let led = Leadership::new(1, 2.into());
        round.send(Some(led)).unwrap();
        run_until_it_waits(serving.as_mut()).await;

        assert_eq!(first.await, Some(led));
        for late in [&mut *second, &mut *third] {
            assert!(poll!(late).is_pending(), "its round had begun before");
        }
        begun.try_recv().unwrap().send(None).unwrap();
        run_until_it_waits(serving.as_mut()).await;
        assert_eq!((second.await, third.await), (None, None));
        assert!(begun.try_recv().is_err(), "they have shared it");
    }
}
