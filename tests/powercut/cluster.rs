//! The power of a whole cluster is cut: every node's disk at the same instant (I3).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use highwater::chaos::{ClusterSize, LocalCluster, Program};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rustix::process::{Pid, kill_process};
use serde_json::Value;

use crate::cuts::cuts;
use crate::disk::{Disk, FileSystem};
use crate::history::History;
use crate::image::{Image, Loss};
use crate::node::{KILL_BETWEEN_EFFECTS, Recorder};
use crate::omission::Omission;
use crate::replay::Verdict;
use crate::trace::{Event, Trace};
use crate::workers::Workers;

const PATIENCE: Duration = Duration::from_secs(60);
/// How long a leader that has work and no followers may take to append it.
const APPEND_PATIENCE: Duration = Duration::from_millis(200);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How often the leader is killed and comes back.
const LEADERS_KILLED: u64 = 3;
/// How many entries between two events.
const ENTRIES: u64 = 60;

/// Three nodes: what each did to its disk, and what they told their workers meanwhile.
#[derive(Debug)]
pub(crate) struct RecordedCluster {
    cluster: LocalCluster,
    /// Their directories are in it; it is every trace's root.
    directory: PathBuf,
    traces: Vec<Trace>,
    history: History,
}

impl RecordedCluster {
    /// Records three nodes in an empty directory. Leaders are killed under load, so that logs are truncated; at the
    /// end all are.
    pub(crate) async fn make(scratch: &Path) -> Self {
        let directory = scratch.join("cluster");
        fs::create_dir(&directory).unwrap();
        let program = recorded(scratch, &directory);
        let mut cluster = LocalCluster::create(&directory, ClusterSize::Three, program).unwrap();
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
        let workers = Workers::start(&cluster.urls(), History::default(), 0);
        for _ in 0..LEADERS_KILLED {
            workers.wait_until_grown(ENTRIES).await;
            let leader = cluster.leader(PATIENCE).await.unwrap();
            let mut followers = cluster.ids();
            followers.retain(|id| *id != leader);
            kill(&mut cluster, &followers).await;
            wait_for_an_append(&trace(scratch, leader)).await;
            kill(&mut cluster, &[leader]).await;
            cluster.start(&followers).unwrap();
            workers.wait_until_grown(ENTRIES).await;
            cluster.start(&[leader]).unwrap();
            cluster.all_ready(PATIENCE).await.unwrap();
        }
        workers.wait_until_grown(ENTRIES).await;
        let all = cluster.ids();
        kill(&mut cluster, &all).await;
        let history = workers.stop().await;
        let read = |id: u64| Trace::read(&trace(scratch, id), &directory);
        let traces: Vec<Trace> = cluster.ids().into_iter().map(read).collect();
        assert!(traces.iter().any(truncates), "no log was truncated");
        // From now on nothing is recorded.
        fs::remove_file(scratch.join("recorder.so")).unwrap();
        Self {
            cluster,
            directory,
            traces,
            history,
        }
    }

    /// Cuts the power of all nodes at one moment, and starts them from what is left, where some syncs did not happen.
    pub(crate) async fn cut(&mut self, omission: Omission, random: &mut StdRng) -> Verdict {
        let of_one = self.traces.choose(random).unwrap();
        let at_ns = of_one.time_before(cuts(of_one, 1, random)[0]);
        for (id, trace) in (1..).zip(&self.traces) {
            let file_system = *FileSystem::ALL.choose(random).unwrap();
            let loss = Loss::ALL[random.random_range(0..Loss::ALL.len())];
            let mut disk = Disk::new(trace, file_system, omission);
            disk.go_to(trace.records.partition_point(|record| record.at_ns < at_ns));
            self.replace(id, &Image::of(&disk, loss, random));
        }
        self.cluster.start_all().unwrap();
        let verdict = match self.cluster.all_ready(PATIENCE).await {
            Err(error) => Verdict::Refused(error.to_string()),
            Ok(()) => {
                let owed = self.history.owed_at(at_ns);
                let url = self.cluster.urls().choose(random).unwrap().clone();
                match owed.check(&url).await {
                    Ok(()) => Verdict::Right,
                    Err(wrong) => Verdict::Wrong(wrong),
                }
            }
        };
        let all = self.cluster.ids();
        self.cluster.kill(&all).await.unwrap();
        verdict
    }

    /// Puts a node's directory in the place of what is there.
    fn replace(&self, id: u64, image: &Image) {
        let data_dir = self.cluster.data_dir(id).unwrap();
        if data_dir.exists() {
            fs::remove_dir_all(data_dir).unwrap();
        }
        // One as the power cut left it, for whoever has to find out why it is at fault, and one to start from.
        let left = self.directory.with_file_name(format!("left-{id}"));
        if left.exists() {
            fs::remove_dir_all(&left).unwrap();
        }
        image.write(&left);
        let made = self.directory.with_file_name("made");
        image.write(&made);
        let of_node = made.join(data_dir.file_name().unwrap());
        if of_node.exists() {
            fs::rename(of_node, data_dir).unwrap();
        }
        fs::remove_dir_all(made).unwrap();
    }
}

/// The binary, recorded for as long as the recorder is there, each node in a trace of its own.
fn recorded(scratch: &Path, directory: &Path) -> Program {
    let recorder = Recorder::build(scratch);
    let library = recorder.library.display();
    let script = format!(
        "if [ -e {library} ]; then export LD_PRELOAD={library} RECORDER_ROOT={} RECORDER_TRACE={}$5; fi; exec {} \"$@\"",
        directory.display(),
        trace(scratch, "").display(),
        env!("CARGO_BIN_EXE_highwater")
    );
    Program {
        path: "/bin/sh".into(),
        // What follows is: serve --cluster FILE --node N …
        arguments: ["-c", &script, "sh"].map(Into::into).to_vec(),
    }
}

fn trace(scratch: &Path, id: impl std::fmt::Display) -> PathBuf {
    scratch.join(format!("trace-{id}"))
}

/// Whether a log was truncated: both slots of a superblock are then written, one after the other. (They are for a
/// snapshot too, but that takes a longer log.)
fn truncates(trace: &Trace) -> bool {
    let mut names = BTreeMap::new();
    let mut written = trace
        .records
        .iter()
        .filter_map(|record| match &record.event {
            Event::Open { inode, name } | Event::Create { inode, name } => {
                names.insert(*inode, name.clone());
                None
            }
            Event::Write { inode, .. } => Some(names[inode].ends_with("/superblock")),
            _ => None,
        });
    let mut before = false;
    written.any(|is_slot| std::mem::replace(&mut before, is_slot) && is_slot)
}

/// Kills nodes between two effects, so that their traces are exact.
async fn kill(cluster: &mut LocalCluster, ids: &[u64]) {
    for id in ids {
        kill_process(process(cluster, *id), KILL_BETWEEN_EFFECTS).unwrap();
    }
    for id in ids {
        wait_until_killed(process(cluster, *id)).await;
    }
    cluster.kill(ids).await.unwrap();
}

fn process(cluster: &LocalCluster, id: u64) -> Pid {
    let ready = cluster.data_dir(id).unwrap().join("ready.json");
    let ready: Value = serde_json::from_slice(&fs::read(ready).unwrap()).unwrap();
    Pid::from_raw(ready["pid"].as_i64().unwrap().try_into().unwrap()).unwrap()
}

/// Waits until the node has done something more to its disk. It may have done so already.
async fn wait_for_an_append(trace: &Path) {
    let length = || fs::metadata(trace).unwrap().len();
    let (before, deadline) = (length(), Instant::now() + APPEND_PATIENCE);
    while length() == before && Instant::now() < deadline {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until the process is nothing but an exit status.
async fn wait_until_killed(pid: Pid) {
    let status = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let deadline = Instant::now() + PATIENCE;
    while !fs::read_to_string(&status)
        .unwrap_or_default()
        .contains(") Z ")
    {
        assert!(Instant::now() < deadline, "{pid:?} goes on");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
