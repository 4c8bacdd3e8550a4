//! Accepts peers: one task a connection, nothing decoded of it but its first frame until it is let in (I12).
//!
//! Whoever connects may be a stranger, of whom there may be thousands. So the unfinished handshakes are counted by
//! themselves, and a new one takes the place of the oldest: a peer needs a round trip for its own, one that says
//! nothing is soon the oldest. Those who were let in have places that no stranger can take.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::mem::discriminant;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::frame::{Connection, Limits};
use super::handshake::{
    self, Answer, HELLO_BYTES_MAX, HandshakeError, Hello, PeerHello, Purpose, Refusal,
};
use super::probe::{Probe, ProbeReply};
use super::promises::Meeting;
use super::service::PeerService;
use super::told::Told;
use super::{append, calls, snapshot};
use crate::server::config::Timing;
use crate::server::host::{Accepts, Socket};
use crate::server::store::Identity;
use crate::server::tasks::Tasks;
use crate::server::types::NodeId;

/// The most connections of peers at once: each has at most four, besides those it has lost and that are not found out
/// yet. A further one is refused.
pub(super) const CONNECTIONS_MAX: usize = 128;
/// The most handshakes at once that are not finished. A further one ends the oldest.
pub(super) const HANDSHAKES_MAX: usize = 64;
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
    pub(crate) async fn serve(self, mut port: impl Accepts) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let told = Arc::default();
        let mut handshakes = Handshakes::default();
        loop {
            match port.next().await {
                Ok(socket) => {
                    let door = Door {
                        listener: self.clone(),
                        limits: self.timing.into(),
                        places: Arc::clone(&places),
                        told: Arc::clone(&told),
                    };
                    self.tasks.spawn(door.admit(socket, handshakes.begin()));
                }
                Err(error) => {
                    error!(%error, "peer connection not accepted");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}

/// The handshakes that are not finished, the oldest first.
#[derive(Debug, Default)]
struct Handshakes {
    unfinished: VecDeque<CancellationToken>,
}

impl Handshakes {
    /// Counts one more, which ends the oldest where there are too many.
    fn begin(&mut self) -> CancellationToken {
        self.unfinished.retain(|other| !other.is_cancelled());
        if HANDSHAKES_MAX <= self.unfinished.len()
            && let Some(oldest) = self.unfinished.pop_front()
        {
            oldest.cancel();
        }
        let place = CancellationToken::new();
        self.unfinished.push_back(place.clone());
        place
    }
}

/// One connection's way in.
struct Door<S> {
    listener: Listener<S>,
    limits: Limits,
    /// For those who are let in.
    places: Arc<Semaphore>,
    /// Whom all of them have refused.
    told: Arc<Mutex<Told>>,
}

/// Who was let in.
struct Admitted<S> {
    connection: Connection,
    hello: PeerHello,
    service: S,
    meeting: Meeting,
    _place: OwnedSemaphorePermit,
}

impl<S: PeerService> Door<S> {
    async fn admit(self, socket: Socket, handshake: CancellationToken) {
        let greeted = {
            let _over = handshake.clone().drop_guard();
            let greeted = timeout(self.limits.connect, self.greet(socket));
            handshake.run_until_cancelled(greeted).await
        };
        let admitted = match greeted {
            Some(Ok(Ok(Some(admitted)))) => admitted,
            Some(Ok(Ok(None))) => return,
            Some(Ok(Err(error))) => return debug!(%error, "connection not let in"),
            Some(Err(_elapsed)) => {
                let error = HandshakeError::TimedOut;
                return debug!(%error, "connection not let in");
            }
            None => {
                let error = "too many others came after it";
                return debug!(error, "connection not let in");
            }
        };
        let peer = admitted.hello.from.node;
        if let Err(error) = self.serve(admitted).await {
            debug!(%peer, %error, "connection ended");
        }
    }

    /// Reads who it is and answers. What comes back is let in.
    async fn greet(&self, socket: Socket) -> Result<Option<Admitted<S>>, HandshakeError> {
        let mut connection = Connection::new(socket, HELLO_BYTES_MAX);
        let hello = match handshake::receive(&mut connection).await {
            Ok(hello) => hello,
            Err(HandshakeError::Refused(seen_here)) => {
                // It reads no more than this frame's version.
                let refusal = seen_here.reversed();
                self.tell(&connection.peer.ip(), seen_here);
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
            Hello::Peer(hello) => match self.check(&hello, connection.peer) {
                Ok((service, meeting, place)) => {
                    let welcome = Answer::Welcome(service.beginning());
                    handshake::answer(&mut connection, &welcome).await?;
                    Ok(Some(Admitted {
                        connection: connection.admit(),
                        hello,
                        service,
                        meeting,
                        _place: place,
                    }))
                }
                Err(refusal) => {
                    let peer = hello.from.node;
                    match refusal {
                        // Each start of a cluster passes through the first two. Who found the last has said more.
                        Refusal::NotFormed | Refusal::Starting | Refusal::RolledBack { .. } => {
                            debug!(%peer, error = %refusal, "peer refused");
                        }
                        _ => self.tell(&peer, refusal.reversed()),
                    }
                    handshake::answer(&mut connection, &Answer::Refused(refusal)).await?;
                    Ok(None)
                }
            },
        }
    }

    fn tell(&self, peer: &impl Display, seen_here: Refusal) {
        // Where it calls from is another port each time.
        let what = format!("{peer} {:?}", discriminant(&seen_here));
        // Nothing panics while it is held.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_due(&what, Instant::now()) {
            warn!(%peer, error = %seen_here, "peer refused");
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

    fn check(
        &self,
        hello: &PeerHello,
        at: SocketAddr,
    ) -> Result<(S, Meeting, OwnedSemaphorePermit), Refusal> {
        let service = self.listener.service.borrow().clone();
        let known = |node| {
            let service = service.as_ref();
            service.and_then(|service| service.incarnation_of(node))
        };
        handshake::check(hello, &self.listener.identity.borrow(), known)?;
        let service = service.ok_or(Refusal::Starting)?;
        let node = hello.from.node;
        if service.incarnation_of(node).is_none() && service.has_removed(node) {
            return Err(Refusal::Removed { node });
        }
        let meeting = service.meet(hello.from, hello.beginning, at)?;
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_full| Refusal::TooManyConnections)?;
        Ok((service, meeting, place))
    }

    async fn serve(self, admitted: Admitted<S>) -> io::Result<()> {
        let Admitted {
            connection,
            hello,
            service,
            meeting,
            _place,
        } = admitted;
        let (from, limits) = (hello.from, self.limits);
        // The others may not be read for as long as the disk hangs, and so outlive a peer that is gone.
        let _meeting = (hello.purpose == Purpose::Calls).then_some(meeting);
        match hello.purpose {
            Purpose::Calls => calls::serve(connection, service, from, limits).await,
            Purpose::Append => append::serve(connection, service, from, limits).await,
            Purpose::Snapshot => snapshot::receive(connection, service, from, limits).await,
        }
    }
}
