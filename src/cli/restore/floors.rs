//! Floors as they are given: `NAME=VALUE` as an argument, `NAME,VALUE` as a line of a file.

use std::path::Path;
use std::str::FromStr;

use crate::cli::error::CliError;
use crate::sequence::{NameError, SequenceName};

/// The least mark that a sequence is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Floor {
    pub(super) name: SequenceName,
    pub(super) value: u64,
}

/// A text that is no floor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FloorError {
    /// Not two parts, or the second is no number.
    #[error("{text:?} is not a floor: write a name, {between:?} and a number up to 2^64 - 1")]
    Form {
        /// What was given.
        text: String,
        /// What stands between name and value.
        between: char,
    },
    /// The first part is no name.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl Floor {
    fn parse(text: &str, between: char) -> Result<Self, FloorError> {
        let parts = text.split_once(between);
        let parsed =
            parts.and_then(|(name, value)| Some((name.trim(), value.trim().parse().ok()?)));
        let Some((name, value)) = parsed else {
            let text = text.to_owned();
            return Err(FloorError::Form { text, between });
        };
        let name = name.parse()?;
        Ok(Self { name, value })
    }
}

impl FromStr for Floor {
    type Err = FloorError;

    fn from_str(text: &str) -> Result<Self, FloorError> {
        Self::parse(text, '=')
    }
}

/// The floors in a file.
pub(super) fn read(path: &Path) -> Result<Vec<Floor>, CliError> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|source| CliError::Open {
        name: name.to_string(),
        source,
    })?;
    parse(&text).map_err(|(line, error)| CliError::usage(&format!("{name}: line {line}: {error}")))
}

/// Its lines but the empty ones, or which one is none.
fn parse(text: &str) -> Result<Vec<Floor>, (usize, FloorError)> {
    let lines = (1..).zip(text.lines());
    let filled = lines.filter(|(_, line)| !line.trim().is_empty());
    filled
        .map(|(number, line)| Floor::parse(line, ',').map_err(|error| (number, error)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor(name: &str, value: u64) -> Floor {
        Floor {
            name: name.parse().unwrap(),
            value,
        }
    }

    #[test]
    fn a_floor_is_a_name_and_a_value() {
        let largest = format!("p={}", u64::MAX);

        assert_eq!("photos=17".parse(), Ok(floor("photos", 17)));
        assert_eq!(largest.parse(), Ok(floor("p", u64::MAX)));
        for text in [
            "photos",
            "photos=",
            "photos=-1",
            "photos=1e3",
            "=17",
            "photos,17",
        ] {
            assert!(text.parse::<Floor>().is_err(), "{text}");
        }
        assert_eq!(
            "photos=many".parse::<Floor>().unwrap_err().to_string(),
            "\"photos=many\" is not a floor: write a name, '=' and a number up to 2^64 - 1"
        );
    }

    #[test]
    fn a_file_of_floors_has_one_a_line() {
        let floors = parse("photos,17\n\n albums , 3\r\n");

        assert_eq!(floors, Ok(vec![floor("photos", 17), floor("albums", 3)]));
        let (line, error) = parse("photos,17\nalbums;3\n").unwrap_err();
        assert_eq!(line, 2);
        assert_eq!(
            error.to_string(),
            "\"albums;3\" is not a floor: write a name, ',' and a number up to 2^64 - 1"
        );
    }
}
