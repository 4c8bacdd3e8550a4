//! Why a run ends early. A request that is refused or lost is none of these: it is counted.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::checker::Findings;
use crate::load::Fault;
use crate::report::data::Subject;

/// What ended the run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("{path} cannot be {action}")]
    File {
        path: PathBuf,
        action: &'static str,
        source: io::Error,
    },
    #[error("{name} cannot be {action}")]
    Process {
        name: String,
        action: &'static str,
        source: io::Error,
    },
    #[error("{name} ended while it was needed; the end of its log {log}:\n{last_lines}")]
    Ended {
        name: String,
        log: PathBuf,
        last_lines: String,
    },
    #[error("{name} does not answer after {} s; the end of its log {log}:\n{last_lines}", within.as_secs())]
    NotReady {
        name: String,
        within: Duration,
        log: PathBuf,
        last_lines: String,
    },
    #[error("{name} ended with {status}: {said}")]
    Failed {
        name: String,
        status: std::process::ExitStatus,
        said: String,
    },
    #[error("no free port on loopback between {min} and {max}")]
    NoPort { min: u16, max: u16 },
    #[error("{subject:?}: a worker cannot begin: {fault}")]
    Worker { subject: Subject, fault: Fault },
    #[error("{subject:?} gave numbers that are not unique and rising: {findings:?}")]
    Broken {
        subject: Subject,
        findings: Findings,
    },
    #[error("{subject:?} granted nothing within {} s", within.as_secs())]
    NoGrant { subject: Subject, within: Duration },
    #[error("no node says within {} s that it leads", within.as_secs())]
    NoLeader { within: Duration },
    #[error("{path} is no data of a run")]
    Data {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{path} has no place for tables: two lines `made from benchmarks.json`, begin and end")]
    NoPlace { path: PathBuf },
}

impl BenchError {
    /// Says which file holds no data of a run.
    pub(crate) fn data(path: &Path) -> impl FnOnce(serde_json::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Data { path, source }
    }

    /// Says which file an error of the system is about.
    pub(crate) fn file(
        path: impl Into<PathBuf>,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            path,
            action,
            source,
        }
    }
}
