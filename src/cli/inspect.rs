//! `highwater inspect`: what is in a stopped node's data directory, and whether the node would start from it.

use std::path::PathBuf;

use serde::Serialize;

use super::error::{CliError, Exit};
use super::output::{Output, Table, or_dash};
use crate::sequence::SequenceName;
use crate::server::offline::{EntryView, Inspection, Verdict, VoteView, inspect};
use crate::wire::Number;

/// More marks than that are for programs.
const MARKS_SHOWN_MAX: usize = 50;

const EXAMPLES: &str = "\
Examples:
  highwater inspect ./highwater-data
  highwater inspect /var/lib/highwater --json

The node must be stopped. Nothing in DIR is changed: the database is looked at in
a copy, in TMPDIR. Marks are those of the last snapshot; what was granted after it
is in the log. Whether another user may write DIR is not looked at.

Exit codes: 0 a node would start from it, 1 it would be refused, and the first
line is why, 2 it is no data directory";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The data directory of a stopped node
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn run(args: &Args, output: &Output) -> Result<Exit, CliError> {
    let inspection = inspect(&args.directory)?;
    output.data(text(&inspection), &Value::from(&inspection))?;
    Ok(match inspection.verdict {
        Verdict::Starts => Exit::Ok,
        Verdict::Refused => Exit::Internal,
    })
}

/// The inspection as JSON, with values in the form that their sequences have everywhere.
#[derive(Serialize)]
struct Value<'a> {
    #[serde(flatten)]
    inspection: &'a Inspection,
    sequences: Vec<MarkValue<'a>>,
}

#[derive(Serialize)]
struct MarkValue<'a> {
    name: &'a SequenceName,
    high: Option<Number>,
    next: Option<Number>,
    retired: bool,
}

impl<'a> From<&'a Inspection> for Value<'a> {
    fn from(inspection: &'a Inspection) -> Self {
        let sequences = inspection.sequences.iter().map(|mark| MarkValue {
            name: &mark.name,
            high: mark.high.map(|high| Number::new(high, mark.form)),
            next: mark.next.map(|next| Number::new(next, mark.form)),
            retired: mark.retired,
        });
        Self {
            inspection,
            sequences: sequences.collect(),
        }
    }
}

fn text(inspection: &Inspection) -> String {
    let mut text = format!("{}\n\n{}", verdict(inspection), parts(inspection));
    if !inspection.sequences.is_empty() {
        text.push_str(&format!("\n{}", marks(inspection)));
    }
    text
}

fn verdict(inspection: &Inspection) -> String {
    let cluster = inspection
        .identity
        .as_ref()
        .map(|identity| &identity.cluster);
    match (&inspection.reason, cluster) {
        (Some(reason), _) => format!("refused: {reason}"),
        (None, Some(Some(_))) => "starts: nothing that was promised is missing".to_owned(),
        (None, Some(None)) => "starts: it belongs to no cluster yet".to_owned(),
        (None, None) => "starts: it is empty, so a new node would be made".to_owned(),
    }
}

fn parts(inspection: &Inspection) -> Table {
    let mut rows: Vec<(&str, String)> = Vec::new();
    if let Some(identity) = &inspection.identity {
        let cluster = or_dash(identity.cluster.as_ref());
        rows.push(("cluster", cluster));
        rows.push(("node", or_dash(identity.node)));
        rows.push(("incarnation", identity.incarnation.clone()));
        for member in &identity.members {
            let (id, api, peer) = (member.id, &member.api, &member.peer);
            rows.push(("member", format!("{id}, API {api}, peer {peer}")));
        }
    }
    rows.push(("vote", or_dash(inspection.vote.map(vote))));
    if let Some(log) = &inspection.log {
        rows.push(("log", log_range(log.first, log.last, log.records)));
        rows.push(("log purged to", or_dash(log.purged.map(entry))));
        rows.push(("log committed to", or_dash(log.committed.map(entry))));
    }
    let snapshot = inspection.snapshot.as_ref();
    rows.push(("snapshot", or_dash(snapshot.map(|found| &found.file))));
    if let Some(last) = snapshot.and_then(|snapshot| snapshot.last) {
        rows.push(("snapshot up to", entry(last)));
    }
    if let Some(table) = &inspection.table {
        let (sequences, epoch) = (table.sequences, table.epoch);
        rows.push(("table", format!("{sequences} sequences, epoch {epoch}")));
    }
    if let Some(promised) = &inspection.superblock {
        let snapshot = promised.snapshot.as_ref();
        rows.push(("promised vote", or_dash(promised.vote.map(vote))));
        rows.push(("promised log", or_dash(promised.last.map(entry))));
        rows.push(("promised purge", or_dash(promised.purged.map(entry))));
        rows.push(("promised snapshot", or_dash(snapshot)));
    }
    for unreadable in &inspection.unreadable {
        let (part, reason) = (unreadable.part, &unreadable.reason);
        let why = if Some(reason) == inspection.reason.as_ref() {
            "as above"
        } else {
            reason
        };
        rows.push(("unreadable", format!("{part}: {why}")));
    }
    rows.into_iter().fold(Table::new(), |table, (what, value)| {
        table.row([what, &value])
    })
}

fn marks(inspection: &Inspection) -> String {
    let all = &inspection.sequences;
    let shown = all.iter().take(MARKS_SHOWN_MAX);
    let heading = Table::new().row(["SEQUENCE", "HIGH", "NEXT", "RETIRED"]);
    let table = shown.fold(heading, |table, mark| {
        let retired = if mark.retired { "yes" } else { "no" };
        table.row([
            mark.name.to_string(),
            or_dash(mark.high),
            or_dash(mark.next),
            retired.to_owned(),
        ])
    });
    match all.len().saturating_sub(MARKS_SHOWN_MAX) {
        0 => table.to_string(),
        more => format!("{table}and {more} more: --json shows all\n"),
    }
}

fn vote(vote: VoteView) -> String {
    let VoteView {
        term,
        node,
        committed,
    } = vote;
    let granted = if committed {
        ", granted by a quorum"
    } else {
        ""
    };
    format!("term {term} for node {node}{granted}")
}

fn entry(entry: EntryView) -> String {
    let EntryView { index, term, node } = entry;
    format!("{index} (term {term}, node {node})")
}

fn log_range(first: Option<EntryView>, last: Option<EntryView>, records: u64) -> String {
    match (first, last) {
        (Some(first), Some(last)) => {
            format!("{} to {}, {records} records", entry(first), entry(last))
        }
        _ => "no records".to_owned(),
    }
}
