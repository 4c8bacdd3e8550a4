//! What a node's process uses, as the system counts it, and which connections are its own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// What a process uses at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessUse {
    /// Memory that is resident now, in bytes.
    pub memory: u64,
    /// The most that ever was, in bytes.
    pub memory_peak: u64,
    /// Bytes that it had written to disks since its start.
    pub written: u64,
}

impl ProcessUse {
    /// Of a process of this machine.
    ///
    /// # Errors
    /// Where there is no such process, or the system does not tell.
    pub fn of(pid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let io = fs::read_to_string(format!("/proc/{pid}/io"))?;
        Ok(Self {
            memory: field(&status, "VmRSS:")? * 1024,
            memory_peak: field(&status, "VmHWM:")? * 1024,
            written: field(&io, "write_bytes:")?,
        })
    }
}

fn field(text: &str, name: &str) -> io::Result<u64> {
    let value = text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?;
        value.split_whitespace().next()?.parse().ok()
    });
    value.ok_or_else(|| io::Error::other(format!("the system does not tell {name}")))
}

/// The bytes that the files below a directory take on its disk.
///
/// # Errors
/// The system's. A file that goes meanwhile counts nothing.
pub fn disk_use(directory: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    const BLOCK_BYTES: u64 = 512;
    let mut open = vec![directory.to_owned()];
    let mut bytes = 0;
    while let Some(path) = open.pop() {
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        bytes += metadata.blocks() * BLOCK_BYTES;
        if metadata.is_dir() {
            for entry in fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        }
    }
    Ok(bytes)
}

/// Whether every thread of a process stands still, as after SIGSTOP: before that it may answer once more.
pub(super) fn stands_still(pid: u32) -> io::Result<bool> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = fs::read_to_string(task?.path().join("stat"))?;
        // The state follows the name, which may hold anything.
        if !stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Which of these nodes' processes has dialed this TCP connection, given by where it comes from and where it goes, if one
/// of them has.
pub(super) fn dialer_of(
    connection: (SocketAddr, SocketAddr),
    pids: &BTreeMap<u64, u32>,
) -> Option<u64> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let socket = format!("socket:[{}]", inode_of(&table, connection)?);
    let owns = |pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        // A file that is closed meanwhile is no file.
        let mut targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        Some(targets.any(|target| target.as_os_str() == socket.as_str()))
    };
    let mut nodes = pids.iter();
    nodes
        .find(|(_, pid)| owns(**pid) == Some(true))
        .map(|(node, _)| *node)
}

/// The inode of this socket in a table as proc(5) describes it. One port can lead to several others at once.
fn inode_of(table: &str, (from, to): (SocketAddr, SocketAddr)) -> Option<&str> {
    let ends = format!(" {} {} ", in_table(from)?, in_table(to)?);
    let line = table.lines().find(|line| line.contains(&ends))?;
    line.split_whitespace().nth(9)
}

/// An address as it stands in that table: as the machine has it in memory.
fn in_table(address: SocketAddr) -> Option<String> {
    let IpAddr::V4(ip) = address.ip() else {
        return None;
    };
    let ip = u32::from_ne_bytes(ip.octets());
    Some(format!("{ip:08X}:{:04X}", address.port()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_is_known_by_the_process_that_dialed_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let dialed = TcpStream::connect(address).unwrap();
        let (_accepted, caller) = listener.accept().unwrap();
        let this = std::process::id();
        let mut sleeper = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let dialer =
            |pids: &[(u64, u32)]| dialer_of((caller, address), &pids.iter().copied().collect());

        assert_eq!(dialer(&[(1, sleeper.id()), (2, this)]), Some(2));
        assert_eq!(dialer(&[(1, sleeper.id()), (2, u32::MAX)]), None);
        drop(dialed);
        assert_eq!(dialer(&[(2, this)]), None);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn a_process_that_was_not_stopped_does_not_stand_still() {
        assert!(!stands_still(std::process::id()).unwrap());
        assert!(stands_still(u32::MAX).is_err());
    }

    #[test]
    fn this_process_uses_memory_and_what_it_writes_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let before = disk_use(directory.path()).unwrap();
        let inner = directory.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), vec![1; 100_000]).unwrap();

        let used = ProcessUse::of(std::process::id()).unwrap();

        assert!(
            1024 * 1024 < used.memory && used.memory <= used.memory_peak,
            "{used:?}"
        );
        assert!(before + 100_000 <= disk_use(directory.path()).unwrap());
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(ProcessUse::of(u32::MAX).is_err());
        let error = field("VmRSS: much\n", "VmRSS:").unwrap_err();
        assert_eq!(error.to_string(), "the system does not tell VmRSS:");
    }
}
