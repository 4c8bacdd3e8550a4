//! Collects what all workers saw into a file, line by line. The checker judges the file, as anybody can.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::HarnessError;
use crate::history::{LeaseOutcome, Line};

/// Lines that may wait to be written. Workers wait for room.
const QUEUE_LINES_MAX: usize = 1_024;

/// Counts that can be looked at while the run goes on.
#[derive(Debug, Default)]
pub struct Progress {
    grants: AtomicU64,
    unknown: AtomicU64,
}

impl Progress {
    /// Leases that were granted.
    pub fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    /// Leases of which nobody knows whether they were granted.
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }
}

/// Receives the lines of a run.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    file: BufWriter<File>,
    progress: Arc<Progress>,
    lines: mpsc::Receiver<Line>,
}

impl Recorder {
    /// A recorder into this file, and the way for lines into it.
    ///
    /// # Errors
    /// [`HarnessError`] where the file or the ports cannot be had.
    pub fn create(path: &Path) -> Result<(Self, mpsc::Sender<Line>), HarnessError> {
        let file = File::create(path).map_err(|source| HarnessError::File {
            path: path.to_owned(),
            action: "written",
            source,
        })?;
        let (sender, lines) = mpsc::channel(QUEUE_LINES_MAX);
        let recorder = Self {
            path: path.to_owned(),
            file: BufWriter::new(file),
            progress: Arc::default(),
            lines,
        };
        Ok((recorder, sender))
    }

    /// What can be looked at while the run goes on.
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Takes lines until all senders are gone. The file is then whole.
    ///
    /// # Errors
    /// [`HarnessError`] where the run has to end.
    pub async fn run(mut self) -> Result<(), HarnessError> {
        while let Some(line) = self.lines.recv().await {
            let written = self.write(&line);
            written.map_err(|source| self.file_error(source))?;
            let counter = match line.lease() {
                Some(LeaseOutcome::Granted { .. }) => Some(&self.progress.grants),
                Some(LeaseOutcome::Unknown) => Some(&self.progress.unknown),
                Some(LeaseOutcome::NotApplied) | None => None,
            };
            if let Some(counter) = counter {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
        let flushed = self.file.flush();
        flushed.map_err(|source| self.file_error(source))
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        self.file.write_all(line.to_json().as_bytes())?;
        self.file.write_all(b"\n")
    }

    fn file_error(&self, source: io::Error) -> HarnessError {
        HarnessError::File {
            path: self.path.clone(),
            action: "written",
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;
    use crate::history::{Operation, read_history};
    use crate::sequence::RangeCount;

    fn line(first: u64, outcome: LeaseOutcome) -> Line {
        Line {
            worker: "w".to_owned(),
            node: Some(1),
            sequence: "s".parse().unwrap(),
            sent_ns: first,
            received_ns: first,
            operation: Operation::Lease {
                count: RangeCount::ONE,
                key: None,
                outcome,
            },
        }
    }

    fn granted(value: u64) -> Line {
        let (first, last) = (value, value);
        line(
            value,
            LeaseOutcome::Granted {
                first,
                last,
                increment: 1,
            },
        )
    }

    #[tokio::test]
    async fn the_file_holds_every_line_that_was_sent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.ndjson");
        let (recorder, lines) = Recorder::create(&path).unwrap();
        let progress = recorder.progress();
        let sent = [
            granted(1),
            line(2, LeaseOutcome::NotApplied),
            line(3, LeaseOutcome::Unknown),
            granted(4),
        ];
        for line in &sent {
            lines.send(line.clone()).await.unwrap();
        }
        drop(lines);

        recorder.run().await.unwrap();

        let file = BufReader::new(File::open(&path).unwrap());
        let read: Vec<Line> = read_history(file).map(|read| read.unwrap().1).collect();
        assert_eq!(read, sent);
        assert_eq!((progress.grants(), progress.unknown()), (2, 1));
    }
}
