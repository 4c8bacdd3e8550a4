//! `highwater sequence check`: whether sequences cover the values that a database has.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::super::args::{Connect, block_on};
use super::super::error::{CliError, Exit};
use super::super::output::{Output, Table, or_dash};
use super::marks::{FORMATS, Mark, read};
use crate::client::{Client, ClientError, Run};
use crate::sequence::{IMPORT_PARTS_MAX, SequenceName};
use crate::wire::{ImportBody, ImportResult, Number, SequenceBody};

const EXAMPLES: &str = "\
Examples:
  highwater sequence check marks.csv
  psql --csv -c \"SELECT 'photos' AS sequence, max(id) AS at_least FROM photos\" |
    highwater sequence check -

A value above its sequence's high-water mark could be granted a second time. Those that
are, and sequences that are not there, are listed (exit code 10). Settings in the list
are not compared, and nothing is changed.";

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
    let found = block_on(doubtful(&client, &marks))??;
    let report = Report {
        checked: marks.len(),
        findings: marks
            .iter()
            .filter_map(|mark| finding(mark, found.get(&mark.sequence)?.as_ref()))
            .collect(),
    };
    output.data(report.text(), &report)?;
    Ok(if report.findings.is_empty() {
        Exit::Ok
    } else {
        Exit::VerificationFailed
    })
}

/// The sequences of which a mark may not be covered, and what is there of each. What an import would leave as it is, is
/// covered: that is asked of many at once. Only the others are read.
async fn doubtful(
    client: &Client,
    marks: &[Mark],
) -> Result<BTreeMap<SequenceName, Option<SequenceBody>>, CliError> {
    let mut found = BTreeMap::new();
    for part in marks.chunks(IMPORT_PARTS_MAX) {
        let bodies: Vec<ImportBody> = part.iter().map(without_settings).collect();
        let answers = client.changes(Run::Dry).import(&bodies).await?;
        for (Mark { sequence, .. }, answer) in part.iter().zip(answers) {
            if answer.result != ImportResult::Unchanged && !found.contains_key(sequence) {
                let there = look_for(client, sequence).await?;
                found.insert(sequence.clone(), there);
            }
        }
    }
    Ok(found)
}

fn without_settings(mark: &Mark) -> ImportBody {
    ImportBody {
        sequence: mark.body.sequence.clone(),
        at_least: mark.body.at_least,
        start: None,
        increment: None,
        max_value: None,
        cache: None,
        max_lease: None,
    }
}

async fn look_for(
    client: &Client,
    sequence: &SequenceName,
) -> Result<Option<SequenceBody>, CliError> {
    match client.sequence(sequence).await {
        Ok(found) => Ok(Some(found)),
        Err(ClientError::Refused { problem }) if problem.code == "unknown_sequence" => Ok(None),
        Err(error) => Err(CliError::about(sequence)(error)),
    }
}

/// What is wrong with a mark, if anything.
fn finding<'a>(mark: &'a Mark, found: Option<&SequenceBody>) -> Option<Finding<'a>> {
    let Mark {
        place,
        sequence,
        body,
    } = mark;
    let finding = match found {
        Some(found) if is_covered(body.at_least, found) => return None,
        Some(_) => FindingKind::AboveHigh,
        None => FindingKind::UnknownSequence,
    };
    Some(Finding {
        file: &place.file,
        line: place.line,
        sequence,
        at_least: body.at_least,
        high: found.and_then(|found| found.high),
        finding,
    })
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
