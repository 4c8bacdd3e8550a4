//! What makes several sends one request: the `Idempotency-Key` header (draft-ietf-httpapi-idempotency-key-header).

use std::fmt;
use std::str::FromStr;

/// The header's name.
pub(crate) const KEY_HEADER: &str = "idempotency-key";
/// The header of an answer that was given before, under the same key.
pub(crate) const REPLAYED_HEADER: &str = "idempotency-replayed";
/// The longest key, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// A request key: requests with the same key are one request, at whichever node, for ten minutes. 1 to
/// [`IDEMPOTENCY_KEY_BYTES_MAX`] visible characters of ASCII, or spaces between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// One that nobody has used: 128 random bits.
    #[must_use]
    pub fn random() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IdempotencyKey {
    type Err = IdempotencyKeyError;

    fn from_str(text: &str) -> Result<Self, IdempotencyKeyError> {
        let visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        let fits = (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&text.len());
        if fits && text.trim() == text && text.bytes().all(visible) {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdempotencyKeyError)
        }
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request key has 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters")]
pub struct IdempotencyKeyError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_to_255_visible_characters() {
        let longest = "k".repeat(IDEMPOTENCY_KEY_BYTES_MAX);
        for text in ["k", "order 17/2", &longest] {
            assert_eq!(text.parse::<IdempotencyKey>().unwrap().as_str(), text);
        }
        for text in ["", " k", "k ", "a\nb", "a\tb", "ä", &format!("{longest}k")] {
            assert_eq!(
                text.parse::<IdempotencyKey>(),
                Err(IdempotencyKeyError),
                "{text:?}"
            );
        }
        assert_ne!(IdempotencyKey::random(), IdempotencyKey::random());
    }
}
