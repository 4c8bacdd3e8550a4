//! JSON bodies, read strictly: every refusal says what is wrong, and where in a list.

use std::fmt;
use std::marker::PhantomData;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde::de::{DeserializeOwned, Deserializer, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde::{Deserialize, Serialize};
use serde_path_to_error::Segment;

use super::error::ApiError;

/// What an answer to a lease takes, where it is one.
const GRANT_BYTES: usize = 320;

/// The value as an answer's body. For leases, whose size is known: what axum makes grows as it is written.
pub(super) fn written(value: &impl Serialize) -> impl IntoResponse {
    let mut bytes = Vec::with_capacity(GRANT_BYTES);
    match serde_json::to_writer(&mut bytes, value) {
        Ok(()) => Ok(([(CONTENT_TYPE, "application/json")], bytes)),
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

/// The value that these bytes are.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // Where nothing is wrong, nobody asks for the place.
    serde_json::from_slice(bytes).or_else(|_wrong| parse_explaining(bytes))
}

/// The same, which knows the place of what is wrong.
fn parse_explaining<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let position = match error.path().iter().next() {
            Some(Segment::Seq { index }) => u32::try_from(*index).ok(),
            _ => None,
        };
        let field = error.path().iter().next_back().map(ToString::to_string);
        let reason = error.inner().to_string();
        let error = match field.as_deref() {
            _ if reason.starts_with("unknown field") => ApiError::UnknownField { reason },
            Some("count") if error.inner().is_data() => ApiError::NoCount {
                reason: in_our_words(&error),
            },
            _ => ApiError::InvalidBody {
                reason: in_our_words(&error),
            },
        };
        error.at(position)
    })?;
    json.end().map_err(|error| ApiError::InvalidBody {
        reason: in_our_words(&error),
    })?;
    Ok(parsed)
}

/// A sequence is something else here.
fn in_our_words(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    text.replace("invalid type: sequence,", "invalid type: list,")
        .replace("invalid type: map,", "invalid type: object,")
}

/// An object. Without this, serde would take a list for one too, its values in the order of the fields.
#[derive(Debug, Default)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(ByName(deserializer)).map(Self)
    }
}

/// Reads a struct from nothing but a map.
struct ByName<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ByName<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// A list.
#[derive(Debug)]
pub(super) struct List<T>(pub(super) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = seq.next_element()? {
                    elements.push(element);
                }
                Ok(elements)
            }
        }

        deserializer
            .deserialize_seq(Elements(PhantomData))
            .map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{AdvanceBody, LeaseBody, LeasePartBody};

    fn not_understood(reason: &str) -> ApiError {
        ApiError::InvalidBody {
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_body_that_is_not_understood_is_refused_with_the_place() {
        let unknown = |reason: &str| ApiError::UnknownField {
            reason: reason.to_owned(),
        };
        for (body, error) in [
            (
                "{",
                not_understood("EOF while parsing an object at line 1 column 1"),
            ),
            (
                "{} 1",
                not_understood("trailing characters at line 1 column 4"),
            ),
            (
                "{\"count\":1,\"count\":1}",
                not_understood("duplicate field `count` at line 1 column 18"),
            ),
            (
                "{\"count\":true}",
                ApiError::NoCount {
                    reason: "count: invalid type: boolean `true`, expected an integer from 0 to 2^64 - 1, \
                             as a number or a string of digits at line 1 column 13"
                        .to_owned(),
                },
            ),
            (
                "{\"n\":1}",
                unknown("unknown field `n`, expected `count` at line 1 column 4"),
            ),
            (
                "[5]",
                not_understood("invalid type: list, expected an object at line 1 column 0"),
            ),
            (
                "5",
                not_understood("invalid type: integer `5`, expected an object at line 1 column 1"),
            ),
        ] {
            let read = parse::<Object<LeaseBody>>(body.as_bytes());

            assert_eq!(read.expect_err(body), error, "{body}");
        }
        assert!(parse::<Option<Object<AdvanceBody>>>(b"[5]").is_err());
        assert!(
            parse::<Option<Object<AdvanceBody>>>(b"null")
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_list_is_refused_with_the_position_of_what_is_wrong() {
        for (body, position) in [
            (
                "[{\"sequence\":\"p\"},{\"sequence\":\"p\",\"count\":-1}]",
                1,
            ),
            ("[{\"sequence\":\"p\",\"n\":1}]", 0),
            ("[{\"sequence\":\"p\"},{\"sequence\":\"p\"},[\"p\",1]]", 2),
        ] {
            let error = parse::<List<Object<LeasePartBody>>>(body.as_bytes()).expect_err(body);

            assert!(
                matches!(error, ApiError::At { position: at, .. } if at == position),
                "{error}"
            );
        }
        let error = parse::<List<Object<LeasePartBody>>>(b"{}").unwrap_err();
        assert_eq!(
            error,
            not_understood("invalid type: object, expected a list at line 1 column 0")
        );
    }
}
