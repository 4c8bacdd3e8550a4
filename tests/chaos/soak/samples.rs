//! What the nodes use while they are under load, and whether that levels off.

use std::fmt::Write as _;
use std::time::Duration;

use highwater::chaos::{LocalCluster, ProcessUse, disk_use};
use highwater::wire::{ClusterBody, MemberBody};
use serde_json::{Value, json};

/// How much the last third of a run may use beyond its middle third.
const GROWTH_MAX: f64 = 1.2;

/// All nodes at one moment.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) at: Duration,
    pub(super) grants: u64,
    pub(super) nodes: Vec<NodeSample>,
}

/// One node at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeSample {
    pub(super) used: ProcessUse,
    pub(super) disk: u64,
    pub(super) log_entries: u64,
    pub(super) log_bytes: u64,
    /// The bytes of all records that it appended to its log.
    pub(super) appended: u64,
    pub(super) snapshot: u64,
}

impl NodeSample {
    pub(super) fn of(cluster: &LocalCluster, member: &MemberBody) -> Self {
        let pid = cluster.pid(member.id).unwrap();
        Self {
            used: ProcessUse::of(pid).unwrap(),
            disk: disk_use(cluster.data_dir(member.id).unwrap()).unwrap(),
            log_entries: member.log_entries.unwrap_or_default(),
            log_bytes: member.log_bytes.unwrap_or_default(),
            appended: member.log_bytes_appended.unwrap_or_default(),
            snapshot: member.snapshot_index.unwrap_or_default(),
        }
    }

    /// The bytes that its process wrote to disk for each byte that it appended to its log.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub(super) fn write_amplification(&self) -> f64 {
        self.used.written as f64 / self.appended.max(1) as f64
    }
}

impl Sample {
    pub(super) fn of(
        cluster: &LocalCluster,
        shown: &ClusterBody,
        (at, grants): (Duration, u64),
    ) -> Self {
        let node = |member| NodeSample::of(cluster, member);
        Self {
            at,
            grants,
            nodes: shown.members.iter().map(node).collect(),
        }
    }
}

/// Every sample's value of one node.
pub(super) fn series(samples: &[Sample], node: usize, of: fn(&NodeSample) -> u64) -> Vec<u64> {
    samples
        .iter()
        .map(|sample| of(&sample.nodes[node]))
        .collect()
}

/// How many different snapshots a node had.
pub(super) fn snapshots(samples: &[Sample], node: usize) -> usize {
    let mut indices = series(samples, node, |node| node.snapshot);
    indices.retain(|index| *index != 0);
    indices.dedup();
    indices.len()
}

/// Whether what is used does not grow for ever.
///
/// # Errors
/// By how much it grew.
#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
pub(super) fn levels_off(what: &str, values: &[u64]) -> Result<(), String> {
    let third = values.len() / 3;
    let most = |part: &[u64]| part.iter().copied().max().unwrap_or_default();
    let middle = most(&values[third..values.len() - third]);
    let last = most(&values[values.len() - third..]);
    if middle as f64 * GROWTH_MAX < last as f64 {
        return Err(format!(
            "{what} grows: at most {middle} in the middle third of the run, {last} in the last"
        ));
    }
    Ok(())
}

/// About so many of the samples, as a table for people.
pub(super) fn table(samples: &[Sample], rows: usize) -> String {
    let mut text = format!(
        "{:>8} {:>10}  {:<17} {:<17} {:<17} {:<20}\n",
        "seconds", "grants", "memory MiB", "disk MiB", "log MiB", "log entries"
    );
    let step = samples.len().div_ceil(rows).max(1);
    let last = samples.len().saturating_sub(1);
    for (number, sample) in samples.iter().enumerate() {
        if number % step != 0 && number != last {
            continue;
        }
        let each = |of: fn(&NodeSample) -> u64| {
            let nodes = sample.nodes.iter().map(|node| of(node).to_string());
            nodes.collect::<Vec<_>>().join(" / ")
        };
        writeln!(
            text,
            "{:>8.1} {:>10}  {:<17} {:<17} {:<17} {:<20}",
            sample.at.as_secs_f64(),
            sample.grants,
            each(|node| node.used.memory >> 20),
            each(|node| node.disk >> 20),
            each(|node| node.log_bytes >> 20),
            each(|node| node.log_entries),
        )
        .unwrap();
    }
    text
}

/// All samples, for programs.
pub(super) fn to_json(samples: &[Sample]) -> Value {
    let node = |node: &NodeSample| {
        json!({
            "memory": node.used.memory,
            "disk": node.disk,
            "written": node.used.written,
            "log_entries": node.log_entries,
            "log_bytes": node.log_bytes,
            "log_bytes_appended": node.appended,
            "snapshot_index": node.snapshot,
        })
    };
    let sample = |sample: &Sample| {
        json!({
            "seconds": sample.at.as_secs_f64(),
            "grants": sample.grants,
            "nodes": sample.nodes.iter().map(node).collect::<Vec<_>>(),
        })
    };
    samples.iter().map(sample).collect()
}

#[test]
fn what_goes_up_and_down_levels_off_and_what_only_grows_does_not() {
    let saw: Vec<u64> = (0..60).map(|at| 100 + at % 10).collect();
    levels_off("memory", &saw).unwrap();
    let warmed_up: Vec<u64> = (0..60).map(|at| 100 * at.min(20)).collect();
    levels_off("memory", &warmed_up).unwrap();

    let leak: Vec<u64> = (0..60).map(|at| 100 + 10 * at).collect();

    assert_eq!(
        levels_off("memory", &leak).unwrap_err(),
        "memory grows: at most 490 in the middle third of the run, 690 in the last"
    );
}
