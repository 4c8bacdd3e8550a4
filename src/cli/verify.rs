//! `highwater verify`: judges recorded histories.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::error::{CliError, Exit};
use super::output::{Output, Table};
use crate::history::{Checker, GapRule, Report, Source, Verdict, Violation};

const EXAMPLES: &str = "\
Examples:
  highwater demo --history demo.ndjson && highwater verify demo.ndjson
  highwater verify worker-*.ndjson   all workers of one machine, judged together
  cat worker-*.ndjson | highwater verify -
  highwater verify demo.ndjson --witness few.ndjson; highwater verify few.ndjson

A history is one JSON object a line, one line a request. A lease:
  {\"v\":1,\"worker\":\"w1\",\"node\":2,\"sequence\":\"photos\",\"count\":3,\"key\":null,
   \"sent_ns\":1,\"received_ns\":2,\"outcome\":\"granted\",
   \"first\":1,\"last\":3,\"increment\":1}
A read, or the final_read when all else has ended; before the first grant,
high is null and start is the sequence's first value:
  {\"v\":2,\"op\":\"read\",\"worker\":\"w1\",\"node\":2,\"sequence\":\"photos\",
   \"sent_ns\":3,\"received_ns\":4,\"high\":3}
An advance:
  {\"v\":2,\"op\":\"advance\",\"worker\":\"w1\",\"node\":2,\"sequence\":\"photos\",
   \"to\":9,\"sent_ns\":5,\"received_ns\":6,\"outcome\":\"advanced\",
   \"previous\":3,\"high\":9}
Outcomes are granted or advanced, not_applied and unknown; times are one
machine's CLOCK_MONOTONIC. Exit code 10 means that a guarantee is broken; the
lines that show it are printed. What does not fit into memory is sorted in
temporary files below TMPDIR, about a fifth as large as the history.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Histories to judge together; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Only count gaps: for sequences with a cache, and where others lease as well
    #[arg(long)]
    allow_gaps: bool,
    /// Where a guarantee is broken, write the few lines that show it to this file, a history as well
    #[arg(long, value_name = "FILE")]
    witness: Option<PathBuf>,
}

pub(super) fn run(args: &Args, output: &Output) -> Result<Exit, CliError> {
    let rule = if args.allow_gaps {
        GapRule::Allowed
    } else {
        GapRule::MustBeExplained
    };
    let sources = args.files.iter().map(|file| {
        if file == Path::new("-") {
            Source::stream("standard input", io::stdin())
        } else {
            Source::file(file)
        }
    });
    let report = sources.fold(Checker::new(rule), Checker::source).check()?;
    output.data(text(&report), &value(&report))?;
    match report.verdict() {
        Verdict::Holds => Ok(Exit::Ok),
        Verdict::Violated => {
            if let Some(path) = &args.witness {
                write_witnesses(&report, path)?;
            }
            Ok(Exit::VerificationFailed)
        }
    }
}

/// A history of what shows that a guarantee is broken. Nothing is replaced: it may be the last trace of it.
fn write_witnesses(report: &Report, path: &Path) -> Result<(), CliError> {
    let lines: String = report
        .witnesses()
        .iter()
        .map(|witness| format!("{}\n", witness.line.to_json()))
        .collect();
    let created = OpenOptions::new().write(true).create_new(true).open(path);
    let written = created.and_then(|mut file| file.write_all(lines.as_bytes()));
    written.map_err(|source| CliError::Write {
        path: path.to_owned(),
        source,
    })
}

/// The report for people: the verdict, then what shows it.
pub(super) fn text(report: &Report) -> String {
    let verdict = match report.verdict() {
        Verdict::Holds => "holds",
        Verdict::Violated => "violated",
    };
    let counts = [
        ("grants", report.grants),
        ("replays under a key", report.replays),
        ("reads", report.reads),
        ("advances", report.advances),
        ("not applied", report.not_applied),
        ("unknown", report.unknown),
        ("granted twice (I1)", report.overlaps),
        ("out of order (I2)", report.order_violations),
        ("lost (I3)", report.lost),
        ("request keys with two ranges (I4)", report.key_conflicts),
        ("reads of another mark (I6)", report.read_violations),
        ("not what was asked for", report.malformed),
        ("gaps", report.gaps),
        ("gaps without an explanation", report.gaps_unexplained),
        ("gaps not decided", report.gaps_undecided),
        ("sequences", report.sequences),
    ];
    let table = counts
        .into_iter()
        .fold(Table::new(), |table, (what, count)| {
            table.row([what, &count.to_string()])
        });
    let mut text = format!("{verdict}\n{table}");
    for violation in &report.violations {
        text.push_str(&format!("{violation}\n"));
    }
    text
}

fn value(report: &Report) -> Value {
    json!({
        "verdict": report.verdict(),
        "sequences": report.sequences,
        "grants": report.grants,
        "replays": report.replays,
        "reads": report.reads,
        "advances": report.advances,
        "not_applied": report.not_applied,
        "unknown": report.unknown,
        "overlaps": report.overlaps,
        "order_violations": report.order_violations,
        "lost": report.lost,
        "key_conflicts": report.key_conflicts,
        "read_violations": report.read_violations,
        "malformed": report.malformed,
        "gaps": report.gaps,
        "gaps_unexplained": report.gaps_unexplained,
        "gaps_undecided": report.gaps_undecided,
        "violations": report.violations.iter().map(violation_value).collect::<Vec<_>>(),
    })
}

fn violation_value(violation: &Violation) -> Value {
    let lines: Vec<Value> = violation
        .witnesses
        .iter()
        .map(|witness| {
            json!({"source": witness.source, "number": witness.number, "line": witness.line})
        })
        .collect();
    json!({
        "kind": violation.kind,
        "sequence": violation.sequence,
        "text": violation.text,
        "lines": lines,
    })
}
