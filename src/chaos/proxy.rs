//! A TCP proxy in front of a node, which does to its clients' connections what networks do.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::HarnessError;

/// What is read at once. An answer to a lease is smaller, and is written by its node at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// What is wrong with a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkFault {
    /// Nothing.
    None,
    /// Of the answers, each that has this number or a multiple of it is lost with its connection: the node has carried the
    /// request out, and its client does not hear of it.
    LoseAnswers {
        /// Counted over all connections.
        every: NonZeroU64,
    },
    /// Everything is taken and nothing passed on, in both directions, as by a cable that is pulled.
    BlackHole,
    /// Connections are closed, and new ones at once.
    Cut,
}

/// A proxy. It ends when it is dropped, and with it all connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    fault: watch::Sender<LinkFault>,
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    answers: AtomicU64,
    lost: AtomicU64,
}

impl Proxy {
    /// A proxy on a port of its own in front of this address.
    ///
    /// # Errors
    /// [`HarnessError`] where it cannot listen.
    pub async fn start(to: SocketAddr) -> Result<Self, HarnessError> {
        let refuse = |source| HarnessError::Proxy { source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(refuse)?;
        let address = listener.local_addr().map_err(refuse)?;
        let (fault, seen) = watch::channel(LinkFault::None);
        let shared = Arc::new(Shared {
            to,
            answers: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let mut task = JoinSet::new();
        task.spawn(accept(listener, seen, Arc::clone(&shared)));
        Ok(Self {
            address,
            fault,
            shared,
            _task: task,
        })
    }

    /// Where it listens: `http://host:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on the link is like this, also for the connections that there are.
    pub fn set(&self, fault: LinkFault) {
        self.fault.send_replace(fault);
    }

    /// How many answers were lost so far.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

async fn accept(listener: TcpListener, fault: watch::Receiver<LinkFault>, shared: Arc<Shared>) {
    let mut links = JoinSet::new();
    loop {
        // Those that have ended are forgotten.
        while links.try_join_next().is_some() {}
        let Ok((client, _)) = listener.accept().await else {
            // It passes by itself: too many open files.
            tokio::task::yield_now().await;
            continue;
        };
        if *fault.borrow() == LinkFault::Cut {
            continue;
        }
        let (fault, shared) = (fault.clone(), Arc::clone(&shared));
        links.spawn(async move {
            // However a link ends, its ends see that it did.
            drop(serve(client, fault, &shared).await);
        });
    }
}

async fn serve(
    client: TcpStream,
    fault: watch::Receiver<LinkFault>,
    shared: &Shared,
) -> io::Result<()> {
    let node = TcpStream::connect(shared.to).await?;
    node.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_node, to_node) = node.into_split();
    let mut cut = fault.clone();
    tokio::select! {
        ended = requests(from_client, to_node, fault.clone()) => ended,
        ended = answers(from_node, to_client, fault, shared) => ended,
        // The sender lives as long as this task.
        _ = cut.wait_for(|fault| *fault == LinkFault::Cut) => Ok(()),
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    fault: watch::Receiver<LinkFault>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let bytes = read(&mut from, &mut chunk).await?;
        if *fault.borrow() != LinkFault::BlackHole {
            to.write_all(bytes).await?;
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    fault: watch::Receiver<LinkFault>,
    shared: &Shared,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let bytes = read(&mut from, &mut chunk).await?;
        let number = shared.answers.fetch_add(1, Ordering::Relaxed) + 1;
        let fault = *fault.borrow();
        match fault {
            LinkFault::LoseAnswers { every } if number.is_multiple_of(every.get()) => {
                shared.lost.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            LinkFault::BlackHole => {}
            LinkFault::None | LinkFault::LoseAnswers { .. } | LinkFault::Cut => {
                to.write_all(bytes).await?;
            }
        }
    }
}

/// What came, which is not nothing.
async fn read<'a>(from: &mut OwnedReadHalf, chunk: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let length = from.read(chunk).await?;
    match chunk.get(..length) {
        Some(bytes) if !bytes.is_empty() => Ok(bytes),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::chaos::Connection;

    /// A node that answers every request with its number.
    async fn node() -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let (mut links, asked) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let asked = Arc::clone(&asked);
                links.spawn(async move {
                    let mut chunk = [0; 1024];
                    while 0 < stream.read(&mut chunk).await.unwrap_or(0) {
                        let number = asked.fetch_add(1, Ordering::Relaxed) + 1;
                        let text = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}");
                        drop(stream.write_all(text.as_bytes()).await);
                    }
                });
            }
        });
        (address, task)
    }

    #[tokio::test]
    async fn what_is_asked_is_answered_and_an_answer_that_is_lost_ends_its_connection() {
        let (address, _node) = node().await;
        let proxy = Proxy::start(address).await.unwrap();
        proxy.set(LinkFault::LoseAnswers {
            every: NonZeroU64::new(2).unwrap(),
        });
        let mut connection = Connection::open(&proxy.url()).await.unwrap();

        let first = connection.ask("GET", "/", "").await.unwrap();
        connection.ask("GET", "/", "").await.unwrap_err();
        let mut again = Connection::open(&proxy.url()).await.unwrap();
        let third = again.ask("GET", "/", "").await.unwrap();

        assert_eq!((first.body, third.body), (b"1".to_vec(), b"3".to_vec()));
        assert_eq!(proxy.lost(), 1);
    }

    #[tokio::test]
    async fn a_cut_link_ends_what_there_is_and_what_comes() {
        let (address, _node) = node().await;
        let proxy = Proxy::start(address).await.unwrap();
        let mut connection = Connection::open(&proxy.url()).await.unwrap();
        connection.ask("GET", "/", "").await.unwrap();

        proxy.set(LinkFault::Cut);

        connection.receive().await.unwrap_err();
        let mut other = Connection::open(&proxy.url()).await.unwrap();
        other.ask("GET", "/", "").await.unwrap_err();
        proxy.set(LinkFault::None);
        let mut healed = Connection::open(&proxy.url()).await.unwrap();
        assert_eq!(healed.ask("GET", "/", "").await.unwrap().status, 200);
    }

    #[tokio::test]
    async fn a_black_hole_answers_nothing_and_closes_nothing() {
        let (address, _node) = node().await;
        let proxy = Proxy::start(address).await.unwrap();
        let mut connection = Connection::open(&proxy.url()).await.unwrap();
        connection.ask("GET", "/", "").await.unwrap();

        proxy.set(LinkFault::BlackHole);
        connection.send("GET", "/", "").await.unwrap();
        let mut other = Connection::open(&proxy.url()).await.unwrap();
        other.send("GET", "/", "").await.unwrap();

        assert!(connection.receive().now_or_never().is_none());
        proxy.set(LinkFault::None);
        // What fell into it does not come back, and the next request is the second.
        let next = connection.ask("GET", "/", "").await.unwrap();
        assert_eq!(next.body, b"2");
    }
}
