//! I7: what a node said that it had, it has after a power cut; and it starts again.

use std::collections::BTreeMap;

use super::Judged;

pub(super) fn broken(Judged { run, .. }: &Judged<'_>) -> Vec<String> {
    let mut votes = BTreeMap::new();
    let mut broken = Vec::new();
    for start in &run.seen.starts {
        let before = votes.insert(start.node, start.vote);
        if let Some(before) = before
            && start.vote < before
        {
            broken.push(format!(
                "I7: the vote of node {} fell: {start:?}",
                start.node
            ));
        }
    }
    let ends = run.seen.ends.iter();
    let ends = ends.filter(|end| !end.was_cut() && Some(end.node) != run.seen.lost);
    broken.extend(ends.map(|end| format!("I7: node {} ended by itself: {}", end.node, end.why)));
    broken
}
