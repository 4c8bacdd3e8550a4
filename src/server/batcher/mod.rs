//! Step 2 of the walk: what waits at this node becomes one batch and goes to whoever leads.
//!
//! A few batches are in flight from a node at once. What arrives meanwhile makes the next one, so no timer is needed
//! and no request waits for a fuller batch. A batch of which nobody knows whether it was appended is sent again, to
//! whoever leads next: it has a number in this node's session, under which it is applied once. Every request is told
//! exactly what became of it: one that was never sent, or whose every send was refused before an entry was appended,
//! did not happen; of one that was sent and has no answer by its deadline nobody knows (I5).

mod cached;
mod courier;
mod queue;
mod request;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

pub(crate) use self::cached::{CachedHandle, Relay};

use self::courier::{Courier, Delivered, Opening, Place};
use self::queue::{Queue, size};
use self::request::{AbandonOnDrop, Pending, Ticket};
use super::consensus::{Consensus, Forwarded};
#[cfg(test)]
use crate::planted::Bug;
use crate::sequence::{Command, EntryId, Origin, Outcome, SessionId};
use crate::server::tasks::gather;

/// Requests that wait at a node for a batch. At 1,024 a batch this is some tens of milliseconds of work. Below the
/// number of connections, so that it is reached before a client is turned away without a word.
const QUEUE_MAX: usize = 4_096;
/// The most bytes of commands that wait or are in flight.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Batches in flight at once. With only one, the first request after an answer would travel alone and all others wait
/// for its return; the leader merges what arrives meanwhile into one entry anyway.
const BATCHES_IN_FLIGHT_MAX: usize = 4;
/// An outcome with the entry that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Committed {
    /// What the table answered.
    pub(crate) outcome: Outcome,
    /// The entry that applied the request.
    pub(crate) entry: EntryId,
}

/// Why a request has no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmitError {
    /// Not applied: the node's queue is full.
    #[error("{QUEUE_MAX} requests, or {QUEUE_BYTES_MAX} bytes of them, wait at this node already")]
    Overloaded,
    /// Not applied: no leader took the request before its deadline.
    #[error("no leader took the request before its deadline")]
    NoLeader,
    /// Not applied: it waited behind others until its deadline.
    #[error("the request waited behind others until its deadline")]
    Crowded,
    /// Not applied: the leader's disk is full.
    #[error("the leader's disk is full, and no node with room can lead")]
    DiskFull,
    /// Not applied: this node's disk does not answer, and so it does not hear of its leader.
    #[error("this node's disk does not answer")]
    DiskStuck,
    /// Not applied: the node is going down.
    #[error("this node is going down")]
    Stopping,
    /// Unknown: it was sent, and the deadline passed without an answer.
    #[error("the request was sent, and its deadline passed without an answer")]
    TimedOut,
    /// Unknown: it was sent, and the leader was lost before it answered.
    #[error("the request was sent, and the leader was lost before it answered")]
    LeaderLost,
}

/// The way into the batcher. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    consensus: Consensus,
    queue: mpsc::Sender<Pending>,
    room: Arc<Semaphore>,
    has_session: watch::Receiver<bool>,
}

impl Handle {
    /// Whether batches can be sent: before that requests wait.
    pub(crate) fn has_session(&self) -> bool {
        *self.has_session.borrow()
    }

    /// Has the command committed and applied, or says why not, by the deadline.
    ///
    /// # Errors
    /// [`SubmitError`], which says whether the command may have been applied.
    pub(crate) async fn submit(
        &self,
        command: Command,
        deadline: Instant,
    ) -> Result<Committed, SubmitError> {
        let ticket = Arc::new(Ticket::default());
        let (reply, answer) = oneshot::channel();
        let bytes = u32::try_from(size(&command)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).try_acquire_many_owned(bytes);
        let pending = Pending {
            command,
            _room: room.map_err(|_full| SubmitError::Overloaded)?,
            deadline,
            ticket: Arc::clone(&ticket),
            reply,
        };
        self.queue
            .try_send(pending)
            .map_err(|refused| match refused {
                mpsc::error::TrySendError::Full(_) => SubmitError::Overloaded,
                mpsc::error::TrySendError::Closed(_) => SubmitError::Stopping,
            })?;
        // Whoever asked may stop waiting at any moment: its connection ends, and this with it.
        let _gives_up = AbandonOnDrop(&ticket);
        match timeout_at(deadline, answer).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_gone)) if ticket.abandon() => Err(SubmitError::Stopping),
            Ok(Err(_gone)) => Err(SubmitError::LeaderLost),
            Err(_elapsed) if !ticket.abandon() => Err(SubmitError::TimedOut),
            Err(_elapsed) if !self.consensus.in_touch() => Err(SubmitError::NoLeader),
            Err(_elapsed) => Err(SubmitError::Crowded),
        }
    }
}

/// The task that forms batches and has them delivered.
#[derive(Debug)]
pub(crate) struct Batcher {
    queue: Queue,
    courier: Courier,
    origin: Origin,
    has_session: watch::Sender<bool>,
}

impl Batcher {
    /// A batcher and the way into it. Batches for this node as leader go into `proposals`.
    pub(crate) fn new(consensus: Consensus, proposals: mpsc::Sender<Forwarded>) -> (Self, Handle) {
        let places = QUEUE_MAX;
        #[cfg(test)]
        let places = places
            * if Bug::QueueUnbounded.is_planted() {
                2
            } else {
                1
            };
        let (sender, queue) = mpsc::channel(places);
        let has_session = watch::Sender::new(false);
        let handle = Handle {
            consensus: consensus.clone(),
            queue: sender,
            room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)),
            has_session: has_session.subscribe(),
        };
        let batcher = Self {
            queue: Queue::new(queue),
            origin: Origin {
                node: consensus.node().get(),
                nonce: rand::random(),
            },
            courier: Courier {
                consensus,
                proposals,
            },
            has_session,
        };
        (batcher, handle)
    }

    /// Delivers batches until every handle is gone, in one session after another: usually the first is the last.
    pub(crate) async fn run(mut self) {
        loop {
            let session = self.open_session().await;
            self.has_session.send_replace(true);
            if self.serve(session).await == Served::All {
                return;
            }
            self.has_session.send_replace(false);
            // The same origin would be given the same session again, and everything in it is stale.
            self.origin.nonce = rand::random();
            tracing::warn!("the session of this node's batches is over: it opens another");
        }
    }

    /// Has a session opened, however long that takes. Who waits meanwhile is told where a disk stands in the way.
    async fn open_session(&mut self) -> SessionId {
        let mut changes = self.courier.consensus.changes();
        loop {
            match self.courier.open_session(self.origin).await {
                Opening::Opened(session) => return session,
                Opening::Disk(why) => {
                    while let Some(pending) = self.queue.try_next() {
                        pending.answer(Err(why));
                    }
                }
                Opening::NotYet => {}
            }
            self.courier.consensus.settle(&mut changes).await;
        }
    }

    async fn serve(&mut self, session: SessionId) -> Served {
        let mut counting = Counting::of(session);
        let mut in_flight = FuturesUnordered::new();
        let mut is_over = false;
        while !is_over || !in_flight.is_empty() {
            tokio::select! {
                Some((number, delivered)) = in_flight.next() => {
                    counting.settle(number);
                    if let Delivered::SessionOver { not_applied } = delivered {
                        self.queue.put_back(not_applied);
                        is_over = true;
                    }
                }
                first = self.queue.next(), if !is_over && in_flight.len() < BATCHES_IN_FLIGHT_MAX => {
                    let Some(first) = first else { return Served::All };
                    // Whoever came with it submits first: otherwise it would travel alone, and they wait for its return.
                    // More turns than one brought nothing: a batch waits at the leader for others anyway.
                    gather(1).await;
                    let (waiting, place) = (self.queue.fill(first), counting.next());
                    let courier = self.courier.clone();
                    in_flight.push(async move {
                        (place.number, courier.deliver(waiting, place).await)
                    });
                }
            }
        }
        Served::UntilSessionOver
    }
}

/// Why batches are not delivered any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    /// No more will come.
    All,
    /// They need another session.
    UntilSessionOver,
}

/// The numbers of a session's batches.
#[derive(Debug)]
struct Counting {
    session: SessionId,
    /// The last batch formed.
    last: u64,
    /// The batches that somebody may still wait for.
    unsettled: BTreeSet<u64>,
}

impl Counting {
    fn of(session: SessionId) -> Self {
        Self {
            session,
            last: 0,
            unsettled: BTreeSet::new(),
        }
    }

    /// The next batch's place.
    fn next(&mut self) -> Place {
        self.last += 1;
        self.unsettled.insert(self.last);
        let oldest = self.unsettled.first().copied().unwrap_or(self.last);
        Place {
            session: self.session,
            number: self.last,
            ack: oldest - 1,
        }
    }

    fn settle(&mut self, number: u64) {
        self.unsettled.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use futures::FutureExt;
    use futures::future::join_all;
    use tokio::task::yield_now;

    use super::*;
    use crate::sequence::{FeatureLevel, RangeCount};
    use crate::server::config::Timing;
    use crate::server::consensus::{Beginning, LocalNode, Peers, Proposer, Retention};
    use crate::server::metrics::Metrics;
    use crate::server::store::{DataDir, Disk, FormationRecord, Store};
    use crate::server::tasks::Tasks;
    use crate::server::types::{ClusterId, Member, NodeId};

    /// A Raft of one node that does not run yet.
    pub(super) async fn consensus() -> (Consensus, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let mut dir = DataDir::open(directory.path()).unwrap();
        let node = NodeId::from(1);
        let local = LocalNode {
            cluster: ClusterId::generate(),
            node,
            incarnation: dir.identity().incarnation,
            beginning: Beginning::default(),
        };
        let member = Member {
            incarnation: local.incarnation,
            ..Member::default()
        };
        dir.adopt(FormationRecord {
            cluster: local.cluster,
            node,
            members: BTreeMap::from([(node, member)]),
        })
        .unwrap();
        let store = Store::open(&dir, FeatureLevel::LATEST).unwrap();
        let disk = Disk::default();
        let parts = (store.log, store.machine, store.tables, store.log_size, disk);
        let peers = Peers::new(local, Timing::default(), Tasks::default());
        let timing = Timing::default();
        let (retention, metrics) = (Retention::default(), Metrics::default());
        let built = Consensus::build(parts, peers, timing, retention, metrics);
        (built.await.unwrap(), directory)
    }

    /// A batcher that forms no batch, over a Raft that does not run.
    async fn stuck() -> (Batcher, Handle, tempfile::TempDir) {
        let (consensus, directory) = consensus().await;
        let (proposals, _) = Proposer::queue();
        let (batcher, handle) = Batcher::new(consensus, proposals);
        (batcher, handle, directory)
    }

    fn a_grant() -> Command {
        Command::Grant {
            sequence: "s".parse().unwrap(),
            count: RangeCount::ONE,
        }
    }

    #[tokio::test]
    async fn who_waits_for_a_change_after_rafts_end_does_not_spin() {
        let (consensus, _directory) = consensus().await;
        let mut changes = consensus.changes();
        consensus.shutdown().await;

        let begun = Instant::now();
        consensus.settle(&mut changes).await;

        assert!(consensus.timing().heartbeat() <= begun.elapsed());
    }

    #[tokio::test]
    async fn so_many_batches_are_in_flight_and_further_requests_wait_in_the_queue() {
        let (mut batcher, handle, _directory) = stuck().await;
        let tasks = Tasks::default();
        tasks.spawn(async move {
            batcher.serve(SessionId::NONE).await;
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut waiting = Vec::new();
        for _ in 0..BATCHES_IN_FLIGHT_MAX {
            let mut request = Box::pin(handle.submit(a_grant(), deadline));
            assert!(futures::poll!(&mut request).is_pending());
            waiting.push(request);
            // It becomes a batch of its own, which no leader takes, once all that is ready has run.
            while handle.queue.capacity() < QUEUE_MAX {
                yield_now().await;
            }
            for _ in 0..3 {
                yield_now().await;
            }
        }

        for number in 1..=10 {
            let mut request = Box::pin(handle.submit(a_grant(), deadline));
            assert!(futures::poll!(&mut request).is_pending());
            waiting.push(request);
            yield_now().await;
            assert_eq!(handle.queue.capacity(), QUEUE_MAX - number);
        }

        tasks.stop().await;
        for answer in join_all(waiting).await {
            assert!(answer.is_err());
        }
    }

    /// Waits until what was submitted last is in a batch.
    async fn wait_until_taken(handle: &Handle) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while handle.queue.capacity() < QUEUE_MAX {
            assert!(Instant::now() < deadline, "no batch is formed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn who_is_gone_before_the_deadline_holds_no_place() {
        let (mut batcher, handle, _directory) = stuck().await;
        let tasks = Tasks::default();
        tasks.spawn(async move {
            batcher.serve(SessionId::NONE).await;
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        // More than there are places for, one after the other.
        for _ in 0..3 * BATCHES_IN_FLIGHT_MAX {
            let mut request = Box::pin(handle.submit(a_grant(), deadline));
            assert!(futures::poll!(&mut request).is_pending());
            wait_until_taken(&handle).await;
            drop(request);
        }
        tasks.stop().await;
    }

    #[tokio::test]
    async fn beyond_the_queues_length_a_request_is_overloaded_at_once_and_the_others_wait() {
        let (_batcher, handle, _directory) = stuck().await;
        let (soon, late) = (Duration::from_millis(300), Duration::from_secs(60));
        let deadline = Instant::now() + soon;
        let waiting = join_all((0..QUEUE_MAX).map(|_| handle.submit(a_grant(), deadline)));
        let mut waiting = std::pin::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());

        let surplus = handle.submit(a_grant(), Instant::now() + late);

        let surplus = surplus.now_or_never().expect("it waits beyond the bound");
        let error = surplus.unwrap_err();
        assert_eq!(error, SubmitError::Overloaded);
        assert_eq!(
            error.to_string(),
            "4096 requests, or 8388608 bytes of them, wait at this node already"
        );
        // None of those was sent, and that is what they are told.
        for answer in waiting.await {
            assert_eq!(answer, Err(SubmitError::NoLeader));
        }
    }

    #[tokio::test]
    async fn beyond_the_queues_bytes_a_request_is_overloaded_and_the_room_comes_back() {
        let (batcher, handle, _directory) = stuck().await;
        // Room for one more, and not for two.
        let left = size(&a_grant()) * 3 / 2;
        let others = u32::try_from(QUEUE_BYTES_MAX - left).unwrap();
        let others = handle.room.try_acquire_many(others).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut first = Box::pin(handle.submit(a_grant(), deadline));
        assert!(futures::poll!(&mut first).is_pending());

        let surplus = handle.submit(a_grant(), deadline).now_or_never();
        assert_eq!(surplus, Some(Err(SubmitError::Overloaded)));

        drop(others);
        let mut second = Box::pin(handle.submit(a_grant(), deadline));
        assert!(futures::poll!(&mut second).is_pending());
        // The batcher ends with what it holds.
        drop(batcher);
        assert_eq!(first.await, Err(SubmitError::Stopping));
        assert_eq!(second.await, Err(SubmitError::Stopping));
        assert_eq!(handle.room.available_permits(), QUEUE_BYTES_MAX);
    }

    #[tokio::test]
    async fn a_session_in_which_everything_is_stale_is_followed_by_another() {
        let (consensus, _directory) = consensus().await;
        let tasks = Tasks::default();
        let (proposals, queue) = Proposer::queue();
        tasks.spawn(Proposer::new(consensus.clone(), queue).run());
        let (batcher, handle) = Batcher::new(consensus.clone(), proposals.clone());
        let (courier, origin) = (batcher.courier.clone(), batcher.origin);
        consensus.run();
        let members = BTreeMap::from([(consensus.node(), Member::default())]);
        consensus.raft().initialize(members).await.unwrap();
        tasks.spawn(batcher.run());
        let deadline = Instant::now() + Duration::from_secs(20);
        handle.submit(a_grant(), deadline).await.unwrap();

        let Opening::Opened(session) = courier.open_session(origin).await else {
            panic!("it leads");
        };
        let place = Place {
            session,
            number: u64::MAX,
            ack: u64::MAX - 1,
        };
        let (reply, answer) = oneshot::channel();
        let batch = courier::encode(Vec::new(), place);
        let forwarded = Forwarded {
            batch,
            deadline,
            required: None,
            reply,
        };
        proposals.send(forwarded).await.unwrap();
        answer.await.unwrap();

        handle.submit(a_grant(), deadline).await.unwrap();
        tasks.stop().await;
    }
}
