//! `highwater sequence check`: whether sequences cover the values that a database has.

use std::path::PathBuf;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;

use super::super::args::{Connect, block_on};
use super::super::error::{CliError, Exit};
use super::super::output::{Output, Table, or_dash};
use super::marks::{FORMATS, Mark, read};
use crate::client::{Client, ClientError};
use crate::sequence::SequenceName;
use crate::wire::{Number, SequenceBody};

const EXAMPLES: &str = "\
Examples:
  highwater sequence check marks.csv
  psql --csv -c \"SELECT 'photos' AS sequence, max(id) AS at_least FROM photos\" |
    highwater sequence check -

A value above its sequence's high-water mark could be granted a second time. Those that
are, and sequences that are not there, are listed (exit code 10). Settings in the list
are not compared, and nothing is changed.";

/// Reads in flight at once: as many as connections are kept.
const READS_MAX: usize = 8;

#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{FORMATS}"))]
pub(super) struct Args {
    /// Lists of sequences and the highest values that exist of them; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    connect: Connect,
}

pub(super) fn run(args: &Args, output: &Output) -> Result<Exit, CliError> {
    let marks = read(&args.files)?;
    let client = args.connect.client()?;
    let findings = stream::iter(&marks)
        .map(|mark| look_at(&client, mark))
        .buffered(READS_MAX)
        .try_filter_map(async |finding| Ok(finding))
        .try_collect::<Vec<_>>();
    let report = Report {
        checked: marks.len(),
        findings: block_on(findings)??,
    };
    output.data(report.text(), &report)?;
    Ok(if report.findings.is_empty() {
        Exit::Ok
    } else {
        Exit::VerificationFailed
    })
}

/// What is wrong with a line, if anything.
async fn look_at<'a>(client: &Client, mark: &'a Mark) -> Result<Option<Finding<'a>>, CliError> {
    let Mark {
        place,
        sequence,
        body,
    } = mark;
    let (finding, high) = match client.sequence(sequence).await {
        Ok(found) => {
            if is_covered(body.at_least, &found) {
                return Ok(None);
            }
            (FindingKind::AboveHigh, found.high)
        }
        Err(ClientError::Refused { problem }) if problem.code == "unknown_sequence" => {
            (FindingKind::UnknownSequence, None)
        }
        Err(error) => return Err(CliError::about(sequence)(error)),
    };
    Ok(Some(Finding {
        file: &place.file,
        line: place.line,
        sequence,
        at_least: body.at_least,
        high,
        finding,
    }))
}

/// Whether a value is at or below the mark. Below the first mark are the values below the first that will be granted.
fn is_covered(value: Number, found: &SequenceBody) -> bool {
    let value = value.get();
    match (found.high, found.next) {
        (Some(high), _) => value <= high.get(),
        (None, Some(next)) => value < next.get(),
        (None, None) => false,
    }
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    checked: usize,
    findings: Vec<Finding<'a>>,
}

/// A value that its sequence does not cover.
#[derive(Debug, Serialize)]
struct Finding<'a> {
    file: &'a str,
    line: usize,
    sequence: &'a SequenceName,
    at_least: Number,
    high: Option<Number>,
    finding: FindingKind,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum FindingKind {
    AboveHigh,
    UnknownSequence,
}

impl Report<'_> {
    fn text(&self) -> String {
        let Self { checked, findings } = self;
        if findings.is_empty() {
            return format!("{checked} checked: no value is above its sequence's mark");
        }
        let heading = Table::new().row(["LINE", "SEQUENCE", "VALUE", "HIGH", "FINDING"]);
        let table = findings.iter().fold(heading, |table, finding| {
            table.row([
                format!("{}:{}", finding.file, finding.line),
                finding.sequence.to_string(),
                finding.at_least.to_string(),
                or_dash(finding.high),
                match finding.finding {
                    FindingKind::AboveHigh => "above the mark".to_owned(),
                    FindingKind::UnknownSequence => "no such sequence".to_owned(),
                },
            ])
        });
        table.to_string()
    }
}
