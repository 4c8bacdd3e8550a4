//! What processes and the whole machine have used, as the system counts it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::param::clock_ticks_per_second;

use crate::error::BenchError;

/// All that was used until one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Processor time of the servers, in µs.
    pub(crate) servers_us: u64,
    /// The same of this process, which the workers belong to.
    pub(crate) own_us: u64,
    /// The same of everything on this machine.
    pub(crate) machine_us: u64,
    /// Bytes that the servers had written to disks.
    pub(crate) written: u64,
    /// Memory that is resident at the moment, of all servers, in bytes.
    pub(crate) memory: u64,
    /// Flushes of the disk, by whomever; nothing where the system does not count them.
    pub(crate) flushes: Option<u64>,
}

/// Reads what servers use, and the disk that they write to.
#[derive(Debug)]
pub(crate) struct Meter {
    servers: Vec<u32>,
    disk: Option<PathBuf>,
}

impl Meter {
    /// Of these processes and all that they started, which write to this directory.
    pub(crate) fn new(servers: Vec<u32>, directory: &Path) -> Self {
        Self {
            servers,
            disk: disk_statistics(directory),
        }
    }

    /// What was used until now.
    ///
    /// # Errors
    /// Where a server has ended.
    pub(crate) fn read(&self) -> Result<Usage, BenchError> {
        let mut usage = Usage {
            own_us: Process::of(std::process::id()).map_or(0, |own| own.cpu_us),
            machine_us: machine_us(),
            flushes: self.disk.as_deref().and_then(flushes),
            ..Usage::default()
        };
        for pid in self.tree() {
            let Some(process) = Process::of(pid) else {
                if self.servers.contains(&pid) {
                    let what = format!("process {pid}");
                    return Err(BenchError::Unreadable {
                        what,
                        field: "what it uses",
                    });
                }
                // One that a server started has ended since.
                continue;
            };
            usage.servers_us += process.cpu_us;
            usage.written += process.written;
            usage.memory += process.memory;
        }
        Ok(usage)
    }

    /// The servers and all that they started: PostgreSQL has a process for each connection.
    fn tree(&self) -> BTreeSet<u32> {
        let mut parents = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let stat = pid.and_then(stat);
            if let (Some(pid), Some(parent)) = (pid, stat.and_then(|stat| field(&stat, PARENT))) {
                parents.insert(pid, parent);
            }
        }
        let mut tree: BTreeSet<u32> = self.servers.iter().copied().collect();
        loop {
            let children = parents.iter().filter(|(_, parent)| tree.contains(parent));
            let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
            let before = tree.len();
            tree.extend(children);
            if tree.len() == before {
                return tree;
            }
        }
    }
}

/// The fields of `/proc/PID/stat` behind the name of the program, from 0 on: see proc(5).
const PARENT: usize = 1;
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;

struct Process {
    cpu_us: u64,
    written: u64,
    memory: u64,
}

impl Process {
    fn of(pid: u32) -> Option<Self> {
        let stat = stat(pid)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let io = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        let ticks = u64::from(field(&stat, USER_TICKS)?) + u64::from(field(&stat, SYSTEM_TICKS)?);
        Some(Self {
            cpu_us: ticks_us(ticks),
            written: named(&io, "write_bytes:")?,
            // One that has ended and was not waited for has none.
            memory: named(&status, "VmRSS:").unwrap_or_default() * 1024,
        })
    }
}

/// What stands behind the name of a program, which may hold anything.
fn stat(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.to_owned())
}

fn field(fields: &str, index: usize) -> Option<u32> {
    fields.split(' ').nth(index)?.parse().ok()
}

fn named(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

fn ticks_us(ticks: u64) -> u64 {
    ticks * 1_000_000 / clock_ticks_per_second()
}

/// The columns of `/proc/stat` in which a processor does nothing: it is idle, or waits for a disk.
const IDLE: [usize; 2] = [3, 4];
/// Behind those it counts what is in others as well.
const COLUMNS: usize = 8;

fn machine_us() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = text.lines().next().unwrap_or_default();
    let columns = all.split_whitespace().skip(1).take(COLUMNS).enumerate();
    let busy = columns.filter(|(index, _)| !IDLE.contains(index));
    ticks_us(
        busy.filter_map(|(_, ticks)| ticks.parse::<u64>().ok())
            .sum(),
    )
}

/// Which column of a disk's statistics counts flushes.
const FLUSHES: usize = 15;

/// The file with the statistics of the disk that holds a directory. Flushes are counted of whole disks only.
fn disk_statistics(directory: &Path) -> Option<PathBuf> {
    let device = rustix::fs::stat(directory).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut disk = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    if disk.join("partition").exists() {
        disk.pop();
    }
    Some(disk.join("stat"))
}

fn flushes(statistics: &Path) -> Option<u64> {
    let text = fs::read_to_string(statistics).ok()?;
    text.split_whitespace().nth(FLUSHES)?.parse().ok()
}

/// How many processes wanted a processor in the last minute.
pub(crate) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().and_then(|first| first.parse().ok());
    first.unwrap_or(f64::NAN)
}
