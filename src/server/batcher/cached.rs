//! Cached sequences, at the node that is asked: it serves their leases itself where it leads, and has the leader serve them where it
//! does not. They go in no batch, because they leave nothing in the log that could be there twice: what has no answer is
//! asked for again, and the values that it may have been given are lost.

use std::pin::pin;

use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::{Committed, SubmitError};
use crate::sequence::{
    EntryId, Grant, GrantPart, GrantParts, Outcome, Taken, WindowPart, WindowParts,
};
use crate::server::consensus::{
    CachedLease, CachedReply, Call, CallError, Consensus, Leader, Reply, TakenFor, left_ms,
};
use crate::server::tasks::gather;

/// Leases that wait at a node that does not lead.
const QUEUE_MAX: usize = 4_096;
/// Leases that one call carries.
const CALL_LEASES_MAX: usize = 512;
/// Calls in flight at once. What arrives meanwhile makes the next one.
const CALLS_IN_FLIGHT_MAX: usize = 2;

/// The way to the values of cached sequences. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct CachedHandle {
    consensus: Consensus,
    relay: mpsc::Sender<Asked>,
}

/// Leases of one request, on their way to the leader.
#[derive(Debug)]
struct Asked {
    leases: Vec<CachedLease>,
    deadline: Instant,
    reply: oneshot::Sender<Vec<CachedReply>>,
}

impl CachedHandle {
    /// Leases from a cached sequence, by the deadline; `None` where it is not cached.
    ///
    /// # Errors
    /// [`SubmitError`], which says whether values may have been taken: nobody gets those.
    pub(crate) async fn lease(
        &self,
        part: GrantPart,
        deadline: Instant,
    ) -> Result<Option<Committed>, SubmitError> {
        let lease = CachedLease {
            part,
            taken_for: TakenFor::Answer,
        };
        let leases = [lease];
        let mut changes = None;
        let mut failure = SubmitError::NoLeader;
        while Instant::now() < deadline {
            match self.ask(&leases, deadline).await.pop() {
                Some(CachedReply::Given(grant, entry)) => return Ok(Some(granted(grant, entry))),
                Some(CachedReply::NotCached) => return Ok(None),
                Some(CachedReply::Refused(refusal)) => {
                    let entry = EntryId { term: 0, index: 0 };
                    let outcome = Outcome::Refused(refusal);
                    return Ok(Some(Committed { outcome, entry }));
                }
                Some(CachedReply::DiskFull) if failure == SubmitError::NoLeader => {
                    return Err(SubmitError::DiskFull);
                }
                Some(CachedReply::Unproved) => failure = SubmitError::TimedOut,
                Some(CachedReply::NotTaken | CachedReply::DiskFull) | None => {}
            }
            let changes = changes.get_or_insert_with(|| self.consensus.changes());
            self.consensus.settle(changes).await;
        }
        Err(failure)
    }

    /// These leases with what the leader takes for them out of windows; `None` where it takes nothing. Then they are as good as
    /// any of sequences without a cache.
    pub(crate) async fn take(&self, parts: &GrantParts, deadline: Instant) -> Option<WindowParts> {
        let is_cached = |part: &&GrantPart| self.consensus.is_cached(&part.sequence);
        let leases = parts.iter().filter(is_cached).map(|part| CachedLease {
            part: part.clone(),
            taken_for: TakenFor::Command,
        });
        let leases: Vec<CachedLease> = leases.collect();
        let replies = self.ask(&leases, deadline).await;
        let mut taken = leases.into_iter().zip(replies).peekable();
        let mut taken_any = false;
        let with_taken = parts.iter().map(|part| {
            let taken = taken.next_if(|(lease, _)| lease.part == *part);
            let taken = taken.and_then(|(_, reply)| match reply {
                CachedReply::Given(grant, entry) => Some(Taken {
                    index: entry.index,
                    range: grant.range,
                }),
                _ => None,
            });
            taken_any |= taken.is_some();
            WindowPart {
                part: part.clone(),
                taken,
            }
        });
        let with_taken: Vec<WindowPart> = with_taken.collect();
        WindowParts::try_from(with_taken).ok().filter(|_| taken_any)
    }

    /// One reply for each lease, by the deadline.
    async fn ask(&self, leases: &[CachedLease], deadline: Instant) -> Vec<CachedReply> {
        if self.consensus.leadership().is_some() {
            return self.consensus.lease_cached(leases, deadline).await;
        }
        let (reply, replies) = oneshot::channel();
        let asked = Asked {
            leases: leases.to_vec(),
            deadline,
            reply,
        };
        if self.relay.try_send(asked).is_err() {
            return vec![CachedReply::NotTaken; leases.len()];
        }
        match timeout_at(deadline, replies).await {
            Ok(Ok(replies)) => replies,
            Ok(Err(_)) | Err(_) => vec![CachedReply::Unproved; leases.len()],
        }
    }
}

fn granted(grant: Grant, entry: EntryId) -> Committed {
    Committed {
        outcome: Outcome::Granted(grant),
        entry,
    }
}

/// The task that takes leases to another node that leads.
#[derive(Debug)]
pub(crate) struct Relay {
    consensus: Consensus,
    queue: mpsc::Receiver<Asked>,
}

impl Relay {
    /// A relay, and the way to cached sequences, for which it works.
    pub(crate) fn new(consensus: Consensus) -> (Self, CachedHandle) {
        let (relay, queue) = mpsc::channel(QUEUE_MAX);
        let handle = CachedHandle {
            consensus: consensus.clone(),
            relay,
        };
        (Self { consensus, queue }, handle)
    }

    /// Relays until every handle is gone.
    pub(crate) async fn run(self) {
        let consensus = self.consensus.clone();
        self.serve(|batch| relay(consensus.clone(), batch)).await;
    }

    async fn serve<C: Future<Output = ()>>(mut self, call: impl Fn(Vec<Asked>) -> C) {
        let mut in_flight = FuturesUnordered::new();
        let mut crowd = 0;
        loop {
            tokio::select! {
                Some(()) = in_flight.next() => {}
                first = self.queue.recv(), if in_flight.len() < CALLS_IN_FLIGHT_MAX => {
                    let Some(first) = first else { return };
                    gather(crowd).await;
                    let batch = self.fill(first);
                    crowd = batch.len();
                    in_flight.push(call(batch));
                }
            }
        }
    }

    /// What has arrived by now, up to a call's size.
    fn fill(&mut self, first: Asked) -> Vec<Asked> {
        let mut leases = first.leases.len();
        let mut batch = vec![first];
        while leases < CALL_LEASES_MAX
            && let Ok(asked) = self.queue.try_recv()
        {
            leases += asked.leases.len();
            batch.push(asked);
        }
        batch
    }
}

/// One call to whoever leads, and the replies to all who asked.
async fn relay(consensus: Consensus, batch: Vec<Asked>) {
    let Some(deadline) = batch.iter().map(|asked| asked.deadline).max() else {
        return;
    };
    let mut all = Vec::new();
    let mut waiting = Vec::new();
    for Asked { leases, reply, .. } in batch {
        waiting.push((leases.len(), reply));
        all.extend(leases);
    }
    let mut replies = call(&consensus, all, deadline).await.into_iter();
    for (count, reply) in waiting {
        let own = replies.by_ref().take(count).collect();
        // Who is gone was told at its deadline that the outcome is unknown.
        drop(reply.send(own));
    }
}

async fn call(
    consensus: &Consensus,
    leases: Vec<CachedLease>,
    deadline: Instant,
) -> Vec<CachedReply> {
    let count = leases.len();
    let leader = consensus.leader();
    let Leader::There(id, member) = &leader else {
        return vec![CachedReply::NotTaken; count];
    };
    // Who is out of touch may be asking a dead leader, and could not tell that nothing was taken.
    if !consensus.in_touch() {
        return vec![CachedReply::NotTaken; count];
    }
    let call = Call::LeaseCached {
        leases,
        left_ms: left_ms(deadline),
    };
    let reply = pin!(consensus.call(*id, member, call, deadline));
    // A leader that was replaced may never answer.
    match select(reply, pin!(consensus.superseded(&leader))).await {
        Either::Left((Ok(Reply::LeaseCached(replies)), _)) if replies.len() == count => replies,
        Either::Left((Err(CallError::NotSent { .. }), _)) => vec![CachedReply::NotTaken; count],
        Either::Left(_) | Either::Right(_) => vec![CachedReply::Unproved; count],
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::future::pending;
    use std::time::Duration;

    use futures::poll;

    use super::super::Batcher;
    use super::super::tests::consensus;
    use super::*;
    use crate::sequence::{Command, RangeCount, Settings};
    use crate::server::consensus::Proposer;
    use crate::server::metrics::Loss;
    use crate::server::tasks::{Tasks, run_until_it_waits};
    use crate::server::types::Member;

    fn lease() -> CachedLease {
        let part = GrantPart {
            sequence: "p".parse().unwrap(),
            count: RangeCount::ONE,
        };
        CachedLease {
            part,
            taken_for: TakenFor::Answer,
        }
    }

    fn asked(leases: usize) -> Asked {
        Asked {
            leases: vec![lease(); leases],
            deadline: Instant::now(),
            reply: oneshot::channel().0,
        }
    }

    #[tokio::test]
    async fn so_many_calls_are_in_flight_each_with_so_many_leases_and_others_wait() {
        let (consensus, _directory) = consensus().await;
        let (relay, handle) = Relay::new(consensus);
        let calls = RefCell::new(Vec::new());
        let mut serving = pin!(relay.serve(|batch| {
            let leases = batch.iter().map(|asked| asked.leases.len()).sum::<usize>();
            calls.borrow_mut().push(leases);
            pending()
        }));
        for _ in 0..CALLS_IN_FLIGHT_MAX - 1 {
            handle.relay.try_send(asked(1)).unwrap();
            run_until_it_waits(serving.as_mut()).await;
        }
        for _ in 0..CALL_LEASES_MAX + 10 {
            handle.relay.try_send(asked(1)).unwrap();
        }

        run_until_it_waits(serving.as_mut()).await;

        assert_eq!(*calls.borrow(), [1, CALL_LEASES_MAX]);
        assert_eq!(handle.relay.capacity(), QUEUE_MAX - 10);
    }

    #[tokio::test]
    async fn beyond_the_queues_length_nothing_is_sent_to_the_leader() {
        let (consensus, _directory) = consensus().await;
        let (_relay, handle) = Relay::new(consensus);
        let deadline = Instant::now() + Duration::from_secs(60);
        let leases = [lease()];
        let mut waiting = Vec::new();
        for _ in 0..QUEUE_MAX {
            let mut asked = Box::pin(handle.ask(&leases, deadline));
            assert!(poll!(&mut asked).is_pending());
            waiting.push(asked);
        }

        let surplus = handle.ask(&leases, deadline).await;

        assert_eq!(surplus, [CachedReply::NotTaken]);
    }

    /// Waits until values are taken for the lease, which nobody proves.
    async fn wait_until_taken(consensus: &Consensus) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let deadline = Instant::now() + Duration::from_millis(100);
            match &consensus.lease_cached(&[lease()], deadline).await[..] {
                [CachedReply::Unproved] => return,
                other => assert!(Instant::now() < end, "{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn values_that_were_taken_without_a_proof_are_never_given_again() {
        let (consensus, _directory) = consensus().await;
        let tasks = Tasks::default();
        let (proposals, queue) = Proposer::queue();
        tasks.spawn(Proposer::new(consensus.clone(), queue).run());
        tasks.spawn(consensus.clone().reserve_windows(proposals.clone()));
        let (batcher, handle) = Batcher::new(consensus.clone(), proposals);
        tasks.spawn(batcher.run());
        consensus.run();
        let members = BTreeMap::from([(consensus.node(), Member::default())]);
        consensus.raft().initialize(members).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let create = Command::Create {
            sequence: lease().part.sequence,
            settings: Settings::default().with_cache(10),
        };
        handle.submit(create, deadline).await.unwrap();
        wait_until_taken(&consensus).await;

        tasks.spawn(consensus.clone().prove_leases());

        let replies = consensus.lease_cached(&[lease()], deadline).await;
        let [CachedReply::Given(grant, _)] = replies[..] else {
            panic!("{replies:?}");
        };
        assert!(1 < grant.range.first(), "I2: {grant:?}");
        let lost = consensus.metrics().windows.count_lost(&[Loss::Unproved]);
        assert_eq!(lost, grant.range.first() - 1);
        tasks.stop().await;
    }

    #[tokio::test]
    async fn where_nobody_leads_a_lease_is_told_that_it_was_not_applied() {
        let (consensus, _directory) = consensus().await;
        let (relay, handle) = Relay::new(consensus);
        let tasks = Tasks::default();
        tasks.spawn(relay.run());
        // Nobody is answered late.
        tokio::time::pause();
        let deadline = Instant::now() + Duration::from_secs(5);

        let refused = handle.lease(lease().part, deadline).await;

        assert_eq!(refused, Err(SubmitError::NoLeader));
        tasks.stop().await;
    }
}
