//! I10: once the faults are over every node serves.

use super::Judged;
use crate::history::Line;

pub(super) fn broken(Judged { run, .. }: &Judged<'_>) -> Vec<String> {
    let unfinished = run.unfinished.as_ref();
    let mut broken: Vec<String> = unfinished
        .map(|why| format!("I10: {why}"))
        .into_iter()
        .collect();
    if !run.seen.lines.iter().any(Line::is_grant) {
        broken.push("nothing was granted: this run shows nothing".to_owned());
    }
    broken
}
