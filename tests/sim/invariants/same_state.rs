//! I8: after the same entry every node has the same table.

use std::collections::BTreeMap;

use super::Judged;

pub(super) fn broken(Judged { run, .. }: &Judged<'_>) -> Vec<String> {
    let mut states = BTreeMap::new();
    let differ = run.seen.applied.iter().find_map(|applied| {
        let first = *states.entry(applied.index).or_insert(*applied);
        (first.hash != applied.hash).then(|| {
            format!(
                "I8: after entry {} {first:?} differs from {applied:?}",
                applied.index
            )
        })
    });
    differ.into_iter().collect()
}
