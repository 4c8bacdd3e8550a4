//! Why a node does not start, or ends by itself: one line each, with the way out.

use std::path::PathBuf;

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
        source: std::io::Error,
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
    #[error("{reason}")]
    Store {
        /// What is missing or damaged, and the way out.
        reason: String,
    },
    /// It cannot be part of the cluster.
    #[error("{reason}")]
    Formation {
        /// Why, with both values, and the way out.
        reason: String,
    },
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
        source: std::io::Error,
    },
    /// The disk took no more.
    #[error("the store cannot write: {reason}; look at the disk, then restart the node")]
    Disk {
        /// What the system says.
        reason: String,
    },
    /// Raft ended while the node ran.
    #[error("raft ended: {reason}; restart the node, and look at its disk if it ends again")]
    Ended {
        /// What ended it.
        reason: String,
    },
}

impl From<StoreError> for ServerError {
    fn from(error: StoreError) -> Self {
        Self::Store {
            reason: error.to_string(),
        }
    }
}

impl From<FormationError> for ServerError {
    fn from(error: FormationError) -> Self {
        Self::Formation {
            reason: error.to_string(),
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
