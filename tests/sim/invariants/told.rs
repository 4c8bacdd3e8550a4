//! I5: values are dense. One that nobody has is a request that was applied twice, or refused and applied.

use super::Judged;
use crate::history::ViolationKind;

pub(super) fn broken(judged: &Judged<'_>) -> Vec<String> {
    judged.found(&[ViolationKind::Gap])
}
