//! Request keys, as the `Idempotency-Key` header gives them (draft-ietf-httpapi-idempotency-key-header).

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;

use super::error::ApiError;
use crate::sequence::{GrantParts, RequestKey, SequenceName};
use crate::wire::{IdempotencyKey, KEY_HEADER, REPLAYED_HEADER};

/// What makes a retry the same request.
const REQUEST_KEY: HeaderName = HeaderName::from_static(KEY_HEADER);
/// The header of an answer that was given before.
const REPLAYED: HeaderName = HeaderName::from_static(REPLAYED_HEADER);

/// A key as its client chose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyText(IdempotencyKey);

impl KeyText {
    /// The request's key, if it has one.
    ///
    /// # Errors
    /// [`ApiError::InvalidKey`] where it is none, or there are several.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        let mut given = headers.get_all(REQUEST_KEY).iter();
        let Some(first) = given.next() else {
            return Ok(None);
        };
        let text = first.to_str().ok().filter(|_| given.next().is_none());
        let key = text.and_then(|text| text.parse().ok());
        key.map(|key| Some(Self(key))).ok_or(ApiError::InvalidKey)
    }

    /// The key of a lease.
    pub(super) fn of_lease(&self, parts: &GrantParts) -> RequestKey {
        self.of_grants(b'L', parts)
    }

    /// The key of several leases.
    pub(super) fn of_leases(&self, parts: &GrantParts) -> RequestKey {
        self.of_grants(b'M', parts)
    }

    /// The key of an advance.
    pub(super) fn of_advance(&self, sequence: &SequenceName, to: u64) -> RequestKey {
        self.names(b'A', [sequence], &to.to_le_bytes())
    }

    fn of_grants(&self, operation: u8, parts: &GrantParts) -> RequestKey {
        let counts = parts.iter().flat_map(|part| part.count.get().to_le_bytes());
        let names = parts.iter().map(|part| &part.sequence);
        self.names(operation, names, &counts.collect::<Vec<_>>())
    }

    /// The same key of another client, operation or name is another key; the same one with other numbers is refused.
    fn names<'a>(
        &self,
        operation: u8,
        names: impl IntoIterator<Item = &'a SequenceName>,
        numbers: &[u8],
    ) -> RequestKey {
        let mut hasher = blake3::Hasher::new();
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        // Who asks: there are no tokens yet.
        add(&[]);
        add(&[operation]);
        add(self.0.as_str().as_bytes());
        for name in names {
            add(name.as_str().as_bytes());
        }
        let id = short(&hasher);
        hasher.update(numbers);
        RequestKey {
            id,
            request: short(&hasher),
        }
    }
}

/// When a request was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CarriedOut {
    /// By this very send.
    Now,
    /// When it was sent before, under the same key.
    Before,
}

/// The answer, marked where it was given before.
pub(super) fn marked(mut answer: Response, when: CarriedOut) -> Response {
    if when == CarriedOut::Before {
        let said = HeaderValue::from_static("true");
        answer.headers_mut().insert(REPLAYED, said);
    }
    answer
}

/// BLAKE3, cut to 128 bits.
fn short(hasher: &blake3::Hasher) -> u128 {
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::{GrantPart, RangeCount};
    use crate::wire::IDEMPOTENCY_KEY_BYTES_MAX;

    fn key(text: &str) -> KeyText {
        KeyText(text.parse().unwrap())
    }

    fn parts(leases: &[(&str, u32)]) -> GrantParts {
        let part = |(name, count): &(&str, u32)| GrantPart {
            sequence: name.parse().unwrap(),
            count: RangeCount::constant(*count),
        };
        let parts: Vec<GrantPart> = leases.iter().map(part).collect();
        parts.try_into().unwrap()
    }

    #[test]
    fn another_key_operation_or_name_is_another_key() {
        let one = parts(&[("p", 1)]);
        let ids = [
            key("k").of_lease(&one).id,
            key("l").of_lease(&one).id,
            key("k").of_leases(&one).id,
            key("k").of_lease(&parts(&[("q", 1)])).id,
            key("k").of_leases(&parts(&[("p", 1), ("p", 1)])).id,
            key("k").of_advance(&"p".parse().unwrap(), 1).id,
            // Nothing runs together.
            key("kp").of_lease(&parts(&[("p", 1)])).id,
            key("k").of_lease(&parts(&[("pp", 1)])).id,
        ];

        let different: std::collections::BTreeSet<u128> = ids.into();
        assert_eq!(different.len(), ids.len());
    }

    #[test]
    fn other_numbers_are_another_request_under_the_same_key() {
        let of = |leases: &[(&str, u32)]| key("k").of_leases(&parts(leases));
        let (there, back) = (of(&[("p", 1), ("q", 2)]), of(&[("p", 2), ("q", 1)]));
        assert_eq!(there.id, back.id);
        assert_ne!(there.request, back.request);
        assert_eq!(there, of(&[("p", 1), ("q", 2)]));

        let to = |to| key("k").of_advance(&"p".parse().unwrap(), to);
        assert_eq!(to(1).id, to(2).id);
        assert_ne!(to(1).request, to(2).request);
    }

    #[test]
    fn a_key_has_one_to_255_visible_characters_and_stands_once() {
        let given = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(REQUEST_KEY, HeaderValue::from_bytes(value).unwrap());
            }
            KeyText::of(&headers)
        };

        assert_eq!(given(&[]), Ok(None));
        assert_eq!(given(&[b"a b"]), Ok(Some(key("a b"))));
        let longest = "k".repeat(IDEMPOTENCY_KEY_BYTES_MAX);
        assert_eq!(given(&[longest.as_bytes()]), Ok(Some(key(&longest))));
        for wrong in [
            &[b"".as_slice()] as &[&[u8]],
            &[format!("{longest}k").as_bytes()],
            &["ä".as_bytes()],
            &[b"a\tb"],
            &[b"a", b"a"],
        ] {
            assert!(given(wrong).is_err());
        }
    }
}
