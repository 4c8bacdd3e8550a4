//! Cached sequences, at the leader: it reserves windows in the log, grants out of them from memory, and before an answer proves
//! that it still leads. What it gives away without an answer is lost, and never given again.
//!
//! That every value is unique, and that values follow the order of requests, is argued in `docs/cached-sequences.md`.

mod line;
mod proofs;
mod windows;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

pub(crate) use self::line::TakenFor;

use self::line::{Reply, Told};
use self::proofs::Proofs;
use self::windows::{Taking, Windows, Wish};
use super::{Consensus, ForwardReply, Forwarded};
#[cfg(test)]
use crate::planted::Bug;
use crate::sequence::{
    Batch, BatchHash, Command, EntryId, Grant, GrantPart, Refusal, SequenceName, SessionId,
};
use crate::server::codec;
use crate::server::metrics::{Loss, WindowMetrics};
use crate::server::types::Leadership;

/// Reservations of one batch: with the longest names they fit.
const RESERVATIONS_MAX: usize = 256;

/// A lease of a cached sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CachedLease {
    /// Which.
    pub(crate) part: GrantPart,
    /// What its values are for.
    pub(crate) taken_for: TakenFor,
}

/// What became of the lease of a cached sequence. But for the first, nobody was given anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CachedReply {
    /// These values, of the window that this entry reserved.
    Given(Grant, EntryId),
    /// It has no cache, or is none: the log has to tell.
    NotCached,
    /// The log refused to reserve as much.
    Refused(Refusal),
    /// This node does not lead, or has reserved no window in time.
    NotTaken,
    /// No window can be reserved: the disk is full.
    DiskFull,
    /// Values were taken, and it was not proved that this node still leads. They are lost.
    Unproved,
}

/// A leader's windows, and who waits for a proof. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Cached {
    windows: Arc<Mutex<Windows>>,
    wished: Arc<Notify>,
    proofs: Proofs,
}

impl Cached {
    /// No windows yet, counted here.
    pub(super) fn new(metrics: WindowMetrics) -> Self {
        Self {
            windows: Arc::new(Mutex::new(Windows::new(metrics))),
            wished: Arc::default(),
            proofs: Proofs::default(),
        }
    }

    /// Ends the windows of what these commands change, which are about to be proposed.
    pub(super) fn close(&self, commands: &[Command]) {
        self.windows().close(commands);
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        // Nothing panics while it is held.
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn next_wishes(&self) -> (Leadership, Vec<Wish>) {
        loop {
            if let Some(wishes) = self.windows().wishes(RESERVATIONS_MAX) {
                return wishes;
            }
            self.wished.notified().await;
        }
    }
}

impl Consensus {
    /// Whether values of this sequence are leased from a window, as far as this node has applied the log.
    pub(crate) fn is_cached(&self, sequence: &SequenceName) -> bool {
        self.tables.is_cached(sequence)
    }

    /// Serves leases of cached sequences, if this node leads. Those that nothing is reserved for wait, to the deadline at most.
    pub(crate) async fn lease_cached(
        &self,
        leases: &[CachedLease],
        deadline: Instant,
    ) -> Vec<CachedReply> {
        let Some(owner) = self.leadership().filter(|_| self.may_prove()) else {
            return vec![CachedReply::NotTaken; leases.len()];
        };
        let mut replies = self.take_all(owner, leases, deadline).await;
        let answered = leases.iter().zip(&mut replies);
        let mut answered: Vec<_> = answered
            .filter(|(lease, reply)| {
                lease.taken_for == TakenFor::Answer && matches!(reply, CachedReply::Given(..))
            })
            .collect();
        if answered.is_empty() || self.still_leads(owner, deadline).await {
            return replies;
        }
        for (lease, reply) in &mut answered {
            #[cfg(test)]
            if let (true, CachedReply::Given(grant, _)) =
                (Bug::UnprovedGivenAgain.is_planted(), &**reply)
            {
                let mut windows = self.cached.windows();
                windows.give_again(&lease.part.sequence, grant.range.first());
            }
            let sequence = &lease.part.sequence;
            tracing::debug!(%sequence, "leadership was not proved, and the values taken are lost");
            let values = lease.part.count.get().into();
            self.metrics.windows.lost(Loss::Unproved, values);
            **reply = CachedReply::Unproved;
        }
        replies
    }

    /// Ends the windows of a leadership that is over. Until this node leads again nothing else does, and how much is lost is not told.
    pub(crate) fn end_former_windows(&self) {
        let mut windows = self.cached.windows();
        // Asked under the lock: what is here then is of no later leadership than what is known now.
        windows.end_former(self.leadership());
    }

    async fn take_all(
        &self,
        owner: Leadership,
        leases: &[CachedLease],
        deadline: Instant,
    ) -> Vec<CachedReply> {
        let takings: Vec<Taking> = {
            let mut windows = self.cached.windows();
            let take = |lease| self.take(&mut windows, owner, lease);
            leases.iter().map(take).collect()
        };
        let takings = leases.iter().zip(takings);
        let late =
            takings.map(async |(lease, taking)| self.settled(owner, lease, taking, deadline).await);
        join_all(late).await
    }

    fn take(&self, windows: &mut Windows, owner: Leadership, lease: &CachedLease) -> Taking {
        let CachedLease { part, taken_for } = lease;
        let taking = windows.take(owner, part, *taken_for, || self.is_cached(&part.sequence));
        if windows.has_wishes() {
            self.cached.wished.notify_one();
        }
        taking
    }

    /// What came of it in the end.
    async fn settled(
        &self,
        owner: Leadership,
        lease: &CachedLease,
        mut taking: Taking,
        deadline: Instant,
    ) -> CachedReply {
        loop {
            let mut told = match taking {
                Taking::Given(grant, entry) => return CachedReply::Given(grant, entry),
                Taking::NotCached => return CachedReply::NotCached,
                Taking::NotOwner => return CachedReply::NotTaken,
                Taking::Waits(told) => told,
            };
            match timeout_at(deadline, heard(&mut told)).await {
                Ok(Told::Refused(count, refusal)) if count == lease.part.count => {
                    return CachedReply::Refused(refusal);
                }
                Ok(Told::DiskFull) => return CachedReply::DiskFull,
                // That was another's lease, or there is a window now.
                Ok(Told::Refused(..) | Told::Nothing) => {}
                Err(_elapsed) => return CachedReply::NotTaken,
            }
            if self.leadership() != Some(owner) {
                return CachedReply::NotTaken;
            }
            taking = self.take(&mut self.cached.windows(), owner, lease);
        }
    }

    /// Whether a quorum answered lately: else a proof would come to nothing, and what is taken would be lost.
    fn may_prove(&self) -> bool {
        self.cached.proofs.within(self.timing().election_max()) || self.in_touch()
    }

    /// Whether this node still leads by this very leadership, proved after now.
    async fn still_leads(&self, owner: Leadership, deadline: Instant) -> bool {
        let proved = timeout_at(deadline, self.cached.proofs.next()).await;
        let proved = proved.ok().flatten();
        #[cfg(test)]
        if Bug::WindowsKept.is_planted() {
            return proved.is_some();
        }
        // Whole: between two leaderships of this node another may have led, in the same term too.
        proved == Some(owner)
    }

    /// Has the log reserve what is wished for. One batch is in flight: what is wished meanwhile makes the next.
    pub(crate) async fn reserve_windows(self, proposals: mpsc::Sender<Forwarded>) {
        let mut changes = self.changes();
        loop {
            let (owner, wishes) = self.cached.next_wishes().await;
            let replies = self.reserve(owner, &wishes, &proposals).await;
            if replies.is_none() {
                // Whoever waits asks again at once.
                self.settle(&mut changes).await;
            }
            let replies = replies.unwrap_or_else(|| vec![Reply::Lost; wishes.len()]);
            let mut windows = self.cached.windows();
            for (wish, reply) in wishes.iter().zip(replies) {
                windows.settle(owner, wish, reply);
            }
        }
    }

    /// What the reservations came to, proposed under this leadership; `None` where they were not applied, or nobody knows.
    async fn reserve(
        &self,
        owner: Leadership,
        wishes: &[Wish],
        proposals: &mpsc::Sender<Forwarded>,
    ) -> Option<Vec<Reply>> {
        let commands = wishes.iter().map(|wish| Command::Reserve {
            sequence: wish.sequence.clone(),
            count: wish.count,
        });
        // Outside any session, because it is sent once: one of which nobody knows costs a window.
        let batch = Batch {
            session: SessionId::NONE,
            number: 0,
            ack: 0,
            hash: BatchHash([0; 16]),
            commands: commands.collect(),
        };
        let (reply, answer) = oneshot::channel();
        let forwarded = Forwarded {
            batch: codec::encode(&batch).into(),
            deadline: Instant::now() + self.timing().election_max() * 4,
            required: Some(owner),
            reply,
        };
        proposals.send(forwarded).await.ok()?;
        match answer.await.ok()? {
            ForwardReply::Applied(answered) if answered.outcomes.len() == wishes.len() => {
                let outcomes = answered.outcomes.into_iter();
                Some(
                    outcomes
                        .map(|outcome| Reply::Applied(answered.entry, outcome))
                        .collect(),
                )
            }
            ForwardReply::DiskFull => Some(vec![Reply::DiskFull; wishes.len()]),
            _ => None,
        }
    }
}

/// What is said to those who wait, or nothing where it is time to ask again.
async fn heard(told: &mut watch::Receiver<Told>) -> Told {
    match told.changed().await {
        Ok(()) => told.borrow().clone(),
        Err(_gone) => Told::Nothing,
    }
}
