//! Keeps one connection to a peer open: connects in the background, again and again, so that nobody else waits for it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, info, warn};

use super::channel::Channel;
use super::frame::{Connection, Limits};
use super::handshake::{self, HandshakeError, PeerHello, Purpose, Refusal};
use super::promises::{Meeting, Promises};
#[cfg(test)]
use crate::planted::Bug;
use crate::server::tasks::Tasks;
use crate::server::types::Address;

/// A connection to one peer for one purpose, whenever the peer can be reached. Dropped, it is closed.
#[derive(Debug)]
pub(super) struct Link {
    state: watch::Receiver<State>,
    _end: DropGuard,
}

#[derive(Debug, Clone)]
enum State {
    /// Not known yet: the first attempt runs, or the first after a connection was lost.
    Connecting,
    /// Open.
    Up(Arc<Channel>),
    /// The last attempt did not succeed; others follow.
    Down(Arc<str>),
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no connection: {reason}")]
pub(super) struct NotConnected {
    pub(super) reason: Arc<str>,
}

impl Link {
    /// Starts to connect.
    pub(super) fn start(
        address: Address,
        hello: PeerHello,
        limits: Limits,
        tasks: &Tasks,
        promises: &Promises,
    ) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let end = CancellationToken::new();
        let ended = end.clone();
        let keeper = Keeper {
            address,
            hello,
            limits,
            promises: promises.clone(),
            state: sender,
            retry: Retry::new(limits),
            reported: None,
        };
        tasks.spawn(async move {
            ended.run_until_cancelled_owned(keeper.run()).await;
        });
        Self {
            state,
            _end: end.drop_guard(),
        }
    }

    /// The open connection. It is waited for only while nothing is known of the peer, at most one attempt's time: a
    /// peer that is known to be away is an error at once.
    ///
    /// # Errors
    /// [`NotConnected`] says why.
    pub(super) async fn channel(&self) -> Result<Arc<Channel>, NotConnected> {
        let mut state = self.state.clone();
        let known = state
            .wait_for(|state| !matches!(state, State::Connecting))
            .await;
        // An error: the task that connects is gone, whatever it knew last.
        let known = known.as_deref().unwrap_or(&State::Connecting);
        known.channel("this node is stopping")
    }

    /// The open connection, where there is one within this time.
    ///
    /// # Errors
    /// [`NotConnected`] says why, and not before that time: who tries again at once does not spin.
    pub(super) async fn channel_within(
        &self,
        within: Duration,
    ) -> Result<Arc<Channel>, NotConnected> {
        let mut state = self.state.clone();
        let is_up = |state: &State| matches!(state, State::Up(_));
        let is_up = async {
            if state.wait_for(is_up).await.is_err() {
                // The task that connects is gone, and no channel comes any more.
                pending::<()>().await;
            }
        };
        // Whatever it is by then is told below.
        drop(timeout(within, is_up).await);
        state.borrow().channel("no answer so far")
    }
}

impl State {
    fn channel(&self, connecting: &str) -> Result<Arc<Channel>, NotConnected> {
        let reason = match self {
            Self::Up(channel) => return Ok(Arc::clone(channel)),
            Self::Down(reason) => Arc::clone(reason),
            Self::Connecting => connecting.into(),
        };
        Err(NotConnected { reason })
    }
}

/// The background task of a link.
struct Keeper {
    address: Address,
    hello: PeerHello,
    limits: Limits,
    promises: Promises,
    state: watch::Sender<State>,
    retry: Retry,
    /// The last reason that was logged: a reason is logged when it changes, not at each attempt.
    reported: Option<String>,
}

impl Keeper {
    async fn run(mut self) {
        loop {
            let dialed = timeout(self.limits.connect, self.dial()).await;
            let down = match dialed.unwrap_or(Err(HandshakeError::TimedOut)) {
                Ok((connection, _meeting)) => {
                    let down = self.hold(connection).await;
                    #[cfg(test)]
                    if Bug::LinkNotReopened.is_planted() {
                        pending::<()>().await;
                    }
                    down
                }
                Err(error) => Some(self.report(&error)),
            };
            match down {
                Some(reason) => {
                    self.state.send_replace(State::Down(reason.into()));
                    sleep(self.retry.next().unwrap_or(self.limits.retry_max)).await;
                }
                None => {
                    self.state.send_replace(State::Connecting);
                }
            }
        }
    }

    async fn dial(&self) -> Result<(Connection, Option<Meeting>), HandshakeError> {
        let (connection, beginning) = handshake::meet(&self.address, self.hello).await?;
        let to = self.hello.to;
        self.promises.taken(to.node);
        let meeting = self.promises.meet(to, beginning, connection.peer)?;
        let is_kept = self.hello.purpose == Purpose::Calls;
        Ok((connection, is_kept.then_some(meeting)))
    }

    /// Holds a connection until it is lost. After one that held for a while the next is tried at once; else this says
    /// why there is a pause.
    async fn hold(&mut self, connection: Connection) -> Option<String> {
        let peer = self.hello.to.node;
        if self.speaks() {
            info!(%peer, "peer connected");
        }
        self.reported = None;
        let opened = Instant::now();
        let (channel, run) = Channel::open(connection, self.limits);
        self.state.send_replace(State::Up(channel));
        let ended = run.await;
        if self.speaks() {
            warn!(%peer, error = %ended, "peer connection lost");
        }
        if opened.elapsed() < self.limits.silence {
            return Some(ended.to_string());
        }
        self.retry = Retry::new(self.limits);
        None
    }

    /// Logs why there is no connection, where the reason is another than before.
    fn report(&mut self, error: &HandshakeError) -> String {
        let reason = error.to_string();
        if let HandshakeError::Refused(refusal) = error {
            self.promises.refused(&self.hello, *refusal, self.limits);
        }
        if self.reported.as_ref() == Some(&reason) || !self.speaks() {
            return reason;
        }
        let peer = self.hello.to.node;
        match error {
            // Each start of a cluster passes through these.
            HandshakeError::Refused(Refusal::NotFormed | Refusal::Starting) => {
                debug!(%peer, error = reason, "peer not ready");
            }
            _ => warn!(%peer, error = reason, "peer unreachable"),
        }
        self.reported = Some(reason.clone());
        reason
    }

    /// All connections to a peer come and go together: only the one that is always kept is logged.
    fn speaks(&self) -> bool {
        self.hello.purpose == Purpose::Calls
    }
}

/// Pauses that double up to a limit, each shortened by chance so that nodes do not keep step.
#[derive(Debug)]
pub(super) struct Retry {
    next: Duration,
    max: Duration,
}

impl Retry {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            next: limits.retry_min,
            max: limits.retry_max,
        }
    }
}

impl Iterator for Retry {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        Some(pause.mul_f64(rand::rng().random_range(0.75..=1.0)))
    }
}
