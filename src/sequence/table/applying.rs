//! One entry's way into the table: its batches in order, each command by itself.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
#[cfg(test)]
use std::hash::{BuildHasher, RandomState};

use super::Table;
use super::sequence::{Advance, Sequence};
use super::sessions::Turn;
#[cfg(test)]
use crate::sequence::Applied;
use crate::sequence::{
    Answered, Batch, BatchOutcome, Changes, Command, EntryId, FeatureLevel, GrantPart, ImportPart,
    Imported, KeyedAnswer, NodeCard, Origin, Outcome, RangeCount, Refusal, RequestKey,
    SequenceName, SessionId, Settings, Taken, Window, WindowParts,
};

/// One entry while it is applied.
pub(super) struct Applying<'table> {
    table: &'table mut Table,
    entry: EntryId,
    /// What the entry touched, as it was before.
    before: BTreeMap<SequenceName, Option<Sequence>>,
}

impl<'table> Applying<'table> {
    pub(super) fn new(table: &'table mut Table, entry: EntryId) -> Self {
        Self {
            table,
            entry,
            before: BTreeMap::new(),
        }
    }

    /// Brings what is counted over all sequences, the state hash above all, up to what the entry has left.
    pub(super) fn settle(self) {
        for (name, before) in self.before {
            let now = self.table.sequences.get(&name).cloned();
            if before != now {
                self.table.replaced(&name, before.as_ref(), now.as_ref());
            }
        }
    }

    /// Applies the batches in no order that another node would have.
    #[cfg(test)]
    pub(super) fn batches_in_hash_order(mut self, batches: &[Batch]) -> Applied {
        let chance = RandomState::new();
        let mut places: Vec<usize> = (0..batches.len()).collect();
        places.sort_by_key(|place| chance.hash_one(place));
        let outcomes: BTreeMap<_, _> = places
            .into_iter()
            .map(|place| (place, self.batch(&batches[place])))
            .collect();
        self.settle();
        Applied {
            batches: outcomes.into_values().collect(),
        }
    }

    /// Applies a batch, once.
    pub(super) fn batch(&mut self, batch: &Batch) -> BatchOutcome {
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

    /// Applies a command. Of what it changes, the windows end.
    pub(super) fn command(&mut self, command: &Command) -> Outcome {
        let outcome = self.carry_out(command);
        // Of an import some parts may be refused.
        let is_whole = !matches!(command, Command::Import { .. });
        if is_whole && !self.table.windows.is_empty() && !outcome.is_unchanged() {
            command.each_closed(|name| self.table.set_window(name, None));
        }
        outcome
    }

    fn carry_out(&mut self, command: &Command) -> Outcome {
        let done = match command {
            Command::Grant { sequence, count } => self.grant(sequence, *count),
            Command::Create { sequence, settings } => self.create(sequence, settings),
            Command::Advance { sequence, to } => self.advance(sequence, *to),
            Command::Alter { sequence, changes } => self.alter(sequence, changes),
            Command::Retire { sequence } => self.retire(sequence),
            Command::GrantAll { parts, create } => {
                return self.grant_all(parts.iter().map(bare), create.as_ref());
            }
            Command::GrantAllKeyed { key, parts, create } => {
                let grants = parts.iter().count();
                return self.once(*key, grants, |applying| {
                    applying.grant_all(parts.iter().map(bare), create.as_ref())
                });
            }
            Command::GrantTaken { key, parts, create } => {
                return self.grant_taken(*key, parts, create.as_ref());
            }
            Command::Reserve { sequence, count } => self.reserve(sequence, *count),
            Command::AdvanceKeyed { key, sequence, to } => {
                return self.once(*key, 1, |applying| {
                    let advanced = applying.advance(sequence, *to);
                    advanced.unwrap_or_else(Outcome::Refused)
                });
            }
            Command::OpenSession { origin } => Ok(self.open_session(*origin)),
            Command::Admit { node } => self.admit(node),
            Command::Import { parts } => {
                let parts = parts.iter().map(|part| self.import(part));
                return Outcome::Imported {
                    parts: parts
                        .map(|done| done.unwrap_or_else(Imported::Refused))
                        .collect(),
                };
            }
            Command::RaiseLevel { to } => Ok(self.raise_level(*to)),
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

    fn reserve(&mut self, name: &SequenceName, count: RangeCount) -> Result<Outcome, Refusal> {
        let index = self.entry.index;
        let reserved = self.living(name)?.reserve(index, count)?;
        let first = reserved.range.first();
        self.table.set_window(name, Some(Window { index, first }));
        Ok(Outcome::Reserved(reserved))
    }

    fn grant_taken(
        &mut self,
        key: Option<RequestKey>,
        parts: &WindowParts,
        create: Option<&Settings>,
    ) -> Outcome {
        let with_taken = || parts.iter().map(|part| (&part.part, part.taken.as_ref()));
        match key {
            Some(key) => self.once(key, parts.iter().len(), |applying| {
                applying.grant_all(with_taken(), create)
            }),
            None => self.grant_all(with_taken(), create),
        }
    }

    fn grant_all<'part>(
        &mut self,
        parts: impl Iterator<Item = (&'part GrantPart, Option<&'part Taken>)>,
        create: Option<&Settings>,
    ) -> Outcome {
        let index = self.entry.index;
        let mut trial = Trial::default();
        let mut grants = Vec::new();
        for (position, (GrantPart { sequence, count }, taken)) in (0..).zip(parts) {
            let found = trial.copy(self.table, sequence, create);
            let granted = found.and_then(|found| match taken {
                None => found.living()?.grant(index, *count),
                Some(taken) => {
                    let window = self.table.windows.get(sequence);
                    found.living()?.give(index, *count, (taken, window))
                }
            });
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

    fn admit(&mut self, node: &NodeCard) -> Result<Outcome, Refusal> {
        let Table { nodes, sum, .. } = &mut *self.table;
        nodes.admit(node, sum).map(|id| Outcome::Admitted { id })
    }

    fn raise_level(&mut self, to: FeatureLevel) -> Outcome {
        let header = &mut self.table.header;
        header.level = header.level.max(to);
        Outcome::LevelRaised {
            level: header.level,
        }
    }

    fn import(&mut self, part: &ImportPart) -> Result<Imported, Refusal> {
        let Ok(found) = self.find(&part.sequence) else {
            self.table.check_room(0)?;
            let mut sequence = Sequence::new(part.settings);
            let Advance { previous, high } = sequence.advance(part.at_least)?;
            self.put(&part.sequence, sequence);
            return Ok(Imported::Done {
                fresh: true,
                previous,
                high,
                id_form: part.settings.id_form(),
            });
        };
        let found = found.living()?;
        if !part.means(&found.settings) {
            return Err(Refusal::SequenceExists);
        }
        let Advance { previous, high } = found.advance(part.at_least)?;
        let id_form = found.settings.id_form();
        self.table.set_window(&part.sequence, None);
        Ok(Imported::Done {
            fresh: false,
            previous,
            high,
            id_form,
        })
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

/// A lease of what comes next.
fn bare(part: &GrantPart) -> (&GrantPart, Option<&Taken>) {
    (part, None)
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
