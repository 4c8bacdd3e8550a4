//! I10: once the faults are over every node serves.

use super::super::run::Run;

pub(super) fn broken(run: &Run) -> Vec<String> {
    let unfinished = run.unfinished.as_ref();
    let mut broken: Vec<String> = unfinished
        .map(|why| format!("I10: {why}"))
        .into_iter()
        .collect();
    if run.seen.lines.is_empty() || run.seen.reads.is_empty() {
        broken.push("nothing was granted or read: this run shows nothing".to_owned());
    }
    broken
}
