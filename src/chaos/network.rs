//! The network between the nodes of a cluster: a proxy in front of each node's peer port, which knows who calls.

use std::collections::BTreeMap;
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
    flows: Arc<Flows>,
    callers: Callers,
    _proxies: JoinSet<()>,
}

/// What goes from one node to another, whichever of them dialed.
type Flows = BTreeMap<(u64, u64), Flow>;

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
        let pairs = ports
            .iter()
            .flat_map(|from| ports.iter().map(|to| (from.node, to.node)));
        let flows: Flows = pairs
            .filter(|(from, to)| from != to)
            .map(|pair| (pair, Flow::new()))
            .collect();
        let (flows, callers) = (Arc::new(flows), Callers::default());
        let mut proxies = JoinSet::new();
        for port in ports {
            let listener = listen(port.advertised).await?;
            let (flows, callers, node) = (Arc::clone(&flows), callers.clone(), port.node);
            let at = port.advertised;
            let link_of = move |from| {
                let (flows, callers) = (Arc::clone(&flows), callers.clone());
                async move {
                    let caller = callers.of((from, at)).await?;
                    Some(Link {
                        requests: flows.get(&(caller, node))?.clone(),
                        answers: flows.get(&(node, caller))?.clone(),
                    })
                }
            };
            proxies.spawn(accept(listener, port.listens, link_of));
        }
        Ok(Self {
            flows,
            callers,
            _proxies: proxies,
        })
    }

    /// What this process dials is this node's from now on.
    pub(super) fn belongs_to(&self, node: u64, pid: u32) {
        self.callers.set(node, pid);
    }

    /// All that there is between nodes.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.flows.values()
    }

    /// From now on all of it is like this.
    pub fn set_all(&self, fault: FlowFault) {
        self.flows().for_each(|flow| flow.set(fault));
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
        let flows = self.flows.iter();
        flows
            .filter(|((from, to), _)| chosen(*from, *to))
            .for_each(|(_, flow)| flow.set(fault));
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
