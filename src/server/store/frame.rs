//! The frame around everything stored: what it is, in which version, and whether it is whole.
//!
//! A frame is a magic text that ends in the format's version, a CRC-32C, and a body. The checksum covers the
//! magic and the body, so one flipped bit anywhere is found.

use crate::server::codec::DecodeError;

/// Between the magic text and the body.
pub(super) const CHECKSUM_LENGTH: usize = 4;

/// Bytes that are not the frame expected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// Too short to be a frame.
    #[error("{length} bytes are too short")]
    Short {
        /// How many there are.
        length: usize,
    },
    /// Another kind of frame, or a version that this program does not know.
    #[error("unknown format")]
    Format,
    /// Bits changed since it was written.
    #[error("the checksum does not match")]
    Checksum,
    /// Whole, and yet not the value expected.
    #[error("the content does not decode")]
    Content(#[source] DecodeError),
    /// Decoded, and yet not a value that can be.
    #[error("the content is not valid: {reason}")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
}

/// The frame of `body`.
pub(super) fn seal(magic: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(magic.len() + CHECKSUM_LENGTH + body.len());
    frame.extend_from_slice(magic);
    frame.extend_from_slice(&checksum(magic, body).to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

/// The body of a frame.
///
/// # Errors
/// [`FrameError`] where the bytes are no whole frame of this kind and version.
pub(super) fn open<'a>(magic: &[u8], frame: &'a [u8]) -> Result<&'a [u8], FrameError> {
    let short = || FrameError::Short {
        length: frame.len(),
    };
    let (found, rest) = frame.split_at_checked(magic.len()).ok_or_else(short)?;
    let (sum, body) = rest
        .split_first_chunk::<CHECKSUM_LENGTH>()
        .ok_or_else(short)?;
    if found != magic {
        return Err(FrameError::Format);
    }
    if u32::from_le_bytes(*sum) != checksum(magic, body) {
        return Err(FrameError::Checksum);
    }
    Ok(body)
}

/// Whether this is a whole frame of the same kind in a later version than `magic`'s.
pub(super) fn is_later(magic: &[u8], frame: &[u8]) -> bool {
    let Some((found, _)) = frame.split_at_checked(magic.len()) else {
        return false;
    };
    let (Some((known, kind)), Some((version, found_kind))) =
        (magic.split_last(), found.split_last())
    else {
        return false;
    };
    kind == found_kind && known < version && open(found, frame).is_ok()
}

fn checksum(magic: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(magic), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: &[u8] = b"test\x01";

    #[test]
    fn a_frame_keeps_its_bytes() {
        let frame = seal(MAGIC, b"body");

        assert_eq!(frame, b"test\x01\xb0\xda\x27\x98body".to_vec());
        assert_eq!(open(MAGIC, &frame).unwrap(), b"body");
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let frame = seal(MAGIC, b"body");

        for bit in 0..frame.len() * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(MAGIC, &flipped).is_err(), "bit {bit}");
        }
        for length in 0..frame.len() {
            assert!(open(MAGIC, &frame[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn a_later_version_is_told_from_damage() {
        let later = seal(b"test\x02", b"other body");
        let mut damaged = later.clone();
        damaged[9] ^= 1;

        assert!(is_later(MAGIC, &later));
        assert!(!is_later(MAGIC, &damaged));
        assert!(!is_later(MAGIC, &seal(MAGIC, b"body")));
        assert!(!is_later(MAGIC, b"te"));
    }
}
