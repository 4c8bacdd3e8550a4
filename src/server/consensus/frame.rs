//! Frames of the peer port: four bytes of length, most significant first, then that many bytes.
//!
//! What a frame means is not known here. Every bound of a peer connection is.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::{SinkExt, StreamExt};
use serde::Serialize;
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use crate::server::codec;
use crate::server::config::Timing;
use crate::server::host::{Reads, Socket, Writes};

/// The most bytes of one frame: twice what the log hands out for one append.
pub(crate) const FRAME_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The most unanswered frames of one connection: far above the 64 of an append stream and the calls of a batcher.
pub(super) const IN_FLIGHT_MAX: usize = 256;

/// The id of a frame that only shows that its sender is there.
pub(super) const PING: u64 = 0;

/// The reading half of a connection.
pub(super) type FrameReader = FramedRead<Box<dyn Reads>, LengthDelimitedCodec>;
/// The writing half of a connection.
pub(super) type FrameWriter = FramedWrite<Box<dyn Writes>, LengthDelimitedCodec>;

/// How long a peer connection waits for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// To connect and shake hands.
    pub(super) connect: Duration,
    /// A connection on which nothing was heard for so long is asked for a sign of life.
    pub(super) ping: Duration,
    /// A connection on which nothing was heard for so long is given up.
    pub(super) silence: Duration,
    /// The pause after the first attempt to connect that did not succeed; it doubles.
    pub(super) retry_min: Duration,
    /// The longest pause between two attempts to connect.
    pub(super) retry_max: Duration,
}

impl Limits {
    /// Below these, a busy machine alone would cut healthy connections.
    const CONNECT_MIN: Duration = Duration::from_millis(500);
    const SILENCE_MIN: Duration = Duration::from_secs(1);
}

impl From<Timing> for Limits {
    fn from(timing: Timing) -> Self {
        let silence = Self::SILENCE_MIN.max(timing.quorum_check() * 2);
        Self {
            connect: Self::CONNECT_MIN.max(timing.quorum_check()),
            ping: silence / 6,
            silence,
            retry_min: timing.heartbeat() / 2,
            retry_max: timing.heartbeat() * 5,
        }
    }
}

/// A connection that carries frames.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) reader: FrameReader,
    pub(super) writer: FrameWriter,
    /// Where the other end is.
    pub(super) peer: SocketAddr,
}

impl Connection {
    /// A connection that takes frames of at most `frame_max` bytes until told otherwise.
    pub(super) fn new(socket: Socket, frame_max: usize) -> Self {
        let Socket {
            reads,
            writes,
            peer,
        } = socket;
        Self {
            reader: FramedRead::new(reads, frames_of(frame_max)),
            writer: FramedWrite::new(writes, frames_of(FRAME_BYTES_MAX)),
            peer,
        }
    }

    /// Takes whole frames from now on: the peer has shown who it is.
    pub(super) fn admit(mut self) -> Self {
        self.reader
            .decoder_mut()
            .set_max_frame_length(FRAME_BYTES_MAX);
        self
    }

    /// The next frame.
    ///
    /// # Errors
    /// Those of the socket, a frame above the limit, or `UnexpectedEof` where the peer has closed.
    pub(super) async fn receive(&mut self) -> io::Result<Bytes> {
        match self.reader.next().await {
            Some(frame) => frame.map(Into::into),
            None => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the other end closed the connection",
            )),
        }
    }

    /// Sends a frame, and waits until the socket has it.
    ///
    /// # Errors
    /// Those of the socket, or a frame above the limit.
    pub(super) async fn send(&mut self, frame: Bytes) -> io::Result<()> {
        self.writer.send(frame).await
    }
}

fn frames_of(bytes_max: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .length_field_type::<u32>()
        .big_endian()
        .max_frame_length(bytes_max)
        .new_codec()
}

/// A frame that its receiver would refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {length} bytes is more than the {FRAME_BYTES_MAX} allowed")]
pub(super) struct FrameTooLong {
    pub(super) length: usize,
}

/// The frame of a message, with the id that its answer will have.
pub(super) fn tagged<T: Serialize>(id: u64, message: &T) -> Result<Bytes, FrameTooLong> {
    let frame = codec::encode(&(id, message));
    if FRAME_BYTES_MAX < frame.len() {
        return Err(FrameTooLong {
            length: frame.len(),
        });
    }
    Ok(frame.into())
}

/// The frame that shows that its sender is there; its answer is the same.
pub(super) fn ping() -> Bytes {
    Bytes::copy_from_slice(&PING.to_le_bytes())
}

/// The id of a frame, and its message.
pub(super) fn untag(mut frame: Bytes) -> io::Result<(u64, Bytes)> {
    let id = frame.try_get_u64_le().map_err(|short| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame without an id: {short}"),
        )
    })?;
    Ok((id, frame))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn a_frame_keeps_its_bytes() {
        let frame = tagged(0x0102, &"ab").unwrap();

        const EXPECTED: [u8; 18] = [
            2, 1, 0, 0, 0, 0, 0, 0, // id
            2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', // message
        ];
        assert_eq!(frame, EXPECTED.as_slice());
        let (id, message) = untag(frame).unwrap();
        assert_eq!((id, message), (0x0102, Bytes::from_static(&EXPECTED[8..])));
        assert_eq!(ping(), [0; 8].as_slice());
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let error = untag(Bytes::from_static(&[1, 2, 3])).unwrap_err();
        assert!(error.to_string().starts_with("a frame without an id"));

        let error = tagged(1, &vec![0_u8; FRAME_BYTES_MAX]).unwrap_err();
        assert_eq!(
            error,
            FrameTooLong {
                length: FRAME_BYTES_MAX + 16
            }
        );
        assert_eq!(
            error.to_string(),
            "a frame of 2097168 bytes is more than the 2097152 allowed"
        );
    }

    /// Two ends of one connection.
    async fn pair() -> (Connection, Connection) {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), socket.accept());
        let connection = |stream: TcpStream| Connection::new(stream.try_into().unwrap(), 100);
        (connection(ours.unwrap()), connection(theirs.unwrap().0))
    }

    #[tokio::test]
    async fn a_frame_above_the_limit_of_its_receiver_is_an_error_before_it_is_read() {
        let (mut ours, mut theirs) = pair().await;
        ours.send(Bytes::from(vec![1; 100])).await.unwrap();
        ours.send(Bytes::from(vec![2; 101])).await.unwrap();

        assert_eq!(theirs.receive().await.unwrap(), vec![1; 100]);
        let error = theirs.receive().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);

        let (mut ours, theirs) = pair().await;
        let mut theirs = theirs.admit();
        ours.send(Bytes::from(vec![2; FRAME_BYTES_MAX / 100]))
            .await
            .unwrap();
        assert_eq!(theirs.receive().await.unwrap().len(), FRAME_BYTES_MAX / 100);
        let error = ours.send(Bytes::from(vec![3; FRAME_BYTES_MAX + 1])).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
