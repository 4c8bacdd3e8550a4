//! The least that a worker needs of HTTP/1.1: a kept connection, one request on its way, answers with a length.

use std::net::SocketAddr;
use std::ops::Range;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::load::Fault;

/// More than any answer of the servers here has.
const HEADERS_MAX: usize = 32;
/// An answer of a hundred grants has a fifth of that.
const ANSWER_BYTES_MAX: usize = 128 * 1024;

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// A request as it goes over the wire.
pub(crate) fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: highwater\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

impl HttpConnection {
    /// # Errors
    /// Where nobody listens.
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, Fault> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(4096),
        })
    }

    /// Sends a request, and gives the status and the body of its answer.
    ///
    /// # Errors
    /// Where the connection ends, or what comes is no answer.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<(u16, &[u8]), Fault> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let (status, body) = loop {
            self.fill().await?;
            if let Some(head) = head(&self.buffer)? {
                break head;
            }
        };
        while self.buffer.len() < body.end {
            self.fill().await?;
        }
        Ok((status, self.buffer.get(body).unwrap_or_default()))
    }

    async fn fill(&mut self) -> Result<(), Fault> {
        if ANSWER_BYTES_MAX < self.buffer.len() {
            return Err(Fault::lost("answer too large"));
        }
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(Fault::lost("connection closed")),
            _ => Ok(()),
        }
    }
}

/// Status and place of the body, once all headers are there.
fn head(bytes: &[u8]) -> Result<Option<(u16, Range<usize>)>, Fault> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response
        .parse(bytes)
        .map_err(|error| Fault::lost(error.to_string()))?;
    let httparse::Status::Complete(begin) = parsed else {
        return Ok(None);
    };
    let length = response
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .and_then(|header| {
            std::str::from_utf8(header.value)
                .ok()?
                .parse::<usize>()
                .ok()
        })
        .ok_or_else(|| Fault::lost("answer without a length"))?;
    let end = begin.saturating_add(length);
    Ok(Some((response.code.unwrap_or_default(), begin..end)))
}
