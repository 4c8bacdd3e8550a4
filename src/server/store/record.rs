//! One log entry on disk: a record that is whole, and that names the one before it.
//!
//! A record is a format byte, a CRC-32C, its log id, the id of the record before it, and the payload. The
//! database forgets without an error what damage makes unreadable; the chain of ids shows that a record is
//! missing, and the superblock shows where the chain has to end (I7).

use std::io;

use serde::{Deserialize, Serialize};

use super::frame::{self, FrameError};
use crate::server::codec;
use crate::server::formats::{EntryFormat, LogIdFormat, MembershipFormatError, PayloadFormat};
use crate::server::types::{Entry, LogId, RECORD_BYTES_MAX};
use openraft::entry::RaftEntry;

/// The format byte.
const MAGIC: &[u8] = &[1];

/// Why bytes are not a record.
pub(crate) type RecordError = FrameError;

/// An entry and the id of the one before it, `None` for the first of all.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    pub(super) entry: Entry,
    pub(super) previous: Option<LogId>,
}

#[derive(Serialize, Deserialize)]
struct RecordFormat {
    log_id: LogIdFormat,
    previous: Option<LogIdFormat>,
    payload: PayloadFormat,
}

/// An entry that does not fit a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an entry of {length} bytes is too large: a record has at most {RECORD_BYTES_MAX}")]
pub(crate) struct TooLarge {
    length: usize,
}

impl From<TooLarge> for io::Error {
    fn from(error: TooLarge) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// The record of an entry that follows `previous`.
///
/// # Errors
/// [`TooLarge`] where it does not fit: the entry was made without asking for its bound.
pub(super) fn encode(entry: &Entry, previous: Option<LogId>) -> Result<Vec<u8>, TooLarge> {
    let bytes = frame::seal(
        MAGIC,
        &codec::encode(&RecordFormat {
            log_id: entry.log_id().into(),
            previous: previous.map(Into::into),
            payload: (&entry.payload).into(),
        }),
    );
    if RECORD_BYTES_MAX < bytes.len() {
        return Err(TooLarge {
            length: bytes.len(),
        });
    }
    Ok(bytes)
}

/// The record that these bytes are.
///
/// # Errors
/// [`RecordError`] where they are not what was written.
pub(super) fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
    let body = frame::open(MAGIC, bytes)?;
    let format: RecordFormat =
        codec::decode::<_, RECORD_BYTES_MAX>(body).map_err(FrameError::Content)?;
    let entry = EntryFormat {
        log_id: format.log_id,
        payload: format.payload,
    };
    Ok(Record {
        entry: entry.try_into().map_err(invalid)?,
        previous: format.previous.map(Into::into),
    })
}

/// Whether this is a whole record of a later version.
pub(super) fn is_later(bytes: &[u8]) -> bool {
    frame::is_later(MAGIC, bytes)
}

/// The same with the checksum that it should have.
#[cfg(any(fuzzing, test))]
pub(super) fn resealed(bytes: &[u8]) -> Vec<u8> {
    let body = bytes.get(frame::seal(MAGIC, &[]).len()..);
    frame::seal(MAGIC, body.unwrap_or_default())
}

fn invalid(error: MembershipFormatError) -> RecordError {
    FrameError::Invalid {
        reason: error.to_string(),
    }
}
