//! Why a node does not start, or ends by itself: one line each, with the way out.

use std::io;
use std::path::{Path, PathBuf};

use super::config::ConfigError;
use super::consensus::{ConsensusError, FormationError};
use super::store::StoreError;
use super::types::Address;

/// Why a node did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// It was told something that cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener's address cannot be had.
    #[error("{purpose} address {address} cannot be listened on: free it, or choose another")]
    Bind {
        /// What the listener is for.
        purpose: &'static str,
        /// The address asked for.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// The system lets it open too few files.
    #[error(
        "this process may open {found} files at once, and a node needs {needed}: raise the limit, with ulimit -n or LimitNOFILE"
    )]
    OpenFiles {
        /// How many it may.
        found: u64,
        /// How many it needs at least.
        needed: u64,
    },
    /// Its data directory was refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot be part of the cluster.
    #[error(transparent)]
    Formation(#[from] FormationError),
    /// Raft did not start.
    #[error("{reason}")]
    Consensus {
        /// Why.
        reason: String,
    },
    /// The file that tells where the node listens cannot be written.
    #[error("{} cannot be written", path.display())]
    Ready {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The disk took no more.
    #[error(
        "the disk of {} is full: free some, then start the node again",
        path.display()
    )]
    DiskFull {
        /// The data directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The disk failed. What it was given last may be on it or not, and a later success would prove nothing.
    #[error(
        "the disk of {} failed: look at it, then start the node again",
        path.display()
    )]
    Disk {
        /// The data directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Raft ended while the node ran.
    #[error("raft ended: {reason}; restart the node, and look at its disk if it ends again")]
    Ended {
        /// What ended it.
        reason: String,
    },
}

impl ServerError {
    /// The error that ended the writing into this data directory.
    pub(crate) fn disk(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, source }
            }
            _ => Self::Disk { path, source },
        }
    }
}

impl From<ConsensusError> for ServerError {
    fn from(error: ConsensusError) -> Self {
        Self::Consensus {
            reason: error.to_string(),
        }
    }
}
