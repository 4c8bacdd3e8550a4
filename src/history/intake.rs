//! From lines to operations, in all orders that the rules need. What is wrong with a line by itself is found here.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::mem;

use super::findings::Findings;
use super::keys::{Key, Told};
use super::lattice::{Lattice, range_increment};
use super::line::{AdvanceOutcome, LeaseOutcome, Line, Mark, Operation};
use super::op::{Op, OpKind};
use super::sorter::{Sorted, Sorter};
use crate::sequence::SequenceName;

/// How many sorters share the memory.
const SORTERS: usize = 4;

/// Takes lines in any order.
#[derive(Debug)]
pub(super) struct Intake {
    numbers: BTreeMap<SequenceName, u32>,
    sequences: Vec<Sequence>,
    by_value: Sorter,
    by_sent: Sorter,
    by_received: Sorter,
    by_key: Sorter,
    /// Two secret hashes of 64 bits: nobody makes two keys that are taken for one.
    hashes: [RandomState; 2],
}

/// What is known of one sequence when all lines were taken.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) name: SequenceName,
    pub(super) lattice: Lattice,
    pub(super) lines: Lines,
    /// Whether a read showed a cache.
    pub(super) cached: bool,
    /// Grants and advances that are not what was asked for.
    pub(super) malformed: Findings,
    pub(super) key_conflicts: Findings,
}

/// How many lines say what.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lines {
    pub(super) grants: u64,
    pub(super) replays: u64,
    pub(super) not_applied: u64,
    pub(super) unknown: u64,
    pub(super) reads: u64,
    pub(super) advances: u64,
}

/// All operations, in the orders that the rules need.
#[derive(Debug)]
pub(super) struct Sorts {
    /// What took values or showed marks.
    pub(super) by_value: Sorted,
    /// All.
    pub(super) by_sent: Sorted,
    /// What was answered.
    pub(super) by_received: Sorted,
}

impl Intake {
    /// With so much memory for operations; what does not fit goes to temporary files.
    pub(super) fn new(memory_bytes: usize) -> Self {
        let sorter = |rank| Sorter::new(rank, memory_bytes / SORTERS);
        Self {
            numbers: BTreeMap::new(),
            sequences: Vec::new(),
            by_value: sorter(Op::by_value),
            by_sent: sorter(Op::by_sent),
            by_received: sorter(Op::by_received),
            by_key: sorter(Op::by_key),
            hashes: [RandomState::new(), RandomState::new()],
        }
    }

    /// Takes the line that has this number over all sources.
    pub(super) fn add(&mut self, entry: u64, line: &Line) -> io::Result<()> {
        let number = self.number(&line.sequence);
        let Some(sequence) = usize::try_from(number)
            .ok()
            .and_then(|index| self.sequences.get_mut(index))
        else {
            return Ok(());
        };
        let about = Op {
            sequence: number,
            sent_ns: line.sent_ns,
            received_ns: line.received_ns,
            entry,
            ..Op::default()
        };
        let Some(mut op) = sequence.understand(about, &line.operation) else {
            return Ok(());
        };
        if let Operation::Lease { key: Some(key), .. } = &line.operation {
            let [high, low] = &self.hashes;
            let hash =
                (u128::from(high.hash_one(key)) << 64) | u128::from(low.hash_one(key.as_str()));
            // 0 stands for no key.
            op.key = hash.max(1);
            return self.by_key.add(op);
        }
        self.sort(op)
    }

    fn number(&mut self, name: &SequenceName) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = u32::try_from(self.sequences.len()).unwrap_or(u32::MAX);
        self.numbers.insert(name.clone(), number);
        self.sequences.push(Sequence {
            name: name.clone(),
            lattice: Lattice::default(),
            lines: Lines::default(),
            cached: false,
            malformed: Findings::default(),
            key_conflicts: Findings::default(),
        });
        number
    }

    fn sort(&mut self, op: Op) -> io::Result<()> {
        self.by_sent.add(op)?;
        if !matches!(op.kind, OpKind::OpenLease | OpKind::OpenAdvance) {
            self.by_received.add(op)?;
            self.by_value.add(op)?;
        }
        Ok(())
    }

    /// All that was taken, each request once.
    pub(super) fn sorted(mut self) -> io::Result<(Vec<Sequence>, Sorts)> {
        let by_key = mem::replace(&mut self.by_key, Sorter::new(Op::by_key, 0));
        let mut by_key = by_key.sorted()?;
        let mut sequences = mem::take(&mut self.sequences);
        for (number, sequence) in (0..).zip(&mut sequences) {
            while let Some(first) = by_key.next_of(number)? {
                let mut key = Key::default();
                let mut next = Some(first);
                while let Some(op) = next {
                    if sequence.has(&op) && key.add(op) == Told::Again {
                        sequence.lines.grants -= 1;
                        sequence.lines.replays += 1;
                    }
                    let is_same = |op: &&Op| op.key == first.key && op.sequence == number;
                    next = match by_key.peek().filter(is_same) {
                        Some(_) => by_key.next()?,
                        None => None,
                    };
                }
                let name = sequence.name.as_str();
                for op in key.settle(name, &mut sequence.key_conflicts) {
                    self.sort(Op { key: 0, ..op })?;
                }
            }
        }
        let sorts = Sorts {
            by_value: self.by_value.sorted()?,
            by_sent: self.by_sent.sorted()?,
            by_received: self.by_received.sorted()?,
        };
        Ok((sequences, sorts))
    }
}

impl Sequence {
    /// Counts the line. None where it bears on nothing else.
    fn understand(&mut self, about: Op, operation: &Operation) -> Option<Op> {
        match operation {
            Operation::Lease { count, outcome, .. } => match *outcome {
                LeaseOutcome::Granted {
                    first,
                    last,
                    increment,
                } => {
                    self.lines.grants += 1;
                    let grant = Op {
                        kind: OpKind::Grant,
                        count: count.get(),
                        increment,
                        low: first.checked_sub(1),
                        high: Some(last),
                        ..about
                    };
                    let Some(increment) = range_increment(*count, (first, last, increment)) else {
                        self.blame(&grant, &grant);
                        return None;
                    };
                    self.lattice.add_grant(&grant, increment);
                    Some(grant)
                }
                LeaseOutcome::NotApplied => {
                    self.lines.not_applied += 1;
                    None
                }
                LeaseOutcome::Unknown => {
                    self.lines.unknown += 1;
                    Some(Op {
                        kind: OpKind::OpenLease,
                        count: count.get(),
                        ..about
                    })
                }
            },
            Operation::Read(mark) => Some(self.read(OpKind::Read, about, *mark)),
            Operation::FinalRead(mark) => Some(self.read(OpKind::FinalRead, about, *mark)),
            Operation::Advance { to, outcome } => self.advance(about, *to, *outcome),
        }
    }

    fn read(&mut self, kind: OpKind, about: Op, mark: Mark) -> Op {
        self.lines.reads += 1;
        self.cached |= mark.cached;
        let read = Op {
            kind,
            low: mark.high,
            high: mark.high,
            ..about
        };
        if let (None, Some(start)) = (mark.high, mark.start) {
            self.lattice.add_start(&read, start);
        }
        read
    }

    fn advance(&mut self, about: Op, to: u64, outcome: AdvanceOutcome) -> Option<Op> {
        match outcome {
            AdvanceOutcome::Advanced { previous, high } => {
                self.lines.advances += 1;
                // One that changes nothing only shows the mark.
                let kind = if previous == Some(high) {
                    OpKind::Read
                } else {
                    OpKind::Advance
                };
                let advance = Op {
                    kind,
                    low: previous,
                    high: Some(high),
                    ..about
                };
                if previous.max(Some(to)) != Some(high) {
                    self.blame(&advance, &advance);
                    return None;
                }
                Some(advance)
            }
            AdvanceOutcome::NotApplied => {
                self.lines.not_applied += 1;
                None
            }
            AdvanceOutcome::Unknown => {
                self.lines.unknown += 1;
                Some(Op {
                    kind: OpKind::OpenAdvance,
                    high: Some(to),
                    ..about
                })
            }
        }
    }

    /// Whether it can be of this sequence, when all lines were taken. Else it is counted.
    fn has(&mut self, op: &Op) -> bool {
        let blamed = self.refuses(op).copied();
        if let Some(blamed) = blamed {
            self.blame(&blamed, op);
        }
        blamed.is_none()
    }

    /// The line that shows why this grant is none of the sequence's.
    pub(super) fn refuses(&self, op: &Op) -> Option<&Op> {
        if op.kind == OpKind::Grant {
            self.lattice.refuses(op)
        } else {
            None
        }
    }

    /// Counts what is not what was asked for.
    pub(super) fn blame(&mut self, reference: &Op, op: &Op) {
        let name = &self.name;
        self.malformed.add(&[reference, op], || {
            let what = match op.kind {
                OpKind::Advance | OpKind::Read => {
                    "an advance of {} left another mark than was asked for"
                }
                _ => "a grant of {} is not the range asked for, or not on the sequence's lattice",
            };
            what.replace("{}", name.as_str())
        });
    }
}
