//! Arguments that several verbs share.

use std::future::Future;
use std::time::Duration;

use super::error::CliError;
use crate::client::Client;
use crate::sequence::{RangeCount, RangeError};

/// Which nodes to call.
#[derive(Debug, clap::Args)]
pub(super) struct NodeUrls {
    /// Nodes to call, separated by commas: the next one is asked where one does not serve
    #[arg(
        long = "url",
        value_name = "URL,…",
        env = "HIGHWATER_URL",
        default_value = "http://127.0.0.1:7101",
        value_delimiter = ','
    )]
    urls: Vec<String>,
}

/// Which nodes to call, and for how long.
#[derive(Debug, clap::Args)]
pub(super) struct Connect {
    #[command(flatten)]
    nodes: NodeUrls,
    /// How long to try in all, 50ms to 60s
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
}

impl Connect {
    pub(super) fn client(&self) -> Result<Client, CliError> {
        self.nodes.client(self.timeout)
    }
}

impl NodeUrls {
    pub(super) fn client(&self, deadline: Duration) -> Result<Client, CliError> {
        Ok(Client::builder()
            // A comma at the end is no node.
            .nodes(
                self.urls
                    .iter()
                    .map(|url| url.trim())
                    .filter(|url| !url.is_empty()),
            )
            .deadline(deadline)
            .build()?)
    }
}

/// Runs a client verb to its end on this thread.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| CliError::Runtime { source })?;
    Ok(runtime.block_on(work))
}

/// A time with its unit: `500ms`, `20s`, `5m`, `1h`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    let parsed = units.iter().find_map(|(unit, factor)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*factor)
    });
    parsed
        .map(Duration::from_millis)
        .ok_or_else(|| DurationError {
            text: text.to_owned(),
        })
}

/// A text that is no time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time: write a number and ms, s, m or h, for example 500ms or 20s")]
pub(super) struct DurationError {
    text: String,
}

/// How many values to lease.
pub(super) fn parse_count(text: &str) -> Result<RangeCount, CountError> {
    let count: u64 = text.parse().map_err(|_not_digits| CountError::Text {
        text: text.to_owned(),
    })?;
    Ok(RangeCount::try_from(count)?)
}

/// A text that is no count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CountError {
    /// Not a number at all.
    #[error("{text:?} is not a count: lease 1 to {max} values at once", max = u32::MAX)]
    Text {
        /// What was given.
        text: String,
    },
    /// A number out of bounds.
    #[error(transparent)]
    Range(#[from] RangeError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_and_a_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("20s", 20_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)));
        }
        for text in [
            "",
            "s",
            "20",
            "-1s",
            "1.5s",
            "1 s",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert_eq!(
                parse_duration(text).unwrap_err().to_string(),
                format!(
                    "{text:?} is not a time: write a number and ms, s, m or h, for example 500ms or 20s"
                )
            );
        }
    }

    #[test]
    fn a_count_is_1_to_the_largest_lease() {
        assert_eq!(parse_count("3"), Ok(RangeCount::constant(3)));
        for text in ["0", "4294967296", "three", "-1"] {
            assert!(
                parse_count(text)
                    .unwrap_err()
                    .to_string()
                    .ends_with("is not a count: lease 1 to 4294967295 values at once")
            );
        }
    }
}
