//! The layout of a snapshot: a header with the nodes, then the sequences in pieces, in the order of their names, then each
//! session and what its batches were answered, one piece each, then the request keys in pieces, the oldest first.
//!
//! `magic | length, header | length, piece | …`, lengths as 32-bit little-endian numbers. The BLAKE3 of all of it
//! stands in the superblock and travels with the snapshot. Neither side holds more than a piece in memory.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::hashing::{Digest, Hashing};
use super::snapshot_header::{
    self as header, HeaderFormat, HeaderWithoutLevel, MAGIC, NodesFormat,
};
use crate::sequence::{
    Answer, FeatureLevel, Kept, LaterLevel, Origin, Sequence, SequenceName, Session, SessionId,
    Table, Window,
};
use crate::server::codec::{self, DecodeError};
use crate::server::formats::MembershipFormatError;
use crate::server::types::SnapshotMeta;

const PIECE_SEQUENCES_MAX: usize = 256;
/// A sequence takes at most 256 bytes.
const PIECE_BYTES_MAX: usize = PIECE_SEQUENCES_MAX * 256 + 8;
/// A session without its answers takes less.
const SESSION_BYTES_MAX: usize = 256;
/// A key takes at most 8 KiB: what 256 leases were answered.
const PIECE_KEYS_MAX: usize = 16;
const KEYS_BYTES_MAX: usize = PIECE_KEYS_MAX * 8 * 1024 + 8;
/// What a batch is answered takes a few times the bytes of the batch.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// No table that fits a node's memory comes near it.
pub(super) const SNAPSHOT_BYTES_MAX: u64 = 1 << 34;

/// Why bytes are not a snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// The file cannot be read.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    /// No snapshot, or a version that this program does not know.
    #[error("unknown format")]
    Format,
    /// It may hold what this program does not know.
    #[error(transparent)]
    Level(#[from] LaterLevel),
    /// A piece longer than any may be.
    #[error("a piece of {length} bytes is longer than {limit}")]
    TooLong {
        /// What stands in front of it.
        length: usize,
        /// What may stand there.
        limit: usize,
    },
    /// A header or piece that does not decode.
    #[error("its content does not decode")]
    Content(#[source] DecodeError),
    /// The membership in it is none.
    #[error("its membership is not valid")]
    Membership(#[source] MembershipFormatError),
    /// It ends before all that it announces, or goes on after it.
    #[error("it ends elsewhere than it says")]
    Length,
    /// Not as many sequences as the header says.
    #[error("it has {found} sequences, not {expected}")]
    Count {
        /// How many there are.
        found: u64,
        /// How many there should be.
        expected: u64,
    },
    /// Not the bytes that were written.
    #[error("its checksum does not match")]
    Checksum,
    /// It is another log position's snapshot than its name says.
    #[error("it ends at another entry than its name says")]
    Other,
}

/// A state machine's whole state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) meta: SnapshotMeta,
    pub(super) table: Table,
}

type PieceFormat = Vec<(SequenceName, Sequence)>;

/// A session, and how many of its answers follow.
#[derive(Serialize, Deserialize)]
struct SessionFormat {
    id: SessionId,
    origin: Origin,
    ack: u64,
    answers: u64,
}

/// An answer under its batch's number.
type AnswerFormat = (u64, Answer);

/// Writes a snapshot.
pub(super) fn write(state: &State, file: impl Write) -> io::Result<Digest> {
    let mut file = Hashing::new(io::BufWriter::new(file));
    file.write_all(MAGIC)?;
    let header = HeaderFormat {
        level: state.table.header().level,
        rest: HeaderWithoutLevel {
            last_log_id: state.meta.last_log_id.map(Into::into),
            membership: (&state.meta.last_membership).into(),
            table: state.table.header().into(),
            nodes: NodesFormat::of(&state.table),
            sequences: count(state.table.len()),
            sessions: count(state.table.sessions().len()),
            keys: count(state.table.keys().len()),
        },
    };
    write_piece(&mut file, &header)?;
    write_pieces(&mut file, state.table.iter(), PIECE_SEQUENCES_MAX)?;
    for (id, session) in state.table.sessions().iter() {
        write_session(&mut file, *id, session)?;
    }
    write_pieces(&mut file, state.table.keys().iter(), PIECE_KEYS_MAX)?;
    // Without any, it is what it was before there were windows, of which a node that knows no caches has none.
    write_pieces(&mut file, state.table.windows(), PIECE_SEQUENCES_MAX)?;
    file.flush()?;
    Ok(file.digest())
}

/// Reads a snapshot whole.
///
/// # Errors
/// [`SnapshotError`] where it is not what was written.
pub(super) fn read(file: impl Read) -> Result<(State, Digest), SnapshotError> {
    let mut file = Hashing::new(io::BufReader::new(file));
    let header = header::read(&mut file)?;
    let mut table = Table::with_header(header.table());
    let NodesFormat { next, known } = header.rest.nodes.clone();
    table.restore_nodes(next, known);
    read_sequences(&mut file, header.rest.sequences, &mut table)?;
    for _ in 0..header.rest.sessions {
        let (id, session) = read_session(&mut file)?;
        table.restore_session(id, session);
    }
    let mut keys = 0;
    while keys < header.rest.keys {
        let piece = required::<Vec<Kept>, KEYS_BYTES_MAX>(&mut file)?;
        if piece.is_empty() {
            return Err(SnapshotError::Length);
        }
        for kept in piece {
            table.restore_key(kept);
            keys += 1;
        }
    }
    let all = (table.sessions().len(), table.keys().len());
    let told = (header.rest.sessions, header.rest.keys);
    if (count(all.0), count(all.1)) != told {
        return Err(SnapshotError::Length);
    }
    read_windows(&mut file, &mut table)?;
    let state = State {
        meta: header.into_meta()?,
        table,
    };
    Ok((state, file.digest()))
}

/// Reads only what a snapshot is of.
///
/// # Errors
/// [`SnapshotError`] where there is no header.
pub(super) fn read_meta(file: impl Read) -> Result<SnapshotMeta, SnapshotError> {
    header::read(&mut io::BufReader::new(file))?.into_meta()
}

/// The feature level of a snapshot of any version, where the file is whole by the checksum that belongs to it.
pub(super) fn level_of_whole(path: &Path, checksum: [u8; 32]) -> Option<FeatureLevel> {
    let mut file = Hashing::new(io::BufReader::new(File::open(path).ok()?));
    let level = header::read_level(&mut file).ok()?;
    io::copy(&mut file, &mut io::sink()).ok()?;
    (file.digest().checksum == checksum).then_some(level)
}

/// The feature level of a snapshot of any version.
///
/// # Errors
/// [`SnapshotError`] where it is none.
pub(super) fn read_level(mut file: impl Read) -> Result<FeatureLevel, SnapshotError> {
    header::read_level(&mut file)
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn read_sequences(
    file: &mut impl Read,
    expected: u64,
    table: &mut Table,
) -> Result<(), SnapshotError> {
    let mut found = 0;
    while found < expected {
        let piece = required::<PieceFormat, PIECE_BYTES_MAX>(file)?;
        if piece.is_empty() {
            return Err(SnapshotError::Count { found, expected });
        }
        for (name, sequence) in piece {
            table.restore(name, sequence);
            found += 1;
        }
    }
    if found != expected || count(table.len()) != expected {
        return Err(SnapshotError::Count { found, expected });
    }
    Ok(())
}

/// The windows, to the end of the file.
fn read_windows(file: &mut impl Read, table: &mut Table) -> Result<(), SnapshotError> {
    // A window takes less than a sequence.
    while let Some(piece) = read_piece::<Vec<(SequenceName, Window)>, PIECE_BYTES_MAX>(file)? {
        for (name, window) in piece {
            if table.get(&name).is_none() || table.header().level < FeatureLevel::CACHES {
                return Err(SnapshotError::Length);
            }
            table.set_window(&name, Some(window));
        }
    }
    Ok(())
}

fn write_session(file: &mut impl Write, id: SessionId, session: &Session) -> io::Result<()> {
    let head = SessionFormat {
        id,
        origin: session.origin,
        ack: session.ack,
        answers: count(session.answers.len()),
    };
    write_piece(file, &head)?;
    for (number, answer) in &session.answers {
        write_piece(file, &(number, answer))?;
    }
    Ok(())
}

fn read_session(file: &mut impl Read) -> Result<(SessionId, Session), SnapshotError> {
    let SessionFormat {
        id,
        origin,
        ack,
        answers,
    } = required::<_, SESSION_BYTES_MAX>(file)?;
    let mut session = Session {
        origin,
        ack,
        answers: imbl::OrdMap::new(),
    };
    for _ in 0..answers {
        let (number, answer) = required::<AnswerFormat, ANSWER_BYTES_MAX>(file)?;
        session.answers.insert(number, answer);
    }
    Ok((id, session))
}

/// The next piece, which must be there.
pub(super) fn required<T: DeserializeOwned, const LIMIT: usize>(
    file: &mut impl Read,
) -> Result<T, SnapshotError> {
    read_piece::<T, LIMIT>(file)?.ok_or(SnapshotError::Length)
}

/// Writes these, so many in a piece at most.
pub(super) fn write_pieces<T: Serialize>(
    file: &mut impl Write,
    items: impl Iterator<Item = T>,
    piece_max: usize,
) -> io::Result<()> {
    let mut items = items.peekable();
    while items.peek().is_some() {
        let piece: Vec<T> = items.by_ref().take(piece_max).collect();
        write_piece(file, &piece)?;
    }
    Ok(())
}

pub(super) fn write_piece(file: &mut impl Write, piece: &impl Serialize) -> io::Result<()> {
    let bytes = codec::encode(piece);
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    file.write_all(&length.to_le_bytes())?;
    file.write_all(&bytes)
}

/// The next piece, or `None` at the end of the file.
pub(super) fn read_piece<T: DeserializeOwned, const LIMIT: usize>(
    file: &mut impl Read,
) -> Result<Option<T>, SnapshotError> {
    let mut length = Vec::new();
    file.take(4)
        .read_to_end(&mut length)
        .map_err(SnapshotError::Read)?;
    if length.is_empty() {
        return Ok(None);
    }
    let length: [u8; 4] = length
        .try_into()
        .map_err(|_short| SnapshotError::Read(io::ErrorKind::UnexpectedEof.into()))?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if LIMIT < length {
        return Err(SnapshotError::TooLong {
            length,
            limit: LIMIT,
        });
    }
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes).map_err(SnapshotError::Read)?;
    codec::decode::<T, LIMIT>(&bytes)
        .map(Some)
        .map_err(SnapshotError::Content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::testing::{at, batch};
    use crate::sequence::{
        Batch, Command, GRANT_PARTS_MAX, GrantPart, Origin, RangeCount, RequestKey, Settings,
    };
    use crate::server::types::BATCH_BYTES_MAX;

    fn refusal(bytes: &[u8]) -> String {
        read(bytes).unwrap_err().to_string()
    }

    #[test]
    fn a_header_or_piece_beyond_its_bound_is_refused_before_it_is_read() {
        let mut header = MAGIC.to_vec();
        header.extend(u32::MAX.to_le_bytes());
        let beyond = |announced: &str, limit: usize| {
            let mut bytes = Vec::new();
            write(&State::default(), &mut bytes).unwrap();
            // The last of the header are the numbers of sequences, sessions and keys.
            let at = bytes.len()
                - match announced {
                    "sequences" => 24,
                    "sessions" => 16,
                    _ => 8,
                };
            bytes[at] = 1;
            bytes.extend(u32::try_from(limit + 1).unwrap().to_le_bytes());
            refusal(&bytes)
        };

        assert_eq!(
            refusal(&header),
            "a piece of 4294967295 bytes is longer than 131072"
        );
        assert_eq!(
            beyond("sequences", PIECE_BYTES_MAX),
            "a piece of 65545 bytes is longer than 65544"
        );
        assert_eq!(
            beyond("sessions", SESSION_BYTES_MAX),
            "a piece of 257 bytes is longer than 256"
        );
        assert_eq!(
            beyond("keys", KEYS_BYTES_MAX),
            "a piece of 131081 bytes is longer than 131080"
        );
    }

    #[test]
    fn a_piece_of_the_largest_sequences_fits() {
        // All of them in one would be far beyond a piece's bytes.
        let count = 4 * PIECE_SEQUENCES_MAX + 1;
        let create = |number: usize| Command::Create {
            sequence: format!("{number:0>128}").parse().unwrap(),
            settings: Settings::default(),
        };
        let mut table = Table::default();
        table.apply(at(u64::MAX), &[batch((0..count).map(create).collect())]);
        let state = State {
            table,
            ..State::default()
        };

        assert_read_back(state);
    }

    fn assert_read_back(state: State) {
        let mut bytes = Vec::new();
        write(&state, &mut bytes).unwrap();

        assert_eq!(read(&*bytes).unwrap().0, state);
    }

    /// As many leases as one command has, each of the shortest name.
    fn leases(key: u128) -> Command {
        let part = GrantPart {
            sequence: "p".parse().unwrap(),
            count: RangeCount::ONE,
        };
        Command::GrantAllKeyed {
            key: RequestKey {
                id: key,
                request: 0,
            },
            parts: vec![part; GRANT_PARTS_MAX].try_into().unwrap(),
            create: Some(Settings::default()),
        }
    }

    #[test]
    fn what_the_largest_batches_are_answered_fits() {
        let mut table = Table::default();
        let origin = Origin { node: 1, nonce: 2 };
        table.apply(at(1), &[batch(vec![Command::OpenSession { origin }])]);
        let sent = |number, keys: std::ops::Range<u128>| Batch {
            session: SessionId::opened_at(1),
            number,
            ..batch(keys.map(leases).collect())
        };
        let in_one = (1..).find(|count| {
            let bytes = codec::encode(&sent(1, 0..count + 1)).len();
            BATCH_BYTES_MAX < bytes
        });
        let in_one = in_one.unwrap();

        // Granted, and granted before.
        table.apply(at(2), &[sent(1, 0..in_one), sent(2, 0..in_one)]);

        let sessions = table.sessions().iter();
        let answers: usize = sessions.map(|(_, session)| session.answers.len()).sum();
        assert_eq!(answers, 2);
        assert_read_back(State {
            table,
            ..State::default()
        });
    }

    #[test]
    fn a_piece_of_the_largest_keys_fits() {
        let mut table = Table::default();
        for key in 0..=PIECE_KEYS_MAX as u128 {
            table.apply(at(u64::MAX), &[batch(vec![leases(key)])]);
        }
        assert_eq!(table.keys().len(), PIECE_KEYS_MAX + 1);

        assert_read_back(State {
            table,
            ..State::default()
        });
    }
}
