//! Logs: constant messages with data in fields, to standard error.

use tracing_subscriber::EnvFilter;

/// What is logged unless `HIGHWATER_LOG` says otherwise. openraft tells at `info` what only its authors need.
const FILTER_DEFAULT: &str = "info,openraft=error,sled=error";

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging for the process. A second call changes nothing.
pub(crate) fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env("HIGHWATER_LOG")
        .unwrap_or_else(|_unset| EnvFilter::new(FILTER_DEFAULT));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A line that cannot be written is lost. Told on standard error, where else, that would be a panic: a full disk
        // under the log would end the node.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    // Already started, which only tests do.
    drop(started);
}
