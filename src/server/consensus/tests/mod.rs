//! The peer port, between nodes in one process.

mod appends;
mod bounds;
mod calls;
mod cluster;
mod fuzz;
mod installs;
mod levels;
mod members;
mod memory;
mod refusals;
mod snapshots;
mod stored;
mod transfer;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use openraft::errors::{Fatal, RaftError};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::vote::RaftLeaderId;
use openraft::vote::RaftVote;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::frame::{Connection, Limits};
use super::handshake::{self, Answer, HELLO_BYTES_MAX, Hello, Party, Purpose, Refusal};
use super::link::Link;
use super::listener::Listener;
use super::peers::{LocalNode, Peers};
use super::promises::{Beginning, Meeting, Promises};
use super::protocol::{Call, LogStatus, NodeStatus, ReadIndexReply, Reply};
use super::service::{Forwarded, PeerService, Snapshot};
use super::status::ClusterView;
use super::transfer::HandOverReply;
use crate::sequence::{FeatureLevel, StateHash};
use crate::server::config::Timing;
use crate::server::formats::LogIdFormat;
use crate::server::store::{DiskState, FormationRecord, Identity, SnapshotInbox, testing};
use crate::server::tasks::Tasks;
use crate::server::types::{
    Address, ClusterId, Incarnation, Leadership, LogId, Member, NodeId, TypeConfig, Vote,
};

/// Long enough for any machine: a test that reaches it has failed.
const AT_MOST: Duration = Duration::from_secs(20);

fn deadline() -> Instant {
    Instant::now() + AT_MOST
}

/// The value, or the end of the test.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(AT_MOST, future)
        .await
        .expect("it should have happened by now")
}

/// Waits until it holds.
async fn wait_until(mut holds: impl FnMut() -> bool) {
    wait_until_async(async || holds()).await;
}

/// Waits until it holds.
async fn wait_until_async(mut holds: impl AsyncFnMut() -> bool) {
    within(async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

pub(in crate::server::consensus) fn id(node: u64) -> NodeId {
    NodeId::from(node)
}

/// Ids that are the same in every run, for bytes and texts.
pub(in crate::server::consensus) fn fixed<T: serde::de::DeserializeOwned>(number: u128) -> T {
    crate::server::codec::decode::<T, 16>(&number.to_le_bytes()).unwrap()
}

fn cluster_id() -> ClusterId {
    fixed(0xc1)
}

pub(in crate::server::consensus) fn incarnation(node: u64) -> Incarnation {
    fixed(0xa0 + u128::from(node))
}

pub(in crate::server::consensus) fn vote(term: u64, node: u64) -> Vote {
    Vote::from_leader_id(Leadership::new(term, id(node)), false)
}

pub(in crate::server::consensus) fn log_id(term: u64, node: u64, index: u64) -> LogId {
    LogId::new(Leadership::new(term, id(node)), index)
}

fn local(node: u64) -> LocalNode {
    LocalNode {
        cluster: cluster_id(),
        node: id(node),
        incarnation: incarnation(node),
        beginning: Beginning::default(),
    }
}

fn member(node: u64, peer: SocketAddr) -> Member {
    Member {
        api: peer.into(),
        peer: peer.into(),
        incarnation: incarnation(node),
    }
}

fn identity(node: u64) -> Identity {
    let members = (1..=3).map(|n| {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        (id(n), member(n, nowhere))
    });
    Identity {
        incarnation: incarnation(node),
        formation: Some(FormationRecord {
            cluster: cluster_id(),
            node: id(node),
            members: members.collect(),
        }),
    }
}

async fn free_socket() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A peer that shakes hands with who comes for this, and then does nothing.
async fn silent_peer(socket: &TcpListener, purpose: Purpose) -> Connection {
    loop {
        let (stream, _) = within(socket.accept()).await.unwrap();
        let mut connection = Connection::new(stream.try_into().unwrap(), HELLO_BYTES_MAX);
        let Ok(Hello::Peer(hello)) = handshake::receive(&mut connection).await else {
            panic!("who is this?");
        };
        if hello.purpose == purpose {
            let welcome = Answer::Welcome(Beginning::default());
            handshake::answer(&mut connection, &welcome).await.unwrap();
            return connection.admit();
        }
    }
}

/// A listener whose Raft only writes down what it is asked.
struct Node {
    address: SocketAddr,
    service: Recorder,
    identity: watch::Sender<Identity>,
    running: watch::Sender<Option<Recorder>>,
    forwarded: mpsc::Receiver<Forwarded>,
    tasks: Tasks,
    _directory: tempfile::TempDir,
}

const NODE: u64 = 2;
const FILE: [u8; 32] = [7; 32];

impl Node {
    /// Node 2 of the cluster.
    async fn start() -> Self {
        let (socket, _) = free_socket().await;
        Self::start_on(socket)
    }

    fn start_on(socket: TcpListener) -> Self {
        Self::start_with(socket, Timing::default())
    }

    fn start_with(socket: TcpListener, timing: Timing) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (forwards, forwarded) = mpsc::channel(2);
        let service = Recorder {
            shared: Arc::new(Recorded::new(forwards, &directory)),
        };
        let (running, service_seen) = watch::channel(Some(service.clone()));
        let (identity, identity_seen) = watch::channel(identity(NODE));
        let tasks = Tasks::default();
        let address = socket.local_addr().unwrap();
        let listener = Listener {
            node: id(NODE),
            file: FILE,
            identity: identity_seen,
            service: service_seen,
            timing,
            tasks: tasks.clone(),
        };
        tasks.spawn(listener.serve(socket));
        Self {
            address,
            service,
            identity,
            running,
            forwarded,
            tasks,
            _directory: directory,
        }
    }

    fn member(&self) -> Member {
        member(NODE, self.address)
    }
}

/// Node 1's view of its peers.
struct Caller {
    peers: Peers,
    tasks: Tasks,
}

impl Caller {
    fn new() -> Self {
        let tasks = Tasks::default();
        Self {
            peers: Peers::new(local(1), Timing::default(), tasks.clone()),
            tasks,
        }
    }

    /// A connection for calls with these limits.
    fn link_to(&self, address: SocketAddr, limits: Limits) -> Link {
        let hello = self
            .peers
            .hello(id(NODE), &member(NODE, address), Purpose::Calls);
        Link::start(
            address.into(),
            hello,
            limits,
            &self.tasks,
            &Promises::default(),
        )
    }

    async fn client_to(&self, member: &Member) -> super::network::PeerClient {
        use openraft::network::RaftNetworkFactory;
        self.peers.network(None).new_client(id(NODE), member).await
    }
}

#[derive(Clone)]
struct Recorder {
    shared: Arc<Recorded>,
}

struct Recorded {
    roster: Mutex<BTreeMap<NodeId, Incarnation>>,
    roster_asked: AtomicUsize,
    votes: Mutex<Vec<VoteRequest<TypeConfig>>>,
    appends: Mutex<Vec<AppendEntriesRequest<TypeConfig>>>,
    /// The request with this previous index is refused, once.
    conflict_at: Mutex<Option<u64>>,
    /// Appends are answered only as far as there are permits.
    append_permits: Semaphore,
    /// Appends that came and are not answered, and the most there ever were.
    append_count: AtomicUsize,
    append_count_peak: AtomicUsize,
    /// ReadIndex waits for a permit.
    read_permits: Semaphore,
    forwards: mpsc::Sender<Forwarded>,
    promises: Promises,
    inbox: SnapshotInbox,
    installed: Mutex<Vec<Snapshot>>,
}

impl Recorded {
    fn new(forwards: mpsc::Sender<Forwarded>, directory: &tempfile::TempDir) -> Self {
        Self {
            roster: Mutex::new((1..=3).map(|n| (id(n), incarnation(n))).collect()),
            roster_asked: AtomicUsize::new(0),
            votes: Mutex::default(),
            appends: Mutex::default(),
            conflict_at: Mutex::default(),
            append_permits: Semaphore::new(Semaphore::MAX_PERMITS),
            append_count: AtomicUsize::new(0),
            append_count_peak: AtomicUsize::new(0),
            read_permits: Semaphore::new(0),
            forwards,
            promises: Promises::default(),
            inbox: testing::inbox(directory.path()),
            installed: Mutex::default(),
        }
    }

    fn votes(&self) -> usize {
        self.votes.lock().unwrap().len()
    }

    /// The previous indexes of all appends that came, in their order.
    fn appended(&self) -> Vec<u64> {
        let appends = self.appends.lock().unwrap();
        let index = |append: &AppendEntriesRequest<TypeConfig>| append.prev_log_id.unwrap().index();
        appends.iter().map(index).collect()
    }
}

impl PeerService for Recorder {
    fn beginning(&self) -> Beginning {
        Beginning::default()
    }

    fn meet(&self, peer: Party, beginning: Beginning, at: SocketAddr) -> Result<Meeting, Refusal> {
        self.shared.promises.meet(peer, beginning, at)
    }

    fn incarnation_of(&self, node: NodeId) -> Option<Incarnation> {
        self.shared.roster_asked.fetch_add(1, Ordering::Relaxed);
        self.shared.roster.lock().unwrap().get(&node).copied()
    }

    async fn vote(
        &self,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, RaftError<TypeConfig>> {
        let response = VoteResponse::new(request.vote, Some(log_id(1, 3, 9)), true);
        self.shared.votes.lock().unwrap().push(request);
        Ok(response)
    }

    async fn pre_vote(
        &self,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, RaftError<TypeConfig>> {
        Ok(VoteResponse::new(request.vote, None, false))
    }

    async fn transfer_leader(
        &self,
        _request: TransferLeaderRequest<TypeConfig>,
    ) -> Result<TransferLeaderResponse<TypeConfig>, Fatal<TypeConfig>> {
        Ok(Ok(()))
    }

    fn append(
        &self,
        requests: impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + 'static,
    ) -> impl Stream<Item = Result<StreamAppendResult<TypeConfig>, Fatal<TypeConfig>>> + Send + 'static
    {
        // As openraft does it: all that comes is taken up at once, answers come in order, the first refusal ends it.
        let shared = Arc::clone(&self.shared);
        let taken = requests.map(move |request| {
            let prev = request.prev_log_id.unwrap();
            let last = request.entries.last().map_or(prev, |entry| entry.log_id);
            shared.appends.lock().unwrap().push(request);
            let count = shared.append_count.fetch_add(1, Ordering::Relaxed) + 1;
            shared.append_count_peak.fetch_max(count, Ordering::Relaxed);
            let mut conflict_at = shared.conflict_at.lock().unwrap();
            let refused = *conflict_at == Some(prev.index());
            if refused {
                *conflict_at = None;
            }
            drop(conflict_at);
            let shared = Arc::clone(&shared);
            async move {
                shared.append_permits.acquire().await.unwrap().forget();
                shared.append_count.fetch_sub(1, Ordering::Relaxed);
                if refused {
                    return Err(StreamAppendError::Conflict(prev));
                }
                Ok(Some(last))
            }
        });
        let results = taken.buffered(1000);
        stream::unfold(Some(Box::pin(results)), |results| async move {
            let mut results = results?;
            let result = results.next().await?;
            let next = result.is_ok().then_some(results);
            Some((Ok(result), next))
        })
    }

    fn snapshots(&self) -> &SnapshotInbox {
        &self.shared.inbox
    }

    async fn install(
        &self,
        vote: Vote,
        snapshot: Snapshot,
    ) -> Result<SnapshotResponse<TypeConfig>, Fatal<TypeConfig>> {
        self.shared.installed.lock().unwrap().push(snapshot);
        Ok(SnapshotResponse::new(vote))
    }

    fn forwards(&self) -> &mpsc::Sender<Forwarded> {
        &self.shared.forwards
    }

    async fn read_index(&self, _within: Duration) -> ReadIndexReply {
        self.shared.read_permits.acquire().await.unwrap().forget();
        ReadIndexReply::Leads {
            read: log_id(1, 2, 3).into(),
        }
    }

    fn status(&self) -> NodeStatus {
        NodeStatus {
            version: "1.2.3".to_owned(),
            applied: Some(LogIdFormat::from(log_id(1, 2, 3))),
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
