//! A backup is read where it is restored, and where it has just been written.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use super::{Backup, HeaderFormat, MAGIC, PIECE_RISES_MAX, Rises};
use crate::sequence::SequenceName;
use crate::server::store::hashing::Hashing;
use crate::server::store::snapshot_format::{self, SnapshotError, read_piece};

/// What stands at the end.
pub(in crate::server::store) const CHECKSUM_BYTES: usize = 32;
const HEADER_BYTES_MAX: usize = 256;
/// A rise takes at most 144 bytes: the longest name, its length, and the number.
const PIECE_BYTES_MAX: usize = PIECE_RISES_MAX * 144 + 8;

/// A file that is not restored from.
#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
pub(crate) struct BackupError {
    path: PathBuf,
    #[source]
    fault: Fault,
}

/// What is wrong with it.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    #[error("it is no backup of Highwater's, or damaged where it begins")]
    NoBackup,
    #[error("it was written by a later version: use that one")]
    Later,
    #[error("it is damaged or cut off, its checksum does not match: use another backup")]
    Damaged,
    #[error("it is whole, and yet not understood")]
    Content(#[source] SnapshotError),
}

type RisesFormat = Vec<(SequenceName, u64)>;

impl Backup {
    /// Reads a backup whose checksum holds.
    ///
    /// # Errors
    /// [`BackupError`] where it is none, damaged, cut off, or of a later version.
    pub(crate) fn read(mut file: File, path: &Path) -> Result<Self, BackupError> {
        let read = || {
            let body_bytes = check(&mut file)?;
            file.rewind().map_err(Fault::Read)?;
            let mut body = BufReader::new(file).take(body_bytes);
            Self::read_body(&mut body).map_err(|error| match error {
                // It is what was written, so only a later version has written it.
                SnapshotError::Format | SnapshotError::Level(_) => Fault::Later,
                error => Fault::Content(error),
            })
        };
        read().map_err(|fault| BackupError {
            path: path.to_path_buf(),
            fault,
        })
    }

    /// Reads a backup up to its checksum.
    ///
    /// # Errors
    /// [`SnapshotError`] where it is not what was written.
    pub(in crate::server::store) fn read_body(body: &mut impl Read) -> Result<Self, SnapshotError> {
        let mut magic = [0; MAGIC.len()];
        body.read_exact(&mut magic).map_err(SnapshotError::Read)?;
        let header: HeaderFormat =
            read_piece::<_, HEADER_BYTES_MAX>(body)?.ok_or(SnapshotError::Length)?;
        let mut by_name = BTreeMap::new();
        while (by_name.len() as u64) < header.rises {
            let before = by_name.len();
            let piece: RisesFormat =
                read_piece::<_, PIECE_BYTES_MAX>(body)?.ok_or(SnapshotError::Length)?;
            by_name.extend(piece);
            if by_name.len() == before {
                return Err(SnapshotError::Length);
            }
        }
        let (state, _) = snapshot_format::read(body)?;
        Ok(Self {
            cluster: header.cluster,
            taken_ms: header.taken_ms,
            rises: Rises {
                window_ms: header.window_ms,
                by_name,
            },
            last: state.meta.last_log_id,
            table: state.table,
        })
    }
}

/// Whether the file is a whole backup of this version. Tells how many bytes come before its checksum.
fn check(file: &mut File) -> Result<u64, Fault> {
    let length = file.metadata().map_err(Fault::Read)?.len();
    let least = (MAGIC.len() + CHECKSUM_BYTES) as u64;
    if length < least {
        return Err(Fault::Damaged);
    }
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic).map_err(Fault::Read)?;
    let ([kind @ .., known], [found_kind @ .., version]) = (*MAGIC, magic);
    if found_kind != kind {
        return Err(Fault::NoBackup);
    }
    let body_bytes = length - CHECKSUM_BYTES as u64;
    file.rewind().map_err(Fault::Read)?;
    let mut body = Hashing::new(BufReader::new(&mut *file).take(body_bytes));
    io::copy(&mut body, &mut io::sink()).map_err(Fault::Read)?;
    let computed = body.digest().checksum;
    let mut stored = [0; CHECKSUM_BYTES];
    let at = io::SeekFrom::Start(body_bytes);
    file.seek(at).map_err(Fault::Read)?;
    file.read_exact(&mut stored).map_err(Fault::Read)?;
    if computed != stored {
        return Err(Fault::Damaged);
    }
    match version.cmp(&known) {
        Ordering::Equal => Ok(body_bytes),
        Ordering::Greater => Err(Fault::Later),
        Ordering::Less => Err(Fault::NoBackup),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::Table;
    use crate::sequence::testing::{at, batch};
    use crate::sequence::{Command, RangeCount, Settings, TableHeader};
    use crate::server::codec;
    use crate::server::store::snapshot_format::State;
    use crate::server::types::{Leadership, LogId, SnapshotMeta};
    use openraft::vote::RaftLeaderId as _;

    fn name(text: &str) -> SequenceName {
        text.parse().unwrap()
    }

    /// Of two sequences, of which one rose.
    fn backup() -> Backup {
        let create = |text| Command::Create {
            sequence: name(text),
            settings: Settings::default(),
        };
        let grant = Command::Grant {
            sequence: name("ab"),
            count: RangeCount::constant(3),
        };
        let mut table = Table::with_header(TableHeader {
            epoch: 7,
            ..TableHeader::default()
        });
        table.apply(at(4), &[batch(vec![create("ab"), create("b"), grant])]);
        Backup {
            cluster: codec::decode::<_, 16>(&1_u128.to_le_bytes()).unwrap(),
            taken_ms: 5,
            rises: Rises {
                window_ms: 6,
                by_name: BTreeMap::from([(name("ab"), 3)]),
            },
            last: Some(LogId::new(Leadership::new(2, 3.into()), 4)),
            table,
        }
    }

    fn written(backup: &Backup) -> Vec<u8> {
        let mut bytes = Vec::new();
        backup.write(&mut bytes).unwrap();
        bytes
    }

    /// The error and its cause, without the path in front.
    fn refusal(bytes: &[u8]) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let error = Backup::read(file.reopen().unwrap(), file.path()).unwrap_err();
        assert_eq!(error.to_string(), file.path().display().to_string());
        error.fault.to_string()
    }

    /// Gives it the checksum that it should have.
    fn sealed(mut body: Vec<u8>) -> Vec<u8> {
        let checksum = *blake3::hash(&body).as_bytes();
        body.extend(checksum);
        body
    }

    /// What stands before the snapshot: a change here is a new format version, not a new expectation.
    const GOLDEN: &str = "\
        4857626b75700001 \
        28000000 01000000000000000000000000000000 0500000000000000 0600000000000000 0100000000000000 \
        1a000000 0100000000000000 0200000000000000 6162 0300000000000000";

    #[test]
    fn a_backup_keeps_its_bytes() {
        let bytes = written(&backup());

        // The snapshot keeps its own bytes.
        let mut snapshot = Vec::new();
        let meta = SnapshotMeta {
            last_log_id: backup().last,
            ..SnapshotMeta::default()
        };
        let table = backup().table;
        snapshot_format::write(&State { meta, table }, &mut snapshot).unwrap();
        let before = bytes.len() - CHECKSUM_BYTES - snapshot.len();
        let hex: String = bytes[..before]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, GOLDEN.replace(' ', ""));
        assert_eq!(bytes, sealed([&bytes[..before], &snapshot].concat()));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        assert_eq!(
            Backup::read(file.reopen().unwrap(), file.path()).unwrap(),
            backup()
        );
    }

    #[test]
    fn any_flipped_bit_and_any_missing_byte_is_found() {
        let bytes = written(&backup());
        let damaged = "it is damaged or cut off, its checksum does not match: use another backup";
        let foreign = "it is no backup of Highwater's, or damaged where it begins";

        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit / 8 < MAGIC.len() - 1 {
                foreign
            } else {
                damaged
            };
            assert_eq!(refusal(&flipped), expected, "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert_eq!(refusal(&bytes[..length]), damaged, "length {length}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(refusal(&longer), damaged);
    }

    #[test]
    fn a_later_version_is_told_from_damage() {
        let mut body = written(&backup());
        body.truncate(body.len() - CHECKSUM_BYTES);
        body[MAGIC.len() - 1] = 2;

        assert_eq!(
            refusal(&sealed(body)),
            "it was written by a later version: use that one"
        );
        // The snapshot in it has a version of its own, in the byte after its name.
        let mut body = written(&backup());
        body.truncate(body.len() - CHECKSUM_BYTES);
        let snapshot = body.windows(6).position(|bytes| bytes == b"HWsnap");
        body[snapshot.unwrap() + MAGIC.len() - 1] = u8::MAX;
        assert_eq!(
            refusal(&sealed(body)),
            "it was written by a later version: use that one"
        );
        assert_eq!(
            refusal(&sealed(b"-- a dump".to_vec())),
            "it is no backup of Highwater's, or damaged where it begins"
        );
    }

    #[test]
    fn what_goes_on_after_its_snapshot_is_not_understood() {
        let mut body = written(&backup());
        body.truncate(body.len() - CHECKSUM_BYTES);
        body.push(0);

        assert_eq!(
            refusal(&sealed(body)),
            "it is whole, and yet not understood"
        );
    }

    #[test]
    fn a_header_or_piece_of_rises_beyond_its_bound_is_not_read() {
        let length = |bytes: usize| u32::try_from(bytes).unwrap().to_le_bytes();
        let mut header = MAGIC.to_vec();
        header.extend(length(HEADER_BYTES_MAX + 1));
        let mut piece = written(&backup());
        // The magic, the length of the header, and the header.
        piece.truncate(8 + 4 + 40);
        piece.extend(length(PIECE_BYTES_MAX + 1));

        let told = |bytes: &[u8]| Backup::read_body(&mut &*bytes).unwrap_err().to_string();
        assert_eq!(told(&header), "a piece of 257 bytes is longer than 256");
        assert_eq!(told(&piece), "a piece of 36873 bytes is longer than 36872");
    }

    #[test]
    fn a_piece_of_the_longest_names_fits() {
        let longest = |number: usize| (name(&format!("{number:0>128}")), u64::MAX);
        let backup = Backup {
            rises: Rises {
                window_ms: 1,
                by_name: (0..2 * PIECE_RISES_MAX + 1).map(longest).collect(),
            },
            ..backup()
        };

        assert_eq!(
            Backup::read_body(&mut &*{
                let mut body = written(&backup);
                body.truncate(body.len() - CHECKSUM_BYTES);
                body
            })
            .unwrap(),
            backup
        );
    }
}
