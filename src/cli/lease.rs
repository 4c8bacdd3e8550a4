//! `highwater lease`: the values on standard output, so that a shell can read them.

use super::args::{Connect, block_on, parse_count};
use super::error::{CliError, Exit};
use super::output::Output;
use crate::client::IdempotencyKey;
use crate::sequence::{RangeCount, SequenceName};

const EXAMPLES: &str = "\
Examples:
  highwater lease photos             one value, the first and the last: `1 1`
  highwater lease photos 1000        a thousand values: `2 1001`
  read FIRST LAST < <(highwater lease photos 1000)
  highwater lease photos 10 --url http://127.0.0.1:7101,http://127.0.0.1:7102
  highwater lease photos 10 --key order-17     the same ten values, however often

A key makes a repetition the same lease, for ten minutes. Without one, exit code 7
means that the range may have been granted: leasing again gives another range and
leaves a gap.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Of which sequence
    #[arg(value_name = "NAME")]
    sequence: SequenceName,
    /// How many values
    #[arg(default_value = "1", value_parser = parse_count)]
    count: RangeCount,
    /// Makes a repetition with the same key the same lease: 1 to 255 visible characters
    #[arg(long, value_name = "KEY")]
    key: Option<IdempotencyKey>,
    #[command(flatten)]
    connect: Connect,
}

pub(super) fn run(args: &Args, output: &Output) -> Result<Exit, CliError> {
    let client = args.connect.client()?;
    let (sequence, count) = (&args.sequence, args.count);
    let leased = match &args.key {
        Some(key) => block_on(client.lease_keyed(sequence, count, key))?,
        None => block_on(client.lease(sequence, count))?,
    };
    let grant = leased.map_err(CliError::about(sequence))?;
    let text = format!("{} {}", grant.first(), grant.last());
    output.data(text, grant.body())?;
    Ok(Exit::Ok)
}
