//! A store in a temporary directory, and what the tests do with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::{fs, io};

use bytes::Bytes;
use futures::{StreamExt, stream};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::OneshotReceiverOf;
use openraft::vote::{RaftLeaderId, RaftVote};
use openraft::{RaftLogReader, RaftSnapshotBuilder};
use tempfile::TempDir;

use crate::sequence::{
    Batch, BatchHash, Command, FeatureLevel, RangeCount, SequenceName, SessionId, Settings,
};
use crate::server::codec;
use crate::server::store::probe::{Probe, Step};
use crate::server::store::{DataDir, FormationRecord, SnapshotFile, Store, StoreError};
use crate::server::types::{
    ClusterId, Entry, Leadership, LogId, Member, NodeId, Payload, Proposal, TypeConfig, Vote,
};

/// The node that every fixture is.
pub(super) fn node() -> NodeId {
    NodeId::from(1)
}

/// A directory that belongs to a cluster and has no store yet.
pub(super) fn new_directory() -> (TempDir, DataDir) {
    let guard = tempfile::tempdir().unwrap();
    let mut dir = DataDir::open(guard.path()).unwrap();
    dir.adopt(formation_of(&dir)).unwrap();
    (guard, dir)
}

/// A cluster of one, with this directory as its member.
pub(super) fn formation_of(dir: &DataDir) -> FormationRecord {
    let member = Member {
        incarnation: dir.identity().incarnation,
        ..Member::default()
    };
    FormationRecord {
        cluster: ClusterId::generate(),
        node: node(),
        members: BTreeMap::from([(node(), member)]),
    }
}

/// A new store. Its directory lives as long as the guard.
pub(super) fn new_store() -> (TempDir, Store) {
    new_store_with(Probe::default())
}

pub(super) fn new_store_with(probe: Probe) -> (TempDir, Store) {
    let (guard, dir) = new_directory();
    let store = Store::open_with(&dir, FeatureLevel::LATEST, probe).unwrap();
    (guard, store)
}

pub(super) fn open(path: &Path) -> Result<Store, StoreError> {
    open_with(path, Probe::default())
}

pub(super) fn open_with(path: &Path, probe: Probe) -> Result<Store, StoreError> {
    Store::open_with(&DataDir::open(path)?, FeatureLevel::LATEST, probe)
}

/// What the disk holds at this moment: what a process that is killed now leaves behind.
pub(super) fn copy_of(path: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_into(path, copy.path());
    copy
}

/// A copy whose journal has nothing that the database has not.
pub(super) async fn settled(path: &Path) -> TempDir {
    let copy = copy_of(path);
    close(open(copy.path()).unwrap()).await;
    copy
}

pub(super) fn copy_into(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_into(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Closes a store and waits until its files are closed.
pub(super) async fn close(store: Store) {
    let Store {
        log,
        machine,
        closed,
        ..
    } = store;
    drop((log, machine));
    closed.wait().await;
}

pub(super) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(Leadership::new(term, node()), index)
}

pub(super) fn vote(term: u64) -> Vote {
    Vote::from_leader_id(Leadership::new(term, node()), true)
}

pub(super) fn name(text: &str) -> SequenceName {
    text.parse().unwrap()
}

/// An entry with one batch of these commands.
pub(super) fn entry_of(term: u64, index: u64, commands: Vec<Command>) -> Entry {
    let batch = Batch {
        session: SessionId::NONE,
        number: 0,
        ack: 0,
        hash: BatchHash([0; 16]),
        commands,
    };
    let proposal = Proposal {
        elapsed_ms: 1,
        batches: vec![codec::encode(&batch).into()],
    };
    Entry::new(log_id(term, index), Payload::Normal(proposal))
}

/// An entry that grants from the sequence `s`; those at index 0 create it.
pub(super) fn grant(term: u64, index: u64) -> Entry {
    let sequence = name("s");
    let command = match index {
        0 => Command::Create {
            sequence,
            settings: Settings::default(),
        },
        _ => Command::Grant {
            sequence,
            count: RangeCount::constant(3),
        },
    };
    entry_of(term, index, vec![command])
}

/// An entry of about this many bytes. It cannot be applied.
pub(super) fn large(term: u64, index: u64, bytes: usize) -> Entry {
    let proposal = Proposal {
        elapsed_ms: 0,
        batches: vec![Bytes::from(vec![7; bytes])],
    };
    Entry::new(log_id(term, index), Payload::Normal(proposal))
}

/// Queues an append; what is received is whether it became durable.
pub(super) async fn start_append(
    store: &mut Store,
    entries: impl IntoIterator<Item = Entry, IntoIter: Send> + Send,
) -> OneshotReceiverOf<TypeConfig, io::Result<()>> {
    let (done, answer) = TypeConfig::oneshot();
    store
        .log
        .append(entries, IOFlushed::signal(done))
        .await
        .unwrap();
    answer
}

/// Appends durably.
pub(super) async fn append(
    store: &mut Store,
    entries: impl IntoIterator<Item = Entry, IntoIter: Send> + Send,
) {
    start_append(store, entries).await.await.unwrap().unwrap();
}

/// Appends grants of these indices durably.
pub(super) async fn append_grants(store: &mut Store, term: u64, indices: std::ops::Range<u64>) {
    let entries: Vec<_> = indices.map(|index| grant(term, index)).collect();
    append(store, entries).await;
}

pub(super) async fn apply(store: &mut Store, entries: impl IntoIterator<Item = Entry>) {
    try_apply(store, entries).await.unwrap();
}

pub(super) async fn try_apply(
    store: &mut Store,
    entries: impl IntoIterator<Item = Entry>,
) -> io::Result<()> {
    let entries: Vec<_> = entries.into_iter().map(|entry| Ok((entry, None))).collect();
    store.machine.apply(stream::iter(entries)).await
}

pub(super) async fn build(store: &mut Store) -> SnapshotFile {
    let mut builder = store.machine.get_snapshot_builder().await;
    builder.build_snapshot().await.unwrap().snapshot
}

/// All entries, by way of the log's readers.
pub(super) async fn entries(store: &mut Store) -> Vec<Entry> {
    let mut reader = store.log.get_log_reader().await;
    let entries = reader.try_get_log_entries(..).await.unwrap();
    let paged: Vec<_> = reader.entries_stream(..).await.collect().await;
    let paged: Vec<_> = paged.into_iter().map(Result::unwrap).collect();
    assert_eq!(paged, entries);
    entries
}

pub(super) async fn stored_vote(store: &mut Store) -> Option<Vote> {
    store.log.get_log_reader().await.read_vote().await.unwrap()
}

pub(super) fn snapshot_paths(path: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(path.join("snapshots"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

/// Sends a snapshot to another store in pieces.
pub(super) async fn receive(store: &Store, sent: &SnapshotFile) -> SnapshotFile {
    const PIECE_BYTES: u64 = 1000;
    let mut file = sent.open().await.unwrap();
    let mut incoming = store.snapshots.begin().await.unwrap();
    while incoming.length < sent.length() {
        let size = PIECE_BYTES.min(sent.length() - incoming.length);
        let piece = file.next(size.try_into().unwrap()).await.unwrap();
        incoming.write(piece).await.unwrap();
    }
    incoming
        .finish(sent.length(), sent.checksum())
        .await
        .unwrap()
}

/// Waits until a condition holds, at most ten seconds.
pub(super) async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "in vain: {what}");
        tokio::task::yield_now().await;
    }
}

/// Waits until the writer has nothing left to do, purged records included.
pub(super) async fn settle(store: &mut Store) {
    let shared = store.log.shared();
    let purged = store.log.get_log_state().await.unwrap().last_purged_log_id;
    if let Some(purged) = purged {
        until("purged records are removed", || {
            !shared.database.has_records(..=purged.index())
        })
        .await;
    }
    let vote = stored_vote(store).await.unwrap_or_else(|| vote(1));
    store.log.save_vote(&vote).await.unwrap();
}

/// Which steps are meant.
type Which = fn(Step) -> bool;

/// A disk that counts what it is asked, and that a test can hold or break.
#[derive(Clone, Default)]
pub(super) struct Disk {
    inner: Arc<DiskInner>,
}

#[derive(Default)]
struct DiskInner {
    state: Mutex<DiskState>,
    changed: Condvar,
}

#[derive(Default)]
struct DiskState {
    steps: Vec<Step>,
    /// How many steps may still be taken before one waits.
    free: Option<usize>,
    waiting: bool,
    broken: Option<(Which, u32)>,
}

impl Disk {
    pub(super) fn probe(&self) -> Probe {
        let inner = Arc::clone(&self.inner);
        Probe::new(move |step| {
            let mut state = inner.state.lock().unwrap();
            state.steps.push(step);
            state.waiting = true;
            state = inner
                .changed
                .wait_while(state, |state| state.free == Some(0))
                .unwrap();
            state.waiting = false;
            state.free = state.free.map(|free| free - 1);
            let Some((which, times)) = &mut state.broken else {
                return Ok(());
            };
            if *times == 0 || !which(step) {
                return Ok(());
            }
            *times -= 1;
            Err(io::Error::from_raw_os_error(5))
        })
    }

    /// From now on every step waits.
    pub(super) fn hold(&self) {
        self.hold_after(0);
    }

    /// So many steps may be taken before one waits.
    pub(super) fn hold_after(&self, steps: usize) {
        self.inner.state.lock().unwrap().free = Some(steps);
        self.inner.changed.notify_all();
    }

    pub(super) fn release(&self) {
        self.inner.state.lock().unwrap().free = None;
        self.inner.changed.notify_all();
    }

    /// Whether a step waits.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.inner.state.lock().unwrap();
        state.waiting && state.free == Some(0)
    }

    /// The next `times` steps of a kind fail, and later ones succeed.
    pub(super) fn break_next(&self, times: u32, which: Which) {
        self.inner.state.lock().unwrap().broken = Some((which, times));
    }

    /// What was asked since the last call.
    pub(super) fn steps(&self) -> Vec<Step> {
        std::mem::take(&mut self.inner.state.lock().unwrap().steps)
    }
}

pub(super) fn is_database(step: Step) -> bool {
    matches!(step, Step::Database { .. })
}

pub(super) fn is_superblock(step: Step) -> bool {
    step == Step::Superblock
}

pub(super) fn is_group(step: Step) -> bool {
    matches!(step, Step::Group { .. })
}
