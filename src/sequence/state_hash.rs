//! One number for the whole table: nodes that applied the same log have the same one (I8).
//!
//! Each part has a hash of its own, and the table's is their sum, so a changed sequence costs two hashes however
//! many others there are, and the order of insertion means nothing. The hashed bytes are written by hand: a change of
//! any layout elsewhere must not look like a change of state.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::table::{Kept, KnownNode, NodeCard, Sequence, Session, TableHeader};
use super::{Answered, BatchHash, SequenceName, SessionId, Window};

/// 128 bits of BLAKE3 over the table, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct StateHash(u128);

impl fmt::Display for StateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A part of the table that has a hash of its own.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part<'a> {
    /// A sequence.
    Sequence(&'a SequenceName, &'a Sequence),
    /// A session, less its answers.
    Session(SessionId, &'a Session),
    /// What one of its batches was answered.
    Answer(SessionId, u64, &'a BatchHash, &'a Answered),
    /// A request key.
    Key(&'a Kept),
    /// A node under its id.
    Node(u64, &'a KnownNode),
    /// A sequence's window.
    Window(&'a SequenceName, &'a Window),
}

/// The sum of all parts' hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PartsSum(u128);

impl PartsSum {
    /// A part came.
    pub(super) fn add(&mut self, part: Part<'_>) {
        self.0 = self.0.wrapping_add(part.hash());
    }

    /// A part that was added, as it was then, is not there any more.
    pub(super) fn remove(&mut self, part: Part<'_>) {
        self.0 = self.0.wrapping_sub(part.hash());
    }

    /// The hash of these parts and what the table holds beside them, the next node id among it.
    pub(super) fn with_rest(self, header: TableHeader, next_node: u64) -> StateHash {
        let TableHeader {
            epoch,
            state_time_ms,
            level,
        } = header;
        let mut layout = Layout::of(b'H');
        layout.number(epoch);
        layout.number(state_time_ms);
        layout.number(next_node);
        layout.number(level.get().into());
        StateHash(self.0.wrapping_add(layout.hash()))
    }
}

impl Part<'_> {
    fn hash(self) -> u128 {
        match self {
            Self::Sequence(name, sequence) => sequence_hash(name, sequence),
            Self::Session(id, session) => session_hash(id, session),
            Self::Answer(id, number, hash, answered) => answer_hash(id, number, hash, answered),
            Self::Key(kept) => key_hash(kept),
            Self::Node(id, node) => node_hash(id, node),
            Self::Window(name, window) => window_hash(name, window),
        }
    }
}

// Taken apart field by field, so that a new field does not compile before it has its place here.
fn sequence_hash(name: &SequenceName, sequence: &Sequence) -> u128 {
    let Sequence {
        settings,
        high,
        last_grant_index,
        retired,
    } = sequence;
    let mut layout = Layout::of(b'S');
    layout.text(name.as_str());
    for number in settings.numbers() {
        layout.number(number);
    }
    layout.optional(*high);
    layout.optional(*last_grant_index);
    layout.byte(u8::from(*retired));
    layout.hash()
}

fn session_hash(id: SessionId, session: &Session) -> u128 {
    let Session {
        origin,
        ack,
        answers: _,
    } = session;
    let mut layout = Layout::of(b'O');
    layout.number(id.get());
    layout.number(origin.node);
    layout.bytes(&origin.nonce.to_le_bytes());
    layout.number(*ack);
    layout.hash()
}

/// The outcomes follow from the commands, which are the batch's hash, and from the table at that entry.
fn answer_hash(id: SessionId, number: u64, hash: &BatchHash, answered: &Answered) -> u128 {
    let Answered { entry, outcomes: _ } = answered;
    let mut layout = Layout::of(b'A');
    layout.number(id.get());
    layout.number(number);
    layout.bytes(&hash.0);
    layout.number(entry.term);
    layout.number(entry.index);
    layout.hash()
}

/// The answer follows from the request and from the table at that entry.
fn key_hash(kept: &Kept) -> u128 {
    let Kept {
        key,
        order,
        at_ms,
        entry,
        answer: _,
    } = kept;
    let mut layout = Layout::of(b'K');
    layout.bytes(&key.id.to_le_bytes());
    layout.bytes(&key.request.to_le_bytes());
    for number in [*order, *at_ms, entry.term, entry.index] {
        layout.number(number);
    }
    layout.hash()
}

fn node_hash(id: u64, node: &KnownNode) -> u128 {
    let KnownNode {
        card: NodeCard {
            incarnation,
            api,
            peer,
        },
        member,
    } = node;
    let mut layout = Layout::of(b'N');
    layout.number(id);
    layout.bytes(&incarnation.to_le_bytes());
    layout.text(api);
    layout.text(peer);
    layout.byte(u8::from(*member));
    layout.hash()
}

fn window_hash(name: &SequenceName, window: &Window) -> u128 {
    let Window { index, first } = window;
    let mut layout = Layout::of(b'W');
    layout.text(name.as_str());
    layout.number(*index);
    layout.number(*first);
    layout.hash()
}

/// Bytes from which their parts can be told again: numbers have eight, texts and options say what follows.
struct Layout(blake3::Hasher);

impl Layout {
    /// Begins with what kind of thing it is.
    fn of(kind: u8) -> Self {
        let mut layout = Self(blake3::Hasher::new());
        layout.byte(kind);
        layout
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    fn optional(&mut self, number: Option<u64>) {
        self.byte(u8::from(number.is_some()));
        self.number(number.unwrap_or(0));
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn byte(&mut self, byte: u8) {
        self.bytes(&[byte]);
    }

    /// So many as the kind of thing has.
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn hash(&self) -> u128 {
        let mut bytes = [0; 16];
        self.0.finalize_xof().fill(&mut bytes);
        u128::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sequence::{FeatureLevel, RangeCount, Settings, Table};

    fn sequence() -> Sequence {
        Sequence {
            settings: Settings::new(1, 2, 1000, RangeCount::constant(50)).unwrap(),
            high: Some(7),
            last_grant_index: Some(9),
            retired: false,
        }
    }

    fn name(text: &str) -> SequenceName {
        text.parse().unwrap()
    }

    fn table_of(sequences: &[(&str, Sequence)], header: TableHeader) -> Table {
        let mut table = Table::with_header(header);
        for (text, sequence) in sequences {
            table.restore(name(text), sequence.clone());
        }
        table
    }

    /// The layout, byte for byte: a change here makes nodes of two versions look different with the same state.
    #[test]
    fn the_hash_of_a_table_is_the_sum_over_bytes_that_are_written_down() {
        let header = TableHeader {
            epoch: 3,
            state_time_ms: 4,
            level: FeatureLevel::from_number(5).unwrap(),
        };
        let golden = [
            "48 0300000000000000 0400000000000000 0100000000000000 0500000000000000",
            "53 0200000000000000 6162 \
             0100000000000000 0200000000000000 e803000000000000 0000000000000000 3200000000000000 \
             01 0700000000000000 01 0900000000000000 00",
        ];
        let hash = |text: &str| {
            let digits = text.replace(' ', "");
            let bytes = (0..digits.len()).step_by(2);
            let bytes: Vec<u8> = bytes
                .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
                .collect();
            let first: [u8; 16] = blake3::hash(&bytes).as_bytes()[..16].try_into().unwrap();
            u128::from_le_bytes(first)
        };

        let table = table_of(&[("ab", sequence())], header);

        let sum = golden.map(hash).into_iter().fold(0, u128::wrapping_add);
        assert_eq!(table.state_hash(), StateHash(sum));
        assert_eq!(table.state_hash().to_string(), format!("{sum:032x}"));
    }

    /// Each differs from the default in one field.
    fn other_headers() -> [TableHeader; 3] {
        let header = TableHeader::default();
        [
            TableHeader { epoch: 2, ..header },
            TableHeader {
                state_time_ms: 1,
                ..header
            },
            TableHeader {
                level: FeatureLevel::from_number(2).unwrap(),
                ..header
            },
        ]
    }

    #[test]
    fn another_value_of_any_single_field_is_another_hash() {
        let settings = |start, increment, max_value, max_lease| Sequence {
            settings: Settings::new(start, increment, max_value, RangeCount::constant(max_lease))
                .unwrap(),
            ..sequence()
        };
        let cached = crate::sequence::Changes {
            cache: Some(1),
            ..Default::default()
        };
        let others = [
            settings(2, 2, 1000, 50),
            settings(1, 3, 1000, 50),
            settings(1, 2, 1001, 50),
            settings(1, 2, 1000, 51),
            Sequence {
                settings: sequence().settings.altered(&cached).unwrap(),
                ..sequence()
            },
            Sequence {
                high: Some(8),
                ..sequence()
            },
            Sequence {
                high: None,
                ..sequence()
            },
            Sequence {
                high: Some(0),
                ..sequence()
            },
            Sequence {
                last_grant_index: Some(10),
                ..sequence()
            },
            Sequence {
                last_grant_index: None,
                ..sequence()
            },
            Sequence {
                retired: true,
                ..sequence()
            },
        ];
        let header = TableHeader::default();
        let mut tables = vec![
            table_of(&[], header),
            table_of(&[("p", sequence())], header),
            table_of(&[("q", sequence())], header),
            table_of(&[("p", sequence()), ("q", sequence())], header),
        ];
        tables.extend(other_headers().map(|header| table_of(&[("p", sequence())], header)));
        tables.extend(others.map(|other| table_of(&[("p", other)], header)));

        let mut known: BTreeMap<String, &Table> = BTreeMap::new();
        for table in &tables {
            let same = known.insert(table.state_hash().to_string(), table);
            assert_eq!(
                same, None,
                "I8: one hash for two tables, of which one is {table:?}"
            );
        }
    }

    #[test]
    fn the_order_in_which_sequences_come_is_no_part_of_the_hash() {
        let other = Sequence {
            high: None,
            ..sequence()
        };
        let header = TableHeader::default();

        let there = table_of(&[("a", sequence()), ("b", other.clone())], header);
        let back = table_of(&[("b", other.clone()), ("a", sequence())], header);
        let twice = table_of(
            &[("a", other.clone()), ("b", other), ("a", sequence())],
            header,
        );

        assert_eq!(there.state_hash(), back.state_hash());
        assert_eq!(there.state_hash(), twice.state_hash());
    }
}
