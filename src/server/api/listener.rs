//! Accepts workers' connections, a bounded number of them, and drops those that stall.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::ServiceExt;
use axum::extract::Request;
use axum_server::Handle;
use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::connections::{Connections, Seat, Seated};
use super::front::Front;

/// Connections at once, where the system lets this process open as many files. A further one takes the place of the one
/// that is quiet for longest.
pub(crate) const CONNECTIONS_MAX: usize = 8_192;
/// How long a client may take to its first whole request head.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take from one answer to the end of the next request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a client may take nothing of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest request head, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Serves the API on the listener until the handle is told to stop, at most so many connections at once.
///
/// # Errors
/// Where the listener cannot be used.
pub(crate) async fn serve(
    listener: TcpListener,
    front: Front,
    handle: Handle<SocketAddr>,
    connections_max: usize,
) -> io::Result<()> {
    let connections = Connections::at_most(connections_max);
    // Only HTTP/1.1: otherwise the protocol is guessed from the first bytes.
    let mut server = axum_server::from_tcp(listener)?
        .http1_only()
        .acceptor(Bounded { connections })
        .first_request_timeout(FIRST_HEAD_TIMEOUT)
        .handle(handle);
    server
        .http_builder()
        .http1()
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX);
    let make = ServiceExt::<Request>::into_make_service(front);
    server.serve(make).await
}

/// Gives each connection a seat, which it keeps as long as its stream lives.
#[derive(Debug, Clone)]
struct Bounded {
    connections: Connections,
}

impl<S> Accept<TcpStream, S> for Bounded {
    type Stream = Counted;
    type Service = Seated<S>;
    type Future = std::future::Ready<io::Result<(Counted, Seated<S>)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let counted = || {
            let seat = self.connections.open();
            let seat = seat.ok_or_else(|| io::Error::other("too many connections"))?;
            stream.set_nodelay(true)?;
            let seat = Arc::new(seat);
            let stream = Counted {
                stream,
                stalled: None,
                seat: Arc::clone(&seat),
            };
            Ok((stream, Seated { service, seat }))
        };
        std::future::ready(counted())
    }
}

/// A connection that is counted. It ends where another needs its place, and where its client takes nothing of an answer.
#[derive(Debug)]
struct Counted {
    stream: TcpStream,
    /// Runs while the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    seat: Arc<Seat>,
}

impl Counted {
    /// The result of a write, or an error where it waits for too long.
    fn unless_stalled<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let timer = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        timer
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.seat.poll_ended(context).is_ready() {
            // As if the client had closed it.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.unless_stalled(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.unless_stalled(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.unless_stalled(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::{Notify, Semaphore, watch};
    use tokio::task::JoinSet;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::server::metrics::Metrics;

    /// Long enough for any machine.
    const AT_MOST: Duration = Duration::from_secs(20);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n";

    struct Api {
        address: SocketAddr,
        /// Has a permit for each request that reached `/slow`.
        arrived: Arc<Semaphore>,
        /// Lets one of them be answered.
        answer: Arc<Notify>,
        _server: JoinSet<()>,
    }

    fn api(connections_max: usize) -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(Notify::new());
        let arrived = Arc::new(Semaphore::new(0));
        let (arrives, waits) = (Arc::clone(&arrived), Arc::clone(&answer));
        let slow = async move || {
            arrives.add_permits(1);
            waits.notified().await;
            "slow"
        };
        let routes = Router::new()
            .route("/", get(async || "ok"))
            .route("/slow", get(slow))
            .route("/large", get(async || vec![b'x'; 64 * 1024 * 1024]));
        let (_node, service) = watch::channel(None);
        let api = super::super::Api::new(Arc::default(), service, Metrics::default());
        let front = Front::new(api, routes);
        let mut server = JoinSet::new();
        server.spawn(async move {
            serve(listener, front, Handle::new(), connections_max)
                .await
                .unwrap();
        });
        Api {
            address,
            arrived,
            answer,
            _server: server,
        }
    }

    impl Api {
        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }

        /// A connection whose request waits for its answer.
        async fn waiting(&self) -> TcpStream {
            let mut stream = self.connect().await;
            let slow = b"GET /slow HTTP/1.1\r\nhost: h\r\n\r\n";
            stream.write_all(slow).await.unwrap();
            let arrived = timeout(AT_MOST, self.arrived.acquire()).await.unwrap();
            arrived.unwrap().forget();
            stream
        }

        /// A connection that was answered once.
        async fn answered(&self) -> TcpStream {
            let mut stream = self.connect().await;
            assert_eq!(ask(&mut stream, REQUEST).await, "ok");
            stream
        }
    }

    /// Sends a request; the last line of what comes back, empty where the connection is closed.
    async fn ask(stream: &mut TcpStream, request: &[u8]) -> String {
        // It may be closed already.
        stream.write_all(request).await.ok();
        let mut answer = vec![0; 4096];
        let read = timeout(AT_MOST, stream.read(&mut answer)).await.unwrap();
        answer.truncate(read.unwrap_or(0));
        let answer = String::from_utf8(answer).unwrap();
        answer.lines().last().unwrap_or_default().to_owned()
    }

    /// Waits in no time at all.
    async fn wait_on_a_paused_clock(time: Duration) {
        tokio::time::pause();
        sleep(time).await;
    }

    /// Waits until the connection is closed; what came before that.
    async fn end(stream: &mut TcpStream) -> usize {
        let mut rest = Vec::new();
        let ended = timeout(10 * HEAD_TIMEOUT, stream.read_to_end(&mut rest)).await;
        // An error where it was closed with something unread.
        drop(ended.expect("it should be closed by now"));
        rest.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_no_request_is_closed_after_ten_seconds() {
        let api = api(4);
        let begun = Instant::now();

        let mut stream = api.connect().await;
        let sent = end(&mut stream).await;

        assert_eq!(sent, 0);
        assert!(FIRST_HEAD_TIMEOUT <= begun.elapsed());
        assert!(begun.elapsed() < HEAD_TIMEOUT);
    }

    #[tokio::test]
    async fn a_client_that_sends_half_a_request_is_closed_after_ten_seconds() {
        let api = api(4);
        let mut stream = api.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();

        tokio::time::pause();
        let begun = Instant::now();
        end(&mut stream).await;

        assert!(begun.elapsed() < HEAD_TIMEOUT);
    }

    #[tokio::test]
    async fn a_client_that_sends_no_further_request_is_closed_after_75_seconds() {
        let api = api(4);
        let mut stream = api.answered().await;

        tokio::time::pause();
        let begun = Instant::now();
        let sent = end(&mut stream).await;

        assert_eq!(sent, 0);
        assert!(HEAD_TIMEOUT <= begun.elapsed());
    }

    #[tokio::test]
    async fn a_client_that_does_not_take_its_answer_is_closed_after_ten_seconds() {
        let api = api(4);
        let mut stream = api.connect().await;
        stream
            .write_all(b"GET /large HTTP/1.1\r\nhost: h\r\n\r\n")
            .await
            .unwrap();
        timeout(AT_MOST, stream.readable()).await.unwrap().unwrap();

        wait_on_a_paused_clock(WRITE_TIMEOUT * 2).await;
        let received = end(&mut stream).await;

        assert!(received < 64 * 1024 * 1024, "the answer came whole");
    }

    #[tokio::test]
    async fn a_request_head_above_16_kib_is_refused_and_the_connection_closed() {
        let api = api(4);
        let mut stream = api.connect().await;
        let name = "n".repeat(HEAD_BYTES_MAX);
        let head = format!("GET /{name} HTTP/1.1\r\nhost: h\r\n\r\n");

        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(AT_MOST, stream.read_to_end(&mut answer))
            .await
            .unwrap()
            .ok();

        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert_eq!(ask(&mut api.answered().await, REQUEST).await, "ok");
    }

    #[tokio::test]
    async fn idle_connections_make_room_and_those_that_wait_for_an_answer_do_not() {
        let api = api(3);
        let mut waiting = api.waiting().await;
        let mut kept = api.answered().await;
        let mut idle = api.connect().await;

        let mut flood = Vec::new();
        for _ in 0..20 {
            flood.push(api.connect().await);
        }
        let mut normal = api.answered().await;

        assert_eq!(timeout(AT_MOST, end(&mut idle)).await.unwrap(), 0);
        assert_eq!(timeout(AT_MOST, end(&mut flood[0])).await.unwrap(), 0);
        assert_eq!(
            ask(&mut kept, REQUEST).await,
            "ok",
            "it was answered before"
        );
        assert_eq!(ask(&mut normal, REQUEST).await, "ok");
        api.answer.notify_one();
        let mut answer = [0; 4096];
        assert_ne!(waiting.read(&mut answer).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn where_all_wait_for_an_answer_the_next_connection_is_closed() {
        let api = api(2);
        let mut waiting = [api.waiting().await, api.waiting().await];
        let mut refused = api.connect().await;

        assert_eq!(ask(&mut refused, REQUEST).await, "");

        for stream in &mut waiting {
            api.answer.notify_one();
            let mut answer = [0; 4096];
            let read = timeout(AT_MOST, stream.read(&mut answer)).await.unwrap();
            assert_ne!(read.unwrap(), 0);
        }
        assert_eq!(ask(&mut api.answered().await, REQUEST).await, "ok");
    }
}
