//! The process harness: a cluster of real node processes on this machine, workers that record what they see, and faults.
//!
//! Nothing here knows the inside of a node. It starts processes, talks HTTP to them through the client, kills them, and
//! hands the history to the checker.

mod clock;
mod cluster;
mod demo;
mod error;
mod node;
mod ports;
mod recorder;
mod summary;
mod worker;

pub use cluster::{ClusterSize, LocalCluster};
pub use error::HarnessError;
pub use node::Program;
pub use recorder::{Progress, Recorder};
pub use worker::Worker;

pub(crate) use demo::{DemoPlan, Plant, run_demo};
pub(crate) use summary::{DemoVerdict, Ended};
