//! One line of a history: one lease as its worker saw it. The format has a version, because histories are kept.

use serde::{Deserialize, Serialize, Serializer};

use crate::sequence::{RangeCount, SequenceName};

/// The format that is written, and the only one that is read.
const VERSION: u64 = 1;

/// One lease as its worker saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Who asked.
    pub worker: String,
    /// The node that answered, or was asked last; none where no node was reached.
    pub node: Option<u64>,
    /// Of which sequence.
    pub sequence: SequenceName,
    /// How many values were asked for.
    pub count: RangeCount,
    /// The request key, where the request had one.
    pub key: Option<String>,
    /// Before the request was sent first: nanoseconds of the machine's CLOCK_MONOTONIC.
    pub sent_ns: u64,
    /// After the answer came, or was given up: nanoseconds of the same clock.
    pub received_ns: u64,
    /// What the answer said.
    pub outcome: LeaseOutcome,
}

/// What became of a lease, as far as its worker can know.
///
/// The numbers of a grant are kept as they were received, also where they are no range: to find that is the checker's
/// work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// A range was given.
    Granted {
        /// Its lowest value.
        first: u64,
        /// Its highest value.
        last: u64,
        /// The distance between neighbours.
        increment: u64,
    },
    /// It certainly did not happen.
    NotApplied,
    /// It may have happened, or may still happen.
    Unknown,
}

impl Line {
    /// Reads one line, without its line break.
    ///
    /// # Errors
    /// [`LineError`] where the text is not a line of version 1.
    pub fn parse(text: &str) -> Result<Self, LineError> {
        let written: Written = match serde_json::from_str(text) {
            Ok(written) => written,
            Err(source) => return Err(version_error(text).unwrap_or(LineError::Syntax { source })),
        };
        written.try_into()
    }

    /// The line as text, without a line break.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings and integers always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written::from(self).serialize(serializer)
    }
}

/// The line as it is written: flat, so that any tool can read it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    v: u64,
    worker: String,
    node: Option<u64>,
    sequence: SequenceName,
    count: RangeCount,
    key: Option<String>,
    sent_ns: u64,
    received_ns: u64,
    outcome: OutcomeName,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    increment: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutcomeName {
    Granted,
    NotApplied,
    Unknown,
}

impl From<&Line> for Written {
    fn from(line: &Line) -> Self {
        let (outcome, range) = match line.outcome {
            LeaseOutcome::Granted {
                first,
                last,
                increment,
            } => (OutcomeName::Granted, Some((first, last, increment))),
            LeaseOutcome::NotApplied => (OutcomeName::NotApplied, None),
            LeaseOutcome::Unknown => (OutcomeName::Unknown, None),
        };
        Self {
            v: VERSION,
            worker: line.worker.clone(),
            node: line.node,
            sequence: line.sequence.clone(),
            count: line.count,
            key: line.key.clone(),
            sent_ns: line.sent_ns,
            received_ns: line.received_ns,
            outcome,
            first: range.map(|(first, _, _)| first),
            last: range.map(|(_, last, _)| last),
            increment: range.map(|(_, _, increment)| increment),
        }
    }
}

impl TryFrom<Written> for Line {
    type Error = LineError;

    fn try_from(written: Written) -> Result<Self, LineError> {
        if written.v != VERSION {
            return Err(LineError::Version {
                found: written.v.to_string(),
            });
        }
        let (sent_ns, received_ns) = (written.sent_ns, written.received_ns);
        if received_ns < sent_ns {
            return Err(LineError::Clock {
                sent_ns,
                received_ns,
            });
        }
        let outcome = match (
            written.outcome,
            written.first,
            written.last,
            written.increment,
        ) {
            (OutcomeName::Granted, Some(first), Some(last), Some(increment)) => {
                LeaseOutcome::Granted {
                    first,
                    last,
                    increment,
                }
            }
            (OutcomeName::NotApplied, None, None, None) => LeaseOutcome::NotApplied,
            (OutcomeName::Unknown, None, None, None) => LeaseOutcome::Unknown,
            (OutcomeName::Granted, ..) => return Err(LineError::RangeMissing),
            (OutcomeName::NotApplied | OutcomeName::Unknown, ..) => {
                return Err(LineError::RangeGiven);
            }
        };
        Ok(Self {
            worker: written.worker,
            node: written.node,
            sequence: written.sequence,
            count: written.count,
            key: written.key,
            sent_ns,
            received_ns,
            outcome,
        })
    }
}

/// The version, where that is why the text is not understood: other versions may have other fields.
fn version_error(text: &str) -> Option<LineError> {
    #[derive(Deserialize)]
    struct Version {
        v: serde_json::Value,
    }

    let Version { v } = serde_json::from_str(text).ok()?;
    (v != VERSION).then(|| LineError::Version {
        found: v.to_string(),
    })
}

/// Why a text is not a line of a history.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Not the JSON object that version 1 is.
    #[error("this is not a history line of version {VERSION}")]
    Syntax {
        /// What is wrong where.
        source: serde_json::Error,
    },
    /// Written by another program version.
    #[error("history version {found} is not known: this program reads version {VERSION}")]
    Version {
        /// The version given.
        found: String,
    },
    /// A grant without its numbers.
    #[error("the outcome is granted, but first, last or increment is missing")]
    RangeMissing,
    /// Numbers without a grant.
    #[error("first, last and increment belong to the outcome granted only")]
    RangeGiven,
    /// No clock runs backwards that way.
    #[error(
        "received at {received_ns} ns, before it was sent at {sent_ns} ns: both must be one machine's CLOCK_MONOTONIC"
    )]
    Clock {
        /// When it was sent.
        sent_ns: u64,
        /// When the answer came.
        received_ns: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANTED: &str = "{\"v\":1,\"worker\":\"w1\",\"node\":2,\"sequence\":\"photos\",\"count\":3,\"key\":null,\"sent_ns\":10,\"received_ns\":20,\"outcome\":\"granted\",\"first\":18446744073709551613,\"last\":18446744073709551615,\"increment\":1}";

    #[test]
    fn a_line_is_written_as_it_is_read_with_exact_numbers() {
        let line = Line::parse(GRANTED).unwrap();

        assert_eq!(line.to_json(), GRANTED);
        assert_eq!(
            line.outcome,
            LeaseOutcome::Granted {
                first: u64::MAX - 2,
                last: u64::MAX,
                increment: 1
            }
        );
    }

    #[test]
    fn a_lease_without_a_range_has_none_in_its_line() {
        let text = "{\"v\":1,\"worker\":\"w1\",\"node\":null,\"sequence\":\"photos\",\"count\":3,\"key\":\"k\",\"sent_ns\":10,\"received_ns\":20,\"outcome\":\"not_applied\"}";

        let line = Line::parse(text).unwrap();

        assert_eq!(line.outcome, LeaseOutcome::NotApplied);
        assert_eq!(line.to_json(), text);
    }

    #[test]
    fn an_unknown_version_is_refused_whatever_else_it_holds() {
        for (version, text) in [
            ("2", "{\"v\":2,\"actor\":7}".to_owned()),
            ("2", GRANTED.replace("\"v\":1", "\"v\":2")),
            ("\"1\"", GRANTED.replace("\"v\":1", "\"v\":\"1\"")),
        ] {
            let error = Line::parse(&text).unwrap_err();

            assert!(
                matches!(&error, LineError::Version { found } if found == version),
                "{error:?}"
            );
            assert_eq!(
                error.to_string(),
                format!("history version {version} is not known: this program reads version 1")
            );
        }
    }

    #[test]
    fn what_is_no_line_is_refused_with_its_reason() {
        for (from, to, reason) in [
            (
                "\"first\":18446744073709551613,",
                "",
                "the outcome is granted, but first, last or increment is missing",
            ),
            (
                "granted",
                "unknown",
                "first, last and increment belong to the outcome granted only",
            ),
            (
                "\"sent_ns\":10",
                "\"sent_ns\":21",
                "received at 20 ns, before it was sent at 21 ns: both must be one machine's CLOCK_MONOTONIC",
            ),
        ] {
            let error = Line::parse(&GRANTED.replace(from, to)).unwrap_err();

            assert_eq!(error.to_string(), reason);
        }
        for (from, to) in [
            ("\"count\":3", "\"count\":0"),
            ("18446744073709551615", "18446744073709551616"),
            ("18446744073709551613", "1.8446744073709551613e19"),
            ("\"node\":2", "\"node\":2,\"colour\":\"red\""),
            ("\"photos\"", "\"../photos\""),
            ("}", ""),
        ] {
            let error = Line::parse(&GRANTED.replace(from, to)).unwrap_err();

            assert!(matches!(error, LineError::Syntax { .. }), "{error:?}");
        }
    }
}
