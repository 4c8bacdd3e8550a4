//! Accepts workers' connections, a bounded number of them, and drops those that stall before a request is whole.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at once; the next one is closed unread.
const CONNECTIONS_MAX: usize = 8_192;
/// How long a client may take from one request to the end of the next one's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// The largest request head, in bytes.
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Serves the routes on the listener until the handle is told to stop.
///
/// # Errors
/// Where the listener cannot be used.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    handle: Handle<SocketAddr>,
) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Only HTTP/1.1: otherwise the protocol is guessed from the first bytes, for which there is no time-out.
    let mut server = axum_server::from_tcp(listener)?
        .http1_only()
        .acceptor(Bounded { permits })
        .handle(handle);
    server
        .http_builder()
        .http1()
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX);
    server.serve(routes.into_make_service()).await
}

/// Gives each connection a permit, which it holds as long as its stream lives.
#[derive(Debug, Clone)]
struct Bounded {
    permits: Arc<Semaphore>,
}

impl<S> Accept<TcpStream, S> for Bounded {
    type Stream = Counted;
    type Service = S;
    type Future = std::future::Ready<io::Result<(Counted, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let counted = || {
            let permit = Arc::clone(&self.permits)
                .try_acquire_owned()
                .map_err(|_full| io::Error::other("too many connections"))?;
            stream.set_nodelay(true)?;
            Ok((
                Counted {
                    stream,
                    _permit: permit,
                },
                service,
            ))
        };
        std::future::ready(counted())
    }
}

/// A connection that is counted.
#[derive(Debug)]
struct Counted {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
