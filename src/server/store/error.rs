//! Why a store does not open, in words for the operator who has to act.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::frame::FrameError;
use super::record::RecordError;
use super::snapshot_format::SnapshotError;
use crate::sequence::LaterLevel;
use crate::server::types::{LogId, NodeId};

/// What an operator can do when something that was promised is gone (I7). Rejoining under the old id could make
/// two majorities, so it is not among the ways out. What each way takes is in docs/a-node-refuses-to-start.md.
pub(crate) const WAY_OUT: &str =
    "put the whole directory back as it last was, or replace the node by a new one";

/// Why a data directory or the store in it is refused. A refusal changes nothing but what sled notes for itself when it
/// opens.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The operating system refused.
    #[error("cannot {action} {path}: {}", way_out_of(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Something else is where the data directory, or one above it, is to be.
    #[error("{path} is not a directory: move it away, or choose another data directory")]
    NotDirectory {
        /// What is no directory.
        path: PathBuf,
    },
    /// The data directory, or one above it, is a link to nowhere: its disk may not be mounted.
    #[error(
        "{path} is a link to {target}, where nothing is: mount or make that, or choose another data directory"
    )]
    Dangling {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// Another process holds the directory.
    #[error("{path} is in use by another process: stop it, or choose another data directory")]
    Locked {
        /// The data directory.
        path: PathBuf,
    },
    /// A store without the file that says whose it is.
    #[error("{path} is missing beside a store: {WAY_OUT}")]
    IdentityMissing {
        /// The identity file.
        path: PathBuf,
    },
    /// The identity file does not hold an identity.
    #[error("{path} is damaged: {WAY_OUT}")]
    IdentityDamaged {
        /// The identity file.
        path: PathBuf,
        /// How it is damaged.
        #[source]
        source: FrameError,
    },
    /// A second formation record for one directory.
    #[error(
        "this directory belongs to node {node} of cluster {cluster}: use another data directory for another cluster"
    )]
    AdoptedOther {
        /// The node it is.
        node: NodeId,
        /// The cluster it is in.
        cluster: String,
    },
    /// A formation record that names this node with other disks.
    #[error("the formation record expects other disks for node {node} than {path}: {WAY_OUT}")]
    RecordOfOther {
        /// The node that the record makes of this directory.
        node: NodeId,
        /// The data directory.
        path: PathBuf,
    },
    /// A store is opened before its node is in a cluster.
    #[error("{path} belongs to no cluster yet: form or join one first")]
    NotAdopted {
        /// The data directory.
        path: PathBuf,
    },
    /// The file with what this node promised is gone.
    #[error("{path} is missing, and with it what this node promised: {WAY_OUT}")]
    SuperblockMissing {
        /// The superblock.
        path: PathBuf,
    },
    /// No slot of the superblock is whole.
    #[error("{path} is damaged, and with it what this node promised: {WAY_OUT}")]
    SuperblockDamaged {
        /// The superblock.
        path: PathBuf,
    },
    /// A superblock or a record of a later version.
    #[error("{path} was written by a later version: start that version, or {WAY_OUT}")]
    Later {
        /// The file.
        path: PathBuf,
    },
    /// The state holds, or may hold, what this node does not know.
    #[error(transparent)]
    Level(#[from] LaterLevel),
    /// The superblock and the identity file are of different nodes.
    #[error(
        "{path} belongs to another {what} ({found}) than the identity file beside it ({expected}): {WAY_OUT}"
    )]
    Foreign {
        /// The superblock.
        path: PathBuf,
        /// Cluster, node or incarnation.
        what: &'static str,
        /// The superblock's.
        found: String,
        /// The identity's.
        expected: String,
    },
    /// A part of the database is gone.
    #[error("{path} is missing, and with it this node's log: {WAY_OUT}")]
    DatabaseMissing {
        /// The file or directory.
        path: PathBuf,
    },
    /// The database has records although nothing was ever promised from it.
    #[error("{path} holds a vote or a log, but its superblock is missing: {WAY_OUT}")]
    DatabaseOrphaned {
        /// The database.
        path: PathBuf,
    },
    /// The database refused to open, or panicked.
    #[error("{path} does not open ({reason}): {WAY_OUT}")]
    DatabaseDamaged {
        /// The database.
        path: PathBuf,
        /// What it said.
        reason: String,
    },
    /// The database neither opened nor failed.
    #[error(
        "{path} did not open within {limit:?}: try once more on a quieter disk; then {WAY_OUT}"
    )]
    DatabaseHangs {
        /// The database.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// A value became a file of its own, which nothing makes durable.
    #[error("{path} is not empty, and nothing in it is durable: {WAY_OUT}")]
    Blobs {
        /// The database's directory of large values.
        path: PathBuf,
    },
    /// A value beside the log is not what was written.
    #[error("the stored {what} is damaged: {WAY_OUT}")]
    ValueDamaged {
        /// Vote, purged or committed.
        what: &'static str,
        /// How.
        #[source]
        source: FrameError,
    },
    /// A record is not what was written.
    #[error("the log record at index {index} is damaged: {WAY_OUT}")]
    RecordDamaged {
        /// Its index.
        index: u64,
        /// How.
        #[source]
        source: RecordError,
    },
    /// A record does not follow the one before it.
    #[error(
        "the log record at index {index} does not follow {before}: records are missing; {WAY_OUT}"
    )]
    ChainBroken {
        /// The index of the record that was found.
        index: u64,
        /// The record it should follow.
        before: String,
    },
    /// Acknowledged entries are gone.
    #[error("the log ends at {found}, but this node acknowledged {promised}: {WAY_OUT}")]
    LogBehind {
        /// The greatest of last record, purge and snapshot.
        found: String,
        /// What the superblock has.
        promised: LogId,
    },
    /// The purge marker fell, so other values may have fallen with it.
    #[error("the log is purged to {found}, but was purged to {promised} before: {WAY_OUT}")]
    PurgedBehind {
        /// What the database has.
        found: String,
        /// What the superblock has.
        promised: LogId,
    },
    /// The snapshot that replaces the purged log is gone.
    #[error("the snapshot {path} is missing: {WAY_OUT}")]
    SnapshotMissing {
        /// The file.
        path: PathBuf,
    },
    /// The snapshot is not what was written.
    #[error("the snapshot {path} is damaged: {WAY_OUT}")]
    SnapshotDamaged {
        /// The file.
        path: PathBuf,
        /// How.
        #[source]
        source: SnapshotError,
    },
    /// Entries between the snapshot and the log are gone.
    #[error("the log is purged to {purged}, but the snapshot ends at {snapshot}: {WAY_OUT}")]
    SnapshotBehind {
        /// Up to where the log is purged.
        purged: LogId,
        /// Up to where the snapshot goes.
        snapshot: String,
    },
}

impl StoreError {
    /// The operating system's refusal of `action` on `path`.
    pub(super) fn io(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

impl StoreError {
    /// sled's refusal of its files.
    pub(super) fn sled(path: &Path, error: &sled::Error) -> Self {
        // What the operating system refuses says nothing of what is on the disk. sled's own findings have no such number.
        if let sled::Error::Io(source) = error
            && let Some(number) = source.raw_os_error()
        {
            return Self::io("open", path)(io::Error::from_raw_os_error(number));
        }
        Self::DatabaseDamaged {
            path: path.to_path_buf(),
            reason: error.to_string(),
        }
    }

    /// The same of the original, where it was found in a copy.
    pub(super) fn moved(mut self, copy: &Path, original: &Path) -> Self {
        if let Self::DatabaseDamaged { reason, .. } = &mut self {
            let (copy, original) = (copy.to_string_lossy(), original.to_string_lossy());
            *reason = reason.replace(&*copy, &original);
        }
        if let Self::Io { path, .. }
        | Self::Later { path }
        | Self::DatabaseMissing { path }
        | Self::DatabaseOrphaned { path }
        | Self::DatabaseDamaged { path, .. }
        | Self::DatabaseHangs { path, .. }
        | Self::Blobs { path } = &mut self
            && let Ok(below) = path.strip_prefix(copy)
        {
            // By components, so that nothing below is no slash at the end.
            *path = original.components().chain(below.components()).collect();
        }
        self
    }
}

/// The error and its causes on one line.
pub(super) fn whole_line(error: &StoreError) -> String {
    let mut line = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        line.push_str(": ");
        line.push_str(&source.to_string());
        cause = source.source();
    }
    line
}

/// What helps where the operating system refused.
fn way_out_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "give it to the user that runs this node",
        io::ErrorKind::ReadOnlyFilesystem => {
            "mount its disk for writing, or choose another data directory"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space on its disk",
        _ => "look at its disk and how that is mounted",
    }
}

/// A log id or its absence, in words.
pub(super) fn or_nothing(log_id: Option<LogId>) -> String {
    log_id.map_or_else(|| "nothing".to_owned(), |log_id| log_id.to_string())
}
