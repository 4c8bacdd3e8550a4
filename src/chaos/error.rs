//! What can go wrong with the harness itself, as opposed to the guarantees that it checks.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use crate::client::{BuildError, ClientError};
use crate::history::CheckError;

/// Why a run could not be made or finished.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// A file of the harness could not be used.
    #[error("{path} cannot be {action}", path = path.display())]
    File {
        /// Which file or directory.
        path: PathBuf,
        /// What was to be done with it.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// No free ports.
    #[error("no {wanted} free ports of 127.0.0.1 were found from {from} to {to}")]
    Ports {
        /// How many were wanted.
        wanted: usize,
        /// The lowest port tried.
        from: u16,
        /// The highest port tried.
        to: u16,
        /// What the system said last.
        source: io::Error,
    },
    /// A proxy has no port.
    #[error("a proxy cannot listen on a port of 127.0.0.1")]
    Proxy {
        /// What the system says.
        source: io::Error,
    },
    /// A fault of links where there are none that can fail.
    #[error("this cluster was created without a network that can be made to fail")]
    NoNetwork,
    /// A node that is not there.
    #[error("there is no node {node}")]
    NoNode {
        /// Its id.
        node: u64,
    },
    /// A process could not be started or signalled.
    #[error("the process of node {node} cannot be {action}")]
    Process {
        /// Which node.
        node: u64,
        /// What was to be done with it.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A node ended that nobody killed.
    #[error("node {node} ended by itself ({status}): {last_line}; its log is {log}", log = log.display())]
    Died {
        /// Which node.
        node: u64,
        /// How it ended.
        status: ExitStatus,
        /// The last line of its log.
        last_line: String,
        /// Its log.
        log: PathBuf,
    },
    /// A node runs, and does not become ready.
    #[error("node {node} was not ready after {within:?}: {last_line}; its log is {log}", log = log.display())]
    NotReady {
        /// Which node.
        node: u64,
        /// How long was waited.
        within: Duration,
        /// The last line of its log.
        last_line: String,
        /// Its log.
        log: PathBuf,
    },
    /// A node was asked to end, and runs on.
    #[error("node {node} had not ended {within:?} after it was asked to; its log is {log}", log = log.display())]
    NotEnded {
        /// Which node.
        node: u64,
        /// How long was waited.
        within: Duration,
        /// Its log.
        log: PathBuf,
    },
    /// All nodes run, and none leads.
    #[error("the cluster had no leader for {within:?}: the nodes' logs are in {logs}", logs = logs.display())]
    NoLeader {
        /// How long was waited.
        within: Duration,
        /// Where the logs are.
        logs: PathBuf,
    },
    /// A call that the run cannot do without.
    #[error("{step}")]
    Call {
        /// What it was for.
        step: &'static str,
        /// Why it has no result.
        source: ClientError,
    },
    /// The nodes are described in a way that makes no client.
    #[error(transparent)]
    Client(#[from] BuildError),
    /// The history of the run cannot be judged.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// A fault that this machine cannot make.
    #[error("{kind} cannot be had on this machine: {why}")]
    NotHere {
        /// The kind of fault, by name.
        kind: &'static str,
        /// What is missing.
        why: &'static str,
    },
    /// A run that was to have more faults than it had.
    #[error("{} never happened: the run proves nothing about it", kinds.join(", "))]
    NeverHappened {
        /// The kinds of faults, by name.
        kinds: Vec<&'static str>,
    },
    /// Someone asked for the end.
    #[error("interrupted")]
    Interrupted,
}

impl HarnessError {
    /// A file that could not be used for this.
    pub(super) fn file(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File {
            path: path.to_owned(),
            action,
            source,
        }
    }
}
