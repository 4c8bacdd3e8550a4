//! The warm connections to all peers, and calls on them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Instant, timeout_at};

use super::frame::Limits;
use super::handshake::{Party, PeerHello, Purpose};
use super::link::Link;
use super::network::Network;
use super::promises::{Beginning, Promises};
use super::protocol::{Call, Reply};
use super::retention::LagLimit;
use crate::server::config::Timing;
use crate::server::tasks::Tasks;
use crate::server::types::{ClusterId, Incarnation, Member, NodeId};

/// Who this node is to its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalNode {
    /// Its cluster.
    pub(crate) cluster: ClusterId,
    /// Its id.
    pub(crate) node: NodeId,
    /// Its data directory.
    pub(crate) incarnation: Incarnation,
    /// With what this process began.
    pub(crate) beginning: Beginning,
}

/// Why a call has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// The call certainly never reached the peer: it may be sent again, anywhere.
    #[error("node {to} was not called: {reason}")]
    NotSent {
        /// Who should have been called.
        to: NodeId,
        /// In words.
        reason: String,
    },
    /// The call was sent. Whether the peer carried it out is unknown.
    #[error("node {to} was called and did not reply: {reason}")]
    Lost {
        /// Who was called.
        to: NodeId,
        /// In words.
        reason: String,
    },
}

/// The pool of connections for calls: one to each peer, kept open in the background. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Peers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    local: LocalNode,
    limits: Limits,
    tasks: Tasks,
    links: Mutex<BTreeMap<NodeId, (Member, Arc<Link>)>>,
    book: Mutex<Book>,
    promises: Promises,
}

impl Peers {
    /// An empty pool; a peer's connection is opened when it is first named.
    pub(crate) fn new(local: LocalNode, timing: Timing, tasks: Tasks) -> Self {
        Self {
            shared: Arc::new(Shared {
                local,
                limits: timing.into(),
                tasks,
                links: Mutex::default(),
                book: Mutex::default(),
                promises: Promises::default(),
            }),
        }
    }

    /// Keeps connections to these members open from now on, and to no others.
    pub(crate) fn keep(&self, members: &BTreeMap<NodeId, Member>) {
        self.book().keep(members);
        let mut links = self.links();
        links.retain(|id, _| members.contains_key(id));
        drop(links);
        self.shared.promises.retain(|id| members.contains_key(id));
        for (id, member) in members {
            if *id != self.shared.local.node {
                self.link(*id, member);
            }
        }
    }

    /// A member says that it is reached elsewhere: whoever cannot reach it may be the one whose entries all others lack, and
    /// until they have them the membership does not change.
    pub(crate) fn found(&self, id: NodeId, member: &Member) {
        self.book().find(id, member);
    }

    /// Calls a peer, and waits for its reply until the deadline.
    ///
    /// # Errors
    /// [`CallError`] says whether the peer can have carried it out.
    pub(crate) async fn call(
        &self,
        to: NodeId,
        member: &Member,
        call: Call,
        deadline: Instant,
    ) -> Result<Reply, CallError> {
        let not_sent = |reason: String| CallError::NotSent { to, reason };
        let lost = |reason: String| CallError::Lost { to, reason };
        let link = self.link(to, member);
        let sent = timeout_at(deadline, async {
            let channel = link
                .channel()
                .await
                .map_err(|error| not_sent(error.to_string()))?;
            channel
                .send(&call)
                .await
                .map_err(|error| not_sent(error.to_string()))
        });
        let answer = sent
            .await
            .map_err(|_elapsed| not_sent("the deadline passed".to_owned()))??;
        timeout_at(deadline, answer.receive::<Reply>())
            .await
            .map_err(|_elapsed| lost("the deadline passed".to_owned()))?
            .map_err(|error| lost(error.to_string()))
    }

    /// Raft's network over these peers, which gives up on an append stream beyond the limit.
    pub(super) fn network(&self, lag: Option<LagLimit>) -> Network {
        Network::new(self.clone(), lag)
    }

    /// The connection for calls to this peer, which is opened where there is none.
    pub(super) fn link(&self, to: NodeId, member: &Member) -> Arc<Link> {
        let member = &self.present(to, member);
        let mut links = self.links();
        match links.get(&to) {
            Some((known, link)) if known == member => Arc::clone(link),
            _ => {
                let link = Arc::new(self.connect(to, member, Purpose::Calls));
                links.insert(to, (member.clone(), Arc::clone(&link)));
                link
            }
        }
    }

    /// A connection of one's own to this peer.
    pub(super) fn connect(&self, to: NodeId, member: &Member, purpose: Purpose) -> Link {
        let hello = self.hello(to, member, purpose);
        Link::start(
            member.peer.clone(),
            hello,
            self.limits(),
            &self.shared.tasks,
            self.promises(),
        )
    }

    /// The same node where it is reached now.
    pub(super) fn present(&self, to: NodeId, member: &Member) -> Member {
        let book = self.book();
        let present = book.get(to);
        let same = present.filter(|present| present.incarnation == member.incarnation);
        same.unwrap_or(member).clone()
    }

    /// What this node says first to that peer.
    pub(super) fn hello(&self, to: NodeId, member: &Member, purpose: Purpose) -> PeerHello {
        let local = self.shared.local;
        PeerHello {
            purpose,
            cluster: local.cluster,
            from: Party {
                node: local.node,
                incarnation: local.incarnation,
            },
            to: Party {
                node: to,
                incarnation: member.incarnation,
            },
            beginning: local.beginning,
        }
    }

    /// What the peers have promised.
    pub(super) fn promises(&self) -> &Promises {
        &self.shared.promises
    }

    /// This node.
    pub(super) fn node(&self) -> NodeId {
        self.shared.local.node
    }

    /// With what this node's process began.
    pub(super) fn beginning(&self) -> Beginning {
        self.shared.local.beginning
    }

    /// The time limits of all connections.
    pub(super) fn limits(&self) -> Limits {
        self.shared.limits
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing panics while it is held.
        self.shared
            .book
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<NodeId, (Member, Arc<Link>)>> {
        // Nothing that is done under it can leave the map half changed.
        self.shared
            .links
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the members are reached now. openraft's clients know where they were when they were made.
#[derive(Debug, Default)]
struct Book {
    members: BTreeMap<NodeId, Member>,
    /// Those who say that they are elsewhere, until the membership says of them what is new.
    found: BTreeMap<NodeId, Member>,
}

impl Book {
    fn get(&self, id: NodeId) -> Option<&Member> {
        self.found.get(&id).or_else(|| self.members.get(&id))
    }

    fn keep(&mut self, members: &BTreeMap<NodeId, Member>) {
        let known = &self.members;
        self.found
            .retain(|id, _| members.contains_key(id) && members.get(id) == known.get(id));
        members.clone_into(&mut self.members);
    }

    fn find(&mut self, id: NodeId, member: &Member) {
        let known = self.members.get(&id);
        if known.is_some_and(|known| known.incarnation == member.incarnation) {
            self.found.insert(id, member.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_own_word_counts_until_the_membership_says_what_is_new() {
        let at = |port: u16| Member {
            api: format!("127.0.0.1:{port}").parse().unwrap(),
            peer: format!("127.0.0.1:{}", port + 100).parse().unwrap(),
            incarnation: Incarnation::from_bits(7),
        };
        let two = NodeId::from(2);
        let mut book = Book::default();
        book.keep(&[(two, at(1))].into());

        book.find(two, &at(2));
        book.keep(&[(two, at(1))].into());
        assert_eq!(book.get(two), Some(&at(2)));
        book.keep(&[(two, at(3))].into());
        assert_eq!(book.get(two), Some(&at(3)));

        let other = Member {
            incarnation: Incarnation::from_bits(8),
            ..at(4)
        };
        book.find(two, &other);
        assert_eq!(book.get(two), Some(&at(3)), "another node");
        book.keep(&BTreeMap::new());
        assert_eq!(book.get(two), None);
    }
}
