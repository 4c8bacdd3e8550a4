//! A log and a state machine in memory, as little as openraft needs.

use std::io;
use std::ops::RangeBounds;
use std::path::PathBuf;

use bytes::Bytes;
use openraft::entry::RaftEntry;
use openraft::storage::{
    EntryResponder, IOFlushed, LogState, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder,
    RaftStateMachine,
};
use openraft::{EntryPayload, OptionalSend};

use super::*;
use crate::sequence::Applied;
use crate::server::store::SnapshotFile;
use crate::server::types::{Entry, SnapshotMeta, StoredMembership};

/// A log that forgets everything with the process.
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryLog(Arc<Mutex<Log>>);

#[derive(Debug, Default)]
struct Log {
    vote: Option<Vote>,
    entries: BTreeMap<u64, Entry>,
    purged: Option<LogId>,
}

impl RaftLogReader<TypeConfig> for MemoryLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + std::fmt::Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let log = self.0.lock().unwrap();
        Ok(log
            .entries
            .range(range)
            .map(|(_, entry)| entry.clone())
            .collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.0.lock().unwrap().vote)
    }
}

impl RaftLogStorage<TypeConfig> for MemoryLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let log = self.0.lock().unwrap();
        let last = log.entries.values().next_back().map(RaftEntry::log_id);
        Ok(LogState {
            last_purged_log_id: log.purged,
            last_log_id: last.or(log.purged),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.0.lock().unwrap().vote = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().map(|entry| (entry.index(), entry));
        self.0.lock().unwrap().entries.extend(entries);
        callback.io_completed(Ok(()));
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        let from = last_log_id.map_or(0, |last| last.index() + 1);
        self.0.lock().unwrap().entries.split_off(&from);
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        let mut log = self.0.lock().unwrap();
        log.entries = log.entries.split_off(&(log_id.index() + 1));
        log.purged = Some(log_id);
        Ok(())
    }
}

/// A state machine that keeps the batches of all proposals.
#[derive(Debug, Clone)]
pub(super) struct MemoryMachine {
    directory: PathBuf,
    state: Arc<Mutex<State>>,
    snapshots: Snapshots,
}

/// What is in the snapshots of all machines, by checksum: how a file is written is not this test's matter.
pub(super) type Snapshots = Arc<Mutex<BTreeMap<[u8; 32], Vec<Bytes>>>>;

#[derive(Debug, Clone, Default)]
struct State {
    applied: Option<LogId>,
    membership: StoredMembership,
    batches: Vec<Bytes>,
    snapshot: Option<Snapshot>,
}

impl MemoryMachine {
    pub(super) fn new(directory: &tempfile::TempDir, snapshots: &Snapshots) -> Self {
        Self {
            directory: directory.path().to_owned(),
            state: Arc::default(),
            snapshots: Arc::clone(snapshots),
        }
    }

    pub(super) fn batches(&self) -> Vec<Bytes> {
        self.state.lock().unwrap().batches.clone()
    }

    pub(super) fn applied(&self) -> Option<LogId> {
        self.state.lock().unwrap().applied
    }
}

impl RaftSnapshotBuilder<TypeConfig> for MemoryMachine {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let state = self.state.lock().unwrap().clone();
        let meta = SnapshotMeta {
            last_log_id: state.applied,
            last_membership: state.membership,
        };
        let file = testing::snapshot(&self.directory, &meta, 0);
        let mut snapshots = self.snapshots.lock().unwrap();
        snapshots.insert(file.checksum(), state.batches);
        drop(snapshots);
        let snapshot = Snapshot {
            meta,
            snapshot: file,
        };
        self.state.lock().unwrap().snapshot = Some(snapshot.clone());
        Ok(snapshot)
    }
}

impl RaftStateMachine<TypeConfig> for MemoryMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let state = self.state.lock().unwrap();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            let mut state = self.state.lock().unwrap();
            state.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(proposal) => state.batches.extend(proposal.batches),
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
            }
            drop(state);
            if let Some(responder) = responder {
                responder.send(Applied::default());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotFile,
    ) -> io::Result<()> {
        let batches = self.snapshots.lock().unwrap()[&snapshot.checksum()].clone();
        *self.state.lock().unwrap() = State {
            applied: meta.last_log_id,
            membership: meta.last_membership.clone(),
            batches,
            snapshot: Some(Snapshot {
                meta: meta.clone(),
                snapshot,
            }),
        };
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.state.lock().unwrap().snapshot.clone())
    }
}
