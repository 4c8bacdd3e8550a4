//! The `highwater` command: parse, run, exit.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// glibc's allocator took an eighth of the processor time of a grant.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    highwater::cli::main()
}
