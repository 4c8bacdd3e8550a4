//! The append stream, both ends: the leader sends without waiting for answers, the follower hands its requests to
//! Raft in the order in which they came.
//!
//! openraft opens many streams over one connection, one at a time, and may drop any of them midway: each heartbeat is
//! one. So every request has its stream's number, and every answer its request's id. The follower joins the streams to
//! one as long as Raft takes them; a stream of which Raft refused a request has ended there.

use std::collections::VecDeque;
use std::future::ready;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::pending;
use futures::stream::{BoxStream, unfold};
use futures::{Stream, StreamExt};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::errors::{NetworkError, RPCError};
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::channel::{Channel, PendingAnswer, SendError, write};
use super::frame::{
    Connection, FRAME_BYTES_MAX, FrameReader, IN_FLIGHT_MAX, Limits, PING, ping, tagged, untag,
};
use super::handshake::Party;
use super::promises::Promises;
use super::service::PeerService;
use crate::server::codec;
use crate::server::formats::{EntryFormat, LogIdFormat, MembershipFormatError, VoteFormat};
use crate::server::types::{Entry, LogId, TypeConfig};

/// The most unanswered requests of one stream, which is also what Raft queues of them.
const STREAM_IN_FLIGHT_MAX: usize = 64;
/// The most bytes of entries in them: the follower holds them in memory until they are on its disk.
const STREAM_BYTES_IN_FLIGHT_MAX: usize = 16 * 1024 * 1024;
/// The most requests of one connection that wait for Raft. Above what a peer may have unanswered, so that its signs
/// of life are read.
pub(super) const SERVED_MAX: usize = IN_FLIGHT_MAX + STREAM_IN_FLIGHT_MAX;
/// The most bytes of them. Above what a stream and those dropped before it have in flight.
pub(super) const SERVED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Raft's AppendEntries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Append {
    stream: u64,
    vote: VoteFormat,
    prev_log_id: Option<LogIdFormat>,
    leader_commit: Option<LogIdFormat>,
    entries: Vec<EntryFormat>,
}

/// The answer to an [`Append`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Appended {
    /// The follower's log equals the leader's up to here, and is on disk.
    Matching(Option<LogIdFormat>),
    /// The follower has not this entry, on which the request builds. The stream ends here.
    Conflict(LogIdFormat),
    /// The follower has seen a newer leader or candidate. The stream ends here.
    HigherVote(VoteFormat),
    /// Not handed to Raft: an earlier request of the stream was refused.
    Stopped,
}

impl Append {
    /// The layout of a request. The batches in it are shared, not copied.
    pub(super) fn new(stream: u64, request: &AppendEntriesRequest<TypeConfig>) -> Self {
        Self {
            stream,
            vote: request.vote.into(),
            prev_log_id: request.prev_log_id.map(Into::into),
            leader_commit: request.leader_commit.map(Into::into),
            entries: request.entries.iter().map(Into::into).collect(),
        }
    }

    /// The request, if it is one that a leader can have sent: openraft takes that for granted.
    fn into_request(self) -> Result<AppendEntriesRequest<TypeConfig>, AppendFormatError> {
        let entries = self
            .entries
            .into_iter()
            .map(TryInto::try_into)
            .collect::<Result<Vec<Entry>, MembershipFormatError>>()?;
        let prev_log_id = self.prev_log_id.map(LogId::from);
        let mut next = prev_log_id.map_or(0, |prev| prev.index().saturating_add(1));
        for entry in &entries {
            if entry.index() != next {
                return Err(AppendFormatError::Gap {
                    expected: next,
                    found: entry.index(),
                });
            }
            next = next.saturating_add(1);
        }
        Ok(AppendEntriesRequest {
            vote: self.vote.into(),
            prev_log_id,
            entries,
            leader_commit: self.leader_commit.map(Into::into),
        })
    }
}

/// An append that no leader sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum AppendFormatError {
    /// Its entries do not follow each other.
    #[error("entry {found} stands where entry {expected} belongs")]
    Gap {
        /// The index that should come.
        expected: u64,
        /// The index that came.
        found: u64,
    },
    /// It carries an impossible membership.
    #[error(transparent)]
    Membership(#[from] MembershipFormatError),
}

impl From<StreamAppendResult<TypeConfig>> for Appended {
    fn from(result: StreamAppendResult<TypeConfig>) -> Self {
        match result {
            Ok(matching) => Self::Matching(matching.map(Into::into)),
            Err(StreamAppendError::Conflict(prev)) => Self::Conflict(prev.into()),
            Err(StreamAppendError::HigherVote(vote)) => Self::HigherVote(vote.into()),
        }
    }
}

/// What openraft reads from a stream: results, ending at the first that is not a success.
pub(super) type AppendResult = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// Sends the requests of one stream over the connection, many before the first answer.
pub(super) fn send<'a>(
    channel: Arc<Channel>,
    stream: u64,
    (promises, party): (Promises, Party),
    requests: impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + 'a,
) -> impl Stream<Item = AppendResult> + Send + 'a {
    let room = Arc::new(Semaphore::new(STREAM_BYTES_IN_FLIGHT_MAX));
    let sent = requests.then(move |request| {
        let (channel, room) = (Arc::clone(&channel), Arc::clone(&room));
        async move {
            // The semaphore is never closed; without a place the request would only be unbounded.
            let place = room.acquire_many_owned(entry_bytes(&request)).await.ok();
            let sent = channel.send(&Append::new(stream, &request)).await;
            (request.vote, sent, place)
        }
    });
    let results = sent.map(move |(vote, sent, place)| {
        let promises = promises.clone();
        async move {
            let result = receive(sent).await;
            drop(place);
            promises.check(party, vote, result)
        }
    });
    results
        .buffered(STREAM_IN_FLIGHT_MAX)
        .scan(false, |ended, result| {
            if *ended {
                return ready(None);
            }
            *ended = !matches!(result, Ok(Ok(_)));
            ready(Some(result))
        })
}

/// About how many bytes a request's entries have, at most what a stream may have in flight.
fn entry_bytes(request: &AppendEntriesRequest<TypeConfig>) -> u32 {
    let bytes = |entry: &Entry| match &entry.payload {
        EntryPayload::Normal(proposal) => proposal.batches.iter().map(Bytes::len).sum(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0_usize,
    };
    let bytes = request.entries.iter().map(bytes).sum::<usize>();
    u32::try_from(bytes.min(STREAM_BYTES_IN_FLIGHT_MAX)).unwrap_or(u32::MAX)
}

/// Waits for one answer.
pub(super) async fn receive(sent: Result<PendingAnswer, SendError>) -> AppendResult {
    let answer = match sent {
        Ok(answer) => answer.receive::<Appended>().await,
        Err(error) => return Err(NetworkError::new(&error).into()),
    };
    match answer {
        Ok(Appended::Matching(matching)) => Ok(Ok(matching.map(Into::into))),
        Ok(Appended::Conflict(prev)) => Ok(Err(StreamAppendError::Conflict(prev.into()))),
        Ok(Appended::HigherVote(vote)) => Ok(Err(StreamAppendError::HigherVote(vote.into()))),
        Ok(Appended::Stopped) => {
            Err(NetworkError::from_string("an earlier append of the stream was refused").into())
        }
        Err(error) => Err(NetworkError::new(&error).into()),
    }
}

/// Hands a peer's appends to Raft, and answers them, until the connection ends.
///
/// # Errors
/// Why it ended.
pub(super) async fn serve<S: PeerService>(
    connection: Connection,
    service: S,
    from: Party,
    limits: Limits,
) -> io::Result<()> {
    let Connection { reader, writer, .. } = connection;
    let (replies, frames) = mpsc::channel(STREAM_IN_FLIGHT_MAX);
    let receiver = Receiver {
        reader,
        replies,
        service,
        from,
        limits,
        session: None,
        current: 0,
        stopped: 0,
    };
    tokio::select! {
        ended = receiver.run() => ended,
        ended = write(writer, frames, limits) => Err(io::Error::other(ended)),
    }
}

/// The follower's end of a connection for appends.
struct Receiver<S> {
    reader: FrameReader,
    replies: mpsc::Sender<Bytes>,
    service: S,
    from: Party,
    limits: Limits,
    /// The stream into Raft; none until there is a request for it.
    session: Option<Session>,
    /// The leader's stream that was read last. Their numbers rise.
    current: u64,
    /// Requests of streams up to this one are not handed to Raft any more.
    stopped: u64,
}

/// A stream into Raft.
struct Session {
    requests: mpsc::Sender<AppendEntriesRequest<TypeConfig>>,
    results: BoxStream<'static, Option<StreamAppendResult<TypeConfig>>>,
    /// The requests that Raft has not answered, in their order.
    unanswered: VecDeque<Unanswered>,
    /// The bytes of these.
    unanswered_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Unanswered {
    id: u64,
    stream: u64,
    bytes: usize,
}

enum Event {
    Frame(Bytes),
    Result(StreamAppendResult<TypeConfig>),
}

impl<S: PeerService> Receiver<S> {
    async fn run(mut self) -> io::Result<()> {
        loop {
            match self.next().await? {
                Event::Frame(frame) => self.take(frame).await?,
                Event::Result(result) => self.reply(result).await?,
            }
        }
    }

    async fn next(&mut self) -> io::Result<Event> {
        let has_room = self.session.as_ref().is_none_or(Session::has_room);
        let result = async {
            match &mut self.session {
                Some(session) => session.results.next().await.flatten(),
                None => pending().await,
            }
        };
        tokio::select! {
            result = result => {
                result.map(Event::Result).ok_or_else(|| io::Error::other("raft has stopped"))
            }
            frame = timeout(self.limits.silence, self.reader.next()), if has_room => {
                match frame {
                    Ok(Some(frame)) => Ok(Event::Frame(frame?.freeze())),
                    Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(_elapsed) => Err(io::ErrorKind::TimedOut.into()),
                }
            }
        }
    }

    /// Hands a request to Raft.
    async fn take(&mut self, frame: Bytes) -> io::Result<()> {
        let (id, body) = untag(frame)?;
        if id == PING {
            return self.send(ping()).await;
        }
        let append = codec::decode::<Append, FRAME_BYTES_MAX>(&body).map_err(invalid)?;
        let stream = append.stream;
        if stream <= self.stopped {
            return self.answer(id, &Appended::Stopped).await;
        }
        if stream != self.current {
            self.current = stream;
            self.check_incarnation()?;
        }
        let request = append.into_request().map_err(invalid)?;
        let session = self
            .session
            .get_or_insert_with(|| Session::start(&self.service));
        session.unanswered_bytes += body.len();
        session.unanswered.push_back(Unanswered {
            id,
            stream,
            bytes: body.len(),
        });
        // There is room: the queue holds as many as may be unanswered.
        let handed = session.requests.try_send(request);
        handed.map_err(|_closed| io::Error::other("raft has stopped"))
    }

    /// Answers the oldest request. Refused, it is the last of its stream, and of those read since.
    async fn reply(&mut self, result: StreamAppendResult<TypeConfig>) -> io::Result<()> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let Some(oldest) = session.unanswered.pop_front() else {
            return Err(io::Error::other("raft answered what was not asked"));
        };
        session.unanswered_bytes -= oldest.bytes;
        let mut stopped = VecDeque::new();
        if result.is_err() {
            stopped = std::mem::take(&mut session.unanswered);
            self.stopped = stopped.back().unwrap_or(&oldest).stream;
            self.session = None;
        }
        self.answer(oldest.id, &result.into()).await?;
        for unanswered in stopped {
            self.answer(unanswered.id, &Appended::Stopped).await?;
        }
        Ok(())
    }

    /// The membership may have learned since the handshake who the peer's id belongs to (I12).
    fn check_incarnation(&self) -> io::Result<()> {
        match self.service.incarnation_of(self.from.node) {
            Some(known) if known != self.from.incarnation => Err(io::Error::other(
                "the peer's id belongs to another data directory now",
            )),
            _ => Ok(()),
        }
    }

    async fn answer(&mut self, id: u64, answer: &Appended) -> io::Result<()> {
        self.send(tagged(id, answer).map_err(invalid)?).await
    }

    async fn send(&mut self, frame: Bytes) -> io::Result<()> {
        self.replies
            .send(frame)
            .await
            .map_err(|_closed| io::ErrorKind::BrokenPipe.into())
    }
}

impl Session {
    fn start<S: PeerService>(service: &S) -> Self {
        let (requests, queued) = mpsc::channel(SERVED_MAX);
        let queued = unfold(queued, |mut queued| async move {
            queued.recv().await.map(|request| (request, queued))
        });
        // An error here is Raft's end, which the node's own watch reports.
        let results = service.append(queued).map(Result::ok).boxed();
        Self {
            requests,
            results,
            unanswered: VecDeque::new(),
            unanswered_bytes: 0,
        }
    }

    fn has_room(&self) -> bool {
        self.unanswered.len() < SERVED_MAX && self.unanswered_bytes < SERVED_BYTES_MAX
    }
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
