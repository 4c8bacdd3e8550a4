//! Why a node does not start, or ends by itself: one line each, with the way out.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use super::config::ConfigError;
use super::consensus::{ConsensusError, Disowned, Diverged, FormationError};
use super::joining::JoinError;
use super::store::{StoreError, StoreFailed, StoreFailure};
use super::types::Address;

/// Why a node did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// It was told something that cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener's address cannot be had.
    #[error("{listening} address {address} cannot be listened on: {}", way_out_of(*listening, source))]
    Bind {
        /// What the listener is for.
        listening: Listening,
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
    /// It cannot join the cluster.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// Raft did not start.
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
    /// The file that tells where the node listens cannot be written.
    #[error("{} cannot be written: look at its disk and how that is mounted", path.display())]
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
    /// A peer knows that it must not be this node.
    #[error(transparent)]
    Disowned(#[from] Box<Disowned>),
    /// Its state is not the others'.
    #[error(transparent)]
    Diverged(#[from] Diverged),
    /// Raft ended while the node ran.
    #[error("raft ended: {reason}; restart the node, and look at its disk if it ends again")]
    Ended {
        /// What ended it.
        reason: String,
    },
}

impl ServerError {
    /// What Raft says when it cannot start; if the store ended first, why that did.
    pub(crate) fn raft(
        error: ConsensusError,
        failed: Option<&mut StoreFailed>,
        path: &Path,
    ) -> Self {
        match failed.and_then(StoreFailed::now) {
            Some(failure) => Self::store(path, failure),
            None => error.into(),
        }
    }

    /// What ended the store in this data directory.
    pub(crate) fn store(path: &Path, failure: StoreFailure) -> Self {
        match failure {
            StoreFailure::Disk(source) => Self::disk(path, source),
            StoreFailure::Level(later) => StoreError::from(later).into(),
        }
    }

    /// The error that ended the writing into this data directory.
    fn disk(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, source }
            }
            _ => Self::Disk { path, source },
        }
    }
}

/// What a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listening {
    /// Workers.
    Api,
    /// The other nodes.
    Peers,
}

impl Listening {
    /// The flag that gives its address.
    const fn flag(self) -> &'static str {
        match self {
            Self::Api => "--listen",
            Self::Peers => "--peer-listen",
        }
    }
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Api => "API",
            Self::Peers => "peer",
        })
    }
}

/// What helps where the operating system refused an address.
fn way_out_of(listening: Listening, error: &io::Error) -> String {
    let first = match error.kind() {
        io::ErrorKind::AddrInUse => "stop what listens there",
        io::ErrorKind::AddrNotAvailable => "give this machine that address",
        io::ErrorKind::PermissionDenied => {
            "give the node the right to it (ports below 1024 need one)"
        }
        _ => "free it",
    };
    let flag = listening.flag();
    format!("{first}, or choose another by {flag} or in the cluster file")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::error::Error;

    use openraft::vote::{RaftLeaderId as _, RaftVote as _};

    use super::*;
    use crate::server::codec;
    use crate::server::consensus::Promise;
    use crate::server::store::refusals;
    use crate::server::types::{ClusterId, Incarnation, Leadership, LogId, NodeId, Vote};

    const PAGE: &str = include_str!("../../docs/a-node-refuses-to-start.md");
    /// With what the page replaces the long end of most lines, and random ids.
    const SHORTENED: [(&str, &str); 5] = [
        (
            "put the whole directory back as it last was, or replace the node by a new one",
            "WAY OUT",
        ),
        ("00000000000000000000000000000001", "CLUSTER"),
        ("00000000000000000000000000000002", "OTHER CLUSTER"),
        ("00000000000000000000000000000003", "INCARNATION"),
        ("00000000000000000000000000000004", "OTHER INCARNATION"),
    ];

    /// Samples of an enum. A new variant does not compile before it has one.
    macro_rules! samples {
        ($name:ident, $error:ty, $($variant:pat => [$($sample:expr),*]),+ $(,)?) => {
            fn $name() -> Vec<$error> {
                fn has_samples(error: &$error) -> bool {
                    match error { $($variant)|+ => true }
                }
                let samples: Vec<$error> = vec![$($($sample,)*)+];
                assert!(samples.iter().all(has_samples));
                samples
            }
        };
    }

    fn id<T: serde::de::DeserializeOwned>(number: u128) -> T {
        codec::decode::<T, 16>(&number.to_le_bytes()).unwrap()
    }

    fn own() -> ClusterId {
        id(1)
    }

    fn other() -> ClusterId {
        id(2)
    }

    fn node(id: u64) -> NodeId {
        NodeId::from(id)
    }

    fn address() -> Address {
        "127.0.0.1:7101".parse().unwrap()
    }

    fn promise(index: u64) -> Promise {
        let leadership = Leadership::new(2, node(1));
        let vote = Vote::from_leader_id(leadership, true);
        Promise::new(Some(vote), Some(LogId::new(leadership, index)))
    }

    fn incarnations() -> (Incarnation, Incarnation) {
        (id(3), id(4))
    }

    fn os(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    samples! { formation_samples, FormationError,
        FormationError::OtherNode { .. } => [FormationError::OtherNode { asked: node(2), found: node(1) }],
        FormationError::Wiped { .. } => [FormationError::Wiped {
            node: node(3),
            shown_by: node(1),
            cluster: own(),
            known: incarnations().0,
            own: incarnations().1,
        }],
        FormationError::NotNamed { .. } => [FormationError::NotNamed { node: node(4), cluster: own() }],
        FormationError::TwoClusters { .. } => [FormationError::TwoClusters { one: own(), other: other() }],
        FormationError::OtherCluster { .. } => [FormationError::OtherCluster {
            node: node(1),
            own: own(),
            other: other(),
        }],
        // The store's own, which are told for themselves.
        FormationError::Store(_) => [],
        FormationError::Initialize { .. } => [FormationError::Initialize { reason: "REASON".to_owned() }],
    }

    samples! { config_samples, ConfigError,
        ConfigError::Unreadable { .. } => [ConfigError::Unreadable { path: "FILE".into(), source: os(2) }],
        ConfigError::File { .. } => [ConfigError::File {
            path: "FILE".into(),
            source: Box::new(ConfigError::ZeroId),
        }],
        ConfigError::NotUnderstood { .. } => [ConfigError::File {
            path: "FILE".into(),
            source: Box::new(ConfigError::NotUnderstood { reason: "line 3: REASON".to_owned() }),
        }],
        ConfigError::NodeCount { .. } => [ConfigError::NodeCount { found: 0 }],
        ConfigError::ZeroId => [],
        ConfigError::DuplicateId { .. } => [ConfigError::DuplicateId { id: node(1) }],
        ConfigError::DuplicateAddress { .. } => [ConfigError::DuplicateAddress { address: address() }],
        ConfigError::NoPort { .. } => [ConfigError::NoPort { address: "127.0.0.1:0".parse().unwrap() }],
        ConfigError::UnknownNode { .. } => [ConfigError::UnknownNode { node: node(4), known: "1, 2, 3".to_owned() }],
        ConfigError::DiskFloor { .. } => [ConfigError::DiskFloor { mib: 2_000_000 }],
        ConfigError::SnapshotInterval { .. } => [ConfigError::SnapshotInterval { entries: 99 }],
        ConfigError::Threads { .. } => [ConfigError::Threads { threads: 100 }],
        ConfigError::FeatureLevel { .. } => [ConfigError::FeatureLevel { level: 9 }],
        ConfigError::Heartbeat { .. } => [ConfigError::Heartbeat { millis: 5 }],
        ConfigError::Unresolved { .. } => [ConfigError::Unresolved {
            address: "HOST:7101".parse().unwrap(),
            source: io::Error::other("WHAT THE RESOLVER SAYS"),
        }],
        ConfigError::Exposed { .. } => [ConfigError::Exposed { address: "0.0.0.0:7101".parse().unwrap() }],
    }

    samples! { server_samples, ServerError,
        ServerError::Config(_) => [],
        ServerError::Store(_) => [],
        ServerError::Formation(_) => [],
        ServerError::Bind { .. } => [
            ServerError::Bind { listening: Listening::Api, address: address(), source: os(98) },
            ServerError::Bind { listening: Listening::Peers, address: address(), source: os(99) },
            ServerError::Bind { listening: Listening::Api, address: "127.0.0.1:80".parse().unwrap(), source: os(13) }
        ],
        ServerError::Join(_) => [
            ServerError::Join(JoinError::Refused { reason: "REASON".to_owned() }),
            ServerError::Join(JoinError::OtherCluster { own: own(), other: other().to_string() }),
            ServerError::Join(JoinError::NotUnderstood { reason: "REASON".to_owned() })
        ],
        ServerError::Consensus(_) => [ServerError::Consensus(ConsensusError::Store(
            openraft::errors::Fatal::Stopped
        ))],
        ServerError::Disowned(_) => [
            ServerError::Disowned(Box::new(Disowned::RolledBack {
                node: node(1),
                told_by: node(2),
                promised: promise(90),
                holds: promise(70),
            })),
            ServerError::Disowned(Box::new(Disowned::Twice {
                node: node(1),
                told_by: node(2),
                running: "192.0.2.1:40000".parse().unwrap(),
                given: "192.0.2.9:40000".parse().unwrap(),
            })),
            ServerError::Disowned(Box::new(Disowned::Removed { node: node(3), told_by: node(1) }))
        ],
        ServerError::Diverged(_) => [ServerError::Diverged(Diverged {
            node: node(3),
            index: 512,
            own: id(5),
            theirs: id(6),
        })],
        ServerError::Ready { .. } => [ServerError::Ready { path: "DIR/ready.json".into(), source: os(28) }],
        ServerError::OpenFiles { .. } => [ServerError::OpenFiles { found: 100, needed: 1024 }],
        ServerError::DiskFull { .. } => [ServerError::disk("DIR".as_ref(), os(28))],
        ServerError::Disk { .. } => [ServerError::disk("DIR".as_ref(), os(5))],
        ServerError::Ended { .. } => [ServerError::Ended { reason: "REASON".to_owned() }],
    }

    /// The line that a node ends with, shortened as the page does.
    fn quoted(error: &dyn Error) -> String {
        let mut line = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            line = format!("{line}: {source}");
            cause = source.source();
        }
        SHORTENED
            .iter()
            .fold(line, |line, (long, short)| line.replace(long, short))
    }

    #[test]
    fn the_page_on_refusals_quotes_every_one_and_nothing_else() {
        let told: BTreeSet<String> = refusals::samples()
            .into_iter()
            .map(ServerError::Store)
            .chain(formation_samples().into_iter().map(ServerError::Formation))
            .chain(config_samples().into_iter().map(ServerError::Config))
            .chain(server_samples())
            .map(|error| quoted(&error))
            .collect();
        let mut inside = false;
        let on_page: BTreeSet<String> = PAGE
            .lines()
            .filter(|line| {
                let quoted = inside && *line != "```";
                inside = if inside { quoted } else { *line == "```text" };
                quoted
            })
            .map(str::to_owned)
            .collect();

        let missing: Vec<_> = told.difference(&on_page).collect();
        let stale: Vec<_> = on_page.difference(&told).collect();
        assert!(
            missing.is_empty() && stale.is_empty(),
            "not on the page: {missing:#?}\nnot told any more: {stale:#?}"
        );
        assert!(PAGE.contains(SHORTENED[0].0));
    }
}
