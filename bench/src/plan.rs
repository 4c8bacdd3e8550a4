//! What is asked of the program.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

/// Measures Highwater beside the limits of the machine and beside what else gives numbers
#[derive(Debug, Parser)]
#[command(name = "scripts/bench", bin_name = "scripts/bench")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Measures, and prints the tables
    Run(Plan),
    /// Makes pages and plot again, of the data beside them
    Page {
        /// Where benchmarks.json, benchmarks.md and benchmarks.svg are
        docs: PathBuf,
    },
    /// The limit: an axum handler that adds to a counter in memory
    #[command(hide = true)]
    Handler { listen: std::net::SocketAddr },
}

/// How a run is made.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// The highwater program that is measured
    #[arg(long, value_name = "FILE")]
    pub(crate) program: PathBuf,
    /// What is measured
    #[arg(long, value_name = "WHO,…", value_delimiter = ',')]
    only: Vec<Who>,
    /// What is asked: all of it, or only `load` where --only says of whom
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    parts: Vec<Part>,
    /// How often everything is measured, in turn
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: u32,
    /// For how long each is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    secs: f64,
    /// For how long each is asked before that, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub(crate) warm_ms: u64,
    /// How many workers ask at once, each with one connection and one request on its way
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 16, 64, 256, 1024])]
    pub(crate) conc: Vec<usize>,
    /// How often the leader is killed, and as often told to end; of peers a quarter of that
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) losses: u32,
    /// How many sequences a large table has
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) sequences: u32,
    /// The tsoracle program
    #[arg(long, value_name = "FILE", default_value = "tsoracle")]
    pub(crate) tsoracle: PathBuf,
    /// Writes benchmarks.json there, and makes benchmarks.md and benchmarks.svg of it
    #[arg(long, value_name = "DIR")]
    pub(crate) docs: Option<PathBuf>,
}

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Who {
    /// Three nodes of Highwater.
    Ours,
    /// The disk, the loopback network and a handler in memory.
    Limits,
    Tsoracle,
    Etcd,
    Redis,
    Postgres,
    Mariadb,
}

/// What is asked of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Grants per second, latency and costs.
    Load,
    /// Of Highwater, the same over many sequences.
    Sequences,
    /// The loss of the leader.
    Failover,
}

impl Plan {
    /// Who is measured, in this order: those that are compared are neighbours.
    pub(crate) fn all(&self) -> impl Iterator<Item = Who> {
        let who = Who::value_variants().iter().copied();
        who.filter(|who| self.only.is_empty() || self.only.contains(who))
    }

    pub(crate) fn asks(&self, part: Part) -> bool {
        match (&self.parts[..], self.only.is_empty()) {
            ([], true) => true,
            ([], false) => part == Part::Load,
            (parts, _) => parts.contains(&part),
        }
    }

    pub(crate) fn warm(&self) -> Duration {
        Duration::from_millis(self.warm_ms)
    }

    pub(crate) fn measured(&self) -> Duration {
        Duration::try_from_secs_f64(self.secs).unwrap_or_default()
    }

    pub(crate) fn measured_ms(&self) -> u64 {
        u64::try_from(self.measured().as_millis()).unwrap_or(u64::MAX)
    }
}
