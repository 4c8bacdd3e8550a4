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

/// A range that a leader took out of a window, for one lease and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// The log index of the window's reservation.
    pub(crate) index: u64,
    /// The values.
    pub(crate) range: Range,
}

/// One lease of several, with what was taken for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowPart {
    /// What is asked for.
    pub(crate) part: GrantPart,
    /// What it is given; `None`: what comes next above the mark.
    pub(crate) taken: Option<Taken>,
}

/// Leases that are one command: 1 to [`GRANT_PARTS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<P>", into = "Vec<P>")]
pub(crate) struct Parts<P: Clone>(Vec<P>);

/// Those that take what comes next.
pub(crate) type GrantParts = Parts<GrantPart>;
/// Those of which some take what was reserved.
pub(crate) type WindowParts = Parts<WindowPart>;

impl<P: Clone> Parts<P> {
    /// The leases in their order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &P> {
        self.0.iter()
    }
}

impl From<GrantPart> for GrantParts {
    fn from(part: GrantPart) -> Self {
        Self(vec![part])
    }
}

impl<P: Clone> TryFrom<Vec<P>> for Parts<P> {
    type Error = GrantPartsError;

    fn try_from(parts: Vec<P>) -> Result<Self, GrantPartsError> {
        if (1..=GRANT_PARTS_MAX).contains(&parts.len()) {
            Ok(Self(parts))
        } else {
            Err(GrantPartsError { found: parts.len() })
        }
    }
}

impl<P: Clone> From<Parts<P>> for Vec<P> {
    fn from(parts: Parts<P>) -> Self {
        parts.0
    }
}

/// No leases, or too many for one command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found} leases are not 1 to {GRANT_PARTS_MAX}")]
pub(crate) struct GrantPartsError {
    found: usize,
}
