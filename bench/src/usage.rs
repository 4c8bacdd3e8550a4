//! What processes and the whole machine have used, as the system counts it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::param::clock_ticks_per_second;

use crate::process::Server;

/// All that was used until one moment.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Nanoseconds of processors that each thread of the servers had: one that ends takes them with it.
    servers: BTreeMap<u32, u64>,
    /// The same of this process, which the workers belong to.
    own: BTreeMap<u32, u64>,
    /// Of everything on this machine.
    machine_us: u64,
    /// What the disk was told by whomever; nothing where the system does not count it.
    disk: Option<Disk>,
}

/// What a disk was told to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk {
    pub(crate) flushes: u64,
    pub(crate) written_bytes: u64,
}

/// What was used between two moments. Times are those of processors.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) servers_us: u64,
    pub(crate) own_us: u64,
    /// By neither of them.
    pub(crate) others_us: u64,
    pub(crate) disk: Option<Disk>,
}

impl Usage {
    /// What was used since that earlier moment.
    pub(crate) fn since(&self, begin: &Self) -> Used {
        let servers_us = microseconds_since(&self.servers, &begin.servers);
        let own_us = microseconds_since(&self.own, &begin.own);
        let machine_us = self.machine_us.saturating_sub(begin.machine_us);
        let disk = self.disk.zip(begin.disk).map(|(end, begin)| Disk {
            flushes: end.flushes.saturating_sub(begin.flushes),
            written_bytes: end.written_bytes.saturating_sub(begin.written_bytes),
        });
        Used {
            servers_us,
            own_us,
            others_us: machine_us.saturating_sub(servers_us + own_us),
            disk,
        }
    }
}

fn microseconds_since(end: &BTreeMap<u32, u64>, begin: &BTreeMap<u32, u64>) -> u64 {
    let used = end.iter().map(|(thread, nanoseconds)| {
        nanoseconds.saturating_sub(begin.get(thread).copied().unwrap_or_default())
    });
    used.sum::<u64>() / 1000
}

/// Reads what servers use, and the disk that they write to.
#[derive(Debug)]
pub(crate) struct Meter {
    servers: Vec<u32>,
    disk: Option<PathBuf>,
}

impl Meter {
    /// Of these processes and all that they started, which write to this directory.
    pub(crate) fn new(servers: &[Server], directory: &Path) -> Self {
        Self {
            servers: servers.iter().map(Server::pid).collect(),
            disk: disk_statistics(directory),
        }
    }

    /// What was used until now. It takes a while where there are many processes.
    pub(crate) fn read(&self) -> Usage {
        Usage {
            machine_us: machine_us(),
            own: threads(std::process::id()).collect(),
            disk: self.disk.as_deref().and_then(disk),
            servers: self.tree().into_iter().flat_map(threads).collect(),
        }
    }

    /// The memory of all servers, in bytes; what they share is counted once.
    pub(crate) fn memory(&self) -> u64 {
        self.tree().into_iter().filter_map(memory).sum()
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
            if let (Some(pid), Some(parent)) =
                (pid, stat.and_then(|stat: String| field(&stat, PARENT)))
            {
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

/// Which field of `/proc/PID/stat`, behind the name of the program, is the process that started it: see proc(5).
const PARENT: usize = 1;

/// What stands behind the name of a program, which may hold anything.
fn stat(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.to_owned())
}

fn field<T: std::str::FromStr>(fields: &str, index: usize) -> Option<T> {
    fields.split_whitespace().nth(index)?.parse().ok()
}

/// The nanoseconds that each thread of a process had a processor. The clock ticks of `/proc/PID/stat` are too coarse for
/// hundreds of processes, each of which has a part of one.
fn threads(pid: u32) -> impl Iterator<Item = (u32, u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    tasks.into_iter().flatten().flatten().filter_map(|task| {
        let thread = task.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some((thread, field(&text, 0)?))
    })
}

fn memory(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let proportional = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(field::<u64>(proportional, 0)? * 1024)
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

/// The columns of a disk's statistics that are read.
const SECTORS_WRITTEN: usize = 6;
const FLUSHES: usize = 15;
/// Of every disk, whatever its own sectors are.
const SECTOR_BYTES: u64 = 512;

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

/// What a process has written, by its own account, is no measure: that counts a whole part of the page cache, of any size,
/// for each byte that is changed in it.
fn disk(statistics: &Path) -> Option<Disk> {
    let text = fs::read_to_string(statistics).ok()?;
    Some(Disk {
        flushes: field(&text, FLUSHES)?,
        written_bytes: field::<u64>(&text, SECTORS_WRITTEN)? * SECTOR_BYTES,
    })
}

/// How many processes wanted a processor in the last minute.
pub(crate) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().and_then(|first| first.parse().ok());
    first.unwrap_or(f64::NAN)
}
