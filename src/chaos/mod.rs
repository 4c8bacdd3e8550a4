//! The process harness: a cluster of real node processes on this machine, workers that record what they see, and faults.
//!
//! Nothing here knows the inside of a node. It starts processes, talks HTTP to them through the client, kills them, and
//! hands the history to the checker.

mod clock;
mod cluster;
mod connection;
mod demo;
mod error;
mod flow;
mod network;
mod node;
mod ports;
mod preload;
mod process;
mod proxy;
mod recorder;
mod run;
mod signals;
mod summary;
mod worker;

pub use clock::monotonic_ns;
pub use cluster::{ClusterSize, LocalCluster};
pub use connection::{Connection, RawAnswer};
pub use error::HarnessError;
pub use flow::{Flow, FlowFault};
pub use network::Network;
pub use node::Program;
pub use ports::ClaimedPort;
pub use preload::{DiskAction, DiskFault, FaultyDisk, compile_faults};
pub use process::{ProcessUse, disk_use};
pub use proxy::{Link, Proxy};
pub use recorder::{Progress, Recorder};
pub use worker::Worker;

pub(crate) use demo::{DemoPlan, Plant, run_demo};
pub(crate) use run::{
    ChaosPlan, ChaosPlant, ChaosSummary, Kind, LeftOut, Need, Place, Schedule, TargetPlan,
    run_chaos, run_target,
};
pub(crate) use summary::{Ended, RunVerdict, Summary};
