//! The only place that prints. Data goes to standard output, everything else to standard error.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal as _, Write};

use serde::Serialize;
use serde_json::json;

use super::error::{CliError, one_line};

/// How data is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// For people and for `read FIRST LAST`.
    Text,
    /// For programs: one JSON value.
    Json,
}

/// Where a verb puts what it has to say.
#[derive(Debug)]
pub(super) struct Output {
    format: Format,
}

impl Output {
    pub(super) fn new(format: Format) -> Self {
        Self { format }
    }

    /// Writes the verb's data, in the form asked for.
    pub(super) fn data(&self, text: impl Display, value: &impl Serialize) -> Result<(), CliError> {
        let text = match self.format {
            Format::Text => text.to_string(),
            Format::Json => serde_json::to_string(value).map_err(|error| CliError::Output {
                source: error.into(),
            })?,
        };
        let mut stdout = io::stdout().lock();
        let written = writeln!(stdout, "{}", text.trim_end()).and_then(|()| stdout.flush());
        match written {
            // Who stopped reading has what they wanted.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(|source| CliError::Output { source }),
        }
    }

    /// Tells people how it goes.
    pub(super) fn note(&self, text: impl Display) {
        tell(text);
    }

    /// Tells how far it is, over what was told before, where a person watches.
    pub(super) fn progress(&self, text: impl Display) {
        if self.is_watched() {
            // The rest of an earlier, longer line goes.
            drop(write!(io::stderr().lock(), "\r{text}\x1b[K"));
        }
    }

    /// Says why the verb did not do what was asked: one line.
    pub(super) fn error(&self, error: &CliError) {
        match self.format {
            Format::Text => tell(format_args!("highwater: {}", one_line(error))),
            Format::Json => tell(json!({"error": {
                "code": error.code(),
                "exit": error.exit().code(),
                "outcome": error.outcome(),
                "text": one_line(error),
            }})),
        }
    }

    /// Whether a person watches.
    pub(super) fn is_watched(&self) -> bool {
        io::stderr().is_terminal()
    }
}

fn tell(text: impl Display) {
    // Where standard error is closed there is nobody to tell.
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// Columns of text, each as wide as its widest cell.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without a heading.
    pub(super) fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Adds a row.
    pub(super) fn row<C: Display>(mut self, cells: impl IntoIterator<Item = C>) -> Self {
        self.rows
            .push(cells.into_iter().map(|cell| cell.to_string()).collect());
        self
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &self.rows {
            let cells = row.iter().zip(&widths);
            let line: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            writeln!(f, "{}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// A value, or a dash where there is none.
pub(super) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let table = Table::new()
            .row(["ID", "ROLE", "API"])
            .row(["10", "leader", "127.0.0.1:7101"]);

        assert_eq!(
            table.to_string(),
            "ID  ROLE    API\n10  leader  127.0.0.1:7101\n"
        );
    }
}
