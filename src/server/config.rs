//! What a node is told when it starts: addresses, directory, timing, and the cluster file.

mod cluster_file;
mod numbers;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use self::cluster_file::NODES_MAX;
pub(crate) use self::cluster_file::{ClusterFile, toml_reason};
use self::numbers::{DISK_FREE_MIB_MAX, SNAPSHOT_ENTRIES, THREADS};
pub(crate) use self::numbers::{DiskFloor, SnapshotInterval, Threads};

use super::types::{Address, NodeId};
use crate::sequence::FeatureLevel;

/// The API's address unless told otherwise.
pub(crate) const API_LISTEN_DEFAULT: &str = "127.0.0.1:7101";
/// The peers' address unless told otherwise.
pub(crate) const PEER_LISTEN_DEFAULT: &str = "127.0.0.1:7201";
/// The heartbeats that can be asked for, in milliseconds.
const HEARTBEAT_MS: std::ops::RangeInclusive<u64> = 10..=10_000;

/// Everything a node is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// Where all its durable state is.
    pub(crate) data_dir: PathBuf,
    /// How it comes into a cluster.
    pub(crate) entry: Entry,
    /// Where it listens for workers; the members' file says where they reach it.
    pub(crate) api_listen: Address,
    /// Where it listens for peers.
    pub(crate) peer_listen: Address,
    /// Whether it may listen where strangers reach it.
    pub(crate) exposure: Exposure,
    /// Raft's time limits.
    pub(crate) timing: Timing,
    /// Whether a lease makes the sequence that it names.
    pub(crate) auto_create: AutoCreate,
    /// The free space below which nothing is proposed.
    pub(crate) disk_free_min: DiskFloor,
    /// After how many entries a snapshot is taken.
    pub(crate) snapshot_interval: SnapshotInterval,
    /// The latest feature level that it claims to know.
    pub(crate) level_max: FeatureLevel,
    /// How many threads serve.
    pub(crate) threads: Threads,
}

/// How a node comes into a cluster, as long as its directory is in none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It is a cluster by itself.
    Alone,
    /// It forms one with the others of its cluster file.
    Formation {
        /// Which of them it is.
        node: NodeId,
        /// All of them.
        members: BTreeMap<NodeId, MemberConfig>,
    },
    /// It asks a cluster to be admitted.
    Join {
        /// The API of some of its nodes.
        urls: Vec<String>,
    },
}

/// What a lease of a sequence that is not there does at this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum AutoCreate {
    /// It is refused: a typing error must not start a second number space.
    #[default]
    Off,
    /// It makes the sequence, with the default settings.
    On,
}

/// A member's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberConfig {
    /// Where workers reach it.
    pub(crate) api: Address,
    /// Where its peers reach it.
    pub(crate) peer: Address,
}

/// Whether a node may listen on an address that is not loopback, as long as nothing else protects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// Loopback only.
    Loopback,
    /// Anywhere, at the operator's word.
    Insecure,
}

impl Config {
    /// A node that listens there, and is a durable cluster of one unless told otherwise.
    #[must_use]
    pub(crate) fn new(data_dir: PathBuf, api_listen: Address, peer_listen: Address) -> Self {
        Self {
            data_dir,
            entry: Entry::Alone,
            api_listen,
            peer_listen,
            exposure: Exposure::Loopback,
            timing: Timing::default(),
            auto_create: AutoCreate::Off,
            disk_free_min: DiskFloor::default(),
            snapshot_interval: SnapshotInterval::default(),
            level_max: FeatureLevel::LATEST,
            threads: Threads::default(),
        }
    }

    /// A member of the cluster that the file describes, listening where the file says.
    ///
    /// # Errors
    /// [`ConfigError`] where the file has no such node.
    pub(crate) fn member(
        file: &ClusterFile,
        node: NodeId,
        data_dir: PathBuf,
    ) -> Result<Self, ConfigError> {
        let Some(own) = file.members.get(&node) else {
            let known = file
                .members
                .keys()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            return Err(ConfigError::UnknownNode { node, known });
        };
        Ok(Self {
            entry: Entry::Formation {
                node,
                members: file.members.clone(),
            },
            ..Self::new(data_dir, own.api.clone(), own.peer.clone())
        })
    }

    /// Where to bind for one of the two listeners.
    ///
    /// # Errors
    /// [`ConfigError`] where the address does not resolve, or is open to strangers without leave.
    pub(crate) fn bind_address(&self, listen: &Address) -> Result<SocketAddr, ConfigError> {
        let unresolved = |source| ConfigError::Unresolved {
            address: listen.clone(),
            source,
        };
        let mut found = listen.as_str().to_socket_addrs().map_err(unresolved)?;
        let address = found
            .next()
            .ok_or_else(|| unresolved(io::ErrorKind::AddrNotAvailable.into()))?;
        if self.exposure == Exposure::Loopback && !address.ip().is_loopback() {
            return Err(ConfigError::Exposed {
                address: listen.clone(),
            });
        }
        Ok(address)
    }
}

/// Why a node cannot be started as told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("{} cannot be read: name the cluster file with --cluster", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file can be read and not used.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<Self>,
    },
    /// It is not TOML of the expected shape.
    #[error("{reason} (highwater serve --help shows a cluster file)")]
    NotUnderstood {
        /// What the parser says.
        reason: String,
    },
    /// Too few or too many members.
    #[error("{found} nodes are named: name 1 to {NODES_MAX}, best 3 or 5")]
    NodeCount {
        /// How many there are.
        found: usize,
    },
    /// An id that is none.
    #[error("node id 0 is no id: number the nodes from 1 on")]
    ZeroId,
    /// An id stands twice.
    #[error("node id {id} is given twice: every node needs its own")]
    DuplicateId {
        /// The id.
        id: NodeId,
    },
    /// An address stands twice.
    #[error("address {address} is given twice: every listener needs its own")]
    DuplicateAddress {
        /// The address.
        address: Address,
    },
    /// An address that the system would choose, which the other nodes could not know.
    #[error("address {address} has port 0: the other nodes must know the port, so choose one")]
    NoPort {
        /// The address.
        address: Address,
    },
    /// The file has no such node.
    #[error("the cluster file has no node {node}, only {known}: correct --node or the file")]
    UnknownNode {
        /// The id asked for.
        node: NodeId,
        /// The ids in the file.
        known: String,
    },
    /// A heartbeat out of bounds.
    #[error("a heartbeat of {millis} ms is out of bounds: use {} to {} ms", HEARTBEAT_MS.start(), HEARTBEAT_MS.end())]
    Heartbeat {
        /// What was asked for.
        millis: u64,
    },
    /// A floor that no disk has.
    #[error("a disk floor of {mib} MiB is out of bounds: use 0 (none) to {DISK_FREE_MIB_MAX} MiB")]
    DiskFloor {
        /// What was asked for.
        mib: u64,
    },
    /// An interval out of bounds.
    #[error("a snapshot every {entries} entries is out of bounds: use {} to {}", SNAPSHOT_ENTRIES.start(), SNAPSHOT_ENTRIES.end())]
    SnapshotInterval {
        /// What was asked for.
        entries: u64,
    },
    /// A number of threads out of bounds.
    #[error("{threads} threads are out of bounds: use {} to {}", THREADS.start(), THREADS.end())]
    Threads {
        /// What was asked for.
        threads: usize,
    },
    /// A level that this program does not know.
    #[error(
        "feature level {level} is out of bounds: use 1 to {}",
        FeatureLevel::LATEST
    )]
    FeatureLevel {
        /// What was asked for.
        level: u32,
    },
    /// The host of an address is not known.
    #[error("address {address} does not resolve: correct its host, or make this machine know it")]
    Unresolved {
        /// The address.
        address: Address,
        /// What the resolver says.
        source: io::Error,
    },
    /// The address is open to strangers.
    #[error(
        "address {address} is not loopback, and nothing protects it: listen on 127.0.0.1, or accept the risk with --insecure"
    )]
    Exposed {
        /// The address.
        address: Address,
    },
}

/// Raft's time limits. One setting, the heartbeat, scales them all.
///
/// The ratios are those measured not to elect without need: an election time-out of 3 to 6 heartbeats, a leader
/// that checks its quorum every 12 (openraft asks for at least twice the longest election time-out).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    heartbeat: Duration,
}

impl Timing {
    /// The heartbeat unless told otherwise.
    pub(crate) const HEARTBEAT_DEFAULT: Duration = Duration::from_millis(40);

    /// Limits for this heartbeat interval.
    ///
    /// # Errors
    /// [`ConfigError`] where it is below 10 ms, which a busy machine cannot keep, or above 10 s.
    pub(crate) fn from_heartbeat_ms(millis: u64) -> Result<Self, ConfigError> {
        if !HEARTBEAT_MS.contains(&millis) {
            return Err(ConfigError::Heartbeat { millis });
        }
        Ok(Self {
            heartbeat: Duration::from_millis(millis),
        })
    }

    /// How often a leader shows that it is there.
    #[must_use]
    pub(crate) const fn heartbeat(self) -> Duration {
        self.heartbeat
    }

    /// The shortest silence after which a follower stands for election.
    #[must_use]
    pub(crate) fn election_min(self) -> Duration {
        self.heartbeat * 3
    }

    /// The longest silence after which a follower stands for election.
    #[must_use]
    pub(crate) fn election_max(self) -> Duration {
        self.heartbeat * 6
    }

    /// How often a leader checks that a quorum still answers (CheckQuorum).
    #[must_use]
    pub(crate) fn quorum_check(self) -> Duration {
        self.heartbeat * 12
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Self::HEARTBEAT_DEFAULT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"
        [cluster]
        name = "local"
        [[node]]
        id = 1
        api = "127.0.0.1:7101"
        peer = "127.0.0.1:7201"
        [[node]]
        id = 2
        api = "127.0.0.1:7102"
        peer = "127.0.0.1:7202"
    "#;

    #[test]
    fn a_cluster_file_names_every_members_addresses() {
        let file = ClusterFile::parse(TWO).unwrap();

        let config = Config::member(&file, 2.into(), "d".into()).unwrap();

        assert_eq!(file.name, "local");
        assert_eq!(config.api_listen.as_str(), "127.0.0.1:7102");
        assert!(matches!(config.entry, Entry::Formation { members, .. } if members.len() == 2));
    }

    #[test]
    fn a_cluster_file_that_contradicts_itself_is_refused_with_the_way_out() {
        let help = "(highwater serve --help shows a cluster file)";
        let none = TWO.split("[[node]]").next().unwrap();
        let ten: String = (1..=10)
            .map(|id| format!("[[node]]\nid = {id}\napi = \"a{id}:1\"\npeer = \"a{id}:2\"\n"))
            .collect();
        let cases = [
            (
                TWO.replace("id = 2", "id = 1"),
                "node id 1 is given twice: every node needs its own".to_owned(),
            ),
            (
                TWO.replace("id = 2", "id = 0"),
                "node id 0 is no id: number the nodes from 1 on".to_owned(),
            ),
            // The same listener twice, another node's, and the same in other letters.
            (
                TWO.replace("7202", "7102"),
                "address 127.0.0.1:7102 is given twice: every listener needs its own".to_owned(),
            ),
            (
                TWO.replace("7202", "7101"),
                "address 127.0.0.1:7101 is given twice: every listener needs its own".to_owned(),
            ),
            (
                TWO.replace("127.0.0.1:7202", "LOCALHOST:07101")
                    .replace("127.0.0.1:7101", "localhost:7101"),
                "address LOCALHOST:07101 is given twice: every listener needs its own".to_owned(),
            ),
            (
                TWO.replace("7202", "0"),
                "address 127.0.0.1:0 has port 0: the other nodes must know the port, so choose one"
                    .to_owned(),
            ),
            (
                none.to_owned(),
                "0 nodes are named: name 1 to 9, best 3 or 5".to_owned(),
            ),
            (
                format!("{none}{ten}"),
                "10 nodes are named: name 1 to 9, best 3 or 5".to_owned(),
            ),
            (
                TWO.replace("name", "nmae"),
                format!("line 3: unknown field `nmae`, expected `name` {help}"),
            ),
            (
                TWO.replace("127.0.0.1:7202", "nowhere"),
                format!(
                    "line 11: \"nowhere\" is not an address: write host:port, for example 127.0.0.1:7101 {help}"
                ),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(ClusterFile::parse(&text).unwrap_err().to_string(), expected);
        }
        let file = ClusterFile::parse(TWO).unwrap();
        assert_eq!(
            Config::member(&file, 3.into(), "d".into())
                .unwrap_err()
                .to_string(),
            "the cluster file has no node 3, only 1, 2: correct --node or the file"
        );
    }

    #[test]
    fn a_disk_floor_is_given_in_mib_and_bounded() {
        assert_eq!(DiskFloor::default(), DiskFloor::from_mib(64).unwrap());
        assert_eq!(DiskFloor::from_mib(0).unwrap().bytes(), 0);
        assert_eq!(DiskFloor::from_mib(3).unwrap().bytes(), 3 * 1024 * 1024);
        assert_eq!(
            DiskFloor::from_mib(1_048_577).unwrap_err().to_string(),
            "a disk floor of 1048577 MiB is out of bounds: use 0 (none) to 1048576 MiB"
        );
    }

    #[test]
    fn an_address_that_strangers_reach_needs_leave() {
        let open: Address = "0.0.0.0:0".parse().unwrap();
        let mut config = Config::new("d".into(), open.clone(), open.clone());

        assert_eq!(
            config.bind_address(&open).unwrap_err().to_string(),
            "address 0.0.0.0:0 is not loopback, and nothing protects it: listen on 127.0.0.1, or accept the risk with --insecure"
        );
        config.exposure = Exposure::Insecure;
        assert!(config.bind_address(&open).is_ok());
    }
}
