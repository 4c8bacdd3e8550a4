//! One open connection to a peer, as those see it who send on it: frames go out in order, answers come back by id.
//!
//! Whoever waits for an answer may stop at any moment: frames are written whole by the connection's own task, and
//! a late answer finds nobody. The connection is given up where nothing is heard from the peer for a while,
//! not where one answer is late: a peer may wait long for its disk or a quorum and be well.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::frame::{
    Connection, FRAME_BYTES_MAX, FrameReader, FrameTooLong, FrameWriter, IN_FLIGHT_MAX, Limits,
    PING, ping, tagged, untag,
};
use crate::server::codec::{self, DecodeError};

/// Frames that wait for the socket. What does not fit makes its sender wait.
pub(super) const QUEUE_MAX: usize = 16;

/// The sending side of an open connection.
#[derive(Debug)]
pub(super) struct Channel {
    queue: mpsc::Sender<Bytes>,
    waiting: Arc<Waiting>,
    last_id: AtomicU64,
}

/// Why a message was certainly not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SendError {
    /// The connection is gone.
    #[error("the connection was lost")]
    Closed,
    /// As many are unanswered as may be.
    #[error("{IN_FLIGHT_MAX} messages wait for this peer's answers already")]
    Busy,
    /// The peer would refuse it.
    #[error(transparent)]
    TooLong(#[from] FrameTooLong),
}

/// Why a message that was sent has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    /// The connection is gone.
    #[error("the connection was lost before the answer")]
    Closed,
    /// The answer does not decode.
    #[error("the answer is damaged")]
    Layout(#[from] DecodeError),
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Closed,
    /// Nothing was heard from the peer.
    #[error("the peer is silent")]
    Silent,
    /// The socket, or what came over it.
    #[error(transparent)]
    Broken(#[from] io::Error),
}

impl Channel {
    /// Makes a channel of an open connection. It lives as long as the future runs, which is the connection's task.
    pub(super) fn open(
        connection: Connection,
        limits: Limits,
    ) -> (Arc<Self>, impl Future<Output = Ended> + Send + 'static) {
        let (queue, frames) = mpsc::channel(QUEUE_MAX);
        let waiting = Arc::new(Waiting {
            answers: Mutex::new(Some(BTreeMap::new())),
        });
        let channel = Arc::new(Self {
            queue: queue.clone(),
            waiting: Arc::clone(&waiting),
            last_id: AtomicU64::new(PING),
        });
        let run = async move {
            let _closes = CloseOnDrop(Arc::clone(&waiting));
            let Connection { reader, writer, .. } = connection;
            tokio::select! {
                ended = read(reader, &waiting, &queue, limits) => ended,
                ended = write(writer, frames, limits) => ended,
            }
        };
        (channel, run)
    }

    /// Sends a message after all that were sent before it.
    ///
    /// # Errors
    /// [`SendError`]: it was not and will not be sent.
    pub(super) async fn send<T: Serialize>(&self, message: &T) -> Result<PendingAnswer, SendError> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let frame = tagged(id, message)?;
        let place = self
            .queue
            .reserve()
            .await
            .map_err(|_closed| SendError::Closed)?;
        let answer = self.waiting.register(id)?;
        place.send(frame);
        Ok(PendingAnswer {
            id,
            waiting: Arc::clone(&self.waiting),
            answer,
        })
    }
}

/// Reads answers, and asks for a sign of life where none come.
async fn read(
    mut reader: FrameReader,
    waiting: &Waiting,
    queue: &mpsc::Sender<Bytes>,
    limits: Limits,
) -> Ended {
    // Counted in waits, not by the clock: after a pause of this process the peer has its full time again.
    let mut silence = Duration::ZERO;
    loop {
        let frame = match timeout(limits.ping, reader.next()).await {
            Ok(Some(Ok(frame))) => frame.freeze(),
            Ok(Some(Err(error))) => return error.into(),
            Ok(None) => return Ended::Closed,
            Err(_elapsed) => {
                silence += limits.ping;
                if limits.silence <= silence {
                    return Ended::Silent;
                }
                // A full queue has frames in it that the peer will answer as well.
                queue.try_send(ping()).ok();
                continue;
            }
        };
        silence = Duration::ZERO;
        match untag(frame) {
            Ok((PING, _)) => {}
            Ok((id, answer)) => waiting.answer(id, answer),
            Err(error) => return error.into(),
        }
    }
}

/// Writes frames whole, as many by one flush as there are. A peer that does not take one in time is gone.
pub(super) async fn write(
    mut writer: FrameWriter,
    mut frames: mpsc::Receiver<Bytes>,
    limits: Limits,
) -> Ended {
    loop {
        let Some(frame) = frames.recv().await else {
            return Ended::Closed;
        };
        if let Err(ended) = write_queued(&mut writer, frame, &mut frames, limits.silence).await {
            return ended;
        }
    }
}

async fn write_queued(
    writer: &mut FrameWriter,
    first: Bytes,
    frames: &mut mpsc::Receiver<Bytes>,
    within: Duration,
) -> Result<(), Ended> {
    let silent = |_elapsed| Ended::Silent;
    let mut next = Some(first);
    while let Some(frame) = next {
        timeout(within, writer.feed(frame))
            .await
            .map_err(silent)??;
        next = frames.try_recv().ok();
    }
    timeout(within, SinkExt::<Bytes>::flush(writer))
        .await
        .map_err(silent)??;
    Ok(())
}

/// An answer that will come, or not. Dropped, it is forgotten.
#[derive(Debug)]
pub(super) struct PendingAnswer {
    id: u64,
    waiting: Arc<Waiting>,
    answer: oneshot::Receiver<Bytes>,
}

impl PendingAnswer {
    /// Waits for it.
    ///
    /// # Errors
    /// [`AnswerError`]: the message may have arrived or not.
    pub(super) async fn receive<T: DeserializeOwned>(mut self) -> Result<T, AnswerError> {
        let answer = (&mut self.answer)
            .await
            .map_err(|_closed| AnswerError::Closed)?;
        Ok(codec::decode::<T, FRAME_BYTES_MAX>(&answer)?)
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        if let Some(answers) = self.waiting.lock().as_mut() {
            answers.remove(&self.id);
        }
    }
}

/// Who waits for which answer; nothing once the connection has ended.
#[derive(Debug)]
struct Waiting {
    answers: Mutex<Option<BTreeMap<u64, oneshot::Sender<Bytes>>>>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<u64, oneshot::Sender<Bytes>>>> {
        // Nothing that is done under it can leave the map half changed.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, id: u64) -> Result<oneshot::Receiver<Bytes>, SendError> {
        let mut answers = self.lock();
        let answers = answers.as_mut().ok_or(SendError::Closed)?;
        if IN_FLIGHT_MAX <= answers.len() {
            return Err(SendError::Busy);
        }
        let (sender, receiver) = oneshot::channel();
        answers.insert(id, sender);
        Ok(receiver)
    }

    fn answer(&self, id: u64, answer: Bytes) {
        let waiting = self.lock().as_mut().and_then(|answers| answers.remove(&id));
        if let Some(waiting) = waiting {
            // Whoever stopped waiting in this moment does not miss it.
            waiting.send(answer).ok();
        }
    }
}

/// Ends all waiting with the connection's task, however that ends.
struct CloseOnDrop(Arc<Waiting>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}
