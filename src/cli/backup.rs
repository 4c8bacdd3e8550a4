//! `highwater backup`: a cluster's sequences in a file, from a node that serves or from the directory of one that does not.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::NamedTempFile;

use super::args::{Connect, block_on};
use super::error::{CliError, Exit};
use super::output::{Output, or_dash};
use crate::client::Client;
use crate::server::offline::{Backup, salvage};

const EXAMPLES: &str = "\
Examples:
  highwater backup photos.backup                       from any node, while it serves
  highwater backup photos.backup --force               in place of what is there
  highwater backup last.backup --from-dir ./data/2     where no quorum comes back

It holds every sequence's settings and high-water mark, as they were at one moment after
it was asked for. What is granted later is not in it: `highwater restore` asks how far
the marks are to be raised. With --from-dir the node must be stopped; its directory is
checked as by a start, and not changed.

Exit codes: 0 the file is whole and on disk, 4 FILE is there already, 8 no node sent it,
1 the directory would be refused by a start";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Where to write it; a name that appears once the backup is whole
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace FILE where it is there
    #[arg(long)]
    force: bool,
    /// Instead of asking a node, read the data directory of a stopped one, with its whole log
    #[arg(long, value_name = "DIR")]
    from_dir: Option<PathBuf>,
    #[command(flatten)]
    connect: Connect,
}

pub(super) fn run(args: &Args, output: &Output) -> Result<Exit, CliError> {
    let file = args.file.as_path();
    if !args.force && file.exists() {
        return Err(CliError::Exists { path: file.into() });
    }
    let failed = |source| CliError::Write {
        path: file.into(),
        source,
    };
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Beside its place, so that a rename puts it there whole. Dropped before, it leaves nothing.
    let mut temporary = tempfile::Builder::new()
        .prefix(".highwater-backup-")
        .tempfile_in(directory)
        .map_err(failed)?;
    match &args.from_dir {
        Some(directory) => salvage(directory)?
            .write(BufWriter::new(temporary.as_file()))
            .map_err(failed)?,
        None => {
            let client = args.connect.client()?;
            let downloaded = block_on(download(&client, &mut temporary, (file, output)));
            output.progress("");
            downloaded??;
        }
    }
    temporary.as_file().sync_all().map_err(failed)?;
    let backup = Backup::read(temporary.reopen().map_err(failed)?, file)?;
    let bytes = temporary.as_file().metadata().map_err(failed)?.len();

    let placed = if args.force {
        temporary.persist(file)
    } else {
        temporary.persist_noclobber(file)
    };
    placed.map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => CliError::Exists { path: file.into() },
        _ => failed(error.error),
    })?;
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed)?;
    let made = Made::new(file, &backup, bytes);
    output.data(made.text(), &made)?;
    Ok(Exit::Ok)
}

async fn download(
    client: &Client,
    temporary: &mut NamedTempFile,
    (file, output): (&Path, &Output),
) -> Result<(), CliError> {
    let mut coming = client.backup().await?;
    let mut received: u64 = 0;
    while let Some(piece) = coming.piece().await? {
        temporary
            .write_all(&piece)
            .map_err(|source| CliError::Write {
                path: file.into(),
                source,
            })?;
        received = received.saturating_add(piece.len() as u64);
        output.progress(format_args!(
            "{} KiB from {}",
            received / 1024,
            coming.node()
        ));
    }
    Ok(())
}

/// What was made.
#[derive(Debug, Serialize)]
struct Made {
    file: String,
    bytes: u64,
    cluster: String,
    epoch: u64,
    /// The last log entry in it.
    index: Option<u64>,
    /// In milliseconds since 1970.
    taken_ms: u64,
    sequences: usize,
}

impl Made {
    fn new(file: &Path, backup: &Backup, bytes: u64) -> Self {
        Self {
            file: file.display().to_string(),
            bytes,
            cluster: backup.cluster.to_string(),
            epoch: backup.table.header().epoch,
            index: backup.last.map(|last| last.index()),
            taken_ms: backup.taken_ms,
            sequences: backup.table.len(),
        }
    }

    fn text(&self) -> String {
        let Self {
            file,
            bytes,
            cluster,
            epoch,
            index,
            sequences,
            ..
        } = self;
        let index = or_dash(*index);
        format!(
            "{file}: {sequences} sequences of cluster {cluster}, epoch {epoch}, up to log entry {index}, {bytes} bytes"
        )
    }
}
