//! Three Rafts that know each other only by the peer port.

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Config, Raft, ServerState, SnapshotPolicy};

use super::memory::{MemoryLog, MemoryMachine, Snapshots};
use super::*;
use crate::server::consensus::ClusterView;
use crate::server::consensus::protocol::{Call, Reply};
use crate::server::consensus::transfer::HandOverReply;
use crate::server::types::Proposal;

/// Slow enough for a busy machine.
const HEARTBEAT_MS: u64 = 60;

struct Peer {
    raft: Raft<TypeConfig, MemoryMachine>,
    machine: MemoryMachine,
    tasks: Tasks,
    _directory: tempfile::TempDir,
}

#[derive(Clone)]
struct RaftService {
    raft: Raft<TypeConfig, MemoryMachine>,
    inbox: SnapshotInbox,
    forwards: mpsc::Sender<Forwarded>,
}

impl PeerService for RaftService {
    fn beginning(&self) -> Beginning {
        Beginning::default()
    }

    fn meet(&self, peer: Party, beginning: Beginning, at: SocketAddr) -> Result<Meeting, Refusal> {
        Promises::default().meet(peer, beginning, at)
    }

    fn incarnation_of(&self, node: NodeId) -> Option<Incarnation> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let known = metrics.membership_config.membership().get_node(&node);
        known.map(|member| member.incarnation)
    }

    async fn vote(
        &self,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, RaftError<TypeConfig>> {
        self.raft.vote(request).await
    }

    async fn pre_vote(
        &self,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, RaftError<TypeConfig>> {
        self.raft.pre_vote(request).await
    }

    async fn transfer_leader(
        &self,
        request: TransferLeaderRequest<TypeConfig>,
    ) -> Result<TransferLeaderResponse<TypeConfig>, Fatal<TypeConfig>> {
        self.raft.handle_transfer_leader(request).await
    }

    fn append(
        &self,
        requests: impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + 'static,
    ) -> impl Stream<Item = Result<StreamAppendResult<TypeConfig>, Fatal<TypeConfig>>> + Send + 'static
    {
        self.raft.stream_append(requests)
    }

    fn snapshots(&self) -> &SnapshotInbox {
        &self.inbox
    }

    async fn install(
        &self,
        vote: Vote,
        snapshot: Snapshot,
    ) -> Result<SnapshotResponse<TypeConfig>, Fatal<TypeConfig>> {
        self.raft.install_full_snapshot(vote, snapshot).await
    }

    fn forwards(&self) -> &mpsc::Sender<Forwarded> {
        &self.forwards
    }

    async fn read_index(&self, _within: Duration) -> ReadIndexReply {
        ReadIndexReply::Unproved
    }

    fn status(&self) -> NodeStatus {
        NodeStatus {
            version: String::new(),
            applied: None,
            last_log_index: None,
            state_hash: StateHash::default(),
            checkpoints: Vec::new(),
            disk: DiskState::Fit,
            log: LogStatus::default(),
            level_max: FeatureLevel::FIRST,
        }
    }

    async fn serve_as_leader(&self, _call: Call) -> Reply {
        Reply::HandOver(HandOverReply::NotLeader)
    }

    fn has_removed(&self, _node: NodeId) -> bool {
        false
    }

    async fn announce(&self, _node: NodeId, _member: Member, _within: Duration) -> bool {
        false
    }

    async fn cluster(&self, _within: Duration) -> ClusterView {
        ClusterView::default()
    }
}

fn config() -> Arc<Config> {
    let heartbeat = HEARTBEAT_MS;
    let config = Config {
        heartbeat_interval: heartbeat,
        election_timeout_min: heartbeat * 3,
        election_timeout_max: heartbeat * 6,
        quorum_loss_probe_interval: Some(heartbeat * 12),
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        install_snapshot_timeout: 30_000,
        max_append_entries: Some(64),
        ..Config::default()
    };
    Arc::new(config.validate().unwrap())
}

impl Peer {
    async fn start(node: u64, socket: TcpListener, snapshots: &Snapshots) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let machine = MemoryMachine::new(&directory, snapshots);
        let tasks = Tasks::default();
        let timing = Timing::from_heartbeat_ms(HEARTBEAT_MS).unwrap();
        let peers = Peers::new(local(node), timing, tasks.clone());
        let raft = Raft::new(
            id(node),
            config(),
            peers.network(None),
            MemoryLog::default(),
            machine.clone(),
        )
        .await
        .unwrap();
        let (forwards, _) = mpsc::channel(1);
        let service = RaftService {
            raft: raft.clone(),
            inbox: testing::inbox(directory.path()),
            forwards,
        };
        let listener = Listener {
            node: id(node),
            file: FILE,
            identity: watch::channel(identity(node)).1,
            service: watch::channel(Some(service)).1,
            timing,
            tasks: tasks.clone(),
        };
        tasks.spawn(listener.serve(socket));
        Self {
            raft,
            machine,
            tasks,
            _directory: directory,
        }
    }

    async fn stop(&self) {
        self.raft.shutdown().await.unwrap();
        self.tasks.stop().await;
    }

    fn leads(&self) -> bool {
        self.raft.metrics().borrow_watched().state == ServerState::Leader
    }

    async fn propose(&self, batch: &'static [u8]) -> bool {
        let proposal = Proposal {
            elapsed_ms: 0,
            batches: vec![Bytes::from_static(batch)],
        };
        self.raft.client_write(proposal).await.is_ok()
    }
}

/// Nodes 1, 2, 3, and their members' description.
async fn three() -> (Vec<Peer>, BTreeMap<NodeId, Member>) {
    let mut sockets = Vec::new();
    let mut members = BTreeMap::new();
    for node in 1..=3 {
        let (socket, address) = free_socket().await;
        sockets.push(socket);
        members.insert(id(node), member(node, address));
    }
    let mut nodes = Vec::new();
    let snapshots = Snapshots::default();
    for (node, socket) in (1..).zip(sockets) {
        nodes.push(Peer::start(node, socket, &snapshots).await);
    }
    (nodes, members)
}

async fn leader(nodes: &[Peer]) -> usize {
    wait_until(|| nodes.iter().any(Peer::leads)).await;
    nodes.iter().position(Peer::leads).unwrap()
}

#[tokio::test]
async fn three_nodes_elect_and_replicate_and_go_on_without_their_leader() {
    let (mut nodes, members) = three().await;
    nodes[0].raft.initialize(members).await.unwrap();
    let first = leader(&nodes).await;

    wait_until_async(async || nodes[first].propose(b"one").await).await;
    assert!(nodes[first].propose(b"two").await);
    let both = [b"one".as_slice(), b"two"];
    wait_until(|| nodes.iter().all(|node| node.machine.batches() == both)).await;

    nodes.remove(first).stop().await;
    let second = leader(&nodes).await;
    wait_until_async(async || nodes[second].propose(b"three").await).await;
    let all = [b"one".as_slice(), b"two", b"three"];
    wait_until(|| nodes.iter().all(|node| node.machine.batches() == all)).await;
}

#[tokio::test]
async fn a_node_behind_the_log_gets_a_snapshot() {
    let (nodes, mut members) = three().await;
    let late = members.remove(&id(3)).unwrap();
    nodes[0].raft.initialize(members).await.unwrap();
    let first = leader(&nodes).await;
    wait_until_async(async || nodes[first].propose(b"one").await).await;
    let raft = &nodes[first].raft;
    raft.trigger().snapshot().await.unwrap();
    let snapshot_taken = |raft: &Raft<TypeConfig, MemoryMachine>| {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.purged.is_some() && metrics.purged == metrics.snapshot
    };
    wait_until(|| snapshot_taken(raft)).await;

    raft.add_learner(id(3), late, false).await.unwrap();

    wait_until(|| nodes[2].machine.batches() == [b"one".as_slice()]).await;
    let installed = nodes[2].raft.get_snapshot().await.unwrap();
    assert!(installed.is_some(), "it came by the log");
}

#[tokio::test]
async fn leadership_moves_to_the_node_it_is_handed_to() {
    let (nodes, members) = three().await;
    nodes[0].raft.initialize(members).await.unwrap();
    let first = leader(&nodes).await;
    wait_until_async(async || nodes[first].propose(b"one").await).await;
    let next = (first + 1) % 3;
    wait_until(|| nodes[next].machine.applied() == nodes[first].machine.applied()).await;

    let to = id(u64::try_from(next).unwrap() + 1);
    nodes[first]
        .raft
        .trigger()
        .transfer_leader(to)
        .await
        .unwrap();

    wait_until(|| nodes[next].leads()).await;
}

#[tokio::test]
async fn a_stranger_does_not_raise_the_term() {
    let (nodes, members) = three().await;
    nodes[0].raft.initialize(members.clone()).await.unwrap();
    let first = leader(&nodes).await;
    let term = || nodes[first].raft.metrics().borrow_watched().current_term;
    let before = term();
    let wiped = LocalNode {
        incarnation: fixed(0xbad),
        ..local(u64::try_from((first + 1) % 3).unwrap() + 1)
    };
    let peers = Peers::new(wiped, Timing::default(), Tasks::default());

    let request = VoteRequest {
        vote: vote(before + 100, wiped.node.get()),
        last_log_id: Some(log_id(before + 99, 1, 1_000_000)),
        leadership_transfer: true,
    };
    let to = id(u64::try_from(first).unwrap() + 1);
    let call = Call::Vote(request.into());
    let reply = within(peers.call(to, &members[&to], call, deadline())).await;

    assert!(!matches!(reply, Ok(Reply::Vote(_))), "{reply:?}");
    assert!(term() < before + 100, "I12: its vote was counted");
}
