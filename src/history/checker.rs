//! Reads all sources, judges their lines together, and reads once more for the lines that show a violation.

use std::collections::BTreeMap;
use std::io;

use super::judge::{Found, GapRule, Judge};
use super::read::{ReadError, Texts};
use super::report::{Report, Violation, Witness};
use super::source::Source;

/// What lines may take of memory before they go to temporary files.
const MEMORY_BYTES: usize = 256 * 1024 * 1024;
/// What the lines of a witness may take.
const WITNESS_BYTES: usize = 4 * 1024;

/// The checker: first all lines, then the verdict. It is exact in memory that is bounded.
#[derive(Debug)]
pub struct Checker {
    gap_rule: GapRule,
    memory_bytes: usize,
    sources: Vec<Source>,
}

impl Checker {
    /// A checker that has seen nothing.
    #[must_use]
    pub fn new(gap_rule: GapRule) -> Self {
        Self {
            gap_rule,
            memory_bytes: MEMORY_BYTES,
            sources: Vec::new(),
        }
    }

    /// Has lines go to temporary files where they take more memory than this.
    #[must_use]
    pub fn memory_bytes(mut self, memory_bytes: usize) -> Self {
        self.memory_bytes = memory_bytes;
        self
    }

    /// Adds what holds lines, of the same workers or of others.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// Judges all lines. O(n log n) in their number, but for the search that explains gaps, which is bounded.
    ///
    /// # Errors
    /// [`CheckError`] where not all lines can be read, or not be put aside.
    pub fn check(mut self) -> Result<Report, CheckError> {
        let mut judge = Judge::new(self.gap_rule, self.memory_bytes);
        let mut entry = 0;
        // Up to where the entries of each source go.
        let mut ends = Vec::with_capacity(self.sources.len());
        for source in &mut self.sources {
            let name = source.name().to_owned();
            let mut texts = open(source)?;
            while let Some((_, line)) = texts.next_line().map_err(|source| CheckError::Read {
                name: name.clone(),
                source,
            })? {
                judge.add(entry, &line).map_err(aside)?;
                entry += 1;
            }
            ends.push(entry);
        }
        let (mut report, found) = judge.judge().map_err(aside)?;
        let lines = self.lines(&found, &ends)?;
        for found in found {
            let shown = found.entries.iter().filter_map(|entry| lines.get(entry));
            let shown = shown.cloned().collect();
            let (text, count) = (&found.text, found.count);
            report.violations.push(Violation {
                text: format!("{text} ({count} such in all)"),
                witnesses: smallest(self.gap_rule, &found, shown),
                kind: found.kind,
                sequence: found.sequence,
            });
        }
        Ok(report)
    }

    /// The lines that were found to show something.
    fn lines(
        &mut self,
        found: &[Found],
        ends: &[u64],
    ) -> Result<BTreeMap<u64, Witness>, CheckError> {
        let mut wanted: Vec<u64> = found
            .iter()
            .flat_map(|found| &found.entries)
            .copied()
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut wanted = wanted.into_iter().peekable();
        let mut lines = BTreeMap::new();
        let mut begin = 0;
        for (source, end) in self.sources.iter_mut().zip(ends) {
            if wanted.peek().is_some_and(|entry| entry < end) {
                let name = source.name().to_owned();
                let mut texts = open(source)?;
                while let Some(entry) = wanted.next_if(|entry| entry < end) {
                    let number = entry - begin + 1;
                    let line = texts.line(number).map_err(|source| CheckError::Read {
                        name: name.clone(),
                        source,
                    })?;
                    let witness = Witness {
                        source: name.clone(),
                        number,
                        line,
                    };
                    lines.insert(entry, witness);
                }
            }
            begin = *end;
        }
        Ok(lines)
    }
}

fn open(source: &mut Source) -> Result<Texts<Box<dyn io::BufRead + '_>>, CheckError> {
    let name = source.name().to_owned();
    match source.open() {
        Ok(opened) => Ok(Texts::new(opened)),
        Err(source) => Err(CheckError::Open { name, source }),
    }
}

fn aside(source: io::Error) -> CheckError {
    CheckError::Aside {
        directory: std::env::temp_dir(),
        source,
    }
}

/// Leaves out what is not needed to show this.
fn smallest(gap_rule: GapRule, found: &Found, mut lines: Vec<Witness>) -> Vec<Witness> {
    let mut index = 0;
    while index < lines.len() {
        let mut fewer = lines.clone();
        fewer.remove(index);
        if shows(gap_rule, found, &fewer) {
            lines = fewer;
        } else {
            index += 1;
        }
    }
    lines
}

fn shows(gap_rule: GapRule, found: &Found, lines: &[Witness]) -> bool {
    let mut judge = Judge::new(gap_rule, WITNESS_BYTES);
    for (entry, witness) in (0..).zip(lines) {
        if judge.add(entry, &witness.line).is_err() {
            return false;
        }
    }
    let is_same = |other: &Found| (other.kind, &other.text) == (found.kind, &found.text);
    let judged = judge.judge();
    judged.is_ok_and(|(_, others)| others.iter().any(is_same))
}

/// Why a history cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A source is not there.
    #[error("{name} cannot be opened")]
    Open {
        /// The source.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// A source cannot be read, or holds what is no history.
    #[error("{name}")]
    Read {
        /// The source.
        name: String,
        /// What is wrong where.
        source: ReadError,
    },
    /// Lines cannot be put aside.
    #[error("temporary files of {directory} cannot be used: name another directory in TMPDIR", directory = directory.display())]
    Aside {
        /// Where they were to be.
        directory: std::path::PathBuf,
        /// What the system says.
        source: io::Error,
    },
}
