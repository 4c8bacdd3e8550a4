//! The `highwater` command: parse, run, exit.

use std::process::ExitCode;

fn main() -> ExitCode {
    highwater::cli::main()
}
