//! HTTP as it goes over the socket: for requests that no client library would send.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::world::{Answer, PATIENCE};

/// What the client does after its last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It waits for the node to close.
    Wait,
    /// It says that nothing more will come.
    Close,
}

/// Sends these bytes on a connection of their own, and returns every answer until the node closes it.
pub(crate) async fn exchange(url: &str, bytes: &[u8], then: Then) -> Vec<Answer> {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The node may answer and close before it has read everything.
    let sent = stream.write_all(bytes).await;
    if sent.is_ok() && then == Then::Close {
        stream.shutdown().await.unwrap();
    }
    let mut received = Vec::new();
    let ended = timeout(PATIENCE, async {
        let mut part = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut part).await {
            received.extend_from_slice(&part[..count]);
        }
    });
    ended.await.expect("the node closes the connection");
    let heads_only = bytes.starts_with(b"HEAD ");
    answers(&received, |length| if heads_only { 0 } else { length })
}

/// Whether the node closes a connection on which these bytes came, long before its time-out for a request's head.
pub(crate) async fn is_closed_at_once(url: &str, bytes: &[u8]) -> bool {
    let exchanged = exchange(url, bytes, Then::Wait);
    timeout(Duration::from_secs(5), exchanged).await.is_ok()
}

/// Takes the answers apart. `sent` tells how much of a body of that length is sent.
fn answers(mut received: &[u8], sent: impl Fn(usize) -> usize) -> Vec<Answer> {
    let mut found = Vec::new();
    while !received.is_empty() {
        let (head, rest) = split_at_blank_line(received);
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let headers: HeaderMap = lines.map(header).collect();
        let length = headers.get("content-length");
        let length = length.map_or(0, |text| text.to_str().unwrap().parse().unwrap());
        let (body, next) = rest.split_at(sent(length));
        found.push(Answer {
            status: status.parse().unwrap(),
            headers,
            text: String::from_utf8(body.to_vec()).unwrap(),
        });
        received = next;
    }
    found
}

fn split_at_blank_line(bytes: &[u8]) -> (&str, &[u8]) {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, rest) = bytes.split_at(end.expect("an answer has a whole head") + 4);
    (str::from_utf8(head).unwrap().trim_end(), rest)
}

fn header(line: &str) -> (HeaderName, HeaderValue) {
    let (name, value) = line.split_once(": ").unwrap();
    (name.parse().unwrap(), value.parse().unwrap())
}
