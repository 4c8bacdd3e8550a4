//! I11: a node that reaches no majority from before a request was sent until it was answered grants nothing.

use super::Judged;
use crate::history::Operation;

pub(super) fn broken(Judged { run, .. }: &Judged<'_>) -> Vec<String> {
    let granted = run.seen.lines.iter().filter(|line| {
        // Under a key that was used before, what was granted is told again.
        line.is_grant() && matches!(line.operation, Operation::Lease { key: None, .. })
    });
    let alone = granted.filter_map(|line| {
        let node = line.node?;
        let cut_off = run.cut_off.iter().find(|cut_off| {
            cut_off.node == node
                && cut_off.begins_ns <= line.sent_ns
                && line.received_ns <= cut_off.ends_ns
        });
        cut_off.map(|_| {
            format!(
                "I11: node {node} was cut off and granted {}",
                line.to_json()
            )
        })
    });
    alone.collect()
}
