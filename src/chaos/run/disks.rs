//! Disks that are slow, hang, fail or are full, and clocks that are wrong: each node has its own.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::kind::{Kind, Need};
use super::schedule::Victim;
use super::stage::{Claim, LOOK_INTERVAL, PATIENCE, Seen, Stage};
use crate::chaos::cluster::LocalCluster;
use crate::chaos::preload::{FaultyClock, compile_faults, find_faketime};
use crate::chaos::{DiskAction, DiskFault, FaultyDisk, HarnessError};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const WRITES: &str = "write,pwrite";
const SYNCS: &str = "fsync,fdatasync";
/// A wrong clock that is not seen so soon is asked for again.
const CLOCK_WITHIN: Duration = Duration::from_secs(10);
/// What is less wrong than this may be a slow machine.
const CLOCK_WRONG: Duration = Duration::from_secs(1_800);

/// The libraries that are preloaded into the nodes, as far as the chosen kinds need them.
#[derive(Debug, Clone)]
pub(super) struct Disks {
    directory: PathBuf,
    /// Ours, for disks.
    faults: Option<PathBuf>,
    /// The one for clocks.
    faketime: Option<PathBuf>,
}

impl Disks {
    /// What these kinds need, in this directory.
    pub(super) fn prepare(directory: &Path, kinds: &[Kind]) -> Result<Self, HarnessError> {
        let need = |need| kinds.iter().any(|kind| kind.need() == need);
        let compiled = need(Need::Compiler).then(|| compile_faults(directory));
        Ok(Self {
            directory: directory.to_owned(),
            faults: compiled.transpose()?,
            faketime: find_faketime().filter(|_| need(Need::Faketime)),
        })
    }

    /// What is to be in the environment of the node whose directory has this name.
    pub(super) fn environment(&self, name: &str) -> Vec<(OsString, OsString)> {
        let libraries = self.faults.iter().chain(&self.faketime);
        let libraries: Vec<String> = libraries.map(|path| path.display().to_string()).collect();
        let mut variables = Vec::new();
        if !libraries.is_empty() {
            variables.push(("LD_PRELOAD".into(), libraries.join(":").into()));
            variables.push(self.disk_of(name).variable());
        }
        if self.faketime.is_some() {
            variables.extend(self.clock_of(name).variables());
        }
        variables
    }

    fn disk_of(&self, name: &str) -> FaultyDisk {
        FaultyDisk::new(self.directory.join(format!("{name}.fault")))
    }

    fn clock_of(&self, name: &str) -> FaultyClock {
        FaultyClock::new(self.directory.join(format!("{name}.clock")))
    }

    /// The disk of this node, and the part that all paths of its files have.
    fn disk(&self, cluster: &LocalCluster, node: u64) -> Option<(FaultyDisk, String)> {
        let name = cluster.name(node)?;
        Some((self.disk_of(name), format!("/{name}/")))
    }

    /// All disks are whole again.
    pub(super) fn lift_all(&self, cluster: &LocalCluster) -> Result<(), HarnessError> {
        for node in cluster.ids() {
            if let Some((disk, _)) = self.disk(cluster, node) {
                disk.lift().map_err(self.failed())?;
            }
        }
        Ok(())
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> HarnessError {
        HarnessError::file(&self.directory, "used for faults")
    }
}

impl Stage<'_> {
    /// Gives a node's disk a fault, and tells which disk.
    async fn plant(
        &self,
        node: u64,
        (call, nth, action): (&str, u32, DiskAction),
    ) -> Result<FaultyDisk, HarnessError> {
        let disk = self.disks.disk(&*self.cluster.lock().await, node);
        let Some((disk, path)) = disk else {
            return Err(HarnessError::NoNode { node });
        };
        let planted = disk.plant(DiskFault {
            call,
            path: &path,
            nth,
            action,
        });
        planted.map_err(self.disks.failed())?;
        Ok(disk)
    }

    /// Each sync takes longer, or none comes to its end.
    pub(super) async fn impede_syncs(
        &self,
        victim: Victim,
        action: DiskAction,
        lasts: Duration,
    ) -> Result<Seen, HarnessError> {
        // Whoever is started on a disk that hangs gives up.
        let claim = match action {
            DiskAction::Hang => Claim::Alone,
            _ => Claim::Shared,
        };
        let Some(held) = self.take(victim, claim).await else {
            return Ok(Seen::Not("no node was free for it".to_owned()));
        };
        self.say(format_args!(
            "syncs of node {}: {action:?} for {lasts:?}",
            held.node
        ));
        let disk = self.plant(held.node, (SYNCS, 1, action)).await?;
        sleep(lasts).await;
        let hit = disk.is_hit();
        disk.lift().map_err(self.disks.failed())?;
        Ok(if hit {
            Seen::Happened
        } else {
            Seen::Not(format!("node {} synced nothing", held.node))
        })
    }

    /// One call fails: its node ends, and is started again.
    pub(super) async fn failing_sync(
        &self,
        victim: Victim,
        (call, nth): (&str, u32),
        lasts: Duration,
    ) -> Result<Seen, HarnessError> {
        self.ended_by_disk(victim, (call, nth, DiskAction::Fail(EIO)), lasts)
            .await
    }

    /// No write finds room: its node ends, and is started again once there is some.
    pub(super) async fn full_disk(
        &self,
        victim: Victim,
        lasts: Duration,
    ) -> Result<Seen, HarnessError> {
        self.ended_by_disk(victim, (WRITES, 1, DiskAction::FailAll(ENOSPC)), lasts)
            .await
    }

    async fn ended_by_disk(
        &self,
        victim: Victim,
        fault: (&str, u32, DiskAction),
        lasts: Duration,
    ) -> Result<Seen, HarnessError> {
        let Some(held) = self.take(victim, Claim::Alone).await else {
            return Ok(Seen::Not("no node was free for it".to_owned()));
        };
        let node = held.node;
        self.say(format_args!("disk of node {node}: {fault:?}"));
        let disk = self.plant(node, fault).await?;
        let ended = self.wait_until_ended(node, PATIENCE).await?;
        let seen = match ended {
            Some((Some(1), _)) if disk.is_hit() => Seen::Happened,
            Some((code, line)) => {
                let text = format!("node {node}, whose disk failed, ended with {code:?}: {line}");
                self.find("I10", text);
                Seen::Happened
            }
            None if disk.is_hit() => {
                self.find("I10", format!("node {node} goes on though its disk failed"));
                Seen::Happened
            }
            None => Seen::Not(format!("node {node} did not use its disk")),
        };
        self.count(|tally| tally.disk_ends += 1);
        sleep(lasts).await;
        disk.lift().map_err(self.disks.failed())?;
        self.cluster.lock().await.start(&[node])?;
        Ok(seen)
    }

    /// A node's wall clock is wrong for a while, and right again.
    pub(super) async fn clock(
        &self,
        victim: Victim,
        seconds: i64,
        lasts: Duration,
    ) -> Result<Seen, HarnessError> {
        let Some(held) = self.take(victim, Claim::Shared).await else {
            return Ok(Seen::Not("no node was free for it".to_owned()));
        };
        let node = held.node;
        let (name, peer) = {
            let cluster = self.cluster.lock().await;
            let name = cluster.name(node).map(str::to_owned);
            (name.unwrap_or_default(), cluster.peer_address(node))
        };
        let clock = self.disks.clock_of(&name);
        self.say(format_args!(
            "clock of node {node}: {seconds:+} s for {lasts:?}"
        ));
        clock.set(seconds).map_err(self.disks.failed())?;
        sleep(lasts).await;
        let deadline = Instant::now() + CLOCK_WITHIN;
        let mut seen = Seen::Not(format!("node {node} logged nothing by a wrong clock"));
        while seen != Seen::Happened && Instant::now() < deadline {
            // It writes a line about a stranger who says nonsense, with the time.
            if let Some(peer) = peer
                && let Ok(mut stranger) = TcpStream::connect(peer).await
            {
                stranger.write_all(&[0xff; 64]).await.ok();
            }
            sleep(LOOK_INTERVAL).await;
            let line = self.cluster.lock().await.last_line(node);
            if line.is_some_and(|line| is_wrong(&line, SystemTime::now())) {
                seen = Seen::Happened;
            }
        }
        clock.set(0).map_err(self.disks.failed())?;
        Ok(seen)
    }
}

/// Whether the time at the beginning of this line of a log is far from now.
fn is_wrong(line: &str, now: SystemTime) -> bool {
    let Some(written) = seconds_of_day(line) else {
        return false;
    };
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let now = now.as_secs() % DAY;
    let apart = written.abs_diff(now);
    CLOCK_WRONG.as_secs() < apart.min(DAY - apart)
}

const DAY: u64 = 24 * 60 * 60;

/// Of `2026-11-30T19:37:33.043268Z …`.
fn seconds_of_day(line: &str) -> Option<u64> {
    let (_date, rest) = line.split_once('T')?;
    let mut parts = rest.get(..8)?.split(':').map(str::parse::<u64>);
    let (hours, minutes) = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some((hours * 60 + minutes) * 60 + parts.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_wrong_by_its_time_also_around_midnight() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(20_000 * DAY + seconds);

        assert!(!is_wrong("2026-11-30T10:00:00.1Z  INFO", at(36_010)));
        assert!(is_wrong("2026-11-30T11:00:00.1Z  INFO", at(36_010)));
        assert!(is_wrong("2026-11-30T09:00:00.1Z  INFO", at(36_010)));
        assert!(!is_wrong("2026-11-30T23:59:59.1Z  INFO", at(5)));
        assert!(is_wrong("2026-11-30T23:00:00.1Z  INFO", at(5)));
        assert!(!is_wrong("highwater: it has ended", at(5)));
    }

    #[test]
    fn a_node_gets_the_libraries_that_are_needed_and_its_own_files() {
        let disks = |faults: Option<&str>, faketime: Option<&str>| Disks {
            directory: "/d".into(),
            faults: faults.map(PathBuf::from),
            faketime: faketime.map(PathBuf::from),
        };
        assert!(disks(None, None).environment("node-1").is_empty());

        let environment = disks(Some("/f.so"), Some("/t.so")).environment("node-1");

        let value = |name: &str| {
            let found = environment.iter().find(|(key, _)| key == name);
            found.and_then(|(_, value)| value.to_str())
        };
        assert_eq!(value("LD_PRELOAD"), Some("/f.so:/t.so"));
        assert_eq!(value("FAULTS_CONTROL"), Some("/d/node-1.fault"));
        assert_eq!(value("FAKETIME_TIMESTAMP_FILE"), Some("/d/node-1.clock"));
        assert_eq!(value("DONT_FAKE_MONOTONIC"), Some("1"));
    }
}
