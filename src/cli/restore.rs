//! `highwater restore`: a backup becomes the first node of a new cluster, above whatever the old one may have granted.

mod advice;
mod floors;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;

use serde::Serialize;

use self::advice::Advice;
use self::floors::Floor;
use super::error::{CliError, Exit};
use super::output::{Output, Table, or_dash};
use super::serve::address;
use crate::sequence::{Sequence, SequenceName};
use crate::server::config::{API_LISTEN_DEFAULT, ConfigError, PEER_LISTEN_DEFAULT};
use crate::server::offline::{Backup, Raise, Restored, restore};
use crate::server::types::Address;
use crate::wire::Number;

const EXAMPLES: &str = "\
Examples:
  highwater restore photos.backup --data-dir ./restored      shows what it holds, and refuses
  highwater restore photos.backup --data-dir ./restored \\
      --advance-by 1000000 --old-cluster-is-stopped
  highwater restore photos.backup --data-dir ./restored \\
      --floor photos=5120000 --floors other-floors.csv --old-cluster-is-stopped
  highwater serve --data-dir ./restored

What was granted after the backup is not in it. So each sequence has to be raised: all by
--advance-by, single ones at least to a --floor, such as the highest id in your tables;
where both are given, the higher counts, and no mark ever falls. --no-advance is for a
cluster that granted nothing after the backup. A file of floors has lines NAME,VALUE.

Exit codes: 0 restored, 1 the backup is damaged, cut off or of a later version, 2 what has
to be decided was not, or cannot be, 4 DIR is not empty";

/// The most sequences that are shown to a person.
const SHOWN_MAX: usize = 50;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The data directory to make: empty, or not there
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Where workers are to reach the node; 127.0.0.1:7101 by default
    #[arg(long, value_name = "ADDR")]
    listen: Option<Address>,
    /// Where its peers are to reach it; 127.0.0.1:7201 by default
    #[arg(long, value_name = "ADDR")]
    peer_listen: Option<Address>,
    /// Raise every sequence by so much, at most to its last value
    #[arg(long, value_name = "N")]
    advance_by: Option<u64>,
    /// Raise a sequence at least to this value; may be given again
    #[arg(long = "floor", value_name = "NAME=VALUE")]
    floors: Vec<Floor>,
    /// The same from a file, a line NAME,VALUE for each sequence
    #[arg(long = "floors", value_name = "FILE")]
    floors_file: Option<PathBuf>,
    /// Raise nothing: the old cluster granted nothing after the backup
    #[arg(long, conflicts_with_all = ["advance_by", "floors", "floors_file"])]
    no_advance: bool,
    /// No node of the old cluster runs, nor will again
    #[arg(long)]
    old_cluster_is_stopped: bool,
}

pub(super) fn run(args: Args, output: &Output) -> Result<Exit, CliError> {
    let name = args.file.display().to_string();
    let file = File::open(&args.file).map_err(|source| CliError::Open { name, source })?;
    let backup = Backup::read(file, &args.file)?;
    let raise = args.raise()?;
    let (Some(raise), true) = (&raise, args.old_cluster_is_stopped) else {
        let advice = Advice::of(&backup);
        output.data(advice.text(), &advice)?;
        return Err(args.undecided(raise.as_ref()));
    };
    let addresses = (
        reachable(&args.listen, API_LISTEN_DEFAULT)?,
        reachable(&args.peer_listen, PEER_LISTEN_DEFAULT)?,
    );
    let restored = restore(&args.data_dir, &backup, raise, addresses)?;
    let report = Report::new(&args, &backup, &restored);
    output.data(report.text(), &report)?;
    Ok(Exit::Ok)
}

impl Args {
    /// What is to be raised, or `None` where nothing was said of it.
    fn raise(&self) -> Result<Option<Raise>, CliError> {
        if self.no_advance {
            let by = Some(0);
            let floors = BTreeMap::new();
            return Ok(Some(Raise { by, floors }));
        }
        let mut floors = BTreeMap::new();
        let from_file = match &self.floors_file {
            Some(path) => floors::read(path)?,
            None => Vec::new(),
        };
        for Floor { name, value } in self.floors.iter().cloned().chain(from_file) {
            let floor: &mut u64 = floors.entry(name).or_default();
            *floor = value.max(*floor);
        }
        let by = self.advance_by;
        let said = by.is_some() || !self.floors.is_empty() || self.floors_file.is_some();
        Ok(said.then_some(Raise { by, floors }))
    }

    fn undecided(&self, raise: Option<&Raise>) -> CliError {
        let how_far = "how far the sequences are to be raised above the backup (--advance-by N, --floor NAME=VALUE or \
            --floors FILE; --no-advance only where nothing was granted after it)";
        let stopped = "that no node of the old cluster runs any more (--old-cluster-is-stopped)";
        let missing = match (raise, self.old_cluster_is_stopped) {
            (None, false) => format!("{how_far}, and {stopped}"),
            (None, true) => how_far.to_owned(),
            (Some(_), _) => stopped.to_owned(),
        };
        CliError::Undecided { missing }
    }
}

/// An address that can be told to other nodes.
fn reachable(given: &Option<Address>, default: &str) -> Result<Address, CliError> {
    let address = address(given, default)?;
    if address.port() == 0 {
        return Err(ConfigError::NoPort { address }.into());
    }
    Ok(address)
}

/// What was restored.
#[derive(Debug, Serialize)]
struct Report {
    cluster: String,
    epoch: u64,
    data_dir: String,
    sequences: Vec<Row>,
}

/// A sequence, as a person decides about it.
#[derive(Debug, Serialize)]
struct Row {
    sequence: SequenceName,
    /// The last value in the backup.
    high: Option<Number>,
    /// The first that will be granted, or would be.
    next: Option<Number>,
    retired: bool,
}

/// The headings of a row's cells.
const HEADING: [&str; 4] = ["SEQUENCE", "LAST IN BACKUP", "NEXT", "RETIRED"];

impl Row {
    /// Of a sequence whose mark in the backup was this.
    fn of((name, sequence): (&SequenceName, &Sequence), high: Option<u64>) -> Self {
        let settings = &sequence.settings;
        let number = |value| Number::new(value, settings.id_form());
        Self {
            sequence: name.clone(),
            high: high.map(number),
            next: settings.next_above(sequence.high).map(number),
            retired: sequence.retired,
        }
    }

    fn cells(&self) -> [String; 4] {
        let retired = if self.retired { "yes" } else { "no" };
        [
            self.sequence.to_string(),
            or_dash(self.high),
            or_dash(self.next),
            retired.to_owned(),
        ]
    }
}

impl Report {
    fn new(args: &Args, backup: &Backup, restored: &Restored) -> Self {
        let row = |(name, sequence)| {
            let before = backup.table.get(name).and_then(|before| before.high);
            Row::of((name, sequence), before)
        };
        Self {
            cluster: restored.cluster.to_string(),
            epoch: restored.table.header().epoch,
            data_dir: args.data_dir.display().to_string(),
            sequences: restored.table.iter().map(row).collect(),
        }
    }

    fn text(&self) -> String {
        let shown = self.sequences.iter().take(SHOWN_MAX);
        let table = shown.fold(Table::new().row(HEADING), |table, row| {
            table.row(row.cells())
        });
        let Self {
            cluster,
            epoch,
            data_dir,
            ..
        } = self;
        let more = more(self.sequences.len());
        format!(
            "{table}{more}\nrestored as cluster {cluster}, epoch {epoch}: highwater serve --data-dir {data_dir}"
        )
    }
}

/// What is said of those that are not shown.
fn more(sequences: usize) -> String {
    match sequences.saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        more => format!("and {more} more: --json shows all\n"),
    }
}
