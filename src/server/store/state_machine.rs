//! Step 5 of the walk: committed entries change the table, in log order.
//!
//! The table lives in memory. It is as durable as the log and the snapshot it is made from: after a start it is
//! the snapshot's, and openraft applies the log to it again.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use futures::{Stream, StreamExt as _};
use openraft::OptionalSend;
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;

use super::applying::Readable;
use super::error::or_nothing;
use super::sizes::LogSize;
use super::snapshot::SnapshotFile;
use super::snapshot_format::State;
use super::snapshots::{SnapshotBuilder, Snapshots, described};
#[cfg(test)]
use crate::planted::Bug;
use crate::sequence::{Applied, FeatureLevel, NodeCard, SequenceName, StateHash, Table};
use crate::server::host;
use crate::server::types::{Entry, LogId, Membership, SnapshotMeta, StoredMembership, TypeConfig};

/// After how many entries the hash of the state is remembered, at the same ones on every node.
const CHECKPOINT_ENTRIES: u64 = 64;
/// How many of these hashes: some thousand entries, more than any node lags behind that is well.
const CHECKPOINTS_MAX: usize = 32;

/// The replicated state, and what openraft asks of it.
#[derive(Debug)]
pub(crate) struct StateMachine {
    shared: TableReader,
    snapshots: Snapshots,
    level_max: FeatureLevel,
    /// How large the log may get above a snapshot that is being sent.
    held: Option<HeldLog>,
}

/// The log that whoever is sent a snapshot needs next.
#[derive(Debug)]
struct HeldLog {
    size: LogSize,
    bytes_max: u64,
}

/// Reads the table as the last entry left it. Clones read the same table.
///
/// There is one, and it is changed where it stands: a copy for readers beside it would share each place, so that an entry had
/// to copy whatever it touches, and the more there is the less of it is in the processor's cache.
#[derive(Debug, Clone)]
pub(crate) struct TableReader {
    state: Arc<RwLock<State>>,
    checkpoints: Arc<Mutex<VecDeque<(u64, StateHash)>>>,
}

impl TableReader {
    fn new(state: State) -> Self {
        Self {
            state: Arc::new(RwLock::new(state)),
            checkpoints: Arc::default(),
        }
    }

    /// The table as it is now. It shares structure with the state machine's, and does not change; as long as it is kept, what changes
    /// there is copied first.
    pub(crate) fn table(&self) -> Table {
        self.read(|state| state.table.clone())
    }

    /// The generation of the cluster's history.
    pub(crate) fn epoch(&self) -> u64 {
        self.read(|state| state.table.header().epoch)
    }

    /// Whether the sequence is there, not retired, and has a cache.
    pub(crate) fn is_cached(&self, name: &SequenceName) -> bool {
        self.read(|state| state.table.is_cached(name))
    }

    /// The feature level of the table.
    pub(crate) fn level(&self) -> FeatureLevel {
        self.read(|state| state.table.header().level)
    }

    /// The table and the last entry in it: these two belong together.
    pub(crate) fn table_at(&self) -> (Table, Option<LogId>) {
        self.read(|state| (state.table.clone(), state.meta.last_log_id))
    }

    /// The hash of the state after some entries, by their indexes.
    pub(crate) fn checkpoints(&self) -> Vec<(u64, StateHash)> {
        self.lock_checkpoints().iter().copied().collect()
    }

    fn remember(&self, index: u64, hash: StateHash) {
        let mut checkpoints = self.lock_checkpoints();
        if CHECKPOINTS_MAX <= checkpoints.len() {
            checkpoints.pop_front();
        }
        checkpoints.push_back((index, hash));
    }

    fn lock_checkpoints(&self) -> MutexGuard<'_, VecDeque<(u64, StateHash)>> {
        // Nothing panics while it is changed.
        self.checkpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn applied(&self) -> Option<LogId> {
        self.table_at().1
    }

    /// Does something while nothing can be applied.
    #[cfg(test)]
    pub(crate) fn while_read<T>(&self, work: impl FnOnce(&Table) -> T) -> T {
        self.read(|state| work(&state.table))
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        // It panics where an invariant does not hold, and then the process ends.
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nobody reads meanwhile.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StateMachine {
    /// A state machine that goes on from a snapshot's state, and applies nothing above this level.
    pub(super) fn new(state: State, snapshots: Snapshots, level_max: FeatureLevel) -> Self {
        Self {
            shared: TableReader::new(state),
            snapshots,
            level_max,
            held: None,
        }
    }

    /// While a snapshot is being sent no other is built, so that the log above it stays for whoever gets it
    /// (openraft#1706), up to so many bytes.
    pub(crate) fn hold_log_for_transfers(&mut self, size: LogSize, bytes_max: u64) {
        self.held = Some(HeldLog { size, bytes_max });
    }

    /// The latest feature level that this node knows.
    pub(crate) fn level_max(&self) -> FeatureLevel {
        self.level_max
    }

    fn holds_log(&self) -> bool {
        let current = self.snapshots.current().file();
        let sent = current.filter(SnapshotFile::is_being_sent);
        sent.zip(self.held.as_ref())
            .is_some_and(|(sent, held)| held.size.above(sent.name().last()).bytes < held.bytes_max)
    }

    /// Reads its table.
    pub(super) fn reader(&self) -> TableReader {
        self.shared.clone()
    }

    fn apply_entry(&self, entry: Entry) -> io::Result<Applied> {
        let index = entry.index();
        let entry = Readable::try_from(entry)?;
        self.shared.change(|state| {
            let before = entry.may_raise_level().then(|| state.clone());
            let applied = state.apply(entry)?;
            let level = state.table.header().level;
            if let Err(later) = self.snapshots.failed.check(self.level_max, level) {
                // What comes after this entry may be unknown here. So nobody sees this one either.
                if let Some(before) = before {
                    *state = before;
                }
                return Err(later);
            }
            if index.is_multiple_of(CHECKPOINT_ENTRIES) {
                self.shared.remember(index, state.table.state_hash());
            }
            Ok(applied)
        })
    }
}

/// The nodes of a membership, as the table knows them.
pub(super) fn cards(membership: &Membership) -> BTreeMap<u64, NodeCard> {
    let nodes = membership.nodes();
    nodes
        .map(|(id, member)| (id.get(), member.into()))
        .collect()
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let SnapshotMeta {
            last_log_id,
            last_membership,
        } = self.shared.read(|state| state.meta.clone());
        Ok((last_log_id, last_membership))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            let applied = self.apply_entry(entry)?;
            // Whoever is answered may read at once, here too, and finds what was answered (I6).
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        if !force && self.holds_log() {
            return None;
        }
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let state = self.shared.read(State::clone);
        #[cfg(test)]
        let state = {
            let mut state = state;
            if Bug::SessionsNotInSnapshot.is_planted() {
                state.table.forget_sessions();
            }
            state
        };
        self.snapshots.builder(state)
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotFile,
    ) -> io::Result<()> {
        if snapshot.meta() != meta {
            return Err(io::Error::other(format!(
                "the snapshot is of {}, not of {meta}",
                snapshot.meta()
            )));
        }
        let last = self.shared.read(|state| state.meta.last_log_id);
        if meta.last_log_id < last {
            // Going back would grant again what was granted since.
            return Err(io::Error::other(format!(
                "I1: the state would fall from {} to {meta}",
                or_nothing(last)
            )));
        }
        let source = snapshot.clone();
        let state = host::blocking(move || source.read())
            .await?
            .map_err(io::Error::other)?;
        self.snapshots.name(snapshot).await?;
        let before = self.shared.change(|now| std::mem::replace(now, state));
        // Freed outside the lock: a large table takes its time.
        drop(before);
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotFile>>> {
        Ok(self.snapshots.current().file().map(described))
    }
}
