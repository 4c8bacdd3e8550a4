//! What the run is made on.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::BenchError;
use crate::plan::Plan;
use crate::process;
use crate::report::data::About;

/// All that is known before the first sample.
///
/// # Errors
/// Where the system does not tell.
pub(crate) fn about(
    plan: &Plan,
    directory: &Path,
    versions: BTreeMap<String, String>,
) -> Result<About, BenchError> {
    let read = |path: &str| fs::read_to_string(path).map_err(BenchError::file(path, "read"));
    let processors = read("/proc/cpuinfo")?;
    let memory = read("/proc/meminfo")?;
    let date = process::run("date", Command::new("date").args(["-u", "+%F"]))?;
    let kib: u64 = value(&memory, "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or_default();
    Ok(About {
        date: date.trim().to_owned(),
        processor: value(&processors, "model name")
            .unwrap_or("unknown")
            .to_owned(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        // Rounded up: the system keeps some of it from everybody.
        memory_gib: kib.div_ceil(1 << 20),
        kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        filesystem: filesystem(directory, &read("/proc/self/mountinfo")?),
        versions,
        rounds: plan.rounds,
        warm_ms: plan.warm_ms,
        measured_ms: plan.measured_ms(),
    })
}

fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The kind of the filesystem that holds a directory: of the mounts that hold it, the innermost.
fn filesystem(directory: &Path, mounts: &str) -> String {
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let at = Path::new(place.split(' ').nth(4)?).to_owned();
        let kind = kind.split(' ').next()?.to_owned();
        directory
            .starts_with(&at)
            .then_some((at.components().count(), kind))
    };
    let innermost = mounts.lines().filter_map(mount).max();
    innermost.map_or_else(|| "unknown".to_owned(), |(_, kind)| kind)
}
