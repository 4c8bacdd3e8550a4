//! What a run leaves behind: what was measured, on what, and every sample of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Everything that one run measured, as the data file holds it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) about: About,
    /// How many grants were judged, those between measurements among them.
    pub(crate) verified: u64,
    pub(crate) samples: Vec<Sample>,
}

/// Where, when and how the run was made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct About {
    /// The day, in UTC.
    pub(crate) date: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    /// Of the directory that the servers wrote to.
    pub(crate) filesystem: String,
    /// The programs that were measured, by name.
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) rounds: u32,
    pub(crate) warm_ms: u64,
    pub(crate) measured_ms: u64,
}

/// Who was asked for numbers, and by which operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Subject {
    /// Three nodes; the first worker asks the leader, the others are spread over all nodes.
    Highwater,
    /// The same, each worker at a follower.
    HighwaterFollower,
    /// The same with a cached sequence.
    HighwaterCached,
    Tsoracle,
    EtcdPut,
    EtcdSwap,
    Redis,
    PostgresNextval,
    PostgresUpdate,
    MariadbReplace,
    MariadbSegment,
    Handler,
}

impl Subject {
    /// All of them, in the order of the tables.
    pub(crate) const ALL: [Self; 12] = [
        Self::Highwater,
        Self::HighwaterFollower,
        Self::HighwaterCached,
        Self::Tsoracle,
        Self::EtcdPut,
        Self::EtcdSwap,
        Self::Redis,
        Self::PostgresNextval,
        Self::PostgresUpdate,
        Self::MariadbReplace,
        Self::MariadbSegment,
        Self::Handler,
    ];

    /// What the tables call it.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Highwater => "Highwater",
            Self::HighwaterFollower => "Highwater, asked at a follower",
            Self::HighwaterCached => "Highwater, cached sequence",
            Self::Tsoracle => "tsoracle, GetSeq",
            Self::EtcdPut => "etcd, revision of a put",
            Self::EtcdSwap => "etcd, compare and swap",
            Self::Redis => "Redis, INCRBY, appendfsync always",
            Self::PostgresNextval => "PostgreSQL, nextval",
            Self::PostgresUpdate => "PostgreSQL, UPDATE … RETURNING",
            Self::MariadbReplace => "MariaDB, REPLACE + LAST_INSERT_ID (Flickr)",
            Self::MariadbSegment => "MariaDB, UPDATE of 1,000 ids (Leaf)",
            Self::Handler => "limit: axum handler, counter in memory",
        }
    }

    /// Where a number is before it is answered.
    pub(crate) const fn kept(self) -> &'static str {
        match self {
            Self::Highwater
            | Self::HighwaterFollower
            | Self::HighwaterCached
            | Self::Tsoracle
            | Self::EtcdPut
            | Self::EtcdSwap => "2 disks of 3",
            Self::Redis
            | Self::PostgresNextval
            | Self::PostgresUpdate
            | Self::MariadbReplace
            | Self::MariadbSegment => "1 disk",
            Self::Handler => "memory",
        }
    }
}

/// What the workers of a sample did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) subject: Subject,
    /// Each with one connection and one request on its way.
    pub(crate) workers: usize,
    /// Over so many sequences, each request at a random one.
    pub(crate) sequences: u32,
    /// How many sequences there are.
    pub(crate) existing: u32,
    /// Leases in one request.
    pub(crate) leases: u32,
}

impl Work {
    /// One lease a request, all of the only sequence.
    pub(crate) const fn plain(subject: Subject, workers: usize) -> Self {
        Self {
            subject,
            workers,
            sequences: 1,
            existing: 1,
            leases: 1,
        }
    }
}

/// One measurement.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "sample", rename_all = "kebab-case")]
pub(crate) enum Sample {
    Load(Load),
    Limit(Limit),
    Failover(Failover),
    /// Nodes that were started with everything that they had: how long until all served.
    Start {
        existing: u32,
        seconds: f64,
        memory_mib: f64,
    },
    /// What was not measured, and why.
    Skipped {
        what: String,
        why: String,
    },
}

/// Workers in a closed loop.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) round: u32,
    #[serde(flatten)]
    pub(crate) work: Work,
    /// Grants answered in the window, each of them verified.
    pub(crate) grants: u64,
    pub(crate) grants_per_second: f64,
    /// Of a request.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// CPU time of all server processes for each grant.
    pub(crate) server_cpu_us: f64,
    /// The same of the workers.
    pub(crate) client_cpu_us: f64,
    /// Flushes of the disk for each grant; null where the system does not count them.
    pub(crate) syncs: Option<f64>,
    /// Bytes written to the disk for each grant; null likewise.
    pub(crate) written_bytes: Option<f64>,
    /// Memory of all server processes at the end.
    pub(crate) memory_mib: f64,
    /// The share of all processors that neither servers nor workers used.
    pub(crate) others_busy: f64,
    /// Of the last minute, when it ended.
    pub(crate) load_average: f64,
    /// Requests that were refused or lost, by what was said.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub(crate) faults: BTreeMap<String, u64>,
}

/// What the machine can do at best.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Limit {
    pub(crate) round: u32,
    pub(crate) limit: LimitKind,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LimitKind {
    /// 4 KiB at the end of a file, then fdatasync.
    SyncAppend,
    /// 4 KiB within a file, then fdatasync.
    SyncOverwrite,
    /// One byte over a TCP connection and back.
    Loopback,
}

impl LimitKind {
    pub(crate) const ALL: [Self; 3] = [Self::SyncAppend, Self::SyncOverwrite, Self::Loopback];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::SyncAppend => "fdatasync after 4 KiB appended",
            Self::SyncOverwrite => "fdatasync after 4 KiB overwritten",
            Self::Loopback => "one byte over loopback TCP and back",
        }
    }
}

/// The leader ends while workers ask the other nodes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failover {
    pub(crate) subject: Subject,
    pub(crate) ending: Ending,
    /// From the signal to the first answer to a request that was sent after it.
    pub(crate) next_grant_ms: f64,
    /// The longest time without any grant.
    pub(crate) gap_ms: f64,
    pub(crate) faults: u64,
}

/// How a leader ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ending {
    /// `kill -9`.
    Killed,
    /// SIGTERM.
    Told,
}
