//! Lists of sequences and the marks that other counters have reached: CSV, JSON, or one JSON object a line.
//!
//! A list is read whole before anything is sent, and every line that is none is found: what a bad export would do by half
//! is not done at all.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::error::CliError;
use crate::sequence::{NameError, RangeCount, SequenceName, Settings, SettingsError};
use crate::wire::{ImportBody, Number};

/// How a list is written, for the help of the verbs that read one.
pub(super) const FORMATS: &str = "\
A list names sequences and marks, in one of three forms, which it is known by:
  CSV                      a first line of names, separated by commas or tabs:
                             sequence,at_least
                             photos,5000
  JSON                     [{\"sequence\":\"photos\",\"at_least\":5000}]
  one JSON object a line   {\"sequence\":\"photos\",\"at_least\":5000}
Whatever `sequence create` takes may stand there too: start, increment, max_value,
cache, max_lease. Numbers are exact up to 2^64 - 1, also as strings.";

/// The names of a CSV file's columns.
const COLUMNS: [&str; 7] = [
    "sequence",
    "at_least",
    "start",
    "increment",
    "max_value",
    "cache",
    "max_lease",
];
/// The largest list, in bytes: several times what the names of a full cluster take.
const LIST_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// One sequence of a list.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) place: Place,
    pub(super) sequence: SequenceName,
    pub(super) body: ImportBody,
}

/// Where it stands: `marks.csv:7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Place {
    pub(super) file: Arc<str>,
    pub(super) line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Why a line is none of a list's.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum LineError {
    /// The first line of a CSV file does not name what every line has.
    #[error(
        "no column is called {missing}: the first line names the columns, as in sequence,at_least"
    )]
    MissingColumn {
        /// The column.
        missing: &'static str,
    },
    /// A column that means nothing.
    #[error("unknown column {found:?}: columns are {}", COLUMNS.join(", "))]
    UnknownColumn {
        /// What the first line calls it.
        found: String,
    },
    /// A column that stands twice.
    #[error("column {found} stands there twice")]
    ColumnTwice {
        /// Which one.
        found: String,
    },
    /// A line of a CSV file that is shorter or longer than the first.
    #[error("{found} fields where the first line names {expected} columns")]
    Fields {
        /// How many the line has.
        found: usize,
        /// How many there are columns.
        expected: usize,
    },
    /// What stands there is not what is meant.
    #[error("{reason}")]
    Content {
        /// What is wrong with it.
        reason: String,
    },
    /// A name that no sequence has.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A number that no sequence has.
    #[error("{field} is out of bounds: 0 to 2^64 - 1")]
    OutOfBounds {
        /// Which one.
        field: &'static str,
    },
    /// Settings that make no sequence.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A `max_lease` that no lease could have.
    #[error("max_lease is out of bounds: 1 to 2^32 - 1")]
    MaxLease,
    /// A list without a sequence: mostly an export that failed.
    #[error("the list names no sequence")]
    Nothing,
}

/// The marks of all these lists, in their order.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<Mark>, CliError> {
    let lists = files.iter().map(|file| {
        let name = name_of(file);
        let text = text_of(file, &name)?;
        List::new(&name, &text).marks()
    });
    Ok(lists
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .flatten()
        .collect())
}

fn name_of(file: &Path) -> String {
    if file == Path::new("-") {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    }
}

fn text_of(file: &Path, name: &str) -> Result<String, CliError> {
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let opened = File::open(file);
        Box::new(opened.map_err(|source| CliError::Open {
            name: name.to_owned(),
            source,
        })?)
    };
    bounded(source, LIST_BYTES_MAX).map_err(|source| CliError::Read {
        name: name.to_owned(),
        source,
    })
}

fn bounded(source: impl Read, limit: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = source.take(limit + 1).read_to_string(&mut text)?;
    if limit < u64::try_from(read).unwrap_or(u64::MAX) {
        let said = format!("it has more than {limit} bytes: cut it into several");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, said));
    }
    Ok(text)
}

/// A list as it is read: what was understood, and what was not.
struct List<'text> {
    file: Arc<str>,
    text: &'text str,
    marks: Vec<Mark>,
    errors: Vec<(usize, LineError)>,
}

impl<'text> List<'text> {
    fn new(file: &str, text: &'text str) -> Self {
        Self {
            file: file.into(),
            // Spreadsheets write a mark before the first line that is none of its text.
            text: text.trim_start_matches('\u{feff}'),
            marks: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn marks(mut self) -> Result<Vec<Mark>, CliError> {
        match self.text.trim_start().chars().next() {
            Some('[') => self.json(),
            Some('{') => self.json_lines(),
            _ => self.columns(),
        }
        if self.errors.is_empty() && self.marks.is_empty() {
            self.errors.push((1, LineError::Nothing));
        }
        let others = self.errors.len().saturating_sub(1);
        match self.errors.into_iter().next() {
            None => Ok(self.marks),
            Some((line, source)) => Err(CliError::List {
                place: Place {
                    file: self.file,
                    line,
                },
                others,
                source,
            }),
        }
    }

    fn json(&mut self) {
        let elements = match serde_json::from_str::<Vec<&RawValue>>(self.text) {
            Ok(elements) => elements,
            Err(error) => return self.errors.push((error.line(), content(&error))),
        };
        let (mut line, mut rest) = (1, self.text);
        for element in elements {
            // Between two elements there is nothing but a comma and blanks.
            let (before, after) = rest.split_once(element.get()).unwrap_or(("", rest));
            line += lines(before);
            self.object(line, element.get());
            line += lines(element.get());
            rest = after;
        }
    }

    fn json_lines(&mut self) {
        for (line, text) in numbered(self.text) {
            self.object(line, text.trim());
        }
    }

    /// One JSON object that begins in this line.
    fn object(&mut self, line: usize, text: &str) {
        if !text.starts_with('{') {
            let reason = "not an object".to_owned();
            return self.errors.push((line, LineError::Content { reason }));
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let parsed = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| (error.inner().line(), content(&error)));
        let ended = parsed.and_then(|body| match json.end() {
            Ok(()) => Ok(body),
            Err(error) => Err((error.line(), content(&error))),
        });
        match ended {
            Ok(body) => self.add(line, body),
            Err((below, error)) => self.errors.push((line + below.saturating_sub(1), error)),
        }
    }

    fn columns(&mut self) {
        let mut rows = numbered(self.text);
        let Some((line, heading)) = rows.next() else {
            return;
        };
        let separator = if heading.contains('\t') { '\t' } else { ',' };
        let columns: Vec<&str> = heading.split(separator).map(cell).collect();
        if let Err(error) = check_columns(&columns) {
            return self.errors.push((line, error));
        }
        for (line, row) in rows {
            let cells: Vec<&str> = row.split(separator).map(cell).collect();
            if cells.len() == columns.len() {
                self.row(line, &columns, &cells);
            } else {
                let (found, expected) = (cells.len(), columns.len());
                self.errors
                    .push((line, LineError::Fields { found, expected }));
            }
        }
    }

    fn row(&mut self, line: usize, columns: &[&str], cells: &[&str]) {
        let named = columns
            .iter()
            .zip(cells)
            .filter(|(_, cell)| !cell.is_empty());
        let named = named.map(|(column, cell)| ((*column).to_owned(), Value::from(*cell)));
        match serde_path_to_error::deserialize(Value::Object(named.collect())) {
            Ok(body) => self.add(line, body),
            Err(error) => self.errors.push((line, content(&error))),
        }
    }

    fn add(&mut self, line: usize, body: ImportBody) {
        match named(&body) {
            Ok(sequence) => self.marks.push(Mark {
                place: Place {
                    file: Arc::clone(&self.file),
                    line,
                },
                sequence,
                body,
            }),
            Err(error) => self.errors.push((line, error)),
        }
    }
}

/// The sequence that is meant, where its numbers are ones that a sequence may have.
fn named(body: &ImportBody) -> Result<SequenceName, LineError> {
    let numbers = [
        ("at_least", Some(body.at_least)),
        ("start", body.start),
        ("increment", body.increment),
        ("max_value", body.max_value),
        ("cache", body.cache),
        ("max_lease", body.max_lease),
    ];
    let fits = |number: Option<Number>| number.is_none_or(|number| number.get().is_some());
    if let Some((field, _)) = numbers.into_iter().find(|(_, number)| !fits(*number)) {
        return Err(LineError::OutOfBounds { field });
    }
    check_settings(body)?;
    Ok(body.sequence.parse()?)
}

/// Refuses settings that make no sequence, so that nothing is imported of a list that has them.
fn check_settings(body: &ImportBody) -> Result<(), LineError> {
    let default = Settings::default();
    let value =
        |number: Option<Number>, otherwise| number.and_then(Number::get).unwrap_or(otherwise);
    let max_lease = value(body.max_lease, default.max_lease().get().into());
    Settings::new(
        value(body.start, default.start()),
        value(body.increment, default.increment().get()),
        value(body.max_value, default.max_value()),
        RangeCount::try_from(max_lease).map_err(|_not_a_count| LineError::MaxLease)?,
    )?;
    Ok(())
}

fn check_columns(columns: &[&str]) -> Result<(), LineError> {
    for (at, column) in columns.iter().enumerate() {
        let found = (*column).to_owned();
        if !COLUMNS.contains(column) {
            return Err(LineError::UnknownColumn { found });
        }
        if columns.iter().skip(at + 1).any(|other| other == column) {
            return Err(LineError::ColumnTwice { found });
        }
    }
    let missing = ["sequence", "at_least"];
    match missing.into_iter().find(|name| !columns.contains(name)) {
        Some(missing) => Err(LineError::MissingColumn { missing }),
        None => Ok(()),
    }
}

/// What the parser says, without the place, which it counts from where it was let begin.
fn content(error: &impl fmt::Display) -> LineError {
    let text = error.to_string();
    let reason = text.rsplit_once(" at line ").map(|(reason, _)| reason);
    LineError::Content {
        reason: reason.unwrap_or(&text).to_owned(),
    }
}

/// The lines that are not empty, each with its number from 1 on.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines());
    lines.filter(|(_, line)| !line.trim().is_empty())
}

fn lines(text: &str) -> usize {
    text.matches('\n').count()
}

/// A cell without its quotes. No name and no number has a comma or a quote in it, so nothing else can be quoted.
fn cell(text: &str) -> &str {
    let text = text.trim();
    let inner = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    inner.unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::super::super::error::one_line;
    use super::*;

    const INTEGER: &str =
        "expected an integer from 0 to 2^64 - 1, as a number or a string of digits";

    fn marks(text: &str) -> Vec<(usize, String, String)> {
        let marks = List::new("f", text).marks().unwrap();
        let told = |mark: Mark| {
            let Mark {
                place,
                sequence,
                body,
            } = mark;
            let at_least = body.at_least.to_string();
            (place.line, sequence.to_string(), at_least)
        };
        marks.into_iter().map(told).collect()
    }

    fn refusal(text: &str) -> String {
        one_line(&List::new("f", text).marks().unwrap_err())
    }

    fn expected(marks: &[(usize, &str, &str)]) -> Vec<(usize, String, String)> {
        let owned = |(line, name, at_least): &(usize, &str, &str)| {
            (*line, (*name).to_owned(), (*at_least).to_owned())
        };
        marks.iter().map(owned).collect()
    }

    #[test]
    fn a_list_is_read_in_each_of_its_forms_with_its_lines() {
        for text in [
            "sequence,at_least\na,7\nb.c,18446744073709551615\n",
            "\u{feff}sequence,at_least\r\na,7\r\nb.c,18446744073709551615\r\n",
            "\"at_least\"\t\"sequence\"\n7\t\"a\"\n18446744073709551615\tb.c",
            "sequence , at_least,start\n a , 7 ,\nb.c,18446744073709551615,1",
            "start\tsequence\tat_least\tcache\n\ta\t7\t\n1\tb.c\t18446744073709551615\t0\n",
            "\n{\"sequence\":\"a\",\"at_least\":7}\n{\"sequence\":\"b.c\",\"at_least\":18446744073709551615}",
            "[\n{\"sequence\":\"a\",\"at_least\":\"7\"},\n {\"sequence\":\"b.c\",\"at_least\":\"18446744073709551615\"}]",
        ] {
            let all = [(2, "a", "7"), (3, "b.c", "18446744073709551615")];
            assert_eq!(marks(text), expected(&all), "{text}");
        }
        let spread =
            "[ {\n\"sequence\":\"a\",\n\"at_least\":1}\n,\n\n{\"sequence\":\"b\",\"at_least\":2}]";
        assert_eq!(marks(spread), expected(&[(1, "a", "1"), (6, "b", "2")]));
    }

    #[test]
    fn settings_stand_where_a_list_names_them() {
        let csv = "sequence,at_least,start,increment,max_value,cache,max_lease\np,7,1,2,100,0,5\nq,7,,,,,";

        let marks = List::new("f", csv).marks().unwrap();

        let number = |text: &str| serde_json::from_value::<Number>(Value::from(text)).ok();
        let [p, q] = &marks[..] else {
            panic!("{marks:?}")
        };
        let p = p.body.settings();
        assert_eq!(
            [p.start, p.increment, p.max_value, p.cache, p.max_lease],
            ["1", "2", "100", "0", "5"].map(number)
        );
        assert_eq!(q.body.settings(), crate::wire::CreateBody::default());
    }

    #[test]
    fn a_table_that_is_no_list_is_refused_with_its_line_and_the_number_of_others() {
        for (text, said) in [
            ("", "f:1: the list names no sequence".to_owned()),
            ("sequence,at_least\n", "f:1: the list names no sequence".to_owned()),
            (
                "p,7\n",
                "f:1: unknown column \"p\": columns are sequence, at_least, start, increment, max_value, cache, \
                 max_lease"
                    .to_owned(),
            ),
            (
                "sequence,max_value\np,7\n",
                "f:1: no column is called at_least: the first line names the columns, as in sequence,at_least"
                    .to_owned(),
            ),
            (
                "sequence,at_least,at_least\np,7,8\n",
                "f:1: column at_least stands there twice".to_owned(),
            ),
            (
                "sequence,at_least\np,7,8\n",
                "f:2: 3 fields where the first line names 2 columns".to_owned(),
            ),
            (
                "sequence,at_least\np,\n",
                "f:2: missing field `at_least`".to_owned(),
            ),
            (
                "sequence,at_least\nok,1\np,NULL\n",
                format!("f:3: at_least: invalid value: string \"NULL\", {INTEGER}"),
            ),
            (
                "sequence,at_least\np,1e3\np,-1\np,1.5\n",
                format!("f:2 (and 2 other lines): at_least: invalid value: string \"1e3\", {INTEGER}"),
            ),
            (
                "sequence,at_least\np,18446744073709551616\n",
                "f:2: at_least is out of bounds: 0 to 2^64 - 1".to_owned(),
            ),
            (
                "sequence,at_least,increment,start\np,1,0,\nq,1,,9007199254740992",
                "f:2 (and 1 other line): increment is 0: use 1 or more".to_owned(),
            ),
            (
                "sequence,at_least,max_lease\np,1,4294967296\n",
                "f:2: max_lease is out of bounds: 1 to 2^32 - 1".to_owned(),
            ),
            (
                "sequence,at_least\na/b,1\n",
                "f:2: a sequence name has '/' at byte 1: use letters and digits, and after the first also '.', '_', \
                 ':' and '-'"
                    .to_owned(),
            ),
        ] {
            assert_eq!(refusal(text), said, "{text}");
        }
    }

    #[test]
    fn json_that_is_no_list_is_refused_with_its_line() {
        for (text, said) in [
            ("[]", "f:1: the list names no sequence".to_owned()),
            (
                "{\"sequence\":\"p\"}\n{\"sequence\":\"p\",\"at_least\":1,\"strat\":1}",
                "f:1 (and 1 other line): missing field `at_least`".to_owned(),
            ),
            (
                "{\"sequence\":\"p\",\"at_least\":1} 2",
                "f:1: trailing characters".to_owned(),
            ),
            (
                "{\"sequence\":\"p\",\"at_least\":null}",
                format!("f:1: at_least: invalid type: null, {INTEGER}"),
            ),
            (
                "[\n{\"sequence\":\"p\",\n\"at_least\":true}]",
                format!("f:3: at_least: invalid type: boolean `true`, {INTEGER}"),
            ),
            ("[[\"p\",1]]", "f:1: not an object".to_owned()),
            (
                "[\n{\"sequence\":\"p\",\"at_least\":1}\n",
                "f:3: EOF while parsing a list".to_owned(),
            ),
        ] {
            assert_eq!(refusal(text), said, "{text}");
        }
    }

    #[test]
    fn a_list_beyond_its_bound_is_not_read() {
        assert_eq!(bounded(&b"1234"[..], 4).unwrap(), "1234");
        let error = bounded(&b"12345"[..], 4).unwrap_err();
        assert_eq!(
            error.to_string(),
            "it has more than 4 bytes: cut it into several"
        );
    }
}
