//! One HTTP connection at its cheapest: for crowds and for load, where a full client would be what is measured.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// A connection to one node, kept open from request to request.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    received: BytesMut,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The head, from its first line to its last header.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

impl RawAnswer {
    /// A header's value; its name is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1);
        lines.find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Connection {
    /// Connects to a node's API, `http://host:port`.
    ///
    /// # Errors
    /// The system's.
    pub async fn open(url: &str) -> io::Result<Self> {
        let address = url.strip_prefix("http://").unwrap_or(url);
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            received: BytesMut::new(),
        })
    }

    /// Sends a request, and does not wait for its answer.
    ///
    /// # Errors
    /// The system's: the node may have got it or not.
    pub async fn send(&mut self, method: &str, path: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: n\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes()).await
    }

    /// Waits for the answer to the oldest request that has none.
    ///
    /// # Errors
    /// The system's, or `UnexpectedEof` where the node closed the connection: nobody knows what became of the request.
    pub async fn receive(&mut self) -> io::Result<RawAnswer> {
        let head = loop {
            if let Some(end) = find(&self.received, b"\r\n\r\n") {
                let head = self.received.split_to(end);
                self.received.advance(4);
                break head;
            }
            self.read_more().await?;
        };
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut answer = RawAnswer {
            status: status(&head).ok_or_else(no_http)?,
            head,
            body: Vec::new(),
        };
        let length = answer.header("content-length").map(str::parse);
        let length: usize = length
            .transpose()
            .map_err(|_not_a_number| no_http())?
            .unwrap_or(0);
        while self.received.len() < length {
            self.read_more().await?;
        }
        answer.body = self.received.split_to(length).to_vec();
        Ok(answer)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// As [`Connection::send`] and [`Connection::receive`].
    pub async fn ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<RawAnswer> {
        self.send(method, path, body).await?;
        self.receive().await
    }

    async fn read_more(&mut self) -> io::Result<()> {
        if ANSWER_BYTES_MAX < self.received.len() {
            return Err(io::Error::other("an answer without end"));
        }
        if self.stream.read_buf(&mut self.received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// The status in a line such as `HTTP/1.1 201 Created`.
fn status(head: &str) -> Option<u16> {
    head.strip_prefix("HTTP/1.1 ")?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

fn no_http() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP/1.1")
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A connection to somebody who answers with these bytes and closes.
    async fn answered_with(bytes: &'static [u8]) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let connection = Connection::open(&url).await.unwrap();
        let (mut other, _) = listener.accept().await.unwrap();
        other.write_all(bytes).await.unwrap();
        other.shutdown().await.unwrap();
        (connection, other)
    }

    #[tokio::test]
    async fn answers_are_read_one_after_the_other_to_their_length() {
        let (mut connection, mut other) = answered_with(
            b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\nretry-after: 1\r\n\r\n1 3HTTP/1.1 204 No\r\n\r\n",
        )
        .await;

        let first = connection.ask("POST", "/p", "{}").await.unwrap();
        let second = connection.receive().await.unwrap();

        assert_eq!((first.status, first.body.as_slice()), (201, &b"1 3"[..]));
        assert_eq!(first.header("retry-after"), Some("1"));
        assert_eq!(first.header("x"), None);
        assert_eq!((second.status, second.body.len()), (204, 0));
        let mut sent = [0; 64];
        let read = other.read(&mut sent).await.unwrap();
        assert_eq!(
            &sent[..read],
            b"POST /p HTTP/1.1\r\nhost: n\r\ncontent-length: 2\r\n\r\n{}"
        );
        let closed = connection.receive().await.unwrap_err();
        assert_eq!(closed.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn what_is_no_http_is_an_error() {
        for bytes in [
            &b"SSH-2.0\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        ] {
            let (mut connection, _other) = answered_with(bytes).await;

            let error = connection.receive().await.unwrap_err();

            assert_eq!(error.to_string(), "the answer is not HTTP/1.1");
        }
    }
}
