//! A TCP proxy in front of a node, which does to its connections what networks do.

use std::future::ready;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::HarnessError;
use super::flow::{Flow, FlowFault};

/// Both directions between one caller and one node.
#[derive(Debug, Clone)]
pub struct Link {
    /// From the caller to the node.
    pub requests: Flow,
    /// From the node to the caller.
    pub answers: Flow,
}

impl Link {
    fn new() -> Self {
        Self {
            requests: Flow::new(),
            answers: Flow::new(),
        }
    }

    /// From now on both directions are like this.
    pub fn set(&self, fault: FlowFault) {
        self.requests.set(fault);
        self.answers.set(fault);
    }

    fn is_cut(&self) -> bool {
        self.requests.is(FlowFault::Cut) || self.answers.is(FlowFault::Cut)
    }

    async fn serve(&self, caller: TcpStream, to: SocketAddr) -> io::Result<()> {
        let node = TcpStream::connect(to).await?;
        node.set_nodelay(true)?;
        caller.set_nodelay(true)?;
        let (from_caller, to_caller) = caller.into_split();
        let (from_node, to_node) = node.into_split();
        let carried = async {
            tokio::try_join!(
                self.requests.carry(from_caller, to_node),
                self.answers.carry(from_node, to_caller),
            )
        };
        tokio::select! {
            carried = carried => return carried.map(drop),
            () = self.requests.becomes(FlowFault::Cut) => self.requests.hit(),
            () = self.answers.becomes(FlowFault::Cut) => self.answers.hit(),
        }
        Ok(())
    }
}

/// A proxy. It ends when it is dropped, and with it all connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    link: Link,
    _task: JoinSet<()>,
}

impl Proxy {
    /// A proxy on a port of its own in front of this address, with one link for all who call.
    ///
    /// # Errors
    /// [`HarnessError`] where it cannot listen.
    pub async fn start(to: SocketAddr) -> Result<Self, HarnessError> {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = listen(at).await?;
        let link = Link::new();
        let address = listener
            .local_addr()
            .map_err(|source| HarnessError::Proxy { source })?;
        let mut task = JoinSet::new();
        let same = link.clone();
        task.spawn(accept(listener, to, move |_caller| {
            ready(Some(same.clone()))
        }));
        Ok(Self {
            address,
            link,
            _task: task,
        })
    }

    /// Where it listens: `http://host:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The link that it is.
    pub fn link(&self) -> &Link {
        &self.link
    }
}

pub(super) async fn listen(at: SocketAddr) -> Result<TcpListener, HarnessError> {
    let listener = TcpListener::bind(at).await;
    listener.map_err(|source| HarnessError::Proxy { source })
}

/// Serves all who call over the link that each has. Who has none is turned away.
pub(super) async fn accept<L: Future<Output = Option<Link>> + Send + 'static>(
    listener: TcpListener,
    to: SocketAddr,
    link_of: impl Fn(SocketAddr) -> L,
) {
    let mut connections = JoinSet::new();
    loop {
        // Those that have ended are forgotten.
        while connections.try_join_next().is_some() {}
        let Ok((caller, address)) = listener.accept().await else {
            // It passes by itself: too many open files.
            tokio::task::yield_now().await;
            continue;
        };
        let link = link_of(address);
        connections.spawn(async move {
            if let Some(link) = link.await.filter(|link| !link.is_cut()) {
                // However a connection ends, its ends see that it did.
                drop(link.serve(caller, to).await);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;
    use crate::chaos::Connection;

    /// A node that answers every request with its number, and tells how many came.
    async fn node() -> (SocketAddr, Arc<AtomicU64>, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let (mut task, counted) = (JoinSet::new(), Arc::clone(&asked));
        task.spawn(async move {
            let mut links = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let asked = Arc::clone(&counted);
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
        (address, asked, task)
    }

    /// A proxy in front of such a node, and a connection that has asked once.
    struct World {
        proxy: Proxy,
        connection: Connection,
        asked: Arc<AtomicU64>,
        _node: JoinSet<()>,
    }

    impl World {
        async fn new() -> Self {
            let (address, asked, node) = node().await;
            let proxy = Proxy::start(address).await.unwrap();
            let mut connection = Connection::open(&proxy.url()).await.unwrap();
            assert_eq!(connection.ask("GET", "/", "").await.unwrap().body, b"1");
            Self {
                proxy,
                connection,
                asked,
                _node: node,
            }
        }

        async fn wait_until_asked(&self, times: u64) {
            let asked = async {
                while self.asked.load(Ordering::Relaxed) < times {
                    tokio::task::yield_now().await;
                }
            };
            timeout(Duration::from_secs(20), asked).await.unwrap();
        }

        async fn receive(&mut self) -> Vec<u8> {
            let received = timeout(Duration::from_secs(20), self.connection.receive()).await;
            received.unwrap().unwrap().body
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_lost_ends_its_connection_and_its_request_was_carried_out() {
        let mut world = World::new().await;
        let every = NonZeroU64::new(2).unwrap();
        world.proxy.link().answers.set(FlowFault::LoseEvery(every));

        // Only what comes under the fault is counted.
        let second = world.connection.ask("GET", "/", "").await.unwrap();
        world.connection.ask("GET", "/", "").await.unwrap_err();
        let mut again = Connection::open(&world.proxy.url()).await.unwrap();
        let fourth = again.ask("GET", "/", "").await.unwrap();

        assert_eq!((second.body, fourth.body), (b"2".to_vec(), b"4".to_vec()));
        assert_eq!(world.proxy.link().answers.lost(), 1);
        assert_eq!(world.proxy.link().answers.hits(), 1);
        assert_eq!(world.proxy.link().requests.lost(), 0);
    }

    #[tokio::test]
    async fn a_cut_link_ends_what_there_is_and_what_comes() {
        let mut world = World::new().await;

        world.proxy.link().set(FlowFault::Cut);

        world.connection.receive().await.unwrap_err();
        let link = world.proxy.link();
        // Whichever direction sees it first.
        assert_eq!(link.requests.hits() + link.answers.hits(), 1);
        let mut other = Connection::open(&world.proxy.url()).await.unwrap();
        other.ask("GET", "/", "").await.unwrap_err();
        world.proxy.link().set(FlowFault::None);
        let mut healed = Connection::open(&world.proxy.url()).await.unwrap();
        assert_eq!(healed.ask("GET", "/", "").await.unwrap().status, 200);
    }

    #[tokio::test]
    async fn what_is_held_or_late_arrives_when_the_fault_is_over() {
        let never = Duration::from_secs(100_000);
        for fault in [FlowFault::Hold, FlowFault::Delay(never)] {
            let mut world = World::new().await;
            world.proxy.link().requests.set(fault);
            world.connection.send("GET", "/", "").await.unwrap();
            // What overtakes it on a way of its own shows that it had its time.
            let (address, _, _other_node) = node().await;
            let mut other = Connection::open(&format!("http://{address}"))
                .await
                .unwrap();
            other.ask("GET", "/", "").await.unwrap();

            assert_eq!(world.asked.load(Ordering::Relaxed), 1, "{fault:?}");
            assert!(world.connection.receive().now_or_never().is_none());
            assert_eq!(world.proxy.link().requests.hits(), 1, "{fault:?}");
            assert_eq!(world.proxy.link().answers.hits(), 0, "{fault:?}");
            world.proxy.link().set(FlowFault::None);
            assert_eq!(world.receive().await, b"2");
        }
    }

    #[tokio::test]
    async fn one_direction_is_held_and_the_other_is_not() {
        let mut world = World::new().await;
        world.proxy.link().answers.set(FlowFault::Hold);

        world.connection.send("GET", "/", "").await.unwrap();
        world.wait_until_asked(2).await;

        assert!(world.connection.receive().now_or_never().is_none());
        world.proxy.link().set(FlowFault::None);
        assert_eq!(world.receive().await, b"2");
    }

    #[tokio::test]
    async fn beyond_its_rate_a_connection_carries_nothing() {
        let mut world = World::new().await;
        let bytes_per_second = NonZeroU64::MIN;
        world
            .proxy
            .link()
            .requests
            .set(FlowFault::Throttle { bytes_per_second });

        // The first takes its time after it has passed.
        world.connection.send("GET", "/", "").await.unwrap();
        assert_eq!(world.receive().await, b"2");
        world.connection.send("GET", "/", "").await.unwrap();
        assert!(world.connection.receive().now_or_never().is_none());
        assert_eq!(world.asked.load(Ordering::Relaxed), 2);

        world.proxy.link().set(FlowFault::None);
        assert_eq!(world.receive().await, b"3");
    }

    #[tokio::test]
    async fn of_a_half_closed_link_one_end_hears_nothing_and_is_heard() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        let address = proxy.url().replace("http://", "");
        let mut caller = TcpStream::connect(address).await.unwrap();
        let (mut node, _) = listener.accept().await.unwrap();

        proxy.link().requests.set(FlowFault::HalfClose);

        assert_eq!(node.read(&mut [0; 8]).await.unwrap(), 0, "the end");
        assert_eq!(proxy.link().requests.hits(), 1);
        node.write_all(b"heard").await.unwrap();
        let mut heard = [0; 5];
        caller.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"heard");
        // When the other direction ends as well, the connection does.
        drop(node);
        assert_eq!(caller.read(&mut heard).await.unwrap(), 0);
    }
}
