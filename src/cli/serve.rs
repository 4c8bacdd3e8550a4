//! `highwater serve`: one node of a cluster, or a cluster of one.

use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::pin::pin;

use clap::builder::BoolishValueParser;
use futures::future::{Either, select};
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use serde::Deserialize;
use tokio::signal::{self, unix::SignalKind};
use tokio::sync::oneshot;

use super::error::{CliError, Exit};
use crate::client::Client;
use crate::sequence::FeatureLevel;
use crate::server;
use crate::server::config::{
    API_LISTEN_DEFAULT, AutoCreate, ClusterFile, Config, ConfigError, DiskFloor, Entry, Exposure,
    PEER_LISTEN_DEFAULT, SnapshotInterval, Threads, Timing, toml_reason,
};
use crate::server::telemetry::{self, LogFormat};
use crate::server::types::{Address, AddressError, NodeId};

/// Where a node keeps its state unless told otherwise.
const DATA_DIR_DEFAULT: &str = "./highwater-data";

const EXAMPLES: &str = "\
Examples:
  highwater serve                    one node on 127.0.0.1:7101, ./highwater-data
  highwater serve --cluster cluster.toml --node 1 --data-dir ./data/1
  highwater serve --join http://127.0.0.1:7101 --data-dir ./data/4 \\
    --listen 127.0.0.1:7104 --peer-listen 127.0.0.1:7204

The cluster file is the same on every machine:
  [cluster]
  name = \"local\"
  [[node]]
  id = 1
  api = \"127.0.0.1:7101\"
  peer = \"127.0.0.1:7201\"";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The file that describes the cluster, the same on every machine
    #[arg(long, value_name = "FILE", env = "HIGHWATER_CLUSTER")]
    pub(super) cluster: Option<PathBuf>,
    /// Which node of the cluster file this is
    #[arg(long, value_name = "N", env = "HIGHWATER_NODE")]
    pub(super) node: Option<NodeId>,
    /// Become a new node of the cluster that these nodes belong to, unless the data directory is in one already
    #[arg(
        long,
        value_name = "URL,…",
        env = "HIGHWATER_JOIN",
        value_delimiter = ','
    )]
    pub(super) join: Vec<String>,
    /// Where this node keeps what must survive; ./highwater-data by default, ./highwater-data/N with a cluster file
    #[arg(long, value_name = "DIR", env = "HIGHWATER_DATA_DIR")]
    pub(super) data_dir: Option<PathBuf>,
    /// Where workers reach this node; the cluster file's api, or 127.0.0.1:7101
    #[arg(long, value_name = "ADDR", env = "HIGHWATER_LISTEN")]
    pub(super) listen: Option<Address>,
    /// Where its peers reach this node; the cluster file's peer, or 127.0.0.1:7201
    #[arg(long, value_name = "ADDR", env = "HIGHWATER_PEER_LISTEN")]
    pub(super) peer_listen: Option<Address>,
    /// A TOML file with settings
    #[arg(long, value_name = "FILE", env = "HIGHWATER_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Listen beyond this machine without tokens and TLS
    #[arg(long, value_name = "BOOL", env = "HIGHWATER_INSECURE", value_parser = BoolishValueParser::new(),
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) insecure: Option<bool>,
    /// How often a leader shows that it is there, in milliseconds; election time-outs are 3 to 6 times as long; 40 by default
    #[arg(long, value_name = "N", env = "HIGHWATER_HEARTBEAT_MS")]
    pub(super) heartbeat_ms: Option<u64>,
    /// A lease of a sequence that is not there makes it, with the default settings, where it is refused otherwise
    #[arg(long, value_name = "BOOL", env = "HIGHWATER_AUTO_CREATE", value_parser = BoolishValueParser::new(),
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) auto_create: Option<bool>,
    /// Free space on the data directory's disk, in MiB, below which this node leads no more and proposes nothing; 0 for
    /// no such limit; 64 by default
    #[arg(long, value_name = "N", env = "HIGHWATER_DISK_FREE_MIB_MIN")]
    pub(super) disk_free_mib_min: Option<u64>,
    /// After how many log entries a snapshot is taken: fewer make log and restart shorter and cost more writing; 10000 by
    /// default
    #[arg(long, value_name = "N", env = "HIGHWATER_SNAPSHOT_ENTRIES")]
    pub(super) snapshot_entries: Option<u64>,
    /// Know no later feature level than this one, although the program does: as long as one member does not know a level, the
    /// cluster keeps off it, and every node can go back to a program that does not know it
    #[arg(long, value_name = "N", env = "HIGHWATER_FEATURE_LEVEL_MAX")]
    pub(super) feature_level_max: Option<u32>,
    /// Threads that serve requests and peers; half of the cores by default, but 4 at most
    #[arg(long, value_name = "N", env = "HIGHWATER_THREADS")]
    pub(super) threads: Option<usize>,
    /// How log lines are written, to standard error
    #[arg(
        long,
        value_name = "FORMAT",
        env = "HIGHWATER_LOG_FORMAT",
        default_value = "text"
    )]
    pub(super) log_format: LogFormat,
    /// End when standard input does: so a harness leaves no node behind, however it ends
    #[arg(long, hide = true)]
    pub(super) end_with_stdin: bool,
}

/// The settings that a file can give. A flag or an environment variable goes before it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSettings {
    cluster: Option<PathBuf>,
    node: Option<NodeId>,
    join: Option<Vec<String>>,
    data_dir: Option<PathBuf>,
    listen: Option<Address>,
    peer_listen: Option<Address>,
    insecure: Option<bool>,
    heartbeat_ms: Option<u64>,
    auto_create: Option<bool>,
    disk_free_mib_min: Option<u64>,
    snapshot_entries: Option<u64>,
    feature_level_max: Option<u32>,
    threads: Option<usize>,
}

pub(super) fn run(args: Args) -> Result<Exit, CliError> {
    if args.end_with_stdin {
        end_with_stdin()?;
    }
    telemetry::start(args.log_format);
    raise_open_files_limit();
    let config = config(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.threads.count())
        .enable_all()
        .build()
        .map_err(|source| CliError::Runtime { source })?;
    // On a worker like all else: what this thread polls itself would wake it many times for each commit.
    let serving = runtime.spawn(serve(config));
    let ended = runtime
        .block_on(serving)
        .unwrap_or_else(|ended| resume_unwind(ended.into_panic()));
    // A thread that waits for a disk which hangs is not waited for.
    runtime.shutdown_background();
    ended
}

/// Serves until the first signal, and to its end or the second one.
async fn serve(config: Config) -> Result<Exit, CliError> {
    let mut signals = Signals::listen().map_err(|source| CliError::Runtime { source })?;
    let (stop, stopped) = oneshot::channel();
    let node = server::run(config, async move {
        // The sender lives as long as this function.
        stopped.await.ok();
    });
    let told_twice = async {
        signals.next().await;
        stop.send(()).ok();
        signals.next().await;
    };
    match select(pin!(node), pin!(told_twice)).await {
        Either::Left((ended, _)) => ended.map(|()| Exit::Ok).map_err(CliError::Server),
        Either::Right(((), _)) => Ok(Exit::Ok),
    }
}

/// What asks a node to stop: SIGTERM from supervisors, SIGINT from terminals.
struct Signals {
    terminate: signal::unix::Signal,
    interrupt: signal::unix::Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal::unix::signal(SignalKind::terminate())?,
            interrupt: signal::unix::signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        select(pin!(self.terminate.recv()), pin!(self.interrupt.recv())).await;
    }
}

/// Flags and environment, then the file, then what the cluster file says, then the defaults.
fn config(args: Args) -> Result<Config, CliError> {
    let file = match &args.config {
        Some(path) => read_settings(path)?,
        None => FileSettings::default(),
    };
    let listen = args.listen.or(file.listen);
    let peer_listen = args.peer_listen.or(file.peer_listen);
    let data_dir = args.data_dir.or(file.data_dir);
    let join = match args.join {
        urls if urls.is_empty() => file.join.unwrap_or_default(),
        urls => urls,
    };
    let mut config = match (args.cluster.or(file.cluster), args.node.or(file.node)) {
        (Some(path), Some(node)) => {
            let members = ClusterFile::read(&path)?;
            let own = PathBuf::from(DATA_DIR_DEFAULT).join(node.to_string());
            Config::member(&members, node, data_dir.unwrap_or(own))?
        }
        (Some(_), None) | (None, Some(_)) => {
            return Err(CliError::usage(
                "--cluster and --node go together: give both or neither",
            ));
        }
        (None, None) => Config::new(
            data_dir.unwrap_or_else(|| DATA_DIR_DEFAULT.into()),
            address(&listen, API_LISTEN_DEFAULT)?,
            address(&peer_listen, PEER_LISTEN_DEFAULT)?,
        ),
    };
    if !join.is_empty() {
        if let Entry::Formation { .. } = config.entry {
            return Err(CliError::usage(
                "--join and --cluster exclude each other: a cluster that is there is joined, a new one formed",
            ));
        }
        // An address that is none is told before anything is made.
        Client::builder().nodes(&join).build()?;
        config.entry = Entry::Join { urls: join };
    }
    config.api_listen = listen.unwrap_or(config.api_listen);
    config.peer_listen = peer_listen.unwrap_or(config.peer_listen);
    if config.api_listen == config.peer_listen && config.api_listen.port() != 0 {
        let address = config.api_listen;
        return Err(ConfigError::DuplicateAddress { address }.into());
    }
    if args.insecure.or(file.insecure) == Some(true) {
        config.exposure = Exposure::Insecure;
    }
    if args.auto_create.or(file.auto_create) == Some(true) {
        config.auto_create = AutoCreate::On;
    }
    if let Some(heartbeat) = args.heartbeat_ms.or(file.heartbeat_ms) {
        config.timing = Timing::from_heartbeat_ms(heartbeat)?;
    }
    if let Some(mib) = args.disk_free_mib_min.or(file.disk_free_mib_min) {
        config.disk_free_min = DiskFloor::from_mib(mib)?;
    }
    if let Some(threads) = args.threads.or(file.threads) {
        config.threads = Threads::from_count(threads)?;
    }
    if let Some(entries) = args.snapshot_entries.or(file.snapshot_entries) {
        config.snapshot_interval = SnapshotInterval::from_entries(entries)?;
    }
    if let Some(level) = args.feature_level_max.or(file.feature_level_max) {
        let known = FeatureLevel::known(level);
        config.level_max = known.ok_or(ConfigError::FeatureLevel { level })?;
    }
    Ok(config)
}

pub(super) fn address(given: &Option<Address>, default: &str) -> Result<Address, CliError> {
    match given {
        Some(address) => Ok(address.clone()),
        None => default
            .parse()
            .map_err(|error: AddressError| CliError::usage(&error.to_string())),
    }
}

fn read_settings(path: &Path) -> Result<FileSettings, CliError> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|source| CliError::Open {
        name: name.to_string(),
        source,
    })?;
    toml::from_str(&text)
        .map_err(|error| CliError::usage(&format!("{name}: {}", toml_reason(&text, &error))))
}

/// Each connection is an open file, and many systems allow a process 1,024 unless it asks for more.
fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "limit of open files not raised");
    }
}

/// Ends this process, as by kill -9, when standard input does.
///
/// Whoever started the node holds the other end of the pipe, and the system closes it however that process ends.
fn end_with_stdin() -> Result<(), CliError> {
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(|| {
            // What arrives means nothing. An error means that there is no pipe (any more), like its end.
            drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
            if let Err(error) = kill_process(getpid(), Signal::KILL) {
                tracing::error!(%error, "cannot end with standard input");
            }
        })
        .map(drop)
        .map_err(|source| CliError::Runtime { source })
}
