//! Answers a peer's calls, many at once, in the order in which they are done.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::unfold;
use futures::{Stream, StreamExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::channel::write;
use super::frame::{
    Connection, FRAME_BYTES_MAX, FrameReader, IN_FLIGHT_MAX, Limits, PING, ping, tagged, untag,
};
use super::handshake::Party;
use super::protocol::{Call, ForwardReply, ReadIndexReply, Reply};
use super::service::{Forwarded, PeerService};
use crate::server::codec;

/// The most calls of one connection that are being answered. Above what a peer may have unanswered, so that its
/// signs of life are always read.
pub(super) const SERVED_MAX: usize = IN_FLIGHT_MAX + 64;
/// Replies that wait for the socket.
const QUEUE_MAX: usize = 64;

/// Answers a peer's calls until the connection ends.
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
    let (replies, queued) = mpsc::channel(QUEUE_MAX);
    let answered = frames(reader, limits.silence).try_for_each_concurrent(SERVED_MAX, |frame| {
        let (service, replies) = (&service, &replies);
        async move {
            let reply = answer(service, from, frame).await?;
            let sent = replies.send(reply).await;
            sent.map_err(|_closed| io::ErrorKind::BrokenPipe.into())
        }
    });
    tokio::select! {
        ended = answered => ended,
        ended = write(writer, queued, limits) => Err(io::Error::other(ended)),
    }
}

/// The frames of a connection, up to its end or a silence of this length.
fn frames(reader: FrameReader, silence: Duration) -> impl Stream<Item = io::Result<Bytes>> {
    unfold(reader, move |mut reader| async move {
        let frame = match timeout(silence, reader.next()).await {
            Ok(Some(frame)) => frame.map(Into::into),
            // An error, so that the calls that are being answered end with it.
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_elapsed) => Err(io::ErrorKind::TimedOut.into()),
        };
        Some((frame, reader))
    })
}

async fn answer<S: PeerService>(service: &S, from: Party, frame: Bytes) -> io::Result<Bytes> {
    let (id, body) = untag(frame)?;
    if id == PING {
        return Ok(ping());
    }
    let call = codec::decode::<Call, FRAME_BYTES_MAX>(&body)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    // The membership may have learned since the handshake who the peer's id belongs to (I12).
    let reply = match service.incarnation_of(from.node) {
        Some(known) if known != from.incarnation => failed(format_args!(
            "node {} is another data directory now",
            from.node
        )),
        // It is told why when it connects again.
        None if service.has_removed(from.node) => {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        _ => carry_out(service, call).await,
    };
    tagged(id, &reply)
        .or_else(|too_long| tagged(id, &failed(too_long)))
        .map_err(io::Error::other)
}

async fn carry_out<S: PeerService>(service: &S, call: Call) -> Reply {
    match call {
        Call::Vote(call) => match service.vote(call.into()).await {
            Ok(response) => Reply::Vote(response.into()),
            Err(error) => failed(error),
        },
        Call::PreVote(call) => match service.pre_vote(call.into()).await {
            Ok(response) => Reply::PreVote(response.into()),
            Err(error) => failed(error),
        },
        Call::TransferLeader(call) => match service.transfer_leader(call.into()).await {
            Ok(response) => Reply::TransferLeader(response.into()),
            Err(error) => failed(error),
        },
        Call::Forward { batch, left_ms } => Reply::Forward(forward(service, batch, left_ms).await),
        Call::ReadIndex { left_ms } => {
            let within = Duration::from_millis(left_ms.into());
            let proof = timeout(within, service.read_index(within)).await;
            Reply::ReadIndex(proof.unwrap_or(ReadIndexReply::Unproved))
        }
        Call::Status => Reply::Status(service.status()),
        call @ (Call::HandOver { .. }
        | Call::ChangeMember { .. }
        | Call::AllKnow { .. }
        | Call::LeaseCached { .. }) => service.serve_as_leader(call).await,
        Call::Announce {
            node,
            member,
            left_ms,
        } => {
            let within = Duration::from_millis(left_ms.into());
            let done = service.announce(node, member, within).await;
            Reply::Announce { done }
        }
        Call::Cluster { left_ms } => {
            let within = Duration::from_millis(left_ms.into());
            match timeout(within, service.cluster(within)).await {
                Ok(view) => Reply::Cluster(view),
                Err(elapsed) => failed(elapsed),
            }
        }
    }
}

async fn forward<S: PeerService>(service: &S, batch: Bytes, left_ms: u32) -> ForwardReply {
    let deadline = Instant::now() + Duration::from_millis(left_ms.into());
    let (reply, outcome) = oneshot::channel();
    let forwarded = Forwarded {
        batch,
        deadline,
        required: None,
        reply,
    };
    match service.forwards().try_send(forwarded) {
        Ok(()) => {}
        // Closed, it takes no more batches because the node is stopping: another will lead.
        Err(TrySendError::Full(_) | TrySendError::Closed(_)) => return ForwardReply::Overloaded,
    }
    // The proposer answers everything that it was given, soon after its deadline at the latest.
    outcome.await.unwrap_or(ForwardReply::Unknown)
}

fn failed(reason: impl ToString) -> Reply {
    Reply::Failed {
        reason: reason.to_string(),
    }
}
