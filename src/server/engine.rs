//! What a node runs behind its ports: Raft, what proposes to it and keeps it, and the service that the API shows.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::api::{Backups, Service};
use super::batcher::{Batcher, Relay};
use super::config::AutoCreate;
use super::consensus::{Consensus, Inbound, Plan, Proposer};
use super::store::{FormationRecord, Pace, SnapshotInbox};
use super::tasks::Tasks;
use super::types::{Incarnation, LogId};

/// Raft, built and not running yet, and what is known of the node's place.
pub(crate) struct Engine {
    pub(crate) consensus: Consensus,
    pub(crate) plan: Plan,
    pub(crate) record: FormationRecord,
    pub(crate) incarnation: Incarnation,
    /// Where the leader's snapshots are received.
    pub(crate) snapshots: SnapshotInbox,
    /// The last entry that the store held.
    pub(crate) started_with: Option<LogId>,
    pub(crate) auto_create: AutoCreate,
    /// Cancelled once the node is asked to end.
    pub(crate) stopping: CancellationToken,
    /// Where all of it runs.
    pub(crate) tasks: Tasks,
}

impl Engine {
    /// Starts everything. Peers are answered from before Raft runs.
    pub(crate) fn start(self, inbound: &watch::Sender<Option<Inbound>>) -> Service {
        let consensus = &self.consensus;
        let (proposals, queue) = Proposer::queue();
        self.tasks
            .spawn(Proposer::new(consensus.clone(), queue).run());
        let (batcher, handle) = Batcher::new(consensus.clone(), proposals.clone());
        self.tasks.spawn(batcher.run());
        let (relay, cached) = Relay::new(consensus.clone());
        self.tasks.spawn(relay.run());
        self.tasks.spawn(consensus.clone().prove_leases());
        self.tasks
            .spawn(consensus.clone().reserve_windows(proposals.clone()));

        inbound.send_replace(Some(Inbound::new(
            consensus.clone(),
            self.snapshots.clone(),
            proposals,
            self.record.clone(),
        )));
        consensus.run();
        self.keep();
        let recovered = self.watch_recovery();
        let pace = Pace::new(consensus.tables().clone());
        self.tasks.spawn(pace.clone().run(recovered.clone()));
        Service {
            batcher: handle,
            cached,
            consensus: self.consensus,
            cluster: self.record.cluster,
            cluster_text: self.record.cluster.to_string(),
            auto_create: self.auto_create,
            stopping: self.stopping,
            backups: Backups::new(pace),
            recovered,
        }
    }

    /// What goes on as long as the node runs.
    fn keep(&self) {
        let (consensus, tasks) = (&self.consensus, &self.tasks);
        tasks.spawn(consensus.clone().keep_peers());
        tasks.spawn(consensus.clone().keep_log_short());
        tasks.spawn(consensus.clone().relieve());
        tasks.spawn(consensus.clone().tend_members());
        if let Some(own) = self.plan.own(self.incarnation) {
            tasks.spawn(consensus.clone().announce(own));
        }
    }

    fn watch_recovery(&self) -> watch::Receiver<bool> {
        let (recovered, seen) = watch::channel(false);
        let (consensus, plan) = (self.consensus.clone(), self.plan.clone());
        let started_with = self.started_with;
        self.tasks.spawn(async move {
            // The only error is Raft's end, which ends the process.
            if consensus.recovered(started_with).await.is_ok() {
                tracing::info!("recovered");
                consensus.compare_members(&plan);
                recovered.send_replace(true);
            }
        });
        seen
    }
}
