//! `highwater sequence import`: takes over the marks that other counters have reached.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::args::{Connect, block_on};
use super::super::error::{CliError, Exit, refused};
use super::super::output::Output;
use super::marks::{FORMATS, Mark, read};
use crate::client::{Changes, ClientError, Run};
use crate::sequence::IMPORT_PARTS_MAX;
use crate::wire::{ImportBody, ImportResult, ImportedBody};

const EXAMPLES: &str = "\
Examples:
  highwater sequence import marks.csv
  highwater sequence import odd.csv even.csv --dry-run
  psql --csv -c \"SELECT 'photos' AS sequence, max(id) AS at_least FROM photos\" |
    highwater sequence import -

What is not there is created. A mark is raised to at least what the list says and
never falls, so an import can be repeated, and one that was cut off is finished by
running it again. A line whose sequence is there with other settings, or retired, is
refused (exit code 4), and the others are imported nevertheless.";

/// With a terminal a line a second tells how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{FORMATS}"))]
pub(super) struct Args {
    /// Lists of sequences and their marks; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Show what it would be, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connect: Connect,
}

pub(super) fn run(args: &Args, output: &Output) -> Result<Exit, CliError> {
    let marks = read(&args.files)?;
    let client = args.connect.client()?;
    let run = if args.dry_run { Run::Dry } else { Run::Real };
    let answers = block_on(import(client.changes(run), run, &marks, output))??;
    if run == Run::Dry {
        output.note("dry run: nothing was changed, this is what would be");
    }
    let report = Report::of(&marks, answers);
    output.data(report.text(), &report)?;
    Ok(report.exit())
}

/// Part after part, each in one commit. What is refused is told at once: a later part may not be served.
async fn import(
    changes: Changes<'_>,
    run: Run,
    marks: &[Mark],
    output: &Output,
) -> Result<Vec<ImportedBody>, CliError> {
    let mut answers = Vec::with_capacity(marks.len());
    let mut told = Instant::now();
    for part in marks.chunks(IMPORT_PARTS_MAX) {
        let bodies: Vec<ImportBody> = part.iter().map(|mark| mark.body.clone()).collect();
        let answered = changes.import(&bodies).await;
        let answered =
            answered.map_err(|error| not_imported(part, run, answers.len(), Box::new(error)))?;
        for (mark, answer) in part.iter().zip(&answered) {
            if let Some(problem) = &answer.problem {
                let Mark {
                    place, sequence, ..
                } = mark;
                let (detail, code) = (&problem.detail, &problem.code);
                output.note(format_args!("{place}: {sequence}: {detail} ({code})"));
            }
        }
        answers.extend(answered);
        if output.is_watched() && PROGRESS_INTERVAL < told.elapsed() {
            output.note(format_args!("{} of {}", answers.len(), marks.len()));
            told = Instant::now();
        }
    }
    Ok(answers)
}

/// Names the line that the cluster says is wrong, or else the first of those that were not served.
fn not_imported(part: &[Mark], run: Run, done: usize, source: Box<ClientError>) -> CliError {
    let wrong = source.position().and_then(|position| part.get(position));
    match wrong.or(part.first()) {
        Some(mark) => CliError::NotImported {
            place: mark.place.clone(),
            sequence: mark.sequence.clone(),
            done: if run == Run::Real { done } else { 0 },
            source,
        },
        None => (*source).into(),
    }
}

/// What became of a list.
#[derive(Debug, Serialize)]
struct Report<'a> {
    created: usize,
    advanced: usize,
    unchanged: usize,
    refused: usize,
    changed: bool,
    sequences: Vec<Line<'a>>,
}

/// What became of one line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    file: &'a str,
    line: usize,
    #[serde(flatten)]
    answer: ImportedBody,
}

impl<'a> Report<'a> {
    fn of(marks: &'a [Mark], answers: Vec<ImportedBody>) -> Self {
        let count = |result| {
            answers
                .iter()
                .filter(|answer| answer.result == result)
                .count()
        };
        Self {
            created: count(ImportResult::Created),
            advanced: count(ImportResult::Advanced),
            unchanged: count(ImportResult::Unchanged),
            refused: count(ImportResult::Refused),
            changed: answers.iter().any(|answer| answer.changed),
            sequences: marks
                .iter()
                .zip(answers)
                .map(|(mark, answer)| Line {
                    file: &mark.place.file,
                    line: mark.place.line,
                    answer,
                })
                .collect(),
        }
    }

    fn text(&self) -> String {
        let Self {
            created,
            advanced,
            unchanged,
            refused,
            ..
        } = self;
        let refused = match refused {
            0 => String::new(),
            some => format!(
                ", {some} refused: the others are imported, so correct these and run it again"
            ),
        };
        format!("{created} created, {advanced} advanced, {unchanged} unchanged{refused}")
    }

    /// That of the first line that is refused.
    fn exit(&self) -> Exit {
        let mut problems = (self.sequences.iter()).filter_map(|line| line.answer.problem.as_ref());
        problems.next().map_or(Exit::Ok, refused)
    }
}
