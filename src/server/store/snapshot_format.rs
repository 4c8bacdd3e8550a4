//! The layout of a snapshot: a header, then the sequences in pieces, in the order of their names.
//!
//! `magic | length, header | length, piece | …`, lengths as 32-bit little-endian numbers. The BLAKE3 of all of it
//! stands in the superblock and travels with the snapshot. Neither side holds more than a piece in memory.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::sequence::{Sequence, SequenceName, Table, TableHeader};
use crate::server::codec::{self, DecodeError};
use crate::server::formats::{LogIdFormat, MembershipFormatError, StoredMembershipFormat};
use crate::server::types::SnapshotMeta;

/// The last byte is the format's version.
const MAGIC: &[u8; 8] = b"HWsnap\0\x01";
/// A membership fits one record; the header is little more.
const HEADER_BYTES_MAX: usize = 128 * 1024;
const PIECE_SEQUENCES_MAX: usize = 256;
/// A sequence takes at most 256 bytes.
const PIECE_BYTES_MAX: usize = PIECE_SEQUENCES_MAX * 256 + 8;
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

/// What a snapshot's bytes add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) length: u64,
    pub(super) checksum: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct HeaderFormat {
    last_log_id: Option<LogIdFormat>,
    membership: StoredMembershipFormat,
    table: TableHeader,
    sequences: u64,
}

type PieceFormat = Vec<(SequenceName, Sequence)>;

/// Writes a snapshot.
pub(super) fn write(state: &State, file: impl Write) -> io::Result<Digest> {
    let mut file = Hashing::new(io::BufWriter::new(file));
    file.write_all(MAGIC)?;
    let header = HeaderFormat {
        last_log_id: state.meta.last_log_id.map(Into::into),
        membership: (&state.meta.last_membership).into(),
        table: state.table.header(),
        sequences: count(&state.table),
    };
    write_piece(&mut file, &header)?;
    let mut piece = PieceFormat::new();
    for (name, sequence) in state.table.iter() {
        piece.push((name.clone(), sequence.clone()));
        if piece.len() == PIECE_SEQUENCES_MAX {
            write_piece(&mut file, &piece)?;
            piece.clear();
        }
    }
    if !piece.is_empty() {
        write_piece(&mut file, &piece)?;
    }
    file.flush()?;
    Ok(file.digest())
}

/// Reads a snapshot whole.
///
/// # Errors
/// [`SnapshotError`] where it is not what was written.
pub(super) fn read(file: impl Read) -> Result<(State, Digest), SnapshotError> {
    let mut file = Hashing::new(io::BufReader::new(file));
    let header = read_header_from(&mut file)?;
    let mut table = Table::with_header(header.table);
    let mut found = 0_u64;
    while let Some(piece) = read_piece::<PieceFormat, PIECE_BYTES_MAX>(&mut file)? {
        for (name, sequence) in piece {
            table.restore(name, sequence);
            found += 1;
        }
    }
    let expected = header.sequences;
    if found != expected || count(&table) != expected {
        return Err(SnapshotError::Count { found, expected });
    }
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
    read_header_from(&mut io::BufReader::new(file))?.into_meta()
}

impl HeaderFormat {
    fn into_meta(self) -> Result<SnapshotMeta, SnapshotError> {
        Ok(SnapshotMeta {
            last_log_id: self.last_log_id.map(Into::into),
            last_membership: self
                .membership
                .try_into()
                .map_err(SnapshotError::Membership)?,
        })
    }
}

/// Whether a file is a snapshot of a later version, whole by the checksum that belongs to it.
pub(super) fn is_later(path: &Path, checksum: [u8; 32]) -> bool {
    let Ok(bytes) = File::open(path).and_then(|file| {
        let mut file = Hashing::new(io::BufReader::new(file));
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic)?;
        io::copy(&mut file, &mut io::sink())?;
        Ok((magic, file.digest()))
    }) else {
        return false;
    };
    let ([found_kind @ .., version], digest) = bytes;
    let [kind @ .., known] = *MAGIC;
    found_kind == kind && known < version && digest.checksum == checksum
}

fn count(table: &Table) -> u64 {
    u64::try_from(table.len()).unwrap_or(u64::MAX)
}

fn read_header_from(file: &mut impl Read) -> Result<HeaderFormat, SnapshotError> {
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic).map_err(SnapshotError::Read)?;
    if magic != *MAGIC {
        return Err(SnapshotError::Format);
    }
    read_piece::<_, HEADER_BYTES_MAX>(file)?.ok_or(SnapshotError::Format)
}

fn write_piece(file: &mut impl Write, piece: &impl Serialize) -> io::Result<()> {
    let bytes = codec::encode(piece);
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    file.write_all(&length.to_le_bytes())?;
    file.write_all(&bytes)
}

/// The next piece, or `None` at the end of the file.
fn read_piece<T: DeserializeOwned, const LIMIT: usize>(
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

/// Counts and hashes what passes through it.
struct Hashing<F> {
    file: F,
    hasher: blake3::Hasher,
    length: u64,
}

impl<F> Hashing<F> {
    fn new(file: F) -> Self {
        Self {
            file,
            hasher: blake3::Hasher::new(),
            length: 0,
        }
    }

    fn digest(&self) -> Digest {
        Digest {
            length: self.length,
            checksum: self.hasher.finalize().into(),
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
    }
}

impl<F: Write> Write for Hashing<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.count(bytes.get(..written).unwrap_or(bytes));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<F: Read> Read for Hashing<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        let passed = bytes.get(..read).unwrap_or_default();
        self.hasher.update(passed);
        self.length += passed.len() as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::{Command, Position, Settings, testing::batch};

    fn refusal(bytes: &[u8]) -> String {
        read(bytes).unwrap_err().to_string()
    }

    #[test]
    fn a_header_or_piece_beyond_its_bound_is_refused_before_it_is_read() {
        let mut header = MAGIC.to_vec();
        header.extend(u32::MAX.to_le_bytes());
        let mut piece = Vec::new();
        write(&State::default(), &mut piece).unwrap();
        piece.extend(u32::try_from(PIECE_BYTES_MAX + 1).unwrap().to_le_bytes());

        assert_eq!(
            refusal(&header),
            "a piece of 4294967295 bytes is longer than 131072"
        );
        assert_eq!(
            refusal(&piece),
            "a piece of 65545 bytes is longer than 65544"
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
        let position = Position {
            index: u64::MAX,
            elapsed_ms: 0,
        };
        table.apply(position, &[batch((0..count).map(create).collect())]);
        let state = State {
            table,
            ..State::default()
        };

        let mut bytes = Vec::new();
        write(&state, &mut bytes).unwrap();

        assert_eq!(read(&*bytes).unwrap().0, state);
    }
}
