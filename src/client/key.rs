//! What makes several sends one request.

use std::fmt;
use std::str::FromStr;

/// The longest key, in bytes.
pub const LEASE_KEY_BYTES_MAX: usize = 255;

/// A request key: leases with the same key are one lease, at whichever node, for ten minutes. 1 to
/// [`LEASE_KEY_BYTES_MAX`] visible characters of ASCII, or spaces between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseKey(String);

impl LeaseKey {
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

impl FromStr for LeaseKey {
    type Err = LeaseKeyError;

    fn from_str(text: &str) -> Result<Self, LeaseKeyError> {
        let visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        let fits = (1..=LEASE_KEY_BYTES_MAX).contains(&text.len());
        if fits && text.trim() == text && text.bytes().all(visible) {
            Ok(Self(text.to_owned()))
        } else {
            Err(LeaseKeyError)
        }
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request key has 1 to {LEASE_KEY_BYTES_MAX} visible ASCII characters")]
pub struct LeaseKeyError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_to_255_visible_characters() {
        let longest = "k".repeat(LEASE_KEY_BYTES_MAX);
        for text in ["k", "order 17/2", &longest] {
            assert_eq!(text.parse::<LeaseKey>().unwrap().as_str(), text);
        }
        for text in ["", " k", "k ", "a\nb", "ä", &format!("{longest}k")] {
            assert_eq!(text.parse::<LeaseKey>(), Err(LeaseKeyError), "{text:?}");
        }
        assert_ne!(LeaseKey::random(), LeaseKey::random());
    }
}
