//! A line as text. The format has versions, because histories are kept: version 1 is a lease, version 2 says in `op` what
//! it is. A lease is written as version 1 for ever, so that one lease has one form.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::line::{
    AdvanceOutcome, LEASE_VERSION, LeaseOutcome, Line, LineError, Mark, Operation, VERSION,
};
use crate::sequence::{RangeCount, SequenceName};

impl Line {
    /// Reads one line, without its line break.
    ///
    /// # Errors
    /// [`LineError`] where the text is not a line of version 1 or 2.
    pub fn parse(text: &str) -> Result<Self, LineError> {
        // Nearly every line is a lease.
        match serde_json::from_str::<WrittenLease>(text) {
            Ok(lease) if lease.v == LEASE_VERSION => lease.try_into(),
            Ok(lease) => Err(LineError::other_version(lease.v)),
            Err(source) => Self::parse_versioned(text, source),
        }
    }

    fn parse_versioned(text: &str, no_lease: serde_json::Error) -> Result<Self, LineError> {
        let Ok(Head { v, op }) = serde_json::from_str(text) else {
            return Err(LineError::Syntax { source: no_lease });
        };
        if v == LEASE_VERSION {
            return Err(LineError::Syntax { source: no_lease });
        }
        if v != VERSION {
            return Err(LineError::other_version(v));
        }
        match op.as_ref().and_then(serde_json::Value::as_str) {
            Some("read" | "final_read") => written::<WrittenRead>(text)?.try_into(),
            Some("advance") => written::<WrittenAdvance>(text)?.try_into(),
            _ => Err(LineError::Operation {
                found: op.unwrap_or_default().to_string(),
            }),
        }
    }

    /// The line as text, without a line break.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings and integers always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn written<T: DeserializeOwned>(text: &str) -> Result<T, LineError> {
    serde_json::from_str(text).map_err(|source| LineError::Syntax { source })
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.operation {
            Operation::Lease {
                count,
                key,
                outcome,
            } => WrittenLease::of(self, *count, key.as_ref(), *outcome).serialize(serializer),
            Operation::Read(mark) => {
                WrittenRead::of(self, ReadName::Read, *mark).serialize(serializer)
            }
            Operation::FinalRead(mark) => {
                WrittenRead::of(self, ReadName::FinalRead, *mark).serialize(serializer)
            }
            Operation::Advance { to, outcome } => {
                WrittenAdvance::of(self, *to, *outcome).serialize(serializer)
            }
        }
    }
}

/// What every version begins with. Other versions may have other fields.
#[derive(Deserialize)]
struct Head {
    v: serde_json::Value,
    op: Option<serde_json::Value>,
}

/// The line as it is written: flat, so that any tool can read it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLease {
    v: u64,
    worker: String,
    node: Option<u64>,
    sequence: SequenceName,
    count: RangeCount,
    key: Option<String>,
    sent_ns: u64,
    received_ns: u64,
    outcome: LeaseOutcomeName,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    increment: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LeaseOutcomeName {
    Granted,
    NotApplied,
    Unknown,
}

impl WrittenLease {
    fn of(line: &Line, count: RangeCount, key: Option<&String>, outcome: LeaseOutcome) -> Self {
        let (outcome, range) = match outcome {
            LeaseOutcome::Granted {
                first,
                last,
                increment,
            } => (LeaseOutcomeName::Granted, Some((first, last, increment))),
            LeaseOutcome::NotApplied => (LeaseOutcomeName::NotApplied, None),
            LeaseOutcome::Unknown => (LeaseOutcomeName::Unknown, None),
        };
        Self {
            v: LEASE_VERSION,
            worker: line.worker.clone(),
            node: line.node,
            sequence: line.sequence.clone(),
            count,
            key: key.cloned(),
            sent_ns: line.sent_ns,
            received_ns: line.received_ns,
            outcome,
            first: range.map(|(first, _, _)| first),
            last: range.map(|(_, last, _)| last),
            increment: range.map(|(_, _, increment)| increment),
        }
    }
}

impl TryFrom<WrittenLease> for Line {
    type Error = LineError;

    fn try_from(written: WrittenLease) -> Result<Self, LineError> {
        check_clock(written.sent_ns, written.received_ns)?;
        let range = (written.first, written.last, written.increment);
        let outcome = match (written.outcome, range) {
            (LeaseOutcomeName::Granted, (Some(first), Some(last), Some(increment))) => {
                LeaseOutcome::Granted {
                    first,
                    last,
                    increment,
                }
            }
            (LeaseOutcomeName::NotApplied, (None, None, None)) => LeaseOutcome::NotApplied,
            (LeaseOutcomeName::Unknown, (None, None, None)) => LeaseOutcome::Unknown,
            (LeaseOutcomeName::Granted, _) => return Err(LineError::RangeMissing),
            (LeaseOutcomeName::NotApplied | LeaseOutcomeName::Unknown, _) => {
                return Err(LineError::RangeGiven);
            }
        };
        Ok(Self {
            worker: written.worker,
            node: written.node,
            sequence: written.sequence,
            sent_ns: written.sent_ns,
            received_ns: written.received_ns,
            operation: Operation::Lease {
                count: written.count,
                key: written.key,
                outcome,
            },
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRead {
    v: u64,
    op: ReadName,
    worker: String,
    node: Option<u64>,
    sequence: SequenceName,
    sent_ns: u64,
    received_ns: u64,
    // A mark that was left out is not a mark that is not there.
    #[serde(deserialize_with = "given")]
    high: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<u64>,
    #[serde(default, skip_serializing_if = "is_false")]
    cached: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands over references"
)]
fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReadName {
    Read,
    FinalRead,
}

impl WrittenRead {
    fn of(line: &Line, op: ReadName, mark: Mark) -> Self {
        Self {
            v: VERSION,
            op,
            worker: line.worker.clone(),
            node: line.node,
            sequence: line.sequence.clone(),
            sent_ns: line.sent_ns,
            received_ns: line.received_ns,
            high: mark.high,
            start: mark.start,
            cached: mark.cached,
        }
    }
}

impl TryFrom<WrittenRead> for Line {
    type Error = LineError;

    fn try_from(written: WrittenRead) -> Result<Self, LineError> {
        check_clock(written.sent_ns, written.received_ns)?;
        let mark = Mark {
            high: written.high,
            start: written.start,
            cached: written.cached,
        };
        if mark.high.or(mark.start).is_none() {
            return Err(LineError::StartMissing);
        }
        Ok(Self {
            worker: written.worker,
            node: written.node,
            sequence: written.sequence,
            sent_ns: written.sent_ns,
            received_ns: written.received_ns,
            operation: match written.op {
                ReadName::Read => Operation::Read(mark),
                ReadName::FinalRead => Operation::FinalRead(mark),
            },
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAdvance {
    v: u64,
    op: AdvanceName,
    worker: String,
    node: Option<u64>,
    sequence: SequenceName,
    to: u64,
    sent_ns: u64,
    received_ns: u64,
    outcome: AdvanceOutcomeName,
    #[serde(
        default,
        deserialize_with = "maybe_given",
        skip_serializing_if = "Option::is_none"
    )]
    previous: Option<Option<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AdvanceName {
    Advance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AdvanceOutcomeName {
    Advanced,
    NotApplied,
    Unknown,
}

impl WrittenAdvance {
    fn of(line: &Line, to: u64, outcome: AdvanceOutcome) -> Self {
        let (outcome, marks) = match outcome {
            AdvanceOutcome::Advanced { previous, high } => {
                (AdvanceOutcomeName::Advanced, Some((previous, high)))
            }
            AdvanceOutcome::NotApplied => (AdvanceOutcomeName::NotApplied, None),
            AdvanceOutcome::Unknown => (AdvanceOutcomeName::Unknown, None),
        };
        Self {
            v: VERSION,
            op: AdvanceName::Advance,
            worker: line.worker.clone(),
            node: line.node,
            sequence: line.sequence.clone(),
            to,
            sent_ns: line.sent_ns,
            received_ns: line.received_ns,
            outcome,
            previous: marks.map(|(previous, _)| previous),
            high: marks.map(|(_, high)| high),
        }
    }
}

impl TryFrom<WrittenAdvance> for Line {
    type Error = LineError;

    fn try_from(written: WrittenAdvance) -> Result<Self, LineError> {
        check_clock(written.sent_ns, written.received_ns)?;
        let outcome = match (written.outcome, written.previous, written.high) {
            (AdvanceOutcomeName::Advanced, Some(previous), Some(high)) => {
                AdvanceOutcome::Advanced { previous, high }
            }
            (AdvanceOutcomeName::NotApplied, None, None) => AdvanceOutcome::NotApplied,
            (AdvanceOutcomeName::Unknown, None, None) => AdvanceOutcome::Unknown,
            (AdvanceOutcomeName::Advanced, ..) => return Err(LineError::MarksMissing),
            (AdvanceOutcomeName::NotApplied | AdvanceOutcomeName::Unknown, ..) => {
                return Err(LineError::MarksGiven);
            }
        };
        Ok(Self {
            worker: written.worker,
            node: written.node,
            sequence: written.sequence,
            sent_ns: written.sent_ns,
            received_ns: written.received_ns,
            operation: Operation::Advance {
                to: written.to,
                outcome,
            },
        })
    }
}

/// A number or null, but not nothing.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Option::deserialize(deserializer)
}

/// A number or null where it stands there.
fn maybe_given<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

fn check_clock(sent_ns: u64, received_ns: u64) -> Result<(), LineError> {
    if received_ns < sent_ns {
        return Err(LineError::Clock {
            sent_ns,
            received_ns,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANTED: &str = "{\"v\":1,\"worker\":\"w1\",\"node\":2,\"sequence\":\"photos\",\"count\":3,\"key\":null,\"sent_ns\":10,\"received_ns\":20,\"outcome\":\"granted\",\"first\":18446744073709551613,\"last\":18446744073709551615,\"increment\":1}";
    const READ: &str = "{\"v\":2,\"op\":\"read\",\"worker\":\"w1\",\"node\":2,\"sequence\":\"photos\",\"sent_ns\":10,\"received_ns\":20,\"high\":5}";
    const EMPTY: &str = "{\"v\":2,\"op\":\"final_read\",\"worker\":\"w1\",\"node\":2,\"sequence\":\"photos\",\"sent_ns\":10,\"received_ns\":20,\"high\":null,\"start\":1}";
    const ADVANCED: &str = "{\"v\":2,\"op\":\"advance\",\"worker\":\"w1\",\"node\":2,\"sequence\":\"photos\",\"to\":9,\"sent_ns\":10,\"received_ns\":20,\"outcome\":\"advanced\",\"previous\":null,\"high\":9}";

    #[test]
    fn a_line_is_written_as_it_is_read_with_exact_numbers() {
        let line = Line::parse(GRANTED).unwrap();

        assert_eq!(line.to_json(), GRANTED);
        assert_eq!(
            line.lease(),
            Some(LeaseOutcome::Granted {
                first: u64::MAX - 2,
                last: u64::MAX,
                increment: 1
            })
        );
    }

    #[test]
    fn a_lease_without_a_range_has_none_in_its_line() {
        let text = "{\"v\":1,\"worker\":\"w1\",\"node\":null,\"sequence\":\"photos\",\"count\":3,\"key\":\"k\",\"sent_ns\":10,\"received_ns\":20,\"outcome\":\"not_applied\"}";

        let line = Line::parse(text).unwrap();

        assert_eq!(line.lease(), Some(LeaseOutcome::NotApplied));
        assert_eq!(line.to_json(), text);
    }

    #[test]
    fn an_unknown_version_is_refused_whatever_else_it_holds() {
        for (version, text) in [
            ("3", "{\"v\":3,\"actor\":7}".to_owned()),
            ("3", GRANTED.replace("\"v\":1", "\"v\":3")),
            ("3", READ.replace("\"v\":2", "\"v\":3")),
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
                format!(
                    "history version {version} is not known here: this program reads leases of version 1 and other \
                     operations of version 2"
                )
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

    #[test]
    fn reads_and_advances_are_written_as_they_are_read() {
        let unknown = ADVANCED
            .replace("advanced", "unknown")
            .replace(",\"previous\":null,\"high\":9", "");
        let cached = READ.replace('}', ",\"cached\":true}");
        for text in [READ, EMPTY, ADVANCED, &unknown, &cached] {
            assert_eq!(Line::parse(text).unwrap().to_json(), text);
        }
        let mark = Mark {
            high: None,
            start: Some(1),
            cached: false,
        };
        let empty = Line::parse(EMPTY).unwrap();
        assert_eq!(empty.operation, Operation::FinalRead(mark));
    }

    #[test]
    fn a_read_or_an_advance_that_says_too_little_or_too_much_is_refused_with_its_reason() {
        for (text, from, to, reason) in [
            (
                EMPTY,
                ",\"start\":1",
                "",
                "high is null, but start is missing: it is the sequence's first value",
            ),
            (
                ADVANCED,
                "\"previous\":null,",
                "",
                "the outcome is advanced, but previous or high is missing",
            ),
            (
                ADVANCED,
                "\"advanced\"",
                "\"unknown\"",
                "previous and high belong to the outcome advanced only",
            ),
            (
                READ,
                "\"read\"",
                "\"lease\"",
                "op \"lease\" is not known in version 2: use read, final_read or advance; a lease is of version 1 and \
                 has none",
            ),
        ] {
            let error = Line::parse(&text.replace(from, to)).unwrap_err();

            assert_eq!(error.to_string(), reason);
        }
        for text in [
            READ.replace(",\"high\":5", ""),
            READ.replace("\"high\":5", "\"high\":5,\"count\":1"),
        ] {
            let error = Line::parse(&text).unwrap_err();

            assert!(matches!(error, LineError::Syntax { .. }), "{error:?}");
        }
    }
}
