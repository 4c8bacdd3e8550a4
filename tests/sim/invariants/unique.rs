//! I1: no value is given twice, and what is given is the range that was asked for.

use super::Judged;
use crate::history::ViolationKind;

pub(super) fn broken(judged: &Judged<'_>) -> Vec<String> {
    judged.found(&[ViolationKind::Overlap, ViolationKind::Malformed])
}
