//! `highwater sequence`: create, show, list, alter, advance, retire, import, check.

mod check;
mod import;
pub(super) mod marks;
mod tables;

use std::num::NonZeroU32;

use clap::Subcommand;

use super::args::{Connect, block_on};
use super::error::{CliError, Exit};
use super::output::{Output, or_dash};
use crate::client::{Client, ClientError, Consistency, ListQuery, Reads, Run};
use crate::sequence::SequenceName;
use crate::wire::{AdvancedBody, AlterBody, CreateBody, Number, SequenceBody, SequencesBody};
use tables::{columns, table};

const CREATE_EXAMPLES: &str = "\
Examples:
  highwater sequence create photos
  highwater sequence create even --start 2 --increment 2
  highwater sequence create wide --max-value 18446744073709551615
  highwater sequence create photos --dry-run

To create it again with the same settings is no error; with other settings it is
a conflict (exit code 4).";
const SHOW_EXAMPLES: &str = "\
Examples:
  highwater sequence show photos
  highwater sequence show photos --json
  highwater sequence show photos --local     as the asked node has it, without a leader";
const LIST_EXAMPLES: &str = "\
Examples:
  highwater sequence list
  highwater sequence list --prefix eu.
  highwater sequence list --limit 50 --after photos
  highwater sequence list --json";
const ALTER_EXAMPLES: &str = "\
Examples:
  highwater sequence alter photos --max-lease 100000
  highwater sequence alter photos --max-value 1000000 --dry-run

What is not named stays, and so does the next value. A bound below what is granted,
or on the other side of 2^53 - 1, is a conflict (exit code 4).";
const ADVANCE_EXAMPLES: &str = "\
Examples:
  highwater sequence advance photos 5000     the next value granted is 5001
  highwater sequence advance photos 5000 --dry-run

A mark never falls: a value below it changes nothing.";
const RETIRE_EXAMPLES: &str = "\
Examples:
  highwater sequence retire photos
  highwater sequence retire photos --dry-run

A retired sequence gives nothing (exit code 4). Its name keeps its mark for ever:
created again, it continues above. To retire it twice is no error.";

/// The most sequences of one page, which the nodes set.
const PAGE_MAX: NonZeroU32 = match NonZeroU32::new(1_000) {
    Some(most) => most,
    None => NonZeroU32::MIN,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a sequence
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Create),
    /// Show a sequence's settings and how far it has come
    #[command(after_help = SHOW_EXAMPLES)]
    Show(Show),
    /// List sequences by name, retired ones too
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Change a sequence's bounds
    #[command(after_help = ALTER_EXAMPLES)]
    Alter(Alter),
    /// Raise a sequence's high-water mark, so that no value up to it is granted any more
    #[command(after_help = ADVANCE_EXAMPLES)]
    Advance(Advance),
    /// End a sequence for good: its name keeps its mark
    #[command(after_help = RETIRE_EXAMPLES)]
    Retire(Change),
    /// Take over the marks that other counters have reached, many at once
    Import(import::Args),
    /// Tell whether sequences cover the values that a database has
    Check(check::Args),
}

#[derive(Debug, clap::Args)]
struct Read {
    /// Take what the asked node has, though it may be old
    #[arg(long)]
    local: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
struct Show {
    /// Of which sequence
    #[arg(value_name = "NAME")]
    sequence: SequenceName,
    #[command(flatten)]
    read: Read,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Only names that begin so
    #[arg(long)]
    prefix: Option<SequenceName>,
    /// Only names after this one
    #[arg(long, value_name = "NAME")]
    after: Option<SequenceName>,
    /// At most so many; all by default
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroU32>,
    #[command(flatten)]
    read: Read,
}

#[derive(Debug, clap::Args)]
struct Change {
    /// Of which sequence
    #[arg(value_name = "NAME")]
    sequence: SequenceName,
    /// Show what it would be, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
struct Create {
    #[command(flatten)]
    change: Change,
    /// The first value, 0 or more; 1 by default
    #[arg(long)]
    start: Option<u64>,
    /// The distance between neighbours, 1 or more; 1 by default
    #[arg(long)]
    increment: Option<u64>,
    /// No value above it is granted; 2^53 - 1 by default, up to 2^64 - 1
    #[arg(long)]
    max_value: Option<u64>,
    /// Values that the leader reserves at once, to grant them from memory: faster, and a change of the leader leaves a gap of what
    /// is left of them; 0 by default, every grant is committed by itself
    #[arg(long)]
    cache: Option<u64>,
    /// The most values of one lease; 1000000 by default
    #[arg(long)]
    max_lease: Option<u64>,
}

#[derive(Debug, clap::Args)]
#[group(skip)]
struct Alter {
    #[command(flatten)]
    change: Change,
    #[command(flatten)]
    settings: Alterations,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Alterations {
    /// No value above it is granted; at or above the mark
    #[arg(long, value_name = "N")]
    max_value: Option<u64>,
    /// Values that the leader reserves at once; 0: every grant is committed by itself
    #[arg(long, value_name = "N")]
    cache: Option<u64>,
    /// The most values of one lease
    #[arg(long, value_name = "N")]
    max_lease: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct Advance {
    #[command(flatten)]
    change: Change,
    /// No value up to this one is granted afterwards
    to: u64,
}

pub(super) fn run(args: Args, output: &Output) -> Result<Exit, CliError> {
    match args.verb {
        Verb::Create(args) => create(&args, output)?,
        Verb::Show(args) => show(&args, output)?,
        Verb::List(args) => list(&args, output)?,
        Verb::Alter(args) => alter(&args, output)?,
        Verb::Advance(args) => advance(&args, output)?,
        Verb::Retire(args) => retire(&args, output)?,
        Verb::Import(args) => return import::run(&args, output),
        Verb::Check(args) => return check::run(&args, output),
    }
    Ok(Exit::Ok)
}

fn create(args: &Create, output: &Output) -> Result<(), CliError> {
    let settings = CreateBody {
        start: args.start.map(Number::from),
        increment: args.increment.map(Number::from),
        max_value: args.max_value.map(Number::from),
        cache: args.cache.map(Number::from),
        max_lease: args.max_lease.map(Number::from),
    };
    let Change { sequence, .. } = &args.change;
    let client = args.change.connect.client()?;
    let changes = client.changes(args.change.run());
    let created = args
        .change
        .done(block_on(changes.create_sequence(sequence, &settings))?)?;
    let text = if created.fresh {
        format!("{sequence} created")
    } else {
        format!("{sequence} exists with these settings")
    };
    args.change.tell(output, text, &created.sequence)
}

fn show(args: &Show, output: &Output) -> Result<(), CliError> {
    let client = args.read.connect.client()?;
    let read = args.read.of(&client).sequence(&args.sequence);
    let sequence = block_on(read)?.map_err(CliError::about(&args.sequence))?;
    output.data(table(&sequence), &sequence)
}

fn list(args: &List, output: &Output) -> Result<(), CliError> {
    let client = args.read.connect.client()?;
    let reads = args.read.of(&client);
    let listed = block_on(args.collect(reads))??;
    output.data(columns(&listed), &listed)?;
    if let Some(last) = &listed.next {
        output.note(format_args!("there are more: --after {last} continues"));
    }
    Ok(())
}

fn alter(args: &Alter, output: &Output) -> Result<(), CliError> {
    let body = AlterBody {
        max_value: args.settings.max_value.map(Number::from),
        cache: args.settings.cache.map(Number::from),
        max_lease: args.settings.max_lease.map(Number::from),
        ..AlterBody::default()
    };
    let Change { sequence, .. } = &args.change;
    let client = args.change.connect.client()?;
    let changes = client.changes(args.change.run());
    let altered = args
        .change
        .done(block_on(changes.alter_sequence(sequence, &body))?)?;
    let (max_value, cache, max_lease) = (altered.max_value, altered.cache, altered.max_lease);
    let text =
        format!("{sequence} altered: max_value {max_value}, cache {cache}, max_lease {max_lease}");
    args.change.tell(output, text, &altered)
}

fn advance(args: &Advance, output: &Output) -> Result<(), CliError> {
    let client = args.change.connect.client()?;
    let changes = client.changes(args.change.run());
    let advance = changes.advance(&args.change.sequence, args.to);
    let advanced = args.change.done(block_on(advance)?)?;
    args.change.note_dry_run(output);
    output.data(sentence(&advanced, args.change.run()), &advanced)
}

fn retire(args: &Change, output: &Output) -> Result<(), CliError> {
    let client = args.connect.client()?;
    let changes = client.changes(args.run());
    let retired = args.done(block_on(changes.retire_sequence(&args.sequence))?)?;
    let name = &retired.sequence;
    let text = match retired.high {
        Some(high) => format!("{name} is retired: created again, it continues above {high}"),
        None => format!("{name} is retired: no value of it was granted"),
    };
    args.tell(output, text, &retired)
}

impl Change {
    fn run(&self) -> Run {
        if self.dry_run { Run::Dry } else { Run::Real }
    }

    /// Names the sequence where it was not done.
    fn done<T>(&self, answer: Result<T, ClientError>) -> Result<T, CliError> {
        answer.map_err(CliError::about(&self.sequence))
    }

    /// Says what happened, or shows what the sequence would be.
    fn tell(
        &self,
        output: &Output,
        happened: String,
        sequence: &SequenceBody,
    ) -> Result<(), CliError> {
        match self.run() {
            Run::Real => output.data(happened, sequence),
            Run::Dry => {
                self.note_dry_run(output);
                output.data(table(sequence), sequence)
            }
        }
    }

    fn note_dry_run(&self, output: &Output) {
        if self.run() == Run::Dry {
            output.note("dry run: nothing was changed, this is what would be");
        }
    }
}

impl Read {
    fn of<'a>(&self, client: &'a Client) -> Reads<'a> {
        client.reads(if self.local {
            Consistency::Local
        } else {
            Consistency::Linearizable
        })
    }
}

impl List {
    /// Page after page, up to the limit. At the most it holds all sequences of a cluster, which are bounded.
    async fn collect(&self, reads: Reads<'_>) -> Result<SequencesBody, ClientError> {
        let mut listed = SequencesBody {
            sequences: Vec::new(),
            next: self.after.clone(),
        };
        let wanted = self.limit.map_or(u32::MAX, NonZeroU32::get);
        loop {
            let have = u32::try_from(listed.sequences.len()).unwrap_or(u32::MAX);
            let Some(left) = NonZeroU32::new(wanted.saturating_sub(have)) else {
                return Ok(listed);
            };
            let query = ListQuery {
                prefix: self.prefix.clone(),
                after: listed.next,
                limit: Some(left.min(PAGE_MAX)),
            };
            let page = reads.list_sequences(&query).await?;
            listed.sequences.extend(page.sequences);
            listed.next = page.next;
            if listed.next.is_none() {
                return Ok(listed);
            }
        }
    }
}

fn sentence(advanced: &AdvancedBody, run: Run) -> String {
    let name = &advanced.sequence;
    let high = or_dash(advanced.high);
    let previous = or_dash(advanced.previous);
    match (advanced.changed, run) {
        (true, Run::Real) => format!("{name} advanced from {previous} to {high}"),
        (true, Run::Dry) => format!("{name} would advance from {previous} to {high}"),
        (false, _) => format!("{name} stays at {high}"),
    }
}
