//! Step 3 of the walk: the leader proposes one Raft entry, a quorum makes it durable, all apply it.
//!
//! [`Consensus`] is the handle that the layers above hold: who leads, what is committed, proofs of leadership.
//! Below it are the frames between the nodes and the forming of a new cluster. Nothing here knows HTTP, and
//! nothing here looks into a batch, but for the sequences that it changes: their [windows](cached) end.

mod agreement;
mod at_leader;
mod belonging;
mod cached;
mod formation;
mod inbound;
mod level;
mod linearize;
mod member_change;
mod membership;
mod proposer;
mod reads;
mod relief;
mod retention;
mod status;
mod tending;
mod told;
mod transfer;

mod protocol;

mod frame;
#[cfg(all(feature = "cli", any(fuzzing, test)))]
pub(crate) mod fuzzing;
mod handshake;
mod probe;

mod channel;
mod link;
mod peers;

mod append;
mod network;
mod promises;
mod snapshot;

mod calls;
mod listener;
mod service;

#[cfg(test)]
mod tests;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::{Instant as _, WatchReceiver};
use openraft::metrics::RaftServerMetrics;
use openraft::type_config::alias::WatchReceiverOf;
use openraft::{Config, Raft, SnapshotPolicy};
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub(crate) use agreement::Diverged;
pub(crate) use belonging::refused;
pub(crate) use cached::{CachedLease, CachedReply, TakenFor};
pub(crate) use formation::{FormationError, Plan, PlannedMember, form, initialize};
pub(crate) use inbound::Inbound;
pub(crate) use level::LevelError;
#[cfg(test)]
pub(crate) use level::LevelRefusal;
pub(crate) use linearize::ReadError;
pub(crate) use listener::Listener;
pub(crate) use member_change::{MemberChange, MemberDone, MemberRefusal};
pub(crate) use membership::MemberError;
pub(crate) use peers::{CallError, LocalNode, Peers};
pub(crate) use promises::{Beginning, Disowned, Promise};
pub(crate) use proposer::Proposer;
pub(crate) use protocol::{Call, ForwardReply, HandOverRefusal, NodeStatus, ReadIndexReply, Reply};
pub(crate) use retention::Retention;
pub(crate) use service::Forwarded;
pub(crate) use status::{ClusterView, MemberView};
pub(crate) use told::Told;
pub(crate) use transfer::HandOverError;

use self::cached::Cached;
use self::inbound::LastAppend;
use self::reads::Reads;
use self::relief::Relief;
use self::retention::LagLimit;
use self::transfer::Turn;
use super::config::Timing;
use super::metrics::Metrics;
use super::store::{Disk, LogSize, LogStore, StateMachine, TableReader};
use super::types::{Leadership, Member, NodeId, TypeConfig};
use crate::sequence::FeatureLevel;

/// The most entries of one append.
const APPEND_ENTRIES_MAX: u64 = 64;
/// Sized for the snapshot of a million sequences on a slow link.
const SNAPSHOT_INSTALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Who leads, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leader {
    /// This node, by this leadership.
    Here(Leadership),
    /// Another node.
    There(NodeId, Member),
    /// Nobody known.
    Unknown,
}

/// The handle to Raft and to the other nodes.
#[derive(Clone)]
pub(crate) struct Consensus {
    raft: Raft<TypeConfig, StateMachine>,
    peers: Peers,
    tables: TableReader,
    log_size: LogSize,
    retention: Retention,
    timing: Timing,
    last_append: LastAppend,
    disk: Disk,
    turn: Arc<Turn>,
    relief: Relief,
    reads: Reads,
    cached: Cached,
    metrics: Metrics,
    /// Held while the members change.
    changing: Arc<Semaphore>,
    /// The latest feature level that this node knows.
    level_max: FeatureLevel,
}

impl std::fmt::Debug for Consensus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consensus")
            .field("node", self.raft.node_id())
            .finish_non_exhaustive()
    }
}

/// What Raft stands on.
type StoreParts = (LogStore, StateMachine, TableReader, LogSize, Disk);

impl Consensus {
    /// Builds Raft over the store. It neither votes nor answers before [`Consensus::run`].
    ///
    /// # Errors
    /// [`ConsensusError`] where the settings are refused or the store cannot be read.
    pub(crate) async fn build(
        (log, mut machine, tables, log_size, disk): StoreParts,
        peers: Peers,
        timing: Timing,
        retention: Retention,
        metrics: Metrics,
    ) -> Result<Self, ConsensusError> {
        let config = Arc::new(raft_config(timing, retention)?);
        let level_max = machine.level_max();
        let network = peers.network(Some(LagLimit::new(log_size.clone(), retention)));
        machine.hold_log_for_transfers(log_size.clone(), retention.lag.bytes);
        let raft = Raft::build(peers.node(), config, network, log, machine).await?;
        Ok(Self {
            raft,
            peers,
            tables,
            log_size,
            retention,
            timing,
            last_append: LastAppend::default(),
            disk,
            turn: Arc::default(),
            relief: Relief::default(),
            reads: Reads::default(),
            cached: Cached::new(metrics.windows.clone()),
            metrics,
            changing: Arc::new(Semaphore::new(1)),
            level_max,
        })
    }

    /// Lets Raft vote, lead and follow.
    pub(crate) fn run(&self) {
        self.raft.run();
    }

    /// Raft itself, for what serves peers.
    pub(crate) fn raft(&self) -> &Raft<TypeConfig, StateMachine> {
        &self.raft
    }

    /// This node.
    pub(crate) fn node(&self) -> NodeId {
        *self.raft.node_id()
    }

    /// Raft's time limits.
    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    /// The disk that this node's part of all promises is on.
    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The table as far as this node has applied it.
    pub(crate) fn tables(&self) -> &TableReader {
        &self.tables
    }

    /// What this node counts.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Who leads, as far as this node knows.
    pub(crate) fn leader(&self) -> Leader {
        if let Ok(leader) = self.raft.as_leader() {
            return Leader::Here(leader.to_committed_leader_id());
        }
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let known = metrics.current_leader.filter(|id| *id != self.node());
        match known.and_then(|id| Some((id, metrics.membership_config.get_node(&id)?.clone()))) {
            Some((id, member)) => Leader::There(id, member),
            None => Leader::Unknown,
        }
    }

    /// By which leadership this node leads, if it does: [`Consensus::leader`] for whoever does not ask about others.
    pub(crate) fn leadership(&self) -> Option<Leadership> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let leads = metrics.vote.is_committed() && metrics.vote.leader_id().node_id == self.node();
        leads.then(|| *metrics.vote.leader_id())
    }

    /// What wakes a waiter when leadership or membership changes.
    pub(crate) fn changes(&self) -> WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>> {
        self.raft.server_metrics()
    }

    /// Waits for a change of leadership or membership, one heartbeat at most: what refused a moment ago may
    /// serve now without any change that this node can see.
    pub(crate) async fn settle(
        &self,
        changes: &mut WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>>,
    ) {
        let changed = async {
            if changes.changed().await.is_err() {
                // Raft has ended, and with it whatever would change. Whoever looks again at once would do nothing else.
                pending::<()>().await;
            }
        };
        // Elapsed and changed mean the same to the caller: look again.
        drop(tokio::time::timeout(self.timing.heartbeat(), changed).await);
    }

    /// Resolves when somebody else is known to lead than this one.
    pub(crate) async fn superseded(&self, leader: &Leader) {
        let mut changes = self.changes();
        loop {
            let now = self.leader();
            if now != Leader::Unknown && now != *leader {
                return;
            }
            self.settle(&mut changes).await;
        }
    }

    /// Keeps a connection open to every other member, so that the first call after an election need not open one.
    pub(crate) async fn keep_peers(self) {
        let mut changes = self.changes();
        loop {
            let members = {
                let metrics = changes.borrow_watched();
                let nodes = metrics.membership_config.nodes();
                nodes.map(|(id, member)| (*id, member.clone())).collect()
            };
            self.peers.keep(&members);
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Sends one call to a node.
    ///
    /// # Errors
    /// [`CallError`], which says whether the call may have been served.
    pub(crate) async fn call(
        &self,
        to: NodeId,
        member: &Member,
        call: Call,
        deadline: Instant,
    ) -> Result<Reply, CallError> {
        self.peers.call(to, member, call, deadline).await
    }

    /// Whether a request sent now would find a leader: this node leads and a quorum answered it just now, or it
    /// accepted an append within one election time-out.
    pub(crate) fn in_touch(&self) -> bool {
        let limit = self.timing.election_max();
        match self.raft.as_leader() {
            // Nobody has to answer the only voter.
            Ok(_) if self.raft.voter_ids().eq([self.node()]) => true,
            Ok(leader) => leader
                .last_quorum_acked()
                .is_some_and(|acked| acked.elapsed() < limit),
            Err(_) => self.last_append.within(limit),
        }
    }

    /// Resolves when Raft has ended, with the reason: the process must end too (I10, openraft#2116).
    pub(crate) async fn ended(&self) -> String {
        // Its core drops these when it ends, and changes them much more seldom than all of its metrics.
        let mut changes = self.changes();
        while changes.changed().await.is_ok() {}
        match &self.raft.metrics().borrow_watched().running_state {
            Err(fatal) => fatal.to_string(),
            Ok(()) => "raft's core is gone".to_owned(),
        }
    }

    /// Ends Raft: nothing is proposed, voted or applied afterwards.
    pub(crate) async fn shutdown(&self) {
        // The only error is a panic of the core task, which has ended the process by its hook.
        drop(self.raft.shutdown().await);
    }
}

/// The milliseconds left until the deadline, as calls carry them.
pub(crate) fn left_ms(deadline: Instant) -> u32 {
    let left = deadline
        .saturating_duration_since(Instant::now())
        .as_millis();
    u32::try_from(left).unwrap_or(u32::MAX)
}

fn raft_config(timing: Timing, retention: Retention) -> Result<Config, ConsensusError> {
    let config = Config {
        cluster_name: "highwater".to_owned(),
        heartbeat_interval: millis(timing.heartbeat()),
        election_timeout_min: millis(timing.election_min()),
        election_timeout_max: millis(timing.election_max()),
        quorum_loss_probe_interval: Some(millis(timing.quorum_check())),
        enable_pre_vote: Some(true),
        // A leader that restarts stands for election again: it may have been replaced meanwhile (openraft#1511).
        enable_leader_restore: Some(false),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(retention.snapshot.entries),
        max_in_snapshot_log_to_keep: retention.kept,
        replication_lag_threshold: retention.lag.entries,
        install_snapshot_timeout: millis(SNAPSHOT_INSTALL_TIMEOUT),
        max_payload_entries: APPEND_ENTRIES_MAX,
        max_append_entries: Some(APPEND_ENTRIES_MAX),
        // The default of up to 1 s would keep a restarted follower out for longer than an election.
        backoff: "20ms 40ms ..200ms".to_owned(),
        ..Config::default()
    };
    Ok(config.validate()?)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Why Raft could not be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConsensusError {
    /// A time limit is out of openraft's bounds.
    #[error("raft refuses its settings: choose another heartbeat")]
    Config(#[from] openraft::ConfigError),
    /// The store cannot be read.
    #[error("raft cannot read the store")]
    Store(#[from] openraft::errors::Fatal<TypeConfig>),
}
