//! Before each 201, a quorum has synced the entry to its disks (I3): seen from outside, by strace.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use highwater::RangeCount;
use highwater::chaos::Program;

use crate::world::{self, three_nodes_of};

const LEASES: usize = 20;

/// Seconds of the wall clock, as strace writes them.
fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

/// A sync: when it began and when it had succeeded.
type Sync = (f64, f64);

/// The syncs of one node. A line is `[pid] seconds fdatasync(fd) = 0 <seconds>`, or cut in two where another
/// thread's call comes between.
fn syncs(trace: &str) -> Vec<Sync> {
    let mut begun = std::collections::BTreeMap::new();
    let mut found = Vec::new();
    for line in trace.lines() {
        let mut words = line.split_whitespace();
        let (Some(pid), Some(at)) = (words.next(), words.next()) else {
            continue;
        };
        let Ok(at) = at.parse::<f64>() else { continue };
        let took = line
            .rsplit_once('<')
            .and_then(|(_, took)| took.trim_end_matches('>').parse().ok());
        if line.contains("<unfinished") {
            begun.insert(pid.to_owned(), at);
        } else if line.contains("= 0") {
            match (line.contains("resumed"), begun.remove(pid)) {
                (true, Some(start)) => found.push((start, at)),
                _ => found.push((at, at + took.unwrap_or(0.0))),
            }
        }
    }
    found
}

fn traces(directory: &Path) -> Vec<Vec<Sync>> {
    let files = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let traces = files.filter(|path| path.to_string_lossy().contains("trace."));
    traces
        .map(|path| syncs(&fs::read_to_string(path).unwrap()))
        .collect()
}

#[test]
fn a_trace_is_read_whole_and_in_parts() {
    let trace = "\
        7 100.5 fdatasync(9) = 0 <0.25>\n\
        7 101.0 fdatasync(9 <unfinished ...>\n\
        8 101.1 fdatasync(9) = -1 EIO (Input/output error) <0.1>\n\
        7 101.5 <... fdatasync resumed>) = 0 <0.5>\n";

    assert_eq!(syncs(trace), [(100.5, 100.75), (101.0, 101.5)]);
}

// spacejam/sled#1452: sled's flush is no sync.
#[tokio::test]
async fn a_quorum_has_synced_before_each_grant_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let script = format!(
        "exec strace -f -ttt -T -e trace=fdatasync,fsync -o {}.$$ {} \"$@\"",
        trace.display(),
        env!("CARGO_BIN_EXE_highwater")
    );
    let program = Program {
        path: "/bin/sh".into(),
        arguments: ["-c", &script, "sh"].map(Into::into).to_vec(),
    };
    let cluster = three_nodes_of(directory.path(), program).await;
    let sequence = world::sequence(&cluster, "p").await;
    let client = world::client(&cluster);

    let mut windows = Vec::new();
    for _ in 0..LEASES {
        let sent = now();
        client.lease(&sequence, RangeCount::ONE).await.unwrap();
        windows.push((sent, now()));
    }
    drop(cluster);

    let nodes = traces(directory.path());
    assert_eq!(nodes.len(), 3);
    for (sent, received) in windows {
        let within = |syncs: &&Vec<Sync>| {
            syncs
                .iter()
                .any(|(from, to)| sent <= *from && *to <= received)
        };
        let synced = nodes.iter().filter(within).count();
        assert!(
            2 <= synced,
            "I3: only {synced} nodes synced between {sent} and {received}"
        );
    }
}
