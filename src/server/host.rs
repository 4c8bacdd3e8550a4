//! The machine below a node: its network, and threads that may wait for its disk.
//!
//! In the simulation (tests/sim) one thread does everything in an order that its seed decides, and the network has no
//! sockets.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::types::Address;

/// Whether this thread is a simulated machine.
pub(crate) fn is_simulated() -> bool {
    #[cfg(test)]
    return turmoil::in_simulation();
    #[cfg(not(test))]
    false
}

/// Does what may wait for the disk on a thread of its own.
///
/// # Errors
/// Where the work panicked, which has ended the process.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    if is_simulated() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)
}

/// Where bytes come from.
pub(crate) trait Reads: AsyncRead + Send + Unpin + fmt::Debug {}
impl<T: AsyncRead + Send + Unpin + fmt::Debug> Reads for T {}

/// Where bytes go to.
pub(crate) trait Writes: AsyncWrite + Send + Unpin + fmt::Debug {}
impl<T: AsyncWrite + Send + Unpin + fmt::Debug> Writes for T {}

/// An open connection to another machine.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) reads: Box<dyn Reads>,
    pub(crate) writes: Box<dyn Writes>,
    /// The other end.
    pub(crate) peer: SocketAddr,
}

impl Socket {
    fn new(
        (reads, writes): (impl Reads + 'static, impl Writes + 'static),
        peer: SocketAddr,
    ) -> Self {
        Self {
            reads: Box::new(reads),
            writes: Box::new(writes),
            peer,
        }
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// The network's.
    pub(crate) async fn connect(to: &Address) -> io::Result<Self> {
        #[cfg(test)]
        if is_simulated() {
            return turmoil::net::TcpStream::connect(to.as_str())
                .await?
                .try_into();
        }
        TcpStream::connect(to.as_str()).await?.try_into()
    }
}

impl TryFrom<TcpStream> for Socket {
    type Error = io::Error;

    fn try_from(stream: TcpStream) -> io::Result<Self> {
        // A heartbeat that waits for the previous one's acknowledgement comes too late.
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        Ok(Self::new(stream.into_split(), peer))
    }
}

#[cfg(test)]
impl TryFrom<turmoil::net::TcpStream> for Socket {
    type Error = io::Error;

    fn try_from(stream: turmoil::net::TcpStream) -> io::Result<Self> {
        let peer = stream.peer_addr()?;
        Ok(Self::new(stream.into_split(), peer))
    }
}

/// Where others connect to.
pub(crate) trait Accepts: Send + 'static {
    /// The next connection.
    ///
    /// # Errors
    /// The network's. The next call may succeed.
    fn next(&mut self) -> impl Future<Output = io::Result<Socket>> + Send;
}

impl Accepts for TcpListener {
    async fn next(&mut self) -> io::Result<Socket> {
        self.accept().await?.0.try_into()
    }
}

#[cfg(test)]
impl Accepts for turmoil::net::TcpListener {
    async fn next(&mut self) -> io::Result<Socket> {
        self.accept().await?.0.try_into()
    }
}
