//! Sorts more operations than memory holds: sorted runs in a temporary file, which are merged when they are read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::Arc;

use super::op::{Op, Rank};

/// What is read of a run at once.
const READ_BYTES: usize = 32 * 1024;
const WRITE_BYTES: usize = 256 * 1024;

/// Takes operations in any order.
#[derive(Debug)]
pub(super) struct Sorter {
    rank: fn(&Op) -> Rank,
    /// So many are held in memory.
    held_max: usize,
    held: Vec<Op>,
    spilled: Option<Spilled>,
}

#[derive(Debug)]
struct Spilled {
    file: BufWriter<File>,
    /// Where each run ends. The first begins at 0.
    ends: Vec<u64>,
}

impl Sorter {
    /// By this rank, with so many bytes of memory.
    pub(super) fn new(rank: fn(&Op) -> Rank, memory_bytes: usize) -> Self {
        Self {
            rank,
            held_max: (memory_bytes / size_of::<Op>()).max(1),
            held: Vec::new(),
            spilled: None,
        }
    }

    /// Takes one.
    pub(super) fn add(&mut self, op: Op) -> io::Result<()> {
        if self.held.len() == self.held_max {
            self.spill()?;
        }
        self.held.push(op);
        Ok(())
    }

    fn spill(&mut self) -> io::Result<()> {
        self.held.sort_unstable_by_key(self.rank);
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            none => none.insert(Spilled {
                file: BufWriter::with_capacity(WRITE_BYTES, scratch_file()?),
                ends: Vec::new(),
            }),
        };
        let mut before = Op::default();
        for op in self.held.drain(..) {
            op.write(&before, &mut spilled.file)?;
            before = op;
        }
        let end = spilled.file.stream_position()?;
        spilled.ends.push(end);
        Ok(())
    }

    /// All that it took, in order.
    pub(super) fn sorted(mut self) -> io::Result<Sorted> {
        self.held.sort_unstable_by_key(self.rank);
        let mut runs = vec![Run::Held(self.held.into_iter())];
        if let Some(spilled) = self.spilled {
            let file = spilled.file.into_inner();
            let file = Arc::new(file.map_err(io::IntoInnerError::into_error)?);
            let mut start = 0;
            for end in spilled.ends {
                let piece = Piece {
                    file: Arc::clone(&file),
                    start,
                    end,
                };
                runs.push(Run::Spilled {
                    from: BufReader::with_capacity(READ_BYTES, piece),
                    before: Op::default(),
                });
                start = end;
            }
        }
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (index, run) in runs.iter_mut().enumerate() {
            if let Some(op) = run.next()? {
                heads.push(Reverse(Head::new(self.rank, index, op)));
            }
        }
        Ok(Sorted {
            rank: self.rank,
            runs,
            heads,
        })
    }
}

/// A file that goes with its last user, also where this process is killed: it has no name.
pub(super) fn scratch_file() -> io::Result<File> {
    let name = format!("highwater-verify-{:032x}", rand::random::<u128>());
    let path = std::env::temp_dir().join(name);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Gives operations in order.
#[derive(Debug)]
pub(super) struct Sorted {
    rank: fn(&Op) -> Rank,
    runs: Vec<Run>,
    heads: BinaryHeap<Reverse<Head>>,
}

impl Sorted {
    /// The next one, which stays the next.
    pub(super) fn peek(&self) -> Option<&Op> {
        self.heads.peek().map(|Reverse(head)| &head.op)
    }

    /// The next one.
    pub(super) fn next(&mut self) -> io::Result<Option<Op>> {
        let Some(mut head) = self.heads.peek_mut() else {
            return Ok(None);
        };
        let Reverse(Head { run, op, .. }) = *head;
        let following = match self.runs.get_mut(run) {
            Some(run) => run.next()?,
            None => None,
        };
        match following {
            Some(following) => *head = Reverse(Head::new(self.rank, run, following)),
            None => drop(PeekMut::pop(head)),
        }
        Ok(Some(op))
    }

    /// The next one where it is of this sequence.
    pub(super) fn next_of(&mut self, sequence: u32) -> io::Result<Option<Op>> {
        if self.peek().is_some_and(|next| next.sequence == sequence) {
            self.next()
        } else {
            Ok(None)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    rank: Rank,
    run: usize,
    op: Op,
}

impl Head {
    fn new(rank: fn(&Op) -> Rank, run: usize, op: Op) -> Self {
        Self {
            rank: rank(&op),
            run,
            op,
        }
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.rank, self.run).cmp(&(other.rank, other.run))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug)]
enum Run {
    Held(std::vec::IntoIter<Op>),
    Spilled { from: BufReader<Piece>, before: Op },
}

impl Run {
    fn next(&mut self) -> io::Result<Option<Op>> {
        match self {
            Self::Held(ops) => Ok(ops.next()),
            Self::Spilled { from, before } => {
                if from.buffer().is_empty() && from.get_ref().is_read() {
                    return Ok(None);
                }
                *before = Op::read(before, from)?;
                Ok(Some(*before))
            }
        }
    }
}

/// A part of a file that several read at once.
#[derive(Debug)]
struct Piece {
    file: Arc<File>,
    start: u64,
    end: u64,
}

impl Piece {
    fn is_read(&self) -> bool {
        self.start == self.end
    }
}

impl Read for Piece {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.start).unwrap_or(usize::MAX);
        let length = into.len().min(left);
        let into = into.get_mut(..length).unwrap_or_default();
        let read = self.file.read_at(into, self.start)?;
        self.start += u64::try_from(read).unwrap_or(0);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_does_not_fit_into_memory_comes_out_in_the_same_order(
            times in prop::collection::vec((0..3_u32, any::<u64>()), 0..40),
            held in 1..9_usize,
        ) {
            let ops: Vec<Op> = (0..)
                .zip(&times)
                .map(|(entry, (sequence, sent_ns))| Op { sequence: *sequence, sent_ns: *sent_ns, entry, ..Op::default() })
                .collect();
            let mut sorter = Sorter::new(Op::by_sent, held * size_of::<Op>());
            for op in &ops {
                sorter.add(*op).unwrap();
            }
            let mut expected = ops;
            expected.sort_unstable_by_key(Op::by_sent);

            let mut sorted = sorter.sorted().unwrap();
            let mut found = Vec::new();
            while let Some(op) = sorted.next().unwrap() {
                found.push(op);
            }

            prop_assert_eq!(found, expected);
        }
    }
}
