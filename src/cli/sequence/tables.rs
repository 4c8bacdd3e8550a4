//! Sequences as people read them.

use super::super::output::{Table, or_dash};
use crate::wire::{SequenceBody, SequencesBody};

/// Many sequences, one a row.
pub(super) fn columns(listed: &SequencesBody) -> Table {
    let heading = Table::new().row(["NAME", "HIGH", "NEXT", "REMAINING", "USED", "RETIRED"]);
    listed.sequences.iter().fold(heading, |table, sequence| {
        table.row([
            sequence.sequence.to_string(),
            or_dash(sequence.high),
            or_dash(sequence.next),
            sequence.remaining.to_string(),
            percent(sequence),
            yes_or_no(sequence).to_owned(),
        ])
    })
}

fn percent(sequence: &SequenceBody) -> String {
    format!("{:.2} %", sequence.used_ratio * 100.0)
}

fn yes_or_no(sequence: &SequenceBody) -> &'static str {
    if sequence.retired { "yes" } else { "no" }
}

/// One sequence, one setting a row.
pub(super) fn table(sequence: &SequenceBody) -> Table {
    Table::new()
        .row(["sequence", sequence.sequence.as_str()])
        .row(["high".to_owned(), or_dash(sequence.high)])
        .row(["next".to_owned(), or_dash(sequence.next)])
        .row(["remaining".to_owned(), sequence.remaining.to_string()])
        .row(["used".to_owned(), percent(sequence)])
        .row(["start".to_owned(), sequence.start.to_string()])
        .row(["increment".to_owned(), sequence.increment.to_string()])
        .row(["max_value".to_owned(), sequence.max_value.to_string()])
        .row(["cache".to_owned(), sequence.cache.to_string()])
        .row(["max_lease".to_owned(), sequence.max_lease.to_string()])
        .row(["retired", yes_or_no(sequence)])
        .row(["index".to_owned(), or_dash(sequence.index)])
}
