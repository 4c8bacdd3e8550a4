//! The command line: one file a group of verbs. Each verb turns its arguments into calls and their results into output;
//! only `output` prints, and only [`main`] makes an exit code.

mod args;
mod backup;
mod can_stop;
mod chaos;
mod cluster;
mod demo;
mod error;
mod inspect;
mod lease;
mod member;
mod output;
mod restore;
mod sequence;
mod serve;
mod verify;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::panic_guard;
use error::{CliError, Exit};
use output::{Format, Output};

const ABOUT: &str = "A clustered sequencer: unique, strictly ordered ranges of integers";
const EXAMPLES: &str = "\
Examples:
  highwater demo                     nodes, workers, leader kills, a checker
  highwater serve                    a durable one-node cluster on loopback
  highwater sequence create photos
  highwater lease photos 1000        prints the first and the last value

Exit codes: 0 ok, 1 internal, 2 usage or invalid input, 3 not found, 4 conflict,
5 exhausted, 6 denied, 7 timed out (it may have happened), 8 unavailable
(nothing was changed), 10 verification failed";

#[derive(Debug, Parser)]
#[command(name = "highwater", version, about = ABOUT, after_help = EXAMPLES)]
struct Cli {
    /// Write data, and errors, as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

impl Cli {
    fn format(&self) -> Format {
        if self.json {
            Format::Json
        } else {
            Format::Text
        }
    }
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a node of a cluster, or a cluster of one
    Serve(serve::Args),
    /// Show that the guarantees hold: real nodes, workers, leader kills and a checker
    Demo(demo::Args),
    /// Let everything go wrong at once on a cluster of its own, and check every promise
    Chaos(chaos::Args),
    /// Lease the next values of a sequence
    Lease(lease::Args),
    /// Create, show, list, alter, advance, retire, import and check sequences
    Sequence(sequence::Args),
    /// Look at the cluster
    Cluster(cluster::Args),
    /// List, add, promote, demote, remove and replace the cluster's nodes while it serves
    Member(member::Args),
    /// Look into a stopped node's data directory, and tell whether the node would start from it
    Inspect(inspect::Args),
    /// Write a cluster's sequences into a file, from a node that serves or from a stopped one's directory
    Backup(backup::Args),
    /// Make a data directory of a backup: the first node of a new cluster
    Restore(restore::Args),
    /// Check recorded histories for values granted twice, out of order or lost
    Verify(verify::Args),
}

/// Runs the command line of this process, and says how it went.
#[must_use]
pub fn main() -> ExitCode {
    panic_guard::install();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_parsed(&error).into(),
    };
    let output = Output::new(cli.format());
    let exit = run(cli.verb, &output).unwrap_or_else(|error| {
        output.error(&error);
        error.exit()
    });
    exit.into()
}

/// Help where it was asked for, or where nothing was said; else what is wrong, on one line like every error.
fn not_parsed(error: &clap::Error) -> Exit {
    let is_help = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Some(Exit::Ok),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Some(Exit::Usage),
        _ => None,
    };
    if let Some(exit) = is_help {
        // Nothing can be told where the stream is closed.
        drop(error.print());
        return exit;
    }
    let asked_for_json = std::env::args_os().any(|argument| argument == "--json");
    let format = if asked_for_json {
        Format::Json
    } else {
        Format::Text
    };
    let error = CliError::usage(&error.to_string());
    Output::new(format).error(&error);
    error.exit()
}

fn run(verb: Verb, output: &Output) -> Result<Exit, CliError> {
    match verb {
        Verb::Serve(args) => serve::run(args),
        Verb::Demo(args) => demo::run(args, output),
        Verb::Chaos(args) => chaos::run(args, output),
        Verb::Lease(args) => lease::run(&args, output),
        Verb::Sequence(args) => sequence::run(args, output),
        Verb::Cluster(args) => cluster::run(&args, output),
        Verb::Member(args) => member::run(&args, output),
        Verb::Inspect(args) => inspect::run(&args, output),
        Verb::Backup(args) => backup::run(&args, output),
        Verb::Restore(args) => restore::run(args, output),
        Verb::Verify(args) => verify::run(&args, output),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    // I10: whatever the verb, and whichever thread.
    #[test]
    fn a_panic_ends_the_process_as_soon_as_a_command_line_runs() {
        const CHILD: &str = "HIGHWATER_TEST_MAIN";
        if std::env::var_os(CHILD).is_some() {
            // The arguments are a test's: it says that it does not understand them.
            let _usage = main();
            drop(std::thread::spawn(|| panic!("the queue is gone")).join());
            return;
        }

        let test = "cli::tests::a_panic_ends_the_process_as_soon_as_a_command_line_runs";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();

        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let line = "highwater: internal error, the process ends: the queue is gone";
        assert!(said.contains(line), "{said}");
    }

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }
}
