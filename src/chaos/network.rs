//! The network between the nodes of a cluster: a proxy in front of each node's peer port, which knows who calls.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::{JoinSet, spawn_blocking};

use super::HarnessError;
use super::flow::{Flow, FlowFault};
use super::process;
use super::proxy::{Link, accept, listen};

/// The links between all nodes. They end when it is dropped.
///
/// Every node dials the others at the address that the cluster file gives, where a proxy listens for it. Whoever calls
/// there is known by the process that owns the connection: nothing of what is said has to be understood for it.
#[derive(Debug)]
pub struct Network {
    flows: Flows,
    callers: Callers,
    proxies: JoinSet<()>,
}

/// What goes from one node to another, whichever of them dialed. A clone is the same.
#[derive(Debug, Clone, Default)]
struct Flows(Arc<Mutex<BTreeMap<(u64, u64), Flow>>>);

impl Flows {
    /// One more node, linked with those that there are.
    fn add(&self, node: u64) {
        let mut flows = self.lock();
        let others: BTreeSet<u64> = flows.keys().map(|(from, _)| *from).collect();
        // The first node has nobody to be linked with, and is known by the link that it has with itself.
        for other in others.into_iter().chain([node]) {
            flows.entry((node, other)).or_insert_with(Flow::new);
            flows.entry((other, node)).or_insert_with(Flow::new);
        }
    }

    fn link(&self, caller: u64, node: u64) -> Option<Link> {
        let flows = self.lock();
        Some(Link {
            requests: flows.get(&(caller, node))?.clone(),
            answers: flows.get(&(node, caller))?.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), Flow>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The processes of the nodes, by their ids.
#[derive(Debug, Clone, Default)]
struct Callers(Arc<Mutex<BTreeMap<u64, u32>>>);

impl Callers {
    fn set(&self, node: u64, pid: u32) {
        self.lock().insert(node, pid);
    }

    /// Which node has dialed this connection. To look takes long where the machine has many, and holds up no other.
    async fn of(&self, connection: (SocketAddr, SocketAddr)) -> Option<u64> {
        let pids = self.lock().clone();
        let looked = spawn_blocking(move || process::dialer_of(connection, &pids));
        looked.await.ok()?
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a node is for its peers, and where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerPort {
    pub(super) node: u64,
    pub(super) advertised: SocketAddr,
    pub(super) listens: SocketAddr,
}

impl Network {
    pub(super) async fn start(ports: &[PeerPort]) -> Result<Self, HarnessError> {
        let mut network = Self {
            flows: Flows::default(),
            callers: Callers::default(),
            proxies: JoinSet::new(),
        };
        for port in ports {
            network.add(*port).await?;
        }
        Ok(network)
    }

    /// One more node. Nothing is wrong with its links yet.
    pub(super) async fn add(&mut self, port: PeerPort) -> Result<(), HarnessError> {
        let listener = listen(port.advertised).await?;
        self.flows.add(port.node);
        let (flows, callers) = (self.flows.clone(), self.callers.clone());
        let link_of = move |from| {
            let (flows, callers) = (flows.clone(), callers.clone());
            async move {
                let caller = callers.of((from, port.advertised)).await?;
                flows.link(caller, port.node)
            }
        };
        self.proxies.spawn(accept(listener, port.listens, link_of));
        Ok(())
    }

    /// What this process dials is this node's from now on.
    pub(super) fn belongs_to(&self, node: u64, pid: u32) {
        self.callers.set(node, pid);
    }

    /// All that there is between nodes.
    pub fn flows(&self) -> Vec<Flow> {
        self.flows.lock().values().cloned().collect()
    }

    /// From now on all of it is like this.
    pub fn set_all(&self, fault: FlowFault) {
        self.set_where(fault, |_, _| true);
    }

    /// What this node sends arrives like this from now on.
    pub fn set_from(&self, node: u64, fault: FlowFault) {
        self.set_where(fault, |from, _| from == node);
    }

    /// What is sent to this node arrives like this from now on.
    pub fn set_to(&self, node: u64, fault: FlowFault) {
        self.set_where(fault, |_, to| to == node);
    }

    fn set_where(&self, fault: FlowFault, chosen: impl Fn(u64, u64) -> bool) {
        let flows = self.flows.lock();
        let chosen = flows.iter().filter(|((from, to), _)| chosen(*from, *to));
        chosen.for_each(|(_, flow)| flow.set(fault));
    }

    /// Splits the nodes: two reach each other where a group has both of them. A node can be in several, which makes it
    /// a bridge.
    pub fn split(&self, groups: &[&[u64]]) {
        let together =
            |from, to| (groups.iter()).any(|group| group.contains(&from) && group.contains(&to));
        self.set_where(FlowFault::None, together);
        self.set_where(FlowFault::Hold, |from, to| !together(from, to));
    }

    /// Nothing is wrong any more.
    pub fn heal(&self) {
        self.set_all(FlowFault::None);
    }
}
