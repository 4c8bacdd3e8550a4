//! The `highwater` command: parse, run, exit.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A grant takes some dozens of small allocations, which are freed on other threads than those they were made on.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    highwater::cli::main()
}
