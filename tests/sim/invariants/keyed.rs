//! I4: a request key has one range.

use super::Judged;
use crate::history::ViolationKind;

pub(super) fn broken(judged: &Judged<'_>) -> Vec<String> {
    judged.found(&[ViolationKind::Key])
}
