//! A snapshot on its way, both ends: a header, then the file in pieces, then what became of it.
//!
//! Neither end holds more than a few pieces in memory; a slow disk slows the sender through the socket. What does not
//! have the header's checksum is never given to Raft: the sender is told, and sends it again.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use futures::{SinkExt, StreamExt};
use openraft::StorageError;
use openraft::errors::{NetworkError, StreamingError, Unreachable};
use openraft::type_config::TypeConfigExt;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tracing::{info, warn};

use super::frame::{Connection, FRAME_BYTES_MAX, FrameReader, FrameWriter, Limits};
use super::handshake::{self, HandshakeError, Party, PeerHello};
use super::service::{PeerService, Snapshot};
use crate::server::codec;
use crate::server::formats::{LogIdFormat, StoredMembershipFormat, VoteFormat};
use crate::server::store::SnapshotReader;
use crate::server::types::{Address, SnapshotMeta, TypeConfig, Vote};

/// The most bytes of one piece: over a slow link, too, one comes before the time for it is over.
pub(super) const PIECE_BYTES_MAX: usize = 64 * 1024;
/// How long the receiver waits for the next piece: the sender may have to read it from a slow disk.
const PIECE_WAIT_MAX: Duration = Duration::from_secs(10);

/// The first frame of a transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotHeader {
    pub(super) vote: VoteFormat,
    pub(super) last_log_id: Option<LogIdFormat>,
    pub(super) membership: StoredMembershipFormat,
    pub(super) length: u64,
    pub(super) checksum: [u8; 32],
}

/// The only frame back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SnapshotReply {
    /// Raft has it, or did not want it because of this newer vote.
    Installed {
        /// The receiver's.
        vote: VoteFormat,
    },
    /// It did not come whole, or could not be kept. Nothing changed.
    Refused {
        /// In words.
        reason: String,
    },
}

impl SnapshotHeader {
    pub(super) fn new(vote: Vote, snapshot: &Snapshot) -> Self {
        Self {
            vote: vote.into(),
            last_log_id: snapshot.meta.last_log_id.map(Into::into),
            membership: (&snapshot.meta.last_membership).into(),
            length: snapshot.snapshot.length(),
            checksum: snapshot.snapshot.checksum(),
        }
    }
}

/// Sends a snapshot over a connection of its own; no step of it may take longer than `step`.
///
/// # Errors
/// A transfer that shall be tried again, or a snapshot file that cannot be read.
pub(super) async fn send(
    address: &Address,
    hello: PeerHello,
    (vote, snapshot): (Vote, Snapshot),
    limits: Limits,
    step: Duration,
) -> Result<Vote, StreamingError<TypeConfig>> {
    let file = match snapshot.snapshot.open().await {
        Ok(file) => file,
        // A newer snapshot has replaced it since openraft chose it: the next attempt sends that one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(NetworkError::new(&error).into());
        }
        Err(error) => return Err(unreadable(&error)),
    };
    let Connection {
        reader, mut writer, ..
    } = timeout(limits.connect, handshake::dial(address, hello))
        .await
        .unwrap_or(Err(HandshakeError::TimedOut))
        .map_err(|error| StreamingError::from(Unreachable::new(&error)))?;
    let _transfer = snapshot.snapshot.transfer();
    let header = SnapshotHeader::new(vote, &snapshot);
    let reply = pin!(read_reply(reader));
    let pieces = pin!(write_pieces(&mut writer, file, &header, step));
    // The receiver may refuse before it has seen everything.
    let reply = match select(pieces, reply).await {
        Either::Left((Ok(()), reply)) => {
            timeout(step, reply).await.map_err(|_elapsed| slow(step))?
        }
        // Its refusal explains a connection that it has closed.
        Either::Left((Err(error), reply)) => match timeout(limits.connect, reply).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) | Err(_) => return Err(error),
        },
        Either::Right((reply, _)) => reply,
    };
    match reply {
        Ok(SnapshotReply::Installed { vote }) => Ok(vote.into()),
        // After a pause: a disk that is full now is full in a millisecond too.
        Ok(SnapshotReply::Refused { reason }) => Err(Unreachable::from_string(reason).into()),
        Err(error) => Err(NetworkError::new(&error).into()),
    }
}

async fn write_pieces(
    writer: &mut FrameWriter,
    mut file: SnapshotReader,
    header: &SnapshotHeader,
    step: Duration,
) -> Result<(), StreamingError<TypeConfig>> {
    let mut frame = Bytes::from(codec::encode(header));
    let mut left = header.length;
    loop {
        timeout(step, writer.send(frame))
            .await
            .map_err(|_elapsed| slow(step))?
            .map_err(|error| StreamingError::from(NetworkError::new(&error)))?;
        if left == 0 {
            return Ok(());
        }
        let size = usize::try_from(left).map_or(PIECE_BYTES_MAX, |left| left.min(PIECE_BYTES_MAX));
        frame = file.next(size).await.map_err(|error| unreadable(&error))?;
        left = left.saturating_sub(frame.len().try_into().unwrap_or(u64::MAX));
    }
}

pub(super) async fn read_reply(mut reader: FrameReader) -> io::Result<SnapshotReply> {
    let frame = match reader.next().await {
        Some(frame) => frame?,
        None => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    codec::decode::<SnapshotReply, FRAME_BYTES_MAX>(&frame)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn slow(step: Duration) -> StreamingError<TypeConfig> {
    NetworkError::from_string(format!("a step of the snapshot took longer than {step:?}")).into()
}

fn unreadable(error: &io::Error) -> StreamingError<TypeConfig> {
    StorageError::read_snapshot(None, TypeConfig::err_from_error(error)).into()
}

/// Receives one snapshot, gives it to Raft and tells the sender.
///
/// # Errors
/// The connection's, after which the sender knows nothing.
pub(super) async fn receive<S: PeerService>(
    mut connection: Connection,
    service: S,
    from: Party,
    limits: Limits,
) -> io::Result<()> {
    let reply = match take(&mut connection, &service).await {
        Ok(vote) => SnapshotReply::Installed { vote: vote.into() },
        Err(ReceiveError::Connection(error)) => return Err(error),
        Err(error) => {
            warn!(peer = %from.node, %error, "snapshot refused");
            SnapshotReply::Refused {
                reason: error.to_string(),
            }
        }
    };
    connection.send(codec::encode(&reply).into()).await?;
    // To close before all is read would take the reply back from the sender's socket.
    let rest = async { while connection.receive().await.is_ok() {} };
    timeout(limits.connect, rest).await.ok();
    Ok(())
}

/// Why a snapshot was not taken.
#[derive(Debug, thiserror::Error)]
enum ReceiveError {
    /// The connection is gone.
    #[error(transparent)]
    Connection(io::Error),
    /// It could not be kept, or is not what the header says.
    #[error("it was not kept: {0}")]
    Inbox(io::Error),
    /// More bytes came than announced.
    #[error("it is longer than the {length} bytes announced")]
    TooLong {
        /// The header's length.
        length: u64,
    },
    /// No leader sends such a one.
    #[error("it is of a later leadership than its sender")]
    Inverted,
    /// The header or the membership in it is damaged.
    #[error("its header is damaged: {reason}")]
    Header {
        /// In words.
        reason: String,
    },
    /// Raft has ended.
    #[error("{reason}")]
    Raft {
        /// In words.
        reason: String,
    },
}

async fn take<S: PeerService>(
    connection: &mut Connection,
    service: &S,
) -> Result<Vote, ReceiveError> {
    let header = next_frame(connection).await?;
    let header = codec::decode::<SnapshotHeader, FRAME_BYTES_MAX>(&header).map_err(|error| {
        ReceiveError::Header {
            reason: error.to_string(),
        }
    })?;
    let (vote, meta) = check(&header)?;
    let mut incoming = service
        .snapshots()
        .begin()
        .await
        .map_err(ReceiveError::Inbox)?;
    let mut left = header.length;
    while 0 < left {
        let piece = next_frame(connection).await?;
        let size = piece.len().try_into().unwrap_or(u64::MAX);
        left = left.checked_sub(size).ok_or(ReceiveError::TooLong {
            length: header.length,
        })?;
        incoming.write(piece).await.map_err(ReceiveError::Inbox)?;
    }
    let file = incoming
        .finish(header.length, header.checksum)
        .await
        .map_err(ReceiveError::Inbox)?;
    if *file.meta() != meta {
        return Err(ReceiveError::Header {
            reason: "it is another snapshot's".to_owned(),
        });
    }
    info!(
        index = meta.last_log_id.map(|last| last.index()),
        "snapshot received"
    );
    let snapshot = Snapshot {
        meta,
        snapshot: file,
    };
    match service.install(vote, snapshot).await {
        Ok(response) => Ok(response.vote),
        Err(fatal) => Err(ReceiveError::Raft {
            reason: fatal.to_string(),
        }),
    }
}

/// The header in openraft's types, which ends the process over one that no leader can have sent.
fn check(header: &SnapshotHeader) -> Result<(Vote, SnapshotMeta), ReceiveError> {
    let vote = Vote::from(header.vote);
    let last_log_id = header.last_log_id.map(openraft::LogId::from);
    if last_log_id.is_some_and(|last| *vote.leader_id() < *last.committed_leader_id()) {
        return Err(ReceiveError::Inverted);
    }
    let last_membership = header.membership.clone().try_into().map_err(
        |error: crate::server::formats::MembershipFormatError| ReceiveError::Header {
            reason: error.to_string(),
        },
    )?;
    Ok((
        vote,
        SnapshotMeta {
            last_log_id,
            last_membership,
        },
    ))
}

async fn next_frame(connection: &mut Connection) -> Result<Bytes, ReceiveError> {
    match timeout(PIECE_WAIT_MAX, connection.receive()).await {
        Ok(frame) => frame.map_err(ReceiveError::Connection),
        Err(_elapsed) => Err(ReceiveError::Connection(io::ErrorKind::TimedOut.into())),
    }
}
