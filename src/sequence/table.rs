//! The table of sequences, and the one function that changes it.
//!
//! Step 5 of the walk: entries arrive in log order, and every replica computes the same outcomes and the same
//! next table from them (I8). Grants of one sequence are handed out upwards and never twice (I1, I2).

mod applying;
mod keys;
mod nodes;
mod sequence;
mod sessions;

use std::collections::BTreeMap;
use std::ops::Bound;

use imbl::OrdMap;

use super::state_hash::{Part, PartsSum, StateHash};
use super::{
    Applied, Batch, Command, EntryId, FeatureLevel, Outcome, Refusal, SequenceName, SessionId,
    Window,
};
#[cfg(test)]
use crate::planted::Bug;

pub(crate) use keys::{Kept, Keys};
pub(crate) use nodes::{KnownNode, NodeCard};
pub(crate) use sequence::Sequence;
pub(crate) use sessions::{Answer, Session, Sessions};

use applying::Applying;
use nodes::Nodes;

/// The most sequences, retired ones among them: each takes some hundred bytes at every node, and nobody's memory may
/// grow with other people's typing errors (I9).
pub(crate) const SEQUENCES_MAX: usize = 1_000_000;

/// The longest step of state time that one entry may make, in milliseconds.
const STATE_TIME_STEP_MAX_MS: u32 = 60_000;

/// Where an entry stands: in the log, and in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// Which entry it is.
    pub(crate) entry: EntryId,
    /// By the proposing leader's monotonic clock; 0 for its first proposal.
    pub(crate) elapsed_ms: u32,
}

/// What the table holds beside its sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableHeader {
    /// Generation of the cluster's history; a restore raises it.
    pub(crate) epoch: u64,
    /// The sum of all entries' elapsed time. It only orders expiry; it is nobody's clock.
    pub(crate) state_time_ms: u64,
    /// Which commands the log may hold. It never falls.
    pub(crate) level: FeatureLevel,
}

impl Default for TableHeader {
    fn default() -> Self {
        Self {
            epoch: 1,
            state_time_ms: 0,
            level: FeatureLevel::FIRST,
        }
    }
}

/// The replicated state. A clone shares structure with the original and costs next to nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    header: TableHeader,
    sequences: OrdMap<SequenceName, Sequence>,
    /// How many of them have a cache.
    cached: usize,
    /// Of the sequences whose latest command is a reservation.
    windows: OrdMap<SequenceName, Window>,
    sessions: Sessions,
    keys: Keys,
    nodes: Nodes,
    /// Follows these, entry by entry.
    sum: PartsSum,
}

impl Table {
    /// Applies one entry's batches in order, each once. Each command succeeds or is refused by itself.
    pub(crate) fn apply(&mut self, position: Position, batches: &[Batch]) -> Applied {
        let step = u64::from(position.elapsed_ms.min(STATE_TIME_STEP_MAX_MS));
        self.header.state_time_ms = self.header.state_time_ms.saturating_add(step);
        #[cfg(test)]
        if Bug::StateTimeFromClock.is_planted() {
            let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
            self.header.state_time_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        }
        self.keys.expire(self.header.state_time_ms, &mut self.sum);
        let mut applying = Applying::new(self, position.entry);
        #[cfg(test)]
        if Bug::HashOrder.is_planted() {
            return applying.batches_in_hash_order(batches);
        }
        let outcomes = batches.iter().map(|batch| applying.batch(batch));
        let batches = outcomes.collect();
        applying.settle();
        Applied { batches }
    }

    /// What the command would be answered, were it applied now. Changes nothing.
    pub(crate) fn dry_run(&self, command: &Command) -> Outcome {
        let mut copy = self.clone();
        let nowhere = EntryId { term: 0, index: 0 };
        Applying::new(&mut copy, nowhere).command(command)
    }

    /// The hash of all of it: the same on every node that applied the same entries (I8).
    pub(crate) fn state_hash(&self) -> StateHash {
        self.sum.with_rest(self.header, self.nodes.next())
    }

    /// The state beside the sequences.
    pub(crate) fn header(&self) -> TableHeader {
        self.header
    }

    /// The sequence of this name.
    pub(crate) fn get(&self, name: &SequenceName) -> Option<&Sequence> {
        self.sequences.get(name)
    }

    /// Whether the sequence is there, not retired, and has a cache.
    pub(crate) fn is_cached(&self, name: &SequenceName) -> bool {
        // Every lease asks, mostly where nothing is cached: then it is not looked for among a million others.
        0 < self.cached && self.get(name).is_some_and(Sequence::is_cached)
    }

    /// All sequences in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SequenceName, &Sequence)> {
        self.sequences.iter()
    }

    /// How many sequences there are.
    pub(crate) fn len(&self) -> usize {
        self.sequences.len()
    }

    /// An empty table to be filled from a snapshot.
    pub(crate) fn with_header(header: TableHeader) -> Self {
        Self {
            header,
            ..Self::default()
        }
    }

    /// The same sequences at the beginning of an epoch: sessions, request keys and whatever else belongs to one cluster's
    /// life are no part of it. The feature level is, because of what the sequences may hold.
    pub(crate) fn restored(&self, epoch: u64) -> Self {
        let header = TableHeader {
            epoch,
            level: self.header.level,
            ..TableHeader::default()
        };
        let mut restored = Self {
            sequences: self.sequences.clone(),
            ..Self::with_header(header)
        };
        for (name, sequence) in self.iter() {
            restored.replaced(name, None, Some(sequence));
        }
        restored
    }

    /// All windows in the order of their sequences' names.
    pub(crate) fn windows(&self) -> impl ExactSizeIterator<Item = (&SequenceName, &Window)> {
        self.windows.iter()
    }

    /// The sequence has this window now, or none.
    pub(crate) fn set_window(&mut self, name: &SequenceName, window: Option<Window>) {
        let before = match window {
            Some(window) => {
                self.sum.add(Part::Window(name, &window));
                self.windows.insert(name.clone(), window)
            }
            None => self.windows.remove(name),
        };
        if let Some(before) = before {
            self.sum.remove(Part::Window(name, &before));
        }
    }

    /// Puts back one sequence of a snapshot.
    pub(crate) fn restore(&mut self, name: SequenceName, sequence: Sequence) {
        self.replaced(&name, None, Some(&sequence));
        let before = self.sequences.insert(name.clone(), sequence);
        self.replaced(&name, before.as_ref(), None);
    }

    /// What is counted over all sequences follows one of them.
    fn replaced(&mut self, name: &SequenceName, before: Option<&Sequence>, now: Option<&Sequence>) {
        if let Some(before) = before {
            self.sum.remove(Part::Sequence(name, before));
            self.cached -= usize::from(before.is_cached());
        }
        if let Some(now) = now {
            self.sum.add(Part::Sequence(name, now));
            self.cached += usize::from(now.is_cached());
        }
    }

    /// Ends all sessions.
    #[cfg(test)]
    pub(crate) fn forget_sessions(&mut self) {
        self.sessions.retain_nodes(|_| false, &mut self.sum);
    }

    /// All sessions.
    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Puts back one session of a snapshot.
    pub(crate) fn restore_session(&mut self, id: SessionId, session: Session) {
        self.sessions.restore(id, session, &mut self.sum);
    }

    /// All request keys.
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Puts back one key of a snapshot.
    pub(crate) fn restore_key(&mut self, kept: Kept) {
        self.keys.restore(kept, &mut self.sum);
    }

    /// All nodes that have an id.
    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Puts back the nodes of a snapshot, and the next id.
    pub(crate) fn restore_nodes(
        &mut self,
        next: u64,
        nodes: impl IntoIterator<Item = (u64, KnownNode)>,
    ) {
        self.nodes.restore(next, nodes, &mut self.sum);
    }

    /// A membership is committed: only these nodes are members, and the sessions of others end.
    pub(crate) fn set_members(&mut self, members: BTreeMap<u64, NodeCard>) {
        let stays = |node| members.contains_key(&node);
        self.sessions.retain_nodes(stays, &mut self.sum);
        self.nodes.set_members(&members, &mut self.sum);
    }

    /// The sequences whose names begin with `prefix` and come after `after`, in the order of their names.
    pub(crate) fn page(
        &self,
        prefix: Option<&SequenceName>,
        after: Option<&SequenceName>,
    ) -> impl Iterator<Item = (&SequenceName, &Sequence)> {
        let begins = prefix.map_or("", SequenceName::as_str);
        let from = match (prefix, after) {
            (Some(prefix), Some(after)) if after < prefix => Bound::Included(prefix),
            (_, Some(after)) => Bound::Excluded(after),
            (Some(prefix), None) => Bound::Included(prefix),
            (None, None) => Bound::Unbounded,
        };
        self.sequences
            .range::<_, SequenceName>((from, Bound::Unbounded))
            .take_while(move |(name, _)| name.as_str().starts_with(begins))
    }

    /// Whether one more sequence fits beside `fresh` others that are about to come.
    fn check_room(&self, fresh: usize) -> Result<(), Refusal> {
        if self.len() + fresh < SEQUENCES_MAX {
            Ok(())
        } else {
            Err(Refusal::TooManySequences {
                limit: SEQUENCES_MAX as u64,
            })
        }
    }
}

#[cfg(test)]
mod tests;
