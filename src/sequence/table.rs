//! The table of sequences, and the one function that changes it.
//!
//! Step 5 of the walk: entries arrive in log order, and every replica computes the same outcomes and the same
//! next table from them (I8). Grants of one sequence are handed out upwards and never twice (I1, I2).

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::{Applied, Batch, Command, Outcome, Range, RangeCount, Refusal, SequenceName, Settings};

/// The longest step of state time that one entry may make, in milliseconds.
const STATE_TIME_STEP_MAX_MS: u32 = 60_000;

/// One sequence: its settings and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sequence {
    /// What it was created with.
    pub(crate) settings: Settings,
    /// The highest value covered by a grant or an advance, `None` before the first. Never falls.
    pub(crate) high: Option<u64>,
    /// The log index of its last grant.
    pub(crate) last_grant_index: Option<u64>,
    /// A retired name keeps its mark for ever.
    pub(crate) retired: bool,
}

/// Where an entry stands: its log index and the time since its leader's previous proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// The entry's log index.
    pub(crate) index: u64,
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
}

impl Table {
    /// Applies one entry's batches in order. Each command succeeds or is refused by itself.
    pub(crate) fn apply(&mut self, position: Position, batches: &[Batch]) -> Applied {
        let step = u64::from(position.elapsed_ms.min(STATE_TIME_STEP_MAX_MS));
        self.header.state_time_ms = self.header.state_time_ms.saturating_add(step);
        let outcomes = |batch: &Batch| {
            batch
                .commands
                .iter()
                .map(|command| self.apply_command(position.index, command))
                .collect()
        };
        Applied {
            batches: batches.iter().map(outcomes).collect(),
        }
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
            sequences: OrdMap::new(),
        }
    }

    /// Puts back one sequence of a snapshot.
    pub(crate) fn restore(&mut self, name: SequenceName, sequence: Sequence) {
        self.sequences.insert(name, sequence);
    }

    fn apply_command(&mut self, index: u64, command: &Command) -> Outcome {
        match command {
            Command::Grant { sequence, count } => match self.sequences.get_mut(sequence) {
                Some(found) => found.grant(index, *count),
                None => Outcome::Refused(Refusal::UnknownSequence),
            },
            Command::Create { sequence, settings } => self.create(sequence, settings),
            Command::Advance { sequence, to } => match self.sequences.get_mut(sequence) {
                Some(found) => found.advance(*to),
                None => Outcome::Refused(Refusal::UnknownSequence),
            },
        }
    }

    fn create(&mut self, name: &SequenceName, settings: &Settings) -> Outcome {
        if let Some(found) = self.sequences.get(name) {
            if found.settings != *settings {
                return Outcome::Refused(Refusal::SequenceExists);
            }
            return Outcome::Created {
                fresh: false,
                sequence: found.clone(),
            };
        }
        let sequence = Sequence {
            settings: *settings,
            high: None,
            last_grant_index: None,
            retired: false,
        };
        self.sequences.insert(name.clone(), sequence.clone());
        Outcome::Created {
            fresh: true,
            sequence,
        }
    }
}

impl Sequence {
    fn grant(&mut self, index: u64, count: RangeCount) -> Outcome {
        let limit = self.settings.max_lease();
        if limit < count {
            return Outcome::Refused(Refusal::LeaseTooLarge {
                asked: count,
                limit,
            });
        }
        let range = self
            .settings
            .next_above(self.high)
            .and_then(|first| Range::starting_at(first, count, self.settings.increment()))
            .filter(|range| range.last() <= self.settings.max_value());
        let Some(range) = range else {
            // What did not fit is fewer than were asked for, so it fits 32 bits.
            let left = self
                .settings
                .remaining_above(self.high)
                .min(u128::from(u32::MAX));
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            return Outcome::Refused(Refusal::Exhausted { asked: count, left });
        };
        assert!(
            self.high < Some(range.first()),
            "I1: {range} is not above the mark {:?}",
            self.high
        );
        self.raise(range.last());
        self.last_grant_index = Some(index);
        Outcome::Granted {
            range,
            id_form: self.settings.id_form(),
        }
    }

    fn advance(&mut self, to: u64) -> Outcome {
        let max_value = self.settings.max_value();
        if max_value < to {
            return Outcome::Refused(Refusal::AboveMaximum { to, max_value });
        }
        let previous = self.high;
        // Below `start` there is no value that a mark could cover.
        if self.settings.start() <= to && self.high < Some(to) {
            self.raise(to);
        }
        Outcome::Advanced {
            previous,
            high: self.high,
            id_form: self.settings.id_form(),
        }
    }

    fn raise(&mut self, to: u64) {
        assert!(
            self.high < Some(to),
            "I1: the mark would fall from {:?} to {to}",
            self.high
        );
        self.high = Some(to);
    }
}

#[cfg(test)]
mod tests;
