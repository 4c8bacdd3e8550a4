//! How a client is described, and what is refused before the first call.

use std::time::Duration;

use super::Client;
use super::fence::Fence;
use super::nodes::{NodeUrl, NodeUrlError, Nodes};

/// The most addresses of one client: clusters have three or five nodes.
pub const NODES_MAX: usize = 64;
/// The shortest deadline: a quorum and a disk are asked within it.
pub const DEADLINE_MIN: Duration = Duration::from_millis(50);
/// The longest deadline, which is the server's.
pub const DEADLINE_MAX: Duration = Duration::from_secs(60);

const DEADLINE_DEFAULT: Duration = Duration::from_secs(5);
/// A node that does not take a connection within this time is passed over, though others may have longer.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(1);
/// Idle connections kept to each node.
pub(super) const IDLE_CONNECTIONS_MAX: usize = 8;
/// Shorter than any node keeps an idle connection: a request on one that is just being closed has no known outcome.
const IDLE_TIME_MAX: Duration = Duration::from_secs(5);

/// How calls are spread over the nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Spread {
    /// Stay with the node that answered last.
    #[default]
    Sticky,
    /// Begin each call at the next node.
    RoundRobin,
}

/// Describes a [`Client`].
#[derive(Debug, Clone, Default)]
pub struct ClientBuilder {
    nodes: Vec<String>,
    deadline: Option<Duration>,
    spread: Spread,
}

impl ClientBuilder {
    /// The nodes' API addresses, `http://host:port` or `host:port`. Calls begin at the first.
    #[must_use]
    pub fn nodes(mut self, nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.nodes.extend(nodes.into_iter().map(Into::into));
        self
    }

    /// How long a call may take in all, with every retry; 5 s by default.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How calls are spread over the nodes; [`Spread::Sticky`] by default.
    #[must_use]
    pub fn spread(mut self, spread: Spread) -> Self {
        self.spread = spread;
        self
    }

    /// The client. It connects at the first call.
    ///
    /// # Errors
    /// [`BuildError`] where the description makes no client.
    pub fn build(self) -> Result<Client, BuildError> {
        let deadline = self.deadline.unwrap_or(DEADLINE_DEFAULT);
        if !(DEADLINE_MIN..=DEADLINE_MAX).contains(&deadline) {
            return Err(BuildError::Deadline { deadline });
        }
        let count = self.nodes.len();
        if NODES_MAX < count {
            return Err(BuildError::TooManyNodes { count });
        }
        let urls = self
            .nodes
            .iter()
            .map(|text| text.parse())
            .collect::<Result<Vec<NodeUrl>, _>>()?;
        let nodes = Nodes::new(urls, self.spread).ok_or(BuildError::NoNodes)?;
        // No redirects: a node forwards inside the cluster. No proxy: the answer must be the node's own. No retries
        // but ours: only we know what may be sent twice.
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .http1_only()
            .connect_timeout(CONNECT_TIMEOUT_MAX.min(deadline / 4))
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(IDLE_TIME_MAX)
            .user_agent(concat!("highwater/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|source| BuildError::Http { source })?;
        Ok(Client {
            http,
            nodes,
            deadline,
            fence: Fence::default(),
        })
    }
}

/// Why a description makes no client.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No address at all.
    #[error("no node is named: give at least one address, for example http://127.0.0.1:7101")]
    NoNodes,
    /// More addresses than any cluster has nodes.
    #[error("{count} nodes are too many: name at most {NODES_MAX}")]
    TooManyNodes {
        /// How many were given.
        count: usize,
    },
    /// A text that is no address.
    #[error(transparent)]
    Node(#[from] NodeUrlError),
    /// A deadline outside the bounds.
    #[error(
        "a deadline of {deadline:?} is out of bounds: use {DEADLINE_MIN:?} to {DEADLINE_MAX:?}"
    )]
    Deadline {
        /// The deadline given.
        deadline: Duration,
    },
    /// The HTTP library did not start.
    #[error("the HTTP client cannot be set up")]
    Http {
        /// Its reason.
        source: reqwest::Error,
    },
}
