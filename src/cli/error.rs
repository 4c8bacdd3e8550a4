//! What a verb can end with: exit codes for programs, one line for people.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use super::sequence::marks::{LineError, Place};
use crate::chaos::HarnessError;
use crate::client::{BuildError, ClientError};
use crate::history::CheckError;
use crate::sequence::SequenceName;
use crate::server::ServerError;
use crate::server::config::ConfigError;
use crate::server::offline::{BackupError, InspectError, RestoreError};
use crate::wire::{Problem, ProblemOutcome};

/// The exit codes. They are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// It did what was asked.
    Ok,
    /// A fault of this program or its machine, a damaged store, an address in use.
    Internal,
    /// Wrong arguments or input.
    Usage,
    /// No such thing.
    NotFound,
    /// It is there otherwise.
    Conflict,
    /// The sequence has no such range left.
    Exhausted,
    /// Not allowed.
    Denied,
    /// No answer in time: it may have happened.
    TimedOut,
    /// No node served it: it did not happen.
    Unavailable,
    /// A history breaks a guarantee.
    VerificationFailed,
}

impl Exit {
    /// The code as a number.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Internal => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Conflict => 4,
            Self::Exhausted => 5,
            Self::Denied => 6,
            Self::TimedOut => 7,
            Self::Unavailable => 8,
            Self::VerificationFailed => 10,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// Why a verb did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// Arguments that are not understood.
    #[error("{text}")]
    Usage {
        /// What is wrong with them, and the way out.
        text: String,
    },
    /// The cluster said no, or did not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The same, about one sequence.
    #[error("{sequence}")]
    Sequence {
        /// Which one.
        sequence: SequenceName,
        /// What the cluster says of it.
        source: ClientError,
    },
    /// A node that is none of the cluster's.
    #[error("node {node} is no member of this cluster: highwater cluster status shows who is")]
    NoMember {
        /// Which one.
        node: u64,
    },
    /// Nobody is there to vote.
    #[error("no new node has joined: start one with highwater serve --join, then repeat this")]
    NoLearner,
    /// It is not clear who is meant.
    #[error(
        "nodes {} are learners: name the one that is to vote",
        listed(learners)
    )]
    SeveralLearners {
        /// All that there are.
        learners: Vec<u64>,
    },
    /// The nodes are described in a way that makes no client.
    #[error(transparent)]
    Nodes(#[from] BuildError),
    /// A history that is no history, or cannot be judged.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// A list of marks that is none.
    #[error("{place}{}", and_others(*others))]
    List {
        /// The first line that is wrong.
        place: Place,
        /// How many others are.
        others: usize,
        /// What is wrong with the first.
        source: LineError,
    },
    /// An import that ended before its end.
    #[error("{place}: {sequence}{}", stays(*done))]
    NotImported {
        /// The line that is wrong, or the first that was not served.
        place: Place,
        /// Which sequence that names.
        sequence: SequenceName,
        /// How many lines before were answered.
        done: usize,
        /// What the cluster says.
        source: Box<ClientError>,
    },
    /// A file that cannot be read.
    #[error("{name} cannot be read")]
    Read {
        /// Which one.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// A file that cannot be opened.
    #[error("{name} cannot be opened")]
    Open {
        /// Which one.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// A file that must not be replaced.
    #[error("{} is there already: choose another name, or replace it with --force", path.display())]
    Exists {
        /// Which one.
        path: PathBuf,
    },
    /// A file that cannot be written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file that is not restored from.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// What a restore needs to be told.
    #[error("nothing is restored: say {missing}")]
    Undecided {
        /// What was not said.
        missing: String,
    },
    /// Nothing was restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The demo's machinery failed, not the cluster's guarantees.
    #[error(transparent)]
    Harness(#[from] HarnessError),
    /// Standard output failed.
    #[error("standard output cannot be written")]
    Output {
        /// What the system says.
        source: io::Error,
    },
    /// The machine gave no threads.
    #[error("the runtime cannot be started")]
    Runtime {
        /// What the system says.
        source: io::Error,
    },
    /// A node is told something that cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is nothing to tell of a directory.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// A node did not start, or had to end.
    #[error(transparent)]
    Server(ServerError),
}

impl CliError {
    /// What the parser of arguments says, without its layout.
    pub(super) fn usage(said: &str) -> Self {
        let lines = said
            .trim_start_matches("error: ")
            .lines()
            .take_while(|line| !line.starts_with("For more information"));
        let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        let what = words.join(" ");
        Self::Usage {
            text: format!("{what} (--help tells more)"),
        }
    }

    /// Names the sequence that a call was about.
    pub(super) fn about(sequence: &SequenceName) -> impl FnOnce(ClientError) -> Self {
        |source| Self::Sequence {
            sequence: sequence.clone(),
            source,
        }
    }

    /// What the process ends with.
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Client(source) | Self::Sequence { source, .. } => not_done(source),
            Self::NotImported { source, .. } => not_done(source),
            Self::Usage { .. }
            | Self::SeveralLearners { .. }
            | Self::Nodes(_)
            | Self::Check(CheckError::Open { .. } | CheckError::Read { .. })
            | Self::List { .. }
            | Self::Read { .. }
            | Self::Open { .. }
            | Self::Config(_)
            | Self::Server(ServerError::Config(_))
            | Self::Undecided { .. }
            | Self::Restore(RestoreError::Raise(_))
            | Self::Inspect(InspectError::NotDataDirectory { .. }) => Exit::Usage,
            Self::Exists { .. } | Self::Restore(RestoreError::NotEmpty { .. }) => Exit::Conflict,
            Self::NoMember { .. } => Exit::NotFound,
            Self::NoLearner => Exit::Unavailable,
            Self::Harness(_)
            | Self::Check(CheckError::Aside { .. })
            | Self::Output { .. }
            | Self::Runtime { .. }
            | Self::Write { .. }
            | Self::Backup(_)
            | Self::Restore(_)
            | Self::Server(_)
            | Self::Inspect(_) => Exit::Internal,
        }
    }

    /// The stable name for programs.
    pub(super) fn code(&self) -> &str {
        match self {
            Self::Client(error) | Self::Sequence { source: error, .. } => said_by(error),
            Self::NotImported { source, .. } => said_by(source),
            Self::Usage { .. } => "usage",
            Self::Nodes(_) => "invalid_url",
            Self::Check(CheckError::Read { .. }) => "invalid_history",
            Self::List { .. } => "invalid_list",
            Self::Read { .. } => "cannot_read",
            Self::Open { .. } | Self::Check(CheckError::Open { .. }) => "cannot_open",
            Self::NoMember { .. } => "unknown_member",
            Self::NoLearner => "no_learner",
            Self::SeveralLearners { .. } => "several_learners",
            Self::Exists { .. } => "file_exists",
            Self::Write { .. } => "cannot_write",
            Self::Backup(_) => "invalid_backup",
            Self::Undecided { .. } => "undecided",
            Self::Restore(_) => "not_restored",
            Self::Harness(_) => "harness_failure",
            Self::Check(CheckError::Aside { .. }) | Self::Output { .. } | Self::Runtime { .. } => {
                "internal"
            }
            Self::Config(_) | Self::Server(ServerError::Config(_)) => "invalid_config",
            Self::Inspect(_) => "not_inspected",
            Self::Server(ServerError::Bind { .. }) => "cannot_listen",
            Self::Server(ServerError::Store(_) | ServerError::Disowned(_)) => "directory_refused",
            Self::Server(ServerError::Formation(_) | ServerError::Join(_)) => "cluster_refused",
            Self::Server(_) => "node_ended",
        }
    }

    /// Whether something may have changed nevertheless, where it was about a change.
    pub(super) fn outcome(&self) -> Option<ProblemOutcome> {
        match self {
            Self::Client(error) | Self::Sequence { source: error, .. } => Some(error.outcome()),
            Self::NotImported { source, .. } => Some(source.outcome()),
            _ => None,
        }
    }
}

fn listed(ids: &[u64]) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    ids.join(", ")
}

/// The error and its causes on one line.
pub(super) fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text.replace(['\n', '\r'], " ")
}

fn and_others(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " (and 1 other line)".to_owned(),
        _ => format!(" (and {others} other lines)"),
    }
}

fn stays(done: usize) -> String {
    match done {
        0 => String::new(),
        _ => format!(" (the {done} lines before are done and stay, run it again to finish)"),
    }
}

fn not_done(error: &ClientError) -> Exit {
    match error {
        ClientError::Refused { problem } => refused(problem),
        ClientError::Unavailable { .. } => Exit::Unavailable,
        ClientError::Unknown { .. } => Exit::TimedOut,
        ClientError::Fenced { .. } => Exit::VerificationFailed,
    }
}

fn said_by(error: &ClientError) -> &str {
    if let ClientError::Fenced { .. } = error {
        return "fenced";
    }
    match (error.problem(), error.outcome()) {
        (Some(problem), _) => &problem.code,
        (None, ProblemOutcome::NotApplied) => "unavailable",
        (None, ProblemOutcome::Unknown) => "unknown_outcome",
    }
}

/// What a refusal by the cluster ends with.
pub(super) fn refused(problem: &Problem) -> Exit {
    match (problem.code.as_str(), problem.status) {
        ("exhausted", _) => Exit::Exhausted,
        (_, 401 | 403) => Exit::Denied,
        (_, 404) => Exit::NotFound,
        (_, 409 | 410) => Exit::Conflict,
        (_, 429) => Exit::Unavailable,
        (_, 400..=499) => Exit::Usage,
        _ => Exit::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_exit_codes_of_the_interface() {
        for (code, status, exit) in [
            ("invalid_count", 400, 2),
            ("unauthenticated", 401, 6),
            ("denied", 403, 6),
            ("unknown_sequence", 404, 3),
            ("sequence_exists", 409, 4),
            ("below_granted", 409, 4),
            ("exhausted", 409, 5),
            ("immutable_setting", 409, 4),
            ("too_many_sequences", 409, 4),
            ("above_max_value", 409, 4),
            ("retired", 410, 4),
            ("unsupported_media_type", 415, 2),
            ("body_too_large", 413, 2),
            ("key_reused", 422, 2),
            ("quota", 429, 8),
        ] {
            let problem = Problem {
                kind: String::new(),
                title: String::new(),
                status,
                detail: String::new(),
                position: None,
                code: code.to_owned(),
                outcome: ProblemOutcome::NotApplied,
                retryable: false,
                request_id: String::new(),
                hint: String::new(),
            };

            assert_eq!(refused(&problem).code(), exit, "{code}");
        }
    }
}
