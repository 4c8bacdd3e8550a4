//! `highwater lease`: the values on standard output, so that a shell can read them.

use super::args::{Connect, block_on, parse_count};
use super::error::{CliError, Exit};
use super::output::Output;
use crate::sequence::{RangeCount, SequenceName};

const EXAMPLES: &str = "\
Examples:
  highwater lease photos             one value, the first and the last: `1 1`
  highwater lease photos 1000        a thousand values: `2 1001`
  read FIRST LAST < <(highwater lease photos 1000)
  highwater lease photos 10 --url http://127.0.0.1:7101,http://127.0.0.1:7102

Exit code 7 means that the range may have been granted. Leasing again gives
another range and leaves a gap.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Of which sequence
    #[arg(value_name = "NAME")]
    sequence: SequenceName,
    /// How many values
    #[arg(default_value = "1", value_parser = parse_count)]
    count: RangeCount,
    #[command(flatten)]
    connect: Connect,
}

pub(super) fn run(args: &Args, output: &Output) -> Result<Exit, CliError> {
    let client = args.connect.client()?;
    let grant = block_on(client.lease(&args.sequence, args.count))?
        .map_err(CliError::about(&args.sequence))?;
    let text = format!("{} {}", grant.first(), grant.last());
    output.data(text, grant.body())?;
    Ok(Exit::Ok)
}
