//! Leases that are one command, and how many those may be.
//!
//! These types are stored and sent with a positional codec: a change of order or type is a change of format.

use serde::{Deserialize, Serialize};

use super::{Range, RangeCount, SequenceName};

/// The most leases of one command: with the longest names they are still one batch.
pub(crate) const GRANT_PARTS_MAX: usize = 256;

/// One lease of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GrantPart {
    /// Of which sequence.
    pub(crate) sequence: SequenceName,
    /// How many.
    pub(crate) count: RangeCount,
}

/// Leases that are one command: 1 to [`GRANT_PARTS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<GrantPart>", into = "Vec<GrantPart>")]
pub(crate) struct GrantParts(Vec<GrantPart>);

impl GrantParts {
    /// The leases in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &GrantPart> {
        self.0.iter()
    }
}

impl From<GrantPart> for GrantParts {
    fn from(part: GrantPart) -> Self {
        Self(vec![part])
    }
}

impl TryFrom<Vec<GrantPart>> for GrantParts {
    type Error = GrantPartsError;

    fn try_from(parts: Vec<GrantPart>) -> Result<Self, GrantPartsError> {
        if (1..=GRANT_PARTS_MAX).contains(&parts.len()) {
            Ok(Self(parts))
        } else {
            Err(GrantPartsError { found: parts.len() })
        }
    }
}

impl From<GrantParts> for Vec<GrantPart> {
    fn from(parts: GrantParts) -> Self {
        parts.0
    }
}

/// No leases, or too many for one command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found} leases are not 1 to {GRANT_PARTS_MAX}")]
pub(crate) struct GrantPartsError {
    found: usize,
}

/// A range that a leader took out of a window, for one lease and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// The log index of the window's reservation.
    pub(crate) index: u64,
    /// The values.
    pub(crate) range: Range,
}

/// One lease of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowPart {
    /// What is asked for.
    pub(crate) part: GrantPart,
    /// What it is given; `None`: what comes next above the mark.
    pub(crate) taken: Option<Taken>,
}

/// Leases that are one command: 1 to [`GRANT_PARTS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<WindowPart>", into = "Vec<WindowPart>")]
pub(crate) struct WindowParts(Vec<WindowPart>);

impl WindowParts {
    /// The leases in their order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &WindowPart> {
        self.0.iter()
    }
}

impl TryFrom<Vec<WindowPart>> for WindowParts {
    type Error = GrantPartsError;

    fn try_from(parts: Vec<WindowPart>) -> Result<Self, GrantPartsError> {
        if (1..=GRANT_PARTS_MAX).contains(&parts.len()) {
            Ok(Self(parts))
        } else {
            Err(GrantPartsError { found: parts.len() })
        }
    }
}

impl From<WindowParts> for Vec<WindowPart> {
    fn from(parts: WindowParts) -> Self {
        parts.0
    }
}
