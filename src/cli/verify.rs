//! `highwater verify`: judges recorded histories.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::error::{CliError, Exit};
use super::output::{Output, Table};
use crate::history::{Checker, GapRule, Report, Verdict, Violation, read_history};

const EXAMPLES: &str = "\
Examples:
  highwater demo --history demo.ndjson && highwater verify demo.ndjson
  highwater verify worker-*.ndjson   all workers of one machine, judged together
  cat worker-*.ndjson | highwater verify -

A history is one JSON object a line, one line a lease:
  {\"v\":1,\"worker\":\"w1\",\"node\":2,\"sequence\":\"photos\",\"count\":3,\"key\":null,
   \"sent_ns\":1,\"received_ns\":2,\"outcome\":\"granted\",
   \"first\":1,\"last\":3,\"increment\":1}
Outcomes are granted, not_applied and unknown; times are one machine's
CLOCK_MONOTONIC. Exit code 10 means that a guarantee is broken; the lines that
show it are printed.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Histories to judge together; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Only count gaps: for sequences with a cache, and where marks were advanced
    #[arg(long)]
    allow_gaps: bool,
}

pub(super) fn run(args: &Args, output: &Output) -> Result<Exit, CliError> {
    let rule = if args.allow_gaps {
        GapRule::Allowed
    } else {
        GapRule::MustBeExplained
    };
    let mut checker = Checker::new(rule);
    for file in &args.files {
        read(&mut checker, file)?;
    }
    let report = checker.check();
    output.data(text(&report), &value(&report))?;
    Ok(match report.verdict() {
        Verdict::Holds => Exit::Ok,
        Verdict::Violated => Exit::VerificationFailed,
    })
}

fn read(checker: &mut Checker, file: &Path) -> Result<(), CliError> {
    let is_stdin = file == Path::new("-");
    let name = if is_stdin {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    };
    let source: Box<dyn BufRead> = if is_stdin {
        Box::new(io::stdin().lock())
    } else {
        let opened = File::open(file).map_err(|source| CliError::Open {
            name: name.clone(),
            source,
        })?;
        Box::new(BufReader::new(opened))
    };
    let id = checker.add_source(name.clone());
    read_history(source, |number, line| checker.add(id, number, line))
        .map_err(|source| CliError::History { name, source })
}

/// The report for people: the verdict, then what shows it.
pub(super) fn text(report: &Report) -> String {
    let verdict = match report.verdict() {
        Verdict::Holds => "holds",
        Verdict::Violated => "violated",
    };
    let counts = [
        ("grants", report.grants),
        ("not applied", report.not_applied),
        ("unknown", report.unknown),
        ("granted twice (I1)", report.overlaps),
        ("out of order (I2)", report.order_violations),
        ("lost (I3)", report.lost),
        ("request keys with two ranges (I4)", report.key_conflicts),
        ("not the range asked for", report.malformed),
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
        "not_applied": report.not_applied,
        "unknown": report.unknown,
        "overlaps": report.overlaps,
        "order_violations": report.order_violations,
        "lost": report.lost,
        "key_conflicts": report.key_conflicts,
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
