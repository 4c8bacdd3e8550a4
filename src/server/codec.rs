//! The only file that names the codec: bincode's legacy layout, byte-identical to bincode 1.3.
//!
//! bincode is no longer maintained (RUSTSEC-2025-0141). Its legacy layout is small, fixed and documented, so
//! another implementation can take over here without a change of what is on disk.

use bincode::config::{self, Configuration, Fixint, Limit, LittleEndian};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes that are not one whole value of the expected type.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    /// More bytes than any value of the type may have.
    #[error("{length} bytes are more than the {limit} allowed")]
    TooLong {
        /// How many there are.
        length: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// The bytes do not follow the type's layout.
    #[error("the bytes do not decode")]
    Layout(#[source] bincode::error::DecodeError),
    /// A value, and then more.
    #[error("{trailing} bytes follow the value")]
    Trailing {
        /// How many.
        trailing: usize,
    },
}

/// The value's bytes.
#[expect(
    clippy::expect_used,
    reason = "writing to memory fails only for types whose lengths are unknown, and we have none"
)]
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    bincode::serde::encode_to_vec(value, config::legacy()).expect("our types encode")
}

/// The value that these bytes are, which may not be more than `LIMIT`.
///
/// # Errors
/// [`DecodeError`] where they are not exactly one value.
pub(crate) fn decode<T: DeserializeOwned, const LIMIT: usize>(
    bytes: &[u8],
) -> Result<T, DecodeError> {
    if LIMIT < bytes.len() {
        return Err(DecodeError::TooLong {
            length: bytes.len(),
            limit: LIMIT,
        });
    }
    let limited: Configuration<LittleEndian, Fixint, Limit<LIMIT>> =
        config::legacy().with_limit::<LIMIT>();
    let (value, read) =
        bincode::serde::decode_from_slice(bytes, limited).map_err(DecodeError::Layout)?;
    match bytes.len() - read {
        0 => Ok(value),
        trailing => Err(DecodeError::Trailing { trailing }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::{
        Batch, BatchHash, Changes, Command, GrantPart, GrantParts, ImportPart, NamedSettings,
        NodeCard, Origin, Range, RangeCount, RequestKey, SessionId, Settings, Taken, WindowPart,
    };

    fn batch() -> Batch {
        let sequence: crate::SequenceName = "ab".parse().unwrap();
        Batch {
            session: SessionId::NONE,
            number: 2,
            ack: 1,
            hash: BatchHash([9; 16]),
            commands: vec![
                Command::Grant {
                    sequence: sequence.clone(),
                    count: RangeCount::constant(3),
                },
                Command::Create {
                    sequence: sequence.clone(),
                    settings: Settings::default(),
                },
                Command::Advance { sequence, to: 5 },
            ],
        }
    }

    /// The format of batches, byte for byte: a change here is a new format version, not a new expectation.
    const BATCH_GOLDEN: &str = "\
        0000000000000000 0200000000000000 0100000000000000 09090909090909090909090909090909 \
        0300000000000000 \
        00000000 0200000000000000 6162 03000000 \
        01000000 0200000000000000 6162 0100000000000000 0100000000000000 ffffffffffff1f00 \
        0000000000000000 40420f00 \
        02000000 0200000000000000 6162 0500000000000000";

    /// The commands that came later, each appended to the format.
    fn later_batch() -> Batch {
        let sequence: crate::SequenceName = "ab".parse().unwrap();
        let part = GrantPart {
            sequence: sequence.clone(),
            count: RangeCount::constant(3),
        };
        Batch {
            commands: vec![
                Command::Alter {
                    sequence: sequence.clone(),
                    changes: Changes {
                        start: None,
                        increment: Some(1),
                        max_value: Some(5),
                        cache: Some(0),
                        max_lease: Some(RangeCount::constant(7)),
                    },
                },
                Command::Retire { sequence },
                Command::GrantAll {
                    parts: part.clone().into(),
                    create: None,
                },
                Command::GrantAll {
                    parts: part.into(),
                    create: Some(Settings::default()),
                },
            ],
            ..batch()
        }
    }

    const LATER_BATCH_GOLDEN: &str = "\
        0000000000000000 0200000000000000 0100000000000000 09090909090909090909090909090909 \
        0400000000000000 \
        03000000 0200000000000000 6162 00 01 0100000000000000 01 0500000000000000 \
        01 0000000000000000 01 07000000 \
        04000000 0200000000000000 6162 \
        05000000 0100000000000000 0200000000000000 6162 03000000 00 \
        05000000 0100000000000000 0200000000000000 6162 03000000 01 \
        0100000000000000 0100000000000000 ffffffffffff1f00 0000000000000000 40420f00";

    /// Those of sessions, request keys and nodes.
    fn batch_of_a_session() -> Batch {
        let sequence: crate::SequenceName = "ab".parse().unwrap();
        let part = GrantPart {
            sequence: sequence.clone(),
            count: RangeCount::constant(3),
        };
        let key = RequestKey { id: 1, request: 2 };
        Batch {
            session: SessionId::opened_at(3),
            commands: vec![
                Command::GrantAllKeyed {
                    key,
                    parts: part.into(),
                    create: None,
                },
                Command::AdvanceKeyed {
                    key,
                    sequence,
                    to: 5,
                },
                Command::OpenSession {
                    origin: Origin { node: 4, nonce: 6 },
                },
                Command::Admit {
                    node: NodeCard {
                        incarnation: 7,
                        api: "a".to_owned(),
                        peer: "bc".to_owned(),
                    },
                },
            ],
            ..batch()
        }
    }

    const BATCH_OF_A_SESSION_GOLDEN: &str = "\
        0300000000000000 0200000000000000 0100000000000000 09090909090909090909090909090909 \
        0400000000000000 \
        06000000 01000000000000000000000000000000 02000000000000000000000000000000 \
        0100000000000000 0200000000000000 6162 03000000 00 \
        07000000 01000000000000000000000000000000 02000000000000000000000000000000 \
        0200000000000000 6162 0500000000000000 \
        08000000 0400000000000000 06000000000000000000000000000000 \
        09000000 07000000000000000000000000000000 0100000000000000 61 0200000000000000 6263";

    /// The one of imports.
    fn batch_of_an_import() -> Batch {
        let part = ImportPart {
            sequence: "ab".parse().unwrap(),
            settings: Settings::default(),
            named: NamedSettings([false, true, false, false, true]),
            at_least: 5,
        };
        let parts = vec![part].try_into().unwrap();
        Batch {
            commands: vec![Command::Import { parts }],
            ..batch()
        }
    }

    const BATCH_OF_AN_IMPORT_GOLDEN: &str = "\
        0000000000000000 0200000000000000 0100000000000000 09090909090909090909090909090909 \
        0100000000000000 \
        0a000000 0100000000000000 0200000000000000 6162 \
        0100000000000000 0100000000000000 ffffffffffff1f00 0000000000000000 40420f00 \
        0001000001 0500000000000000";

    /// Those of windows.
    fn batch_of_windows() -> Batch {
        let sequence: crate::SequenceName = "ab".parse().unwrap();
        let part = GrantPart {
            sequence: sequence.clone(),
            count: RangeCount::constant(3),
        };
        let taken = Taken {
            index: 4,
            range: Range::from_bounds(5, 7, 1.try_into().unwrap()).unwrap(),
        };
        let parts = [None, Some(taken)].map(|taken| WindowPart {
            part: part.clone(),
            taken,
        });
        Batch {
            commands: vec![
                Command::Reserve {
                    sequence,
                    count: RangeCount::constant(3),
                },
                Command::GrantTaken {
                    key: Some(RequestKey { id: 1, request: 2 }),
                    parts: Vec::from(parts).try_into().unwrap(),
                    create: None,
                },
            ],
            ..batch()
        }
    }

    const BATCH_OF_WINDOWS_GOLDEN: &str = "\
        0000000000000000 0200000000000000 0100000000000000 09090909090909090909090909090909 \
        0200000000000000 \
        0c000000 0200000000000000 6162 03000000 \
        0d000000 01 01000000000000000000000000000000 02000000000000000000000000000000 \
        0200000000000000 0200000000000000 6162 03000000 00 \
        0200000000000000 6162 03000000 01 0400000000000000 \
        0500000000000000 0700000000000000 0100000000000000 00";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_batch_keeps_its_bytes() {
        for (batch, golden) in [
            (batch(), BATCH_GOLDEN),
            (later_batch(), LATER_BATCH_GOLDEN),
            (batch_of_a_session(), BATCH_OF_A_SESSION_GOLDEN),
            (batch_of_an_import(), BATCH_OF_AN_IMPORT_GOLDEN),
            (batch_of_windows(), BATCH_OF_WINDOWS_GOLDEN),
        ] {
            let bytes = encode(&batch);

            assert_eq!(hex(&bytes), golden.replace(' ', ""));
            assert_eq!(decode::<Batch, 1024>(&bytes).unwrap(), batch);
        }
    }

    #[test]
    fn what_is_not_exactly_one_value_is_refused() {
        let mut bytes = encode(&batch());

        let error = decode::<Batch, 64>(&bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{} bytes are more than the 64 allowed", bytes.len())
        );
        let error = decode::<Batch, 1024>(&bytes[..bytes.len() - 1]).unwrap_err();
        assert_eq!(error.to_string(), "the bytes do not decode");
        bytes.push(0);
        let error = decode::<Batch, 1024>(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "1 bytes follow the value");
    }

    #[test]
    fn a_value_that_its_parser_would_refuse_does_not_decode() {
        let bytes = encode(&("../x", 3_u32));

        assert!(decode::<(crate::SequenceName, RangeCount), 64>(&bytes).is_err());
        assert!(decode::<(crate::SequenceName, RangeCount), 64>(&encode(&("x", 0_u32))).is_err());
        for (length, decodes) in [(0, false), (1, true), (256, true), (257, false)] {
            let parts = encode(&vec![("x", 1_u32); length]);
            assert_eq!(decode::<GrantParts, 4096>(&parts).is_ok(), decodes);
        }
    }
}
