//! `highwater sequence`: create, show, advance.

use clap::Subcommand;

use super::args::{Connect, block_on};
use super::error::{CliError, Exit};
use super::output::{Output, Table, or_dash};
use crate::client::Client;
use crate::sequence::SequenceName;
use crate::wire::{AdvancedBody, CreateBody, Number, SequenceBody};

const CREATE_EXAMPLES: &str = "\
Examples:
  highwater sequence create photos
  highwater sequence create even --start 2 --increment 2
  highwater sequence create wide --max-value 18446744073709551615

To create it again with the same settings is no error; with other settings it is
a conflict (exit code 4).";
const SHOW_EXAMPLES: &str = "\
Examples:
  highwater sequence show photos
  highwater sequence show photos --json";
const ADVANCE_EXAMPLES: &str = "\
Examples:
  highwater sequence advance photos 5000     the next value granted is 5001

A mark never falls: a value below it changes nothing.";

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
    Show(Named),
    /// Raise a sequence's high-water mark, so that no value up to it is granted any more
    #[command(after_help = ADVANCE_EXAMPLES)]
    Advance(Advance),
}

#[derive(Debug, clap::Args)]
struct Named {
    /// Of which sequence
    #[arg(value_name = "NAME")]
    sequence: SequenceName,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
struct Create {
    #[command(flatten)]
    named: Named,
    /// The first value, 0 or more; 1 by default
    #[arg(long)]
    start: Option<u64>,
    /// The distance between neighbours, 1 or more; 1 by default
    #[arg(long)]
    increment: Option<u64>,
    /// No value above it is granted; 2^53 - 1 by default, up to 2^64 - 1
    #[arg(long)]
    max_value: Option<u64>,
    /// Values reserved ahead; 0 by default
    #[arg(long)]
    cache: Option<u64>,
    /// The most values of one lease; 1000000 by default
    #[arg(long)]
    max_lease: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct Advance {
    #[command(flatten)]
    named: Named,
    /// No value up to this one is granted afterwards
    to: u64,
}

pub(super) fn run(args: Args, output: &Output) -> Result<Exit, CliError> {
    match args.verb {
        Verb::Create(args) => create(&args, output)?,
        Verb::Show(args) => show(&args, output)?,
        Verb::Advance(args) => advance(&args, output)?,
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
    let name = &args.named.sequence;
    let client = args.named.client()?;
    let created =
        block_on(client.create_sequence(name, &settings))?.map_err(CliError::about(name))?;
    let text = if created.fresh {
        format!("{name} created")
    } else {
        format!("{name} exists with these settings")
    };
    output.data(text, &created.sequence)
}

fn show(args: &Named, output: &Output) -> Result<(), CliError> {
    let client = args.client()?;
    let sequence =
        block_on(client.sequence(&args.sequence))?.map_err(CliError::about(&args.sequence))?;
    output.data(table(&sequence), &sequence)
}

fn advance(args: &Advance, output: &Output) -> Result<(), CliError> {
    let name = &args.named.sequence;
    let client = args.named.client()?;
    let advanced = block_on(client.advance(name, args.to))?.map_err(CliError::about(name))?;
    output.data(sentence(&advanced), &advanced)
}

impl Named {
    fn client(&self) -> Result<Client, CliError> {
        self.connect.client()
    }
}

fn sentence(advanced: &AdvancedBody) -> String {
    let name = &advanced.sequence;
    let high = or_dash(advanced.high);
    if advanced.changed {
        let previous = or_dash(advanced.previous);
        format!("{name} advanced from {previous} to {high}")
    } else {
        format!("{name} stays at {high}")
    }
}

fn table(sequence: &SequenceBody) -> Table {
    let percent = sequence.used_ratio * 100.0;
    Table::new()
        .row(["sequence", sequence.sequence.as_str()])
        .row(["high".to_owned(), or_dash(sequence.high)])
        .row(["next".to_owned(), or_dash(sequence.next)])
        .row(["remaining".to_owned(), sequence.remaining.to_string()])
        .row(["used".to_owned(), format!("{percent:.2} %")])
        .row(["start".to_owned(), sequence.start.to_string()])
        .row(["increment".to_owned(), sequence.increment.to_string()])
        .row(["max_value".to_owned(), sequence.max_value.to_string()])
        .row(["cache".to_owned(), sequence.cache.to_string()])
        .row(["max_lease".to_owned(), sequence.max_lease.to_string()])
        .row(["retired", if sequence.retired { "yes" } else { "no" }])
        .row(["index".to_owned(), or_dash(sequence.index)])
}
