//! The table of sequences, and the one function that changes it.
//!
//! Step 5 of the walk: entries arrive in log order, and every replica computes the same outcomes and the same
//! next table from them (I8). Grants of one sequence are handed out upwards and never twice (I1, I2).

mod keys;
mod sequence;
mod sessions;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::state_hash::{Part, PartsSum, StateHash};
use super::{
    Answered, Applied, Batch, BatchOutcome, Changes, Command, EntryId, GrantParts, KeyedAnswer,
    Origin, Outcome, RangeCount, Refusal, RequestKey, SequenceName, SessionId, Settings,
};

pub(crate) use keys::{Kept, Keys};
pub(crate) use sequence::Sequence;
pub(crate) use sessions::{Answer, Session, Sessions};

use sequence::Advance;
use sessions::Turn;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableHeader {
    /// Generation of the cluster's history; a restore raises it.
    pub(crate) epoch: u64,
    /// The sum of all entries' elapsed time. It only orders expiry; it is nobody's clock.
    pub(crate) state_time_ms: u64,
}

impl Default for TableHeader {
    fn default() -> Self {
        Self {
            epoch: 1,
            state_time_ms: 0,
        }
    }
}

/// The replicated state. A clone shares structure with the original and costs next to nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    header: TableHeader,
    sequences: OrdMap<SequenceName, Sequence>,
    sessions: Sessions,
    keys: Keys,
    /// Follows these, entry by entry.
    sum: PartsSum,
}

impl Table {
    /// Applies one entry's batches in order, each once. Each command succeeds or is refused by itself.
    pub(crate) fn apply(&mut self, position: Position, batches: &[Batch]) -> Applied {
        let step = u64::from(position.elapsed_ms.min(STATE_TIME_STEP_MAX_MS));
        self.header.state_time_ms = self.header.state_time_ms.saturating_add(step);
        self.keys.expire(self.header.state_time_ms, &mut self.sum);
        let mut applying = Applying::new(self, position.entry);
        let outcomes = |batch: &Batch| applying.batch(batch);
        let batches = batches.iter().map(outcomes).collect();
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
        self.sum.with_header(self.header)
    }

    /// The state beside the sequences.
    pub(crate) fn header(&self) -> TableHeader {
        self.header
    }

    /// The sequence of this name.
    pub(crate) fn get(&self, name: &SequenceName) -> Option<&Sequence> {
        self.sequences.get(name)
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

    /// Puts back one sequence of a snapshot.
    pub(crate) fn restore(&mut self, name: SequenceName, sequence: Sequence) {
        self.sum.add(Part::Sequence(&name, &sequence));
        if let Some(before) = self.sequences.insert(name.clone(), sequence) {
            self.sum.remove(Part::Sequence(&name, &before));
        }
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

    /// Only these nodes are members: the sessions of others end.
    pub(crate) fn retain_nodes(&mut self, stays: impl Fn(u64) -> bool) {
        self.sessions.retain_nodes(stays, &mut self.sum);
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

/// One entry while it is applied.
struct Applying<'table> {
    table: &'table mut Table,
    entry: EntryId,
    /// What the entry touched, as it was before.
    before: BTreeMap<SequenceName, Option<Sequence>>,
}

impl<'table> Applying<'table> {
    fn new(table: &'table mut Table, entry: EntryId) -> Self {
        Self {
            table,
            entry,
            before: BTreeMap::new(),
        }
    }

    /// Brings the state hash up to what the entry has left.
    fn settle(self) {
        for (name, before) in self.before {
            let now = self.table.sequences.get(&name);
            if before.as_ref() == now {
                continue;
            }
            if let Some(before) = before {
                self.table.sum.remove(Part::Sequence(&name, &before));
            }
            if let Some(now) = now {
                self.table.sum.add(Part::Sequence(&name, now));
            }
        }
    }

    fn batch(&mut self, batch: &Batch) -> BatchOutcome {
        if batch.session == SessionId::NONE {
            return BatchOutcome::Applied(self.commands(batch));
        }
        let Table { sessions, sum, .. } = &mut *self.table;
        match sessions.take(batch, sum) {
            Turn::Stale => BatchOutcome::Stale,
            Turn::Again(answered) => BatchOutcome::Applied(answered),
            Turn::Apply => {
                let answered = self.commands(batch);
                let Table { sessions, sum, .. } = &mut *self.table;
                sessions.keep(batch, answered.clone(), sum);
                BatchOutcome::Applied(answered)
            }
        }
    }

    fn commands(&mut self, batch: &Batch) -> Answered {
        let commands = batch.commands.iter();
        Answered {
            entry: self.entry,
            outcomes: commands.map(|command| self.command(command)).collect(),
        }
    }

    fn command(&mut self, command: &Command) -> Outcome {
        let done = match command {
            Command::Grant { sequence, count } => self.grant(sequence, *count),
            Command::Create { sequence, settings } => self.create(sequence, settings),
            Command::Advance { sequence, to } => self.advance(sequence, *to),
            Command::Alter { sequence, changes } => self.alter(sequence, changes),
            Command::Retire { sequence } => self.retire(sequence),
            Command::GrantAll { parts, create } => return self.grant_all(parts, create.as_ref()),
            Command::GrantAllKeyed { key, parts, create } => {
                let grants = parts.iter().count();
                return self.once(*key, grants, |applying| {
                    applying.grant_all(parts, create.as_ref())
                });
            }
            Command::AdvanceKeyed { key, sequence, to } => {
                return self.once(*key, 1, |applying| {
                    let advanced = applying.advance(sequence, *to);
                    advanced.unwrap_or_else(Outcome::Refused)
                });
            }
            Command::OpenSession { origin } => Ok(self.open_session(*origin)),
        };
        done.unwrap_or_else(Outcome::Refused)
    }

    fn grant(&mut self, name: &SequenceName, count: RangeCount) -> Result<Outcome, Refusal> {
        let index = self.entry.index;
        self.living(name)?.grant(index, count).map(Outcome::Granted)
    }

    fn create(&mut self, name: &SequenceName, settings: &Settings) -> Result<Outcome, Refusal> {
        let Ok(found) = self.find(name) else {
            self.table.check_room(0)?;
            let sequence = Sequence::new(*settings);
            self.put(name, sequence.clone());
            return Ok(Outcome::Created {
                fresh: true,
                sequence,
            });
        };
        let fresh = found.retired;
        if fresh {
            found.revive(*settings)?;
        } else if found.settings != *settings {
            return Err(Refusal::SequenceExists);
        }
        Ok(Outcome::Created {
            fresh,
            sequence: found.clone(),
        })
    }

    fn advance(&mut self, name: &SequenceName, to: u64) -> Result<Outcome, Refusal> {
        let found = self.living(name)?;
        let id_form = found.settings.id_form();
        found
            .advance(to)
            .map(|Advance { previous, high }| Outcome::Advanced {
                previous,
                high,
                id_form,
            })
    }

    fn alter(&mut self, name: &SequenceName, changes: &Changes) -> Result<Outcome, Refusal> {
        let found = self.living(name)?;
        found.alter(changes)?;
        let sequence = found.clone();
        Ok(Outcome::Altered { sequence })
    }

    fn retire(&mut self, name: &SequenceName) -> Result<Outcome, Refusal> {
        let found = self.find(name)?;
        found.retire();
        let sequence = found.clone();
        Ok(Outcome::Retired { sequence })
    }

    fn grant_all(&mut self, parts: &GrantParts, create: Option<&Settings>) -> Outcome {
        let mut trial = Trial::default();
        let mut grants = Vec::new();
        for (position, part) in (0..).zip(parts.iter()) {
            let found = trial.copy(self.table, &part.sequence, create);
            let granted =
                found.and_then(|found| found.living()?.grant(self.entry.index, part.count));
            match granted {
                Ok(grant) => grants.push(grant),
                Err(refusal) => return Outcome::RefusedAt { position, refusal },
            }
        }
        for (name, sequence) in trial.copies {
            self.put(name, sequence);
        }
        Outcome::GrantedAll { grants }
    }

    /// Does what was not done under this key before. What is refused may be tried under it again.
    fn once(
        &mut self,
        key: RequestKey,
        grants: usize,
        work: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome {
        let now_ms = self.table.header.state_time_ms;
        match self.table.keys.find(key) {
            Ok(None) => {}
            Ok(Some(kept)) => {
                return Outcome::Replayed {
                    entry: kept.entry,
                    answer: kept.answer.clone(),
                };
            }
            Err(refusal) => return Outcome::Refused(refusal),
        }
        if let Err(refusal) = self.table.keys.check_room(grants, now_ms) {
            return Outcome::Refused(refusal);
        }
        let outcome = work(self);
        let answer = match &outcome {
            Outcome::GrantedAll { grants } => KeyedAnswer::Granted(grants.clone()),
            Outcome::Advanced {
                previous,
                high,
                id_form,
            } => KeyedAnswer::Advanced {
                previous: *previous,
                high: *high,
                id_form: *id_form,
            },
            _ => return outcome,
        };
        let Table { keys, sum, .. } = &mut *self.table;
        keys.keep(key, (self.entry, now_ms), answer, sum);
        outcome
    }

    fn open_session(&mut self, origin: Origin) -> Outcome {
        let Table { sessions, sum, .. } = &mut *self.table;
        let id = SessionId::opened_at(self.entry.index);
        Outcome::Opened {
            session: sessions.open(origin, id, sum),
        }
    }

    /// The sequence, to be changed.
    fn find(&mut self, name: &SequenceName) -> Result<&mut Sequence, Refusal> {
        let found = self.table.sequences.get_mut(name);
        let found = found.ok_or(Refusal::UnknownSequence)?;
        if !self.before.contains_key(name) {
            self.before.insert(name.clone(), Some(found.clone()));
        }
        Ok(found)
    }

    fn put(&mut self, name: &SequenceName, sequence: Sequence) {
        let before = self.table.sequences.insert(name.clone(), sequence);
        self.before.entry(name.clone()).or_insert(before);
    }

    /// The sequence, to be changed, where it is not retired.
    fn living(&mut self, name: &SequenceName) -> Result<&mut Sequence, Refusal> {
        self.find(name)?.living()
    }
}

/// Copies that several leases are taken from. They become the table only if none of the leases is refused.
#[derive(Default)]
struct Trial<'part> {
    copies: BTreeMap<&'part SequenceName, Sequence>,
    /// How many of them the table does not have yet.
    fresh: usize,
}

impl<'part> Trial<'part> {
    fn copy(
        &mut self,
        table: &Table,
        name: &'part SequenceName,
        create: Option<&Settings>,
    ) -> Result<&mut Sequence, Refusal> {
        let place = match self.copies.entry(name) {
            Entry::Occupied(copied) => return Ok(copied.into_mut()),
            Entry::Vacant(place) => place,
        };
        let copy = match (table.get(name), create) {
            (Some(found), _) => found.clone(),
            (None, Some(settings)) => {
                table.check_room(self.fresh)?;
                self.fresh += 1;
                Sequence::new(*settings)
            }
            (None, None) => return Err(Refusal::UnknownSequence),
        };
        Ok(place.insert(copy))
    }
}

#[cfg(test)]
mod tests;
