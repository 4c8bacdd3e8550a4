//! Accepts peers: one task a connection, nothing decoded of it but its first frame until it is let in (I12).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, error};

use super::frame::{Connection, Limits};
use super::handshake::{
    self, Answer, HELLO_BYTES_MAX, HandshakeError, Hello, PeerHello, Purpose, Refusal,
};
use super::probe::{Probe, ProbeReply};
use super::service::PeerService;
use super::{append, calls, snapshot};
use crate::server::config::Timing;
use crate::server::store::Identity;
use crate::server::tasks::Tasks;
use crate::server::types::NodeId;

/// The most connections at once: each peer has at most four, besides those it has lost and that are not found out yet.
/// Further ones wait in the socket's backlog.
const CONNECTIONS_MAX: usize = 128;
/// The pause after an accept that did not succeed: such as too many open files pass by themselves, not at once.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The peer port of a node.
#[derive(Debug, Clone)]
pub(crate) struct Listener<S> {
    /// The node's id, from its configuration.
    pub(crate) node: NodeId,
    /// Hash of the member list in its cluster file, for those who ask before there is a cluster.
    pub(crate) file: [u8; 32],
    /// Who it is, and the formation record it has adopted by now.
    pub(crate) identity: watch::Receiver<Identity>,
    /// The running node; none before Raft runs.
    pub(crate) service: watch::Receiver<Option<S>>,
    /// Scales the time limits.
    pub(crate) timing: Timing,
    /// Where the connections run.
    pub(crate) tasks: Tasks,
}

impl<S: PeerService> Listener<S> {
    /// Accepts connections until it is dropped.
    pub(crate) async fn serve(self, socket: TcpListener) {
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        // The semaphore is never closed.
        while let Ok(place) = Arc::clone(&connections).acquire_owned().await {
            match socket.accept().await {
                Ok((stream, _)) => {
                    let door = Door {
                        listener: self.clone(),
                        limits: self.timing.into(),
                    };
                    self.tasks.spawn(door.admit(stream, place));
                }
                Err(error) => {
                    error!(%error, "peer connection not accepted");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}

/// One connection's way in.
struct Door<S> {
    listener: Listener<S>,
    limits: Limits,
}

impl<S: PeerService> Door<S> {
    async fn admit(self, stream: TcpStream, _place: OwnedSemaphorePermit) {
        let greeted = timeout(self.limits.connect, self.greet(stream));
        let (connection, hello, service) =
            match greeted.await.unwrap_or(Err(HandshakeError::TimedOut)) {
                Ok(Some(admitted)) => admitted,
                Ok(None) => return,
                Err(error) => {
                    debug!(%error, "connection not let in");
                    return;
                }
            };
        if let Err(error) = self.serve(connection, hello, service).await {
            debug!(peer = %hello.from.node, %error, "connection ended");
        }
    }

    /// Reads who it is and answers. What comes back is let in.
    async fn greet(
        &self,
        stream: TcpStream,
    ) -> Result<Option<(Connection, PeerHello, S)>, HandshakeError> {
        let mut connection = Connection::new(stream, HELLO_BYTES_MAX)?;
        let hello = match handshake::receive(&mut connection).await {
            Ok(hello) => hello,
            Err(HandshakeError::Refused(Refusal::OtherVersion { theirs, yours })) => {
                // Seen from the other side. It reads no more than this frame's version.
                let refusal = Refusal::OtherVersion {
                    theirs: yours,
                    yours: theirs,
                };
                handshake::answer(&mut connection, &Answer::Refused(refusal)).await?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        match hello {
            Hello::Probe(probe) => {
                let answer = self.answer_probe(&probe);
                handshake::answer(&mut connection, &answer).await?;
                Ok(None)
            }
            Hello::Peer(hello) => match self.check(&hello) {
                Ok(service) => {
                    handshake::answer(&mut connection, &Answer::Welcome).await?;
                    Ok(Some((connection.admit(), hello, service)))
                }
                Err(refusal) => {
                    debug!(peer = %hello.from.node, error = %refusal, "peer refused");
                    handshake::answer(&mut connection, &Answer::Refused(refusal)).await?;
                    Ok(None)
                }
            },
        }
    }

    fn answer_probe(&self, probe: &Probe) -> Answer {
        let node = self.listener.node;
        if probe.to != node {
            return Answer::Refused(Refusal::OtherNode {
                theirs: node,
                asked: probe.to,
            });
        }
        if probe.from == node {
            return Answer::Refused(Refusal::SameNode { node });
        }
        let identity = self.listener.identity.borrow();
        Answer::Probed(ProbeReply {
            node,
            incarnation: identity.incarnation,
            file: self.listener.file,
            record: identity.formation.clone(),
        })
    }

    fn check(&self, hello: &PeerHello) -> Result<S, Refusal> {
        let service = self.listener.service.borrow().clone();
        let known = |node| {
            let service = service.as_ref();
            service.and_then(|service| service.incarnation_of(node))
        };
        handshake::check(hello, &self.listener.identity.borrow(), known)?;
        service.ok_or(Refusal::Starting)
    }

    async fn serve(self, connection: Connection, hello: PeerHello, service: S) -> io::Result<()> {
        let (from, limits) = (hello.from, self.limits);
        match hello.purpose {
            Purpose::Calls => calls::serve(connection, service, from, limits).await,
            Purpose::Append => append::serve(connection, service, from, limits).await,
            Purpose::Snapshot => snapshot::receive(connection, service, from, limits).await,
        }
    }
}
