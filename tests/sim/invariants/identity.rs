//! I12: a node that has lost what it promised takes no part any more.

use super::Judged;

pub(super) fn broken(Judged { run, .. }: &Judged<'_>) -> Vec<String> {
    let Some(lost) = run.seen.lost else {
        return Vec::new();
    };
    let refused = run
        .seen
        .ends
        .iter()
        .any(|end| end.node == lost && !end.was_cut());
    if refused {
        return Vec::new();
    }
    vec![format!("I12: node {lost} has lost its store, and runs")]
}
