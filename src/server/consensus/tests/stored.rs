//! Nodes with stores on disk: what becomes of a log over restarts, snapshots and followers that lag.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Condvar;

use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use tokio::sync::oneshot;

use super::*;
use crate::sequence::testing::batch;
use crate::sequence::{Command, FeatureLevel, RangeCount, SequenceName, Settings};
use crate::server::codec;
use crate::server::consensus::protocol::ForwardReply;
use crate::server::consensus::{Consensus, Inbound, Leader, Proposer, Retention};
use crate::server::metrics::Metrics;
use crate::server::store::{
    self, DataDir, LogSize, Probe, Pulse, Space, Store, StoreClosed, Stretch,
};
use crate::server::types::{
    BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, Entry, PROPOSAL_BYTES_MAX, Payload, Proposal,
};

/// A disk that can stand still.
#[derive(Clone, Default)]
pub(super) struct Disk(Arc<(Mutex<bool>, Condvar)>);

impl Disk {
    fn probe(&self) -> Probe {
        let disk = Arc::clone(&self.0);
        Probe::new(move |_| {
            let (hangs, changed) = &*disk;
            drop(changed.wait_while(hangs.lock().unwrap(), |hangs| *hangs));
            Ok(())
        })
    }

    pub(super) fn hang(&self) {
        *self.0.0.lock().unwrap() = true;
    }

    pub(super) fn go_on(&self) {
        *self.0.0.lock().unwrap() = false;
        self.0.1.notify_all();
    }
}

/// A cluster's nodes, whether they run or not.
pub(super) struct Cluster {
    pub(super) places: Vec<Place>,
    pub(super) members: BTreeMap<NodeId, Member>,
    _directory: tempfile::TempDir,
}

/// Where a node is.
pub(super) struct Place {
    pub(super) node: NodeId,
    pub(super) path: PathBuf,
    address: SocketAddr,
    pub(super) disk: Disk,
    /// Below so many bytes its disk counts as full.
    pub(super) floor: u64,
    /// The latest feature level that it knows.
    pub(super) level_max: FeatureLevel,
}

/// A running node, from its store to its peer port.
pub(super) struct StoredNode {
    pub(super) consensus: Consensus,
    log_size: LogSize,
    pub(super) inbound: Inbound,
    proposals: mpsc::Sender<Forwarded>,
    started_with: Option<LogId>,
    tasks: Tasks,
    closed: StoreClosed,
}

/// The directories of so many nodes, which hold one formation record.
pub(super) async fn cluster(nodes: u64) -> Cluster {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster {
        places: Vec::new(),
        members: BTreeMap::new(),
        _directory: directory,
    };
    let mut dirs = Vec::new();
    for node in 1..=nodes {
        let path = cluster._directory.path().join(format!("node-{node}"));
        let (_, address) = free_socket().await;
        let dir = DataDir::open(&path).unwrap();
        let member = Member {
            incarnation: dir.identity().incarnation,
            ..member(node, address)
        };
        cluster.members.insert(id(node), member);
        cluster.places.push(Place {
            node: id(node),
            path,
            address,
            disk: Disk::default(),
            floor: 0,
            level_max: FeatureLevel::LATEST,
        });
        dirs.push(dir);
    }
    for (dir, node) in dirs.iter_mut().zip(1..) {
        let record = FormationRecord {
            cluster: cluster_id(),
            node: id(node),
            members: cluster.members.clone(),
        };
        dir.adopt(record).unwrap();
    }
    cluster
}

impl Cluster {
    /// Starts all nodes and makes them a cluster.
    pub(super) async fn start(&self, retention: Retention) -> Vec<StoredNode> {
        let mut nodes = Vec::new();
        for place in &self.places {
            nodes.push(place.start(retention).await);
        }
        let members = self.members.clone();
        nodes[0].consensus.raft().initialize(members).await.unwrap();
        nodes
    }

    /// Starts all nodes and makes them a cluster in which the first votes and the others learn.
    pub(super) async fn start_with_learners(&self) -> Vec<StoredNode> {
        let mut nodes = Vec::new();
        for place in &self.places {
            nodes.push(place.start(Retention::default()).await);
        }
        let raft = nodes[0].consensus.raft();
        let members = self.members.clone();
        let first = members
            .iter()
            .take(1)
            .map(|(id, member)| (*id, member.clone()));
        let first: BTreeMap<NodeId, Member> = first.collect();
        raft.initialize(first).await.unwrap();
        wait_until_async(async || {
            let learn = ChangeMembers::AddNodes(members.clone());
            raft.change_membership(learn, true).await.is_ok()
        })
        .await;
        nodes
    }
}

impl Place {
    pub(super) async fn start(&self, retention: Retention) -> StoredNode {
        let dir = DataDir::open(&self.path).unwrap();
        let store = Store::open_with(&dir, self.level_max, self.disk.probe()).unwrap();
        let identity = dir.identity().clone();
        let record = identity.formation.clone().unwrap();
        let local = LocalNode {
            cluster: record.cluster,
            node: record.node,
            incarnation: identity.incarnation,
            beginning: Beginning::default(),
        };
        let (tasks, timing) = (Tasks::default(), Timing::from_heartbeat_ms(100).unwrap());
        let peers = Peers::new(local, timing, tasks.clone());
        let log_size = store.log_size.clone();
        let disk = store::Disk::new(Space::of(&dir).unwrap(), self.floor, Pulse::default());
        let parts = (store.log, store.machine, store.tables, store.log_size, disk);
        let built = Consensus::build(parts, peers, timing, retention, Metrics::default());
        let consensus = built.await.unwrap();
        let (proposals, queue) = Proposer::queue();
        tasks.spawn(Proposer::new(consensus.clone(), queue).run());
        let (snapshots, forwards) = (store.snapshots, proposals.clone());
        let inbound = Inbound::new(consensus.clone(), snapshots, forwards, record);
        let listener = Listener {
            node: self.node,
            file: FILE,
            identity: watch::channel(identity).1,
            service: watch::channel(Some(inbound.clone())).1,
            timing,
            tasks: tasks.clone(),
        };
        tasks.spawn(listener.serve(TcpListener::bind(self.address).await.unwrap()));
        consensus.run();
        tasks.spawn(consensus.clone().keep_peers());
        tasks.spawn(consensus.clone().keep_log_short());
        StoredNode {
            consensus,
            inbound,
            log_size,
            proposals,
            started_with: store.last_log_id,
            tasks,
            closed: store.closed,
        }
    }

    /// Appends entries that no other node has seen, as a leader does that is cut off.
    async fn append_tail(&self, tail: Vec<Proposal>) {
        let dir = DataDir::open(&self.path).unwrap();
        let Store {
            mut log,
            machine,
            tables,
            closed,
            last_log_id,
            ..
        } = Store::open(&dir, self.level_max).unwrap();
        let last = last_log_id.unwrap();
        let entry = |(index, proposal)| {
            let log_id = LogId::new(*last.committed_leader_id(), index);
            openraft::entry::RaftEntry::new(log_id, Payload::Normal(proposal))
        };
        let tail: Vec<Entry> = (last.index() + 1..).zip(tail).map(entry).collect();
        let (done, flushed) = TypeConfig::oneshot();
        log.append(tail, IOFlushed::signal(done)).await.unwrap();
        flushed.await.unwrap().unwrap();
        drop((log, machine, tables));
        closed.wait().await;
    }
}

impl StoredNode {
    pub(super) fn leads(&self) -> bool {
        matches!(self.consensus.leader(), Leader::Here(_)) && self.consensus.in_touch()
    }

    pub(super) async fn stop(self) {
        self.tasks.stop().await;
        self.consensus.shutdown().await;
        drop((self.consensus, self.inbound, self.proposals));
        within(self.closed.wait()).await;
    }

    /// Proposes a batch of these commands, and says whether it was applied.
    pub(super) async fn propose(&self, commands: Vec<Command>) -> bool {
        let (reply, answer) = oneshot::channel();
        let forwarded = Forwarded {
            batch: codec::encode(&batch(commands)).into(),
            deadline: deadline(),
            required: None,
            reply,
        };
        self.proposals.send(forwarded).await.unwrap();
        matches!(within(answer).await.unwrap(), ForwardReply::Applied { .. })
    }

    fn purged(&self) -> Option<LogId> {
        self.consensus.raft().metrics().borrow_watched().purged
    }

    pub(super) fn applied(&self) -> Option<LogId> {
        self.consensus.tables().applied()
    }
}

pub(super) async fn stored_leader(nodes: &[StoredNode]) -> &StoredNode {
    wait_until(|| nodes.iter().any(StoredNode::leads)).await;
    nodes.iter().find(|node| node.leads()).unwrap()
}

/// Has a batch of these commands applied by whoever leads.
async fn propose(nodes: &[StoredNode], commands: &[Command]) {
    while !stored_leader(nodes).await.propose(commands.to_vec()).await {}
}

/// A sequence, created, and the command that grants one value of it.
pub(super) async fn sequence(nodes: &[StoredNode], name: &str) -> Command {
    let sequence: SequenceName = name.parse().unwrap();
    let create = Command::Create {
        sequence: sequence.clone(),
        settings: Settings::default(),
    };
    propose(nodes, &[create]).await;
    Command::Grant {
        sequence,
        count: RangeCount::ONE,
    }
}

/// Three nodes that have stopped after all of them applied the same entries, and the last of these.
async fn stopped_at_one_entry() -> (Cluster, Option<LogId>) {
    let cluster = cluster(3).await;
    let nodes = cluster.start(Retention::default()).await;
    sequence(&nodes, "s").await;
    let applied = stored_leader(&nodes).await.applied();
    wait_until(|| nodes.iter().all(|node| applied <= node.applied())).await;
    for node in nodes {
        node.stop().await;
    }
    (cluster, applied)
}

/// A proposal of no batch, so long after the one before.
fn nothing_after(elapsed_ms: u32) -> Proposal {
    Proposal {
        elapsed_ms,
        batches: Vec::new(),
    }
}

/// A batch as large as batches get.
fn large_batch(command: Command) -> Vec<Command> {
    let size = codec::encode(&command).len();
    vec![command; (BATCH_BYTES_MAX / size).min(BATCH_COMMANDS_MAX) - 1]
}

// openraft#1511: recovered means by whole log ids; the log that replaced the lost tail is shorter, and nobody writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_tail_was_replaced_by_a_shorter_log_recovers_in_an_idle_cluster() {
    let (cluster, applied) = stopped_at_one_entry().await;
    let (lonely, others) = cluster.places.split_last().unwrap();
    lonely.append_tail(vec![nothing_after(0); 20]).await;
    let mut nodes = Vec::new();
    for place in others {
        nodes.push(place.start(Retention::default()).await);
    }
    let led = stored_leader(&nodes).await;
    wait_until(|| applied < led.applied()).await;

    let node = lonely.start(Retention::default()).await;
    let started_with = node.started_with.unwrap();
    within(node.consensus.recovered(node.started_with))
        .await
        .unwrap();

    let last = node.applied().unwrap();
    assert!(started_with < last, "{started_with} {last}");
    assert!(last.index() < started_with.index(), "{started_with} {last}");
}

// Two logs that Raft takes for one: the same log id, and another entry. No node can see it but by its state.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_state_is_not_the_majoritys_is_told_so_and_the_others_are_not() {
    let (cluster, applied) = stopped_at_one_entry().await;
    for (place, elapsed_ms) in cluster.places.iter().zip([0, 0, 5]) {
        place.append_tail(vec![nothing_after(elapsed_ms)]).await;
    }

    let mut nodes = Vec::new();
    for place in &cluster.places {
        nodes.push(place.start(Retention::default()).await);
    }
    let diverged = within(nodes[2].consensus.diverged()).await;

    assert_eq!(diverged.node, id(3));
    assert!(applied.unwrap().index() < diverged.index, "{diverged}");
    for node in &nodes[..2] {
        assert_eq!(node.consensus.compare().await, None, "it is the majority");
    }
}

// sebadob/hiqlite v0.11.0: entries alone do not bound a log.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_large_batches_is_purged_long_before_it_has_ten_thousand_entries() {
    let cluster = cluster(1).await;
    let mut retention = Retention::default();
    retention.snapshot.bytes /= 8;
    retention.kept = 10;
    let nodes = cluster.start(retention).await;
    let batch = large_batch(sequence(&nodes, &"n".repeat(32)).await);

    let mut longest = 0;
    let mut snapshots = BTreeSet::new();
    while snapshots.len() < 3 {
        propose(&nodes, &batch).await;
        let log = nodes[0].log_size.above(None);
        assert!(log.entries < 1_000, "{log:?} without a snapshot");
        longest = longest.max(log.bytes);
        snapshots.extend(nodes[0].purged());
    }

    assert!(
        longest < 2 * retention.snapshot.bytes,
        "{longest} bytes of log"
    );
}

/// Somebody who reads a node's table: as long as that lasts, the next one cannot be published there.
pub(super) struct Reader {
    release: std::sync::mpsc::Sender<()>,
    reading: std::thread::JoinHandle<()>,
}

impl Reader {
    pub(super) fn of(consensus: &Consensus) -> Self {
        let tables = consensus.tables().clone();
        let (holding, is_held) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let reading = std::thread::spawn(move || {
            tables.while_read(|_| {
                holding.send(()).unwrap();
                released.recv().unwrap();
            });
        });
        is_held.recv().unwrap();
        Self { release, reading }
    }

    pub(super) fn end(self) {
        self.release.send(()).unwrap();
        self.reading.join().unwrap();
    }
}

// I6: whoever is answered may read at once, and finds what was answered.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_answered_before_the_table_with_the_answer_can_be_read() {
    let cluster = cluster(1).await;
    let nodes = cluster.start(Retention::default()).await;
    let consensus = &stored_leader(&nodes).await.consensus;

    let reader = Reader::of(consensus);
    let proposal = Proposal {
        elapsed_ms: 0,
        batches: Vec::new(),
    };
    let mut write = std::pin::pin!(consensus.raft().client_write(proposal));
    let answered = tokio::time::timeout(Duration::from_millis(300), &mut write).await;
    reader.end();

    assert!(answered.is_err(), "answered before it was published");
    let answered = within(write).await.unwrap().log_id;
    assert!(Some(answered) <= consensus.tables().applied());
}

// I6: a proof says how far a table has to be, and not that the asked node's is.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_at_a_follower_waits_until_its_own_table_holds_what_was_proved() {
    let cluster = cluster(3).await;
    let nodes = cluster.start(Retention::default()).await;
    let grant = sequence(&nodes, "s").await;
    let created = stored_leader(&nodes).await.applied();
    wait_until(|| nodes.iter().all(|node| created <= node.applied())).await;
    let follower = nodes.iter().find(|node| !node.leads()).unwrap();

    let reader = Reader::of(&follower.consensus);
    propose(&nodes, &[grant]).await;
    let granted = stored_leader(&nodes).await.applied();
    let soon = Instant::now() + Duration::from_millis(500);
    let early = follower.consensus.linearize(soon).await;
    reader.end();

    assert!(
        early.is_err(),
        "I6: read before the table had what was granted"
    );
    within(follower.consensus.linearize(deadline()))
        .await
        .unwrap();
    assert!(granted <= follower.applied());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_the_leader_is_bounded_and_goes_into_entries_that_fit() {
    let cluster = cluster(1).await;
    let nodes = cluster.start(Retention::default()).await;
    let grant = sequence(&nodes, &"n".repeat(32)).await;
    // Two fit into an entry, three do not.
    let count = BATCH_BYTES_MAX / 2 / codec::encode(&grant).len();
    let commands = batch(vec![grant; count.min(BATCH_COMMANDS_MAX)]);
    let encoded: bytes::Bytes = codec::encode(&commands).into();
    assert!(2 * encoded.len() < PROPOSAL_BYTES_MAX && PROPOSAL_BYTES_MAX < 3 * encoded.len());
    let before = nodes[0].log_size.above(None);
    cluster.places[0].disk.hang();

    let mut answers = Vec::new();
    loop {
        let (reply, answer) = oneshot::channel();
        let forwarded = Forwarded {
            batch: encoded.clone(),
            deadline: deadline(),
            required: None,
            reply,
        };
        if nodes[0].proposals.try_send(forwarded).is_err() {
            // Full, and not only for a moment: one entry is in flight, and the disk hangs.
            break;
        }
        answers.push(answer);
        tokio::task::yield_now().await;
    }
    let taken = answers.len();
    assert!((256..270).contains(&taken), "{taken}");
    cluster.places[0].disk.go_on();

    for answer in answers {
        let answer = within(answer).await.unwrap();
        assert!(matches!(answer, ForwardReply::Applied { .. }), "{answer:?}");
    }
    let after = nodes[0].log_size.above(None);
    let entries = after.entries - before.entries;
    assert!(taken / 2 <= usize::try_from(entries).unwrap());
}

/// A follower's disk stands still while its leader's log grows by twice this lag; its process is well.
async fn a_hanging_follower_gets_a_snapshot(
    retention: Retention,
    batch_of: impl Fn(Command) -> Vec<Command>,
) {
    let cluster = cluster(3).await;
    let nodes = cluster.start(retention).await;
    let commands = batch_of(sequence(&nodes, &"n".repeat(32)).await);
    let created = stored_leader(&nodes).await.applied();
    wait_until(|| nodes.iter().all(|node| created <= node.applied())).await;
    let (slow, place) = nodes
        .iter()
        .zip(&cluster.places)
        .find(|(node, _)| !node.leads())
        .unwrap();

    place.disk.hang();
    let log_end = |node: &StoredNode| node.consensus.status().last_log_index;
    let behind = log_end(slow);
    let lag = retention.lag;
    let bytes = stored_leader(&nodes).await.log_size.appended_bytes();
    let mut entries = 0;
    let mut leader = stored_leader(&nodes).await;
    while entries < lag.entries.saturating_mul(2)
        && leader.log_size.appended_bytes() - bytes < lag.bytes.saturating_mul(2)
    {
        propose(&nodes, &commands).await;
        entries += 1;
        leader = stored_leader(&nodes).await;
    }
    wait_until(|| behind < leader.purged().map(|purged| purged.index())).await;
    let kept = leader.log_size.above(None);
    let most = (lag.entries.saturating_mul(2), lag.bytes.saturating_mul(2));
    assert!(kept.entries <= most.0 && kept.bytes <= most.1, "{kept:?}");

    place.disk.go_on();
    wait_until(|| slow.applied() == leader.applied()).await;
    assert!(
        behind < slow.purged().map(|purged| purged.index()),
        "it came by the log"
    );
    assert_eq!(
        slow.consensus.tables().table(),
        leader.consensus.tables().table()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_with_a_hanging_disk_does_not_hold_back_its_leaders_purge_and_gets_a_snapshot() {
    let stretch = |entries| Stretch {
        entries,
        bytes: u64::MAX,
    };
    let retention = Retention {
        snapshot: stretch(100),
        kept: 10,
        lag: stretch(200),
    };
    a_hanging_follower_gets_a_snapshot(retention, |grant| vec![grant]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_too_many_bytes_behind_does_not_hold_back_a_purge_either() {
    let retention = Retention {
        snapshot: Stretch {
            entries: 1_000_000,
            bytes: 512 * 1024,
        },
        kept: 1,
        lag: Stretch {
            entries: 1_000_000,
            bytes: 2 * 1024 * 1024,
        },
    };
    a_hanging_follower_gets_a_snapshot(retention, large_batch).await;
}
