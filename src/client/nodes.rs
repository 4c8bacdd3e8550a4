//! The addresses of a cluster's nodes, and in which order a call asks them.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rand::Rng;
use reqwest::Url;
use tokio::time::Instant;

use super::{Setback, SetbackReason, Spread};

/// After a first setback a node is left alone for about this long, if it names no time itself.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
/// The longest that a node is left alone, if it names no time itself: some elections.
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// Where a node's API is reached: `http://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUrl(Url);

impl NodeUrl {
    pub(super) fn join(&self, path: &str) -> Url {
        let mut url = self.0.clone();
        url.set_path(path);
        url
    }
}

impl FromStr for NodeUrl {
    type Err = NodeUrlError;

    fn from_str(text: &str) -> Result<Self, NodeUrlError> {
        let refuse = |reason| NodeUrlError {
            text: text.to_owned(),
            reason,
        };
        let full = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let url = Url::parse(&full).map_err(|_reason| refuse(NodeUrlFault::Syntax))?;
        if url.scheme() != "http" {
            return Err(refuse(NodeUrlFault::Scheme));
        }
        let bare = url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        if !bare || !url.has_host() {
            return Err(refuse(NodeUrlFault::Parts));
        }
        Ok(Self(url))
    }
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

/// A text that is no node's address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a node's address: {reason}")]
pub struct NodeUrlError {
    text: String,
    reason: NodeUrlFault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum NodeUrlFault {
    #[error("write http://host:port, for example http://127.0.0.1:7101")]
    Syntax,
    #[error("only http:// is spoken so far")]
    Scheme,
    #[error("write http://host:port without a path, a query or a user")]
    Parts,
}

/// All nodes, at least one, and where the next call begins.
#[derive(Debug)]
pub(super) struct Nodes {
    first: NodeUrl,
    rest: Vec<NodeUrl>,
    spread: Spread,
    begin: AtomicUsize,
}

impl Nodes {
    /// `None` without an address.
    pub(super) fn new(urls: Vec<NodeUrl>, spread: Spread) -> Option<Self> {
        let mut urls = urls.into_iter();
        Some(Self {
            first: urls.next()?,
            rest: urls.collect(),
            spread,
            begin: AtomicUsize::new(0),
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &NodeUrl> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// The order of one call.
    pub(super) fn tour(&self) -> Tour<'_> {
        let begin = match self.spread {
            Spread::Sticky => self.begin.load(Ordering::Relaxed),
            Spread::RoundRobin => self.begin.fetch_add(1, Ordering::Relaxed),
        };
        let count = self.rest.len() + 1;
        let now = Instant::now();
        let stop = |(place, url)| Stop {
            place,
            rank: (place + count - begin % count) % count,
            url,
            not_before: now,
            setbacks: 0,
        };
        Tour {
            nodes: self,
            head: stop((0, &self.first)),
            others: (1..).zip(&self.rest).map(stop).collect(),
        }
    }

    fn begin_at(&self, place: usize) {
        if self.spread == Spread::Sticky {
            self.begin.store(place, Ordering::Relaxed);
        }
    }
}

/// One call's way over the nodes.
#[derive(Debug)]
pub(super) struct Tour<'a> {
    nodes: &'a Nodes,
    head: Stop<'a>,
    others: Vec<Stop<'a>>,
}

/// Whether a call has another node to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Others {
    /// It has not.
    None,
    /// It has: a part of its time is theirs.
    Waiting,
}

/// A node as one call sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop<'a> {
    place: usize,
    /// Where it stands in this call's order.
    rank: usize,
    pub(super) url: &'a NodeUrl,
    /// It asked to be left alone until then, or had a setback.
    pub(super) not_before: Instant,
    setbacks: u32,
}

impl Stop<'_> {
    pub(super) fn setback(&self, reason: SetbackReason) -> Box<Setback> {
        Box::new(Setback {
            node: self.url.clone(),
            reason,
        })
    }
}

impl<'a> Tour<'a> {
    /// The node to ask next, and from when on: another one at once, as long as there is one without a setback.
    pub(super) fn next(&self) -> Stop<'a> {
        let first = |one: Stop<'a>, other: &Stop<'a>| {
            if (other.not_before, other.rank) < (one.not_before, one.rank) {
                *other
            } else {
                one
            }
        };
        self.others.iter().fold(self.head, first)
    }

    /// Whether there is another node to ask.
    pub(super) fn others(&self) -> Others {
        if self.others.is_empty() {
            Others::None
        } else {
            Others::Waiting
        }
    }

    /// The node answered: later calls begin here.
    pub(super) fn arrived(&self, stop: Stop<'a>) {
        self.nodes.begin_at(stop.place);
    }

    /// The node did not serve this call: it is asked again last, and not before the time it named.
    pub(super) fn leave(&mut self, stop: Stop<'a>, retry_after: Option<Duration>) {
        let wait = retry_after.unwrap_or_else(|| backoff(stop.setbacks));
        // Workers that failed together shall not come back together.
        let wait = wait.mul_f64(rand::rng().random_range(1.0..1.25));
        let left = Stop {
            not_before: Instant::now() + wait,
            setbacks: stop.setbacks + 1,
            ..stop
        };
        let known = std::iter::once(&mut self.head).chain(&mut self.others);
        for known in known.filter(|known| known.place == stop.place) {
            *known = left;
        }
        self.nodes.begin_at(self.next().place);
    }
}

/// How long a node is left alone after so many setbacks.
fn backoff(setbacks: u32) -> Duration {
    let doubled = BACKOFF_FIRST.saturating_mul(1 << setbacks.min(10));
    doubled.min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_left_alone_for_longer_each_time_up_to_a_bound() {
        let waits: Vec<_> = (0..20).map(backoff).collect();

        assert_eq!(waits[0], BACKOFF_FIRST);
        assert!(waits.is_sorted());
        assert_eq!(waits[19], BACKOFF_MAX);
    }

    #[test]
    fn an_address_is_a_host_and_a_port_with_or_without_a_scheme() {
        for (text, shown) in [
            ("http://127.0.0.1:7101", "http://127.0.0.1:7101"),
            ("http://127.0.0.1:7101/", "http://127.0.0.1:7101"),
            ("127.0.0.1:7101", "http://127.0.0.1:7101"),
            ("localhost:7101", "http://localhost:7101"),
            ("http://[::1]:7101", "http://[::1]:7101"),
        ] {
            assert_eq!(text.parse::<NodeUrl>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_way_out() {
        for (text, reason) in [
            (
                "",
                "write http://host:port, for example http://127.0.0.1:7101",
            ),
            (
                "http://",
                "write http://host:port, for example http://127.0.0.1:7101",
            ),
            ("https://127.0.0.1:7101", "only http:// is spoken so far"),
            (
                "http://127.0.0.1:7101/v1",
                "write http://host:port without a path, a query or a user",
            ),
            (
                "http://me@127.0.0.1:7101",
                "write http://host:port without a path, a query or a user",
            ),
        ] {
            let error = text.parse::<NodeUrl>().unwrap_err();

            assert_eq!(
                error.to_string(),
                format!("{text:?} is not a node's address: {reason}")
            );
        }
    }
}
