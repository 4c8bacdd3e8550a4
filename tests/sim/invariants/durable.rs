//! I3: the marks that are read at the end cover everything that was acknowledged.

use super::Judged;
use crate::history::ViolationKind;

pub(super) fn broken(judged: &Judged<'_>) -> Vec<String> {
    judged.found(&[ViolationKind::Lost])
}
