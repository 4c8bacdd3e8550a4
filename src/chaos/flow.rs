//! One direction of a link, and what networks do to it.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

/// What is read at once. An answer to a lease is smaller, and is written by its node at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks that are on their way at most: who sends more waits, as for the windows of TCP.
const CHUNKS_UNDER_WAY_MAX: usize = 256;

/// What is wrong with one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowFault {
    /// Nothing.
    None,
    /// Nothing arrives while this lasts, not even the end of a connection, as by a cable that is pulled. What was sent
    /// arrives when it is over: TCP sends it again.
    Hold,
    /// All arrives, so much later.
    Delay(Duration),
    /// All arrives, at no more than this rate on each connection.
    Throttle {
        /// The rate.
        bytes_per_second: NonZeroU64,
    },
    /// The receiver is told that nothing comes any more, and nothing does; the other direction goes on.
    HalfClose,
    /// Of the chunks, each that has this number or a multiple of it is lost with its connection. Of a node's answers: it
    /// has carried the request out, and whoever asked does not hear of it.
    LoseEvery(NonZeroU64),
    /// Connections are closed, and new ones at once.
    Cut,
}

/// One direction of one link or of several. A clone is the same direction.
#[derive(Debug, Clone)]
pub struct Flow {
    fault: watch::Sender<FlowFault>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    chunks: AtomicU64,
    lost: AtomicU64,
    hits: AtomicU64,
}

impl Flow {
    pub(super) fn new() -> Self {
        Self {
            fault: watch::Sender::new(FlowFault::None),
            counts: Arc::default(),
        }
    }

    /// From now on it is like this, also for the connections that there are.
    pub fn set(&self, fault: FlowFault) {
        self.fault.send_replace(fault);
    }

    /// How many chunks were lost so far, each with its connection.
    pub fn lost(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// How often a fault met something so far: a chunk that was held, late, slowed or lost, or a connection that was ended.
    pub fn hits(&self) -> u64 {
        self.counts.hits.load(Ordering::Relaxed)
    }

    pub(super) fn hit(&self) {
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn is(&self, fault: FlowFault) -> bool {
        *self.fault.borrow() == fault
    }

    /// Resolves as soon as it is like this.
    pub(super) async fn becomes(&self, awaited: FlowFault) {
        let mut fault = self.fault.subscribe();
        // The sender is this flow's own.
        drop(fault.wait_for(|fault| *fault == awaited).await);
    }

    /// Carries what comes to where it goes, until its end, which the receiver then sees.
    ///
    /// # Errors
    /// The system's, and where a chunk is lost: the connection is to be closed.
    pub(super) async fn carry(
        &self,
        from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) -> io::Result<()> {
        let (sender, chunks) = mpsc::channel(CHUNKS_UNDER_WAY_MAX);
        let give = async {
            tokio::select! {
                given = self.give(chunks, &mut to) => given?,
                () = self.becomes(FlowFault::HalfClose) => self.hit(),
            }
            to.shutdown().await
        };
        tokio::try_join!(take(from, sender), give).map(drop)
    }

    async fn give(
        &self,
        mut chunks: mpsc::Receiver<Chunk>,
        to: &mut OwnedWriteHalf,
    ) -> io::Result<()> {
        let mut faults = self.fault.subscribe();
        let mut free = Instant::now();
        while let Some(chunk) = chunks.recv().await {
            let fault = self.until_due(&mut faults, (chunk.sent, free)).await;
            if let FlowFault::LoseEvery(number) = fault
                && self.loses(number)
            {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            to.write_all(&chunk.bytes).await?;
            if let FlowFault::Throttle { bytes_per_second } = fault {
                let nanos = (chunk.bytes.len() as u64).saturating_mul(1_000_000_000);
                free = Instant::now() + Duration::from_nanos(nanos / bytes_per_second);
            }
        }
        // The end of a connection is held and delayed like all else.
        self.until_due(&mut faults, (Instant::now(), free)).await;
        Ok(())
    }

    /// Waits until what was sent at this moment may arrive, on a connection that is free for it from then on, by the fault
    /// that there is when it does.
    async fn until_due(
        &self,
        faults: &mut watch::Receiver<FlowFault>,
        (sent, free): (Instant, Instant),
    ) -> FlowFault {
        let mut met = FlowFault::None;
        loop {
            let fault = *faults.borrow_and_update();
            let due = match fault {
                FlowFault::Hold => None,
                FlowFault::Delay(by) => Some(sent + by),
                FlowFault::Throttle { .. } => Some(free),
                _ => return fault,
            };
            // Once for each fault that it waits for.
            if fault != met {
                met = fault;
                self.hit();
            }
            let Some(due) = due else {
                // The sender lives as long as its flow.
                drop(faults.changed().await);
                continue;
            };
            if timeout_at(due, faults.changed()).await.is_err() {
                return fault;
            }
        }
    }

    fn loses(&self, number: NonZeroU64) -> bool {
        let chunk = self.counts.chunks.fetch_add(1, Ordering::Relaxed) + 1;
        let lost = chunk.is_multiple_of(number.get());
        if lost {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
            self.hit();
        }
        lost
    }
}

struct Chunk {
    bytes: Bytes,
    sent: Instant,
}

/// Reads to the end, or until nobody wants more.
async fn take(mut from: OwnedReadHalf, chunks: mpsc::Sender<Chunk>) -> io::Result<()> {
    loop {
        let mut bytes = BytesMut::with_capacity(CHUNK_BYTES);
        let length = tokio::select! {
            read = from.read_buf(&mut bytes) => read?,
            () = chunks.closed() => return Ok(()),
        };
        if length == 0 {
            return Ok(());
        }
        let chunk = Chunk {
            bytes: bytes.freeze(),
            sent: Instant::now(),
        };
        if chunks.send(chunk).await.is_err() {
            return Ok(());
        }
    }
}
