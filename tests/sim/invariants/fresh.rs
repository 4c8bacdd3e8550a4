//! I6: a read shows every grant that was answered before it was sent, none that was asked for after it was answered, and no less
//! than an earlier read.

use super::Judged;
use crate::history::ViolationKind;

pub(super) fn broken(judged: &Judged<'_>) -> Vec<String> {
    judged.found(&[ViolationKind::Read])
}
