//! What is seen of a run: by workers, and by looking into the nodes.

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;

use super::disks;
use crate::history::Line;
use crate::sequence::StateHash;
use crate::server::consensus::Consensus;
use crate::server::types::{LogId, Vote};

/// A table as one node had it after an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) node: u64,
    pub(super) index: u64,
    pub(super) hash: StateHash,
}

/// A node that was started, and what its store held.
#[derive(Debug, Clone)]
pub(super) struct Start {
    pub(super) node: u64,
    pub(super) vote: Option<Vote>,
}

/// A node that ended by itself.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) node: u64,
    pub(super) why: String,
}

impl End {
    /// Whether its power was cut within a write.
    pub(super) fn was_cut(&self) -> bool {
        self.why.contains(disks::CUT)
    }
}

/// Everything seen so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) lines: Vec<Line>,
    pub(super) applied: Vec<Applied>,
    pub(super) starts: Vec<Start>,
    pub(super) ends: Vec<End>,
    /// One line an event, in order.
    pub(super) trace: Vec<String>,
    /// The node whose store is gone.
    pub(super) lost: Option<u64>,
    running: BTreeMap<u64, Consensus>,
    leaders: BTreeMap<u64, String>,
}

/// Where it is written down. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct Board(Rc<RefCell<Seen>>);

impl Board {
    pub(super) fn seen(&self) -> Ref<'_, Seen> {
        self.0.borrow()
    }

    /// All of it, at the end.
    pub(super) fn take(&self) -> Seen {
        let mut seen = std::mem::take(&mut *self.0.borrow_mut());
        seen.running.clear();
        seen
    }

    pub(super) fn note(&self, at: Duration, what: &str) {
        let line = format!("{:>10.3} {what}", at.as_secs_f64() * 1_000.0);
        self.0.borrow_mut().trace.push(line);
    }

    pub(super) fn line(&self, line: Line) {
        self.note(now(), &line.to_json());
        self.0.borrow_mut().lines.push(line);
    }

    pub(super) fn started(&self, node: u64, vote: Option<Vote>, last: Option<LogId>) {
        self.note(now(), &format!("node {node} starts with {vote:?} {last:?}"));
        self.0.borrow_mut().starts.push(Start { node, vote });
    }

    pub(super) fn runs(&self, node: u64, consensus: Consensus) {
        self.0.borrow_mut().running.insert(node, consensus);
    }

    pub(super) fn ended(&self, node: u64, why: String) -> Option<Consensus> {
        self.note(now(), &format!("node {node} ended: {why}"));
        let mut seen = self.0.borrow_mut();
        seen.ends.push(End { node, why });
        seen.running.remove(&node)
    }

    /// The node does not run any more.
    pub(super) fn gone(&self, node: u64) {
        let gone = self.0.borrow_mut().running.remove(&node);
        drop(gone);
    }

    /// The node's store is gone.
    pub(super) fn lost(&self, node: u64) {
        self.0.borrow_mut().lost = Some(node);
    }

    /// Who leads, as far as anybody says so of himself.
    pub(super) fn leader(&self) -> Option<u64> {
        let seen = self.seen();
        let leads = |consensus: &Consensus| {
            let metrics = consensus.raft().metrics();
            let metrics = metrics.borrow_watched();
            (metrics.state == ServerState::Leader).then_some(metrics.current_term)
        };
        let leaders = seen.running.iter();
        let leaders = leaders.filter_map(|(id, consensus)| Some((leads(consensus)?, *id)));
        leaders.max().map(|(_, id)| id)
    }

    /// Looks into all nodes.
    pub(super) fn look(&self, at: Duration) {
        let mut changes = Vec::new();
        let mut seen = self.0.borrow_mut();
        let Seen {
            running,
            applied,
            leaders,
            ..
        } = &mut *seen;
        for (node, consensus) in running.iter() {
            let (table, last) = consensus.tables().table_at();
            let index = last.map(|last| last.index());
            applied.extend(index.map(|index| Applied {
                node: *node,
                index,
                hash: table.state_hash(),
            }));
            let checkpoints = consensus.tables().checkpoints().into_iter();
            applied.extend(checkpoints.map(|(index, hash)| Applied {
                node: *node,
                index,
                hash,
            }));
            let metrics = consensus.raft().metrics();
            let metrics = metrics.borrow_watched();
            let role = format!(
                "node {node} {:?} in term {}",
                metrics.state, metrics.current_term
            );
            if leaders.get(node) != Some(&role) {
                changes.push(format!("{role}, applied {index:?}"));
                leaders.insert(*node, role);
            }
        }
        drop(seen);
        for change in changes {
            self.note(at, &change);
        }
    }
}

/// The simulation's time.
pub(super) fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}

pub(super) fn now_ns() -> u64 {
    now().as_nanos().try_into().unwrap()
}

/// Lets simulated time pass.
pub(super) async fn wait_ms(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
