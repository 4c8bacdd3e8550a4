//! The name of a sequence: what a worker writes into a URL, parsed once at the edge.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use smol_str::SmolStr;

/// The longest name, in bytes.
pub const NAME_LENGTH_MAX: usize = 128;

/// A sequence's name: `[A-Za-z0-9][A-Za-z0-9._:-]{0,127}`.
///
/// The alphabet needs no escaping in a URL, a file or a shell, and the first byte keeps `..` and options out.
///
/// ```
/// use highwater::SequenceName;
///
/// let name: SequenceName = "photos".parse()?;
/// assert_eq!(name.as_str(), "photos");
/// assert!("../photos".parse::<SequenceName>().is_err());
/// # Ok::<(), highwater::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct SequenceName(SmolStr);

impl SequenceName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for SequenceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check(text)?;
        Ok(Self(SmolStr::from(text)))
    }
}

impl TryFrom<String> for SequenceName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        check(&text)?;
        Ok(Self(SmolStr::from(text)))
    }
}

impl Ord for SequenceName {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(all(test, feature = "server"))]
        comparisons::count();
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for SequenceName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// As text, without a copy: every request's command is written once on its way.
impl Serialize for SequenceName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl From<SequenceName> for String {
    fn from(name: SequenceName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for SequenceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SequenceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Why a text is not a sequence's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text has no byte.
    #[error(
        "a sequence name is empty: use 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_', ':' or '-'"
    )]
    Empty,
    /// The text is longer than [`NAME_LENGTH_MAX`] bytes.
    #[error("a sequence name of {length} bytes is too long: use at most {NAME_LENGTH_MAX}")]
    TooLong {
        /// The text's length in bytes.
        length: usize,
    },
    /// The text has a character that no name has at this place.
    #[error(
        "a sequence name has {found:?} at byte {at}: use letters and digits, and after the first also '.', '_', ':' and '-'"
    )]
    Character {
        /// The first character that does not fit.
        found: char,
        /// Its place, in bytes from 0.
        at: usize,
    },
}

/// How often names were compared: what a look into a table of them costs, whatever the machine.
#[cfg(all(test, feature = "server"))]
pub(crate) mod comparisons {
    use std::cell::Cell;

    thread_local! {
        static COUNTED: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        COUNTED.set(COUNTED.get() + 1);
    }

    /// Those of this thread that the work makes.
    pub(crate) fn of(work: impl FnOnce()) -> u64 {
        let before = COUNTED.get();
        work();
        COUNTED.get() - before
    }
}

fn check(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if NAME_LENGTH_MAX < text.len() {
        return Err(NameError::TooLong { length: text.len() });
    }
    let misfit = text.char_indices().find(|&(at, found)| {
        let fits =
            found.is_ascii_alphanumeric() || (0 < at && matches!(found, '.' | '_' | ':' | '-'));
        !fits
    });
    match misfit {
        Some((at, found)) => Err(NameError::Character { found, at }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allowed_character_makes_a_name() {
        for text in [
            "a",
            "Z",
            "0",
            "photos",
            "a.b_c:d-e",
            &"x".repeat(NAME_LENGTH_MAX),
        ] {
            let name: SequenceName = text.parse().unwrap();

            assert_eq!(name.as_str(), text);
        }
    }

    #[test]
    fn what_is_not_a_name_is_refused_with_the_reason() {
        let cases = [
            ("", NameError::Empty),
            (&*"x".repeat(129), NameError::TooLong { length: 129 }),
            (".", NameError::Character { found: '.', at: 0 }),
            ("..", NameError::Character { found: '.', at: 0 }),
            ("-x", NameError::Character { found: '-', at: 0 }),
            ("a/b", NameError::Character { found: '/', at: 1 }),
            ("a b", NameError::Character { found: ' ', at: 1 }),
            (
                "a\u{0}",
                NameError::Character {
                    found: '\u{0}',
                    at: 1,
                },
            ),
            ("fotös", NameError::Character { found: 'ö', at: 3 }),
        ];
        for (text, expected) in cases {
            assert_eq!(
                text.parse::<SequenceName>().unwrap_err(),
                expected,
                "{text:?}"
            );
        }
        assert_eq!(
            "a/b".parse::<SequenceName>().unwrap_err().to_string(),
            "a sequence name has '/' at byte 1: use letters and digits, and after the first also '.', '_', ':' and '-'"
        );
    }

    #[test]
    fn serde_goes_through_the_same_parser() {
        assert!(serde_json::from_str::<SequenceName>("\"photos\"").is_ok());
        assert!(serde_json::from_str::<SequenceName>("\"../photos\"").is_err());
    }
}
