//! What the rules care about in a line: how it moved a sequence's mark, and when. It has a fixed size, can be sorted in
//! several orders, and has a short form for temporary files.

use std::io::{self, Read, Write};

/// One operation on one sequence's high-water mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Op {
    /// The sequence's number.
    pub(super) sequence: u32,
    /// What it is.
    pub(super) kind: OpKind,
    /// How many values were asked for, where some were.
    pub(super) count: u32,
    /// The distance between the values granted, else 0.
    pub(super) increment: u64,
    /// The highest mark that there may have been before it.
    pub(super) low: Option<u64>,
    /// The mark after it.
    pub(super) high: Option<u64>,
    /// Before this it did not happen.
    pub(super) sent_ns: u64,
    /// After this it had happened, and somebody knew.
    pub(super) received_ns: u64,
    /// The line that says so, counted over all sources.
    pub(super) entry: u64,
    /// Which request key it has, 0 for none.
    pub(super) key: u128,
}

/// What an operation is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum OpKind {
    /// A range was granted: the mark was below its first value, and is its last.
    #[default]
    Grant,
    /// The mark rose from `low` to `high`, and nobody was given what lies between.
    Advance,
    /// The mark was `high`.
    Read,
    /// The mark was `high` when all else had ended.
    FinalRead,
    /// A lease of `count` values that may have happened.
    OpenLease,
    /// The mark may have been raised to `high`.
    OpenAdvance,
}

/// Where an operation stands in an order; the smallest comes first.
pub(super) type Rank = (u32, u128, u128, u64);

impl Op {
    /// The lowest value of a grant.
    pub(super) fn first(&self) -> u64 {
        self.low.map_or(0, |low| low.saturating_add(1))
    }

    /// The highest value of a grant.
    pub(super) fn last(&self) -> u64 {
        self.high.unwrap_or(0)
    }

    /// Along the values: what took lower ones comes first, and a read after what it shows.
    pub(super) fn by_value(&self) -> Rank {
        (self.sequence, above(self.low), above(self.high), self.entry)
    }

    pub(super) fn by_sent(&self) -> Rank {
        (self.sequence, self.sent_ns.into(), 0, self.entry)
    }

    pub(super) fn by_received(&self) -> Rank {
        (self.sequence, self.received_ns.into(), 0, self.entry)
    }

    /// All lines of one request key together, in the order of sending.
    pub(super) fn by_key(&self) -> Rank {
        (self.sequence, self.key, self.sent_ns.into(), self.entry)
    }

    /// Writes it as what differs from the operation before it in the file: neighbours are much alike.
    pub(super) fn write(&self, before: &Self, to: &mut impl Write) -> io::Result<()> {
        let kind = match self.kind {
            OpKind::Grant => 0,
            OpKind::Advance => 1,
            OpKind::Read => 2,
            OpKind::FinalRead => 3,
            OpKind::OpenLease => 4,
            OpKind::OpenAdvance => 5,
        };
        for number in [
            kind,
            difference(self.sequence.into(), before.sequence.into()),
            difference(self.count.into(), before.count.into()),
            difference(self.increment.into(), before.increment.into()),
            difference(above(self.low), above(before.high)),
            difference(above(self.high), above(self.low)),
            difference(self.sent_ns.into(), before.sent_ns.into()),
            difference(self.received_ns.into(), self.sent_ns.into()),
            difference(self.entry.into(), before.entry.into()),
            self.key,
        ] {
            write_number(number, to)?;
        }
        Ok(())
    }

    /// Reads what [`Op::write`] wrote.
    pub(super) fn read(before: &Self, from: &mut impl Read) -> io::Result<Self> {
        let kind = match read_number(from)? {
            0 => OpKind::Grant,
            1 => OpKind::Advance,
            2 => OpKind::Read,
            3 => OpKind::FinalRead,
            4 => OpKind::OpenLease,
            5 => OpKind::OpenAdvance,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let sequence = narrow(read_number(from)?, before.sequence.into())?;
        let count = narrow(read_number(from)?, before.count.into())?;
        let increment = narrow(read_number(from)?, before.increment.into())?;
        let low = apply(read_number(from)?, above(before.high));
        let high = apply(read_number(from)?, low);
        let sent_ns = narrow(read_number(from)?, before.sent_ns.into())?;
        Ok(Self {
            sequence,
            kind,
            count,
            increment,
            low: at(low)?,
            high: at(high)?,
            sent_ns,
            received_ns: narrow(read_number(from)?, sent_ns.into())?,
            entry: narrow(read_number(from)?, before.entry.into())?,
            key: read_number(from)?,
        })
    }
}

impl Default for Op {
    fn default() -> Self {
        Self {
            sequence: 0,
            kind: OpKind::Grant,
            count: 0,
            increment: 0,
            low: None,
            high: None,
            sent_ns: 0,
            received_ns: 0,
            entry: 0,
            key: 0,
        }
    }
}

/// A mark as a number: none is below all others.
fn above(mark: Option<u64>) -> u128 {
    mark.map_or(0, |mark| u128::from(mark) + 1)
}

fn at(number: u128) -> io::Result<Option<u64>> {
    let mark = number.checked_sub(1).map(u64::try_from);
    mark.transpose()
        .map_err(|_too_large| io::ErrorKind::InvalidData.into())
}

/// A difference of either sign as a number that is small where the difference is.
fn difference(now: u128, before: u128) -> u128 {
    if before <= now {
        (now - before) << 1
    } else {
        ((before - now) << 1) - 1
    }
}

fn apply(difference: u128, before: u128) -> u128 {
    if difference.is_multiple_of(2) {
        before.wrapping_add(difference >> 1)
    } else {
        before.wrapping_sub((difference >> 1) + 1)
    }
}

fn narrow<T: TryFrom<u128>>(difference: u128, before: u128) -> io::Result<T> {
    T::try_from(apply(difference, before))
        .map_err(|_too_large| io::Error::from(io::ErrorKind::InvalidData))
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn write_number(mut number: u128, to: &mut impl Write) -> io::Result<()> {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return to.write_all(&[low & 0x7f]);
        }
        to.write_all(&[low | 0x80])?;
    }
}

fn read_number(from: &mut impl Read) -> io::Result<u128> {
    let mut number = 0;
    let mut shift = 0;
    loop {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        let [byte] = byte;
        number |= u128::from(byte & 0x7f)
            .checked_shl(shift)
            .ok_or(io::ErrorKind::InvalidData)?;
        if byte < 0x80 {
            return Ok(number);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mark() -> impl Strategy<Value = Option<u64>> {
        prop_oneof![
            Just(None),
            Just(Some(u64::MAX)),
            any::<u64>().prop_map(Some)
        ]
    }

    prop_compose! {
        fn op()(
            kind in prop::sample::select(vec![
                OpKind::Grant, OpKind::Advance, OpKind::Read, OpKind::FinalRead, OpKind::OpenLease, OpKind::OpenAdvance,
            ]),
            (sequence, count, increment) in any::<(u32, u32, u64)>(),
            (low, high) in (mark(), mark()),
            (sent_ns, received_ns, entry) in any::<(u64, u64, u64)>(),
            key in any::<u128>(),
        ) -> Op {
            Op { sequence, kind, count, increment, low, high, sent_ns, received_ns, entry, key }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_whatever_stands_before_it(ops in prop::collection::vec(op(), 1..9)) {
            let mut bytes = Vec::new();
            let mut before = Op::default();
            for op in &ops {
                op.write(&before, &mut bytes).unwrap();
                before = *op;
            }

            let mut from = bytes.as_slice();
            let mut before = Op::default();
            for op in &ops {
                before = Op::read(&before, &mut from).unwrap();
                prop_assert_eq!(&before, op);
            }
            prop_assert!(from.is_empty());
        }
    }

    #[test]
    fn a_grant_after_its_neighbour_takes_few_bytes() {
        let before = Op {
            count: 3,
            increment: 1,
            high: Some(1_000_000_000),
            sent_ns: 1_000_000_000_000,
            ..Op::default()
        };
        let next = Op {
            low: before.high,
            high: Some(1_000_000_003),
            sent_ns: 1_000_000_200_000,
            received_ns: 1_000_001_200_000,
            entry: 1,
            ..before
        };

        let mut bytes = Vec::new();
        next.write(&before, &mut bytes).unwrap();

        assert_eq!(bytes.len(), 14);
    }
}
