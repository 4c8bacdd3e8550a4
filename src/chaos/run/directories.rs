//! Directories that are not what their node promised: older ones, empty ones, damaged ones.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::time::{Instant, sleep};

use super::harm;
use super::schedule::{Harm, Victim, WayOut};
use super::stage::{Claim, LOOK_INTERVAL, PATIENCE, Seen, Stage};
use crate::chaos::HarnessError;
use crate::wire::{MemberBody, MemberRole};

/// What a refusal says of the way out: of a directory that is damaged, incomplete or older, and of one that is new, where those
/// who answer know the node only by the log.
const WAYS_OUT: [&str; 2] = ["replace the node by a new one", "join it as a new node"];

/// What a node made of its directory.
enum Start {
    /// It ended with this line.
    Refused(String),
    /// It serves.
    Ready,
    /// Neither.
    Neither,
}

impl Stage<'_> {
    /// A node is killed, its directory harmed, and the node started again. Refused, it is replaced.
    pub(super) async fn harm(&self, victim: Victim, harm: Harm) -> Result<Seen, HarnessError> {
        let _changing = self.changing.lock().await;
        let Some(held) = self.take(victim, Claim::Alone).await else {
            return Ok(Seen::Not("no node was free for it".to_owned()));
        };
        let node = held.node;
        let directory = self.kill_for_its_directory(node).await?;
        let failed = HarnessError::file(&directory, "harmed");
        let what = match harm {
            Harm::Wiped => fs::remove_dir_all(&directory).map(|()| "nothing is left".to_owned()),
            Harm::FlippedBits(seed) => harm::flip_bits(&directory, seed).map(|(file, flips)| {
                self.count(|tally| tally.flips += flips);
                format!("{flips} bits flipped in {}", file.display())
            }),
            Harm::TornTail(seed) => harm::tear(&directory, seed)
                .map(|bytes| format!("the last {bytes} bytes of the database are gone")),
        };
        let what = what.map_err(failed)?;
        self.say(format_args!(
            "node {node} is killed, of its directory {what}"
        ));
        match self.start_on_its_directory(node).await? {
            Start::Refused(line) => {
                self.say(format_args!("node {node} is refused: {line}"));
                self.replace(node).await?;
            }
            Start::Ready if harm == Harm::Wiped => {
                self.find(
                    "I7",
                    format!("node {node} serves though it lost its directory"),
                );
            }
            Start::Ready => {
                self.count(|tally| tally.healed += 1);
                self.say(format_args!("node {node} has lost nothing"));
            }
            Start::Neither => {}
        }
        Ok(Seen::Happened)
    }

    /// A node is killed, runs again for a while, and is started with its directory as it was in between: alone with a cluster
    /// whose other nodes hold everything. They were told more than the copy holds, and whoever of them forgot it needs no
    /// vote and no copy of what this node forgot, since all others have it.
    pub(super) async fn old_directory(
        &self,
        victim: Victim,
        way_out: WayOut,
    ) -> Result<Seen, HarnessError> {
        let _alone = self.quiet.write().await;
        let _changing = self.changing.lock().await;
        let Some(held) = self.take(victim, Claim::Alone).await else {
            return Ok(Seen::Not("no node was free for it".to_owned()));
        };
        let node = held.node;
        let directory = self.kill_for_its_directory(node).await?;
        let (older, newer) = (
            directory.with_extension("old"),
            directory.with_extension("new"),
        );
        let failed = || HarnessError::file(&directory, "copied");
        harm::copy(&directory, &older).map_err(failed())?;
        if !self.promise_more(node).await? {
            fs::remove_dir_all(&older).map_err(failed())?;
            self.cluster.lock().await.start(&[node])?;
            return Ok(Seen::Not(
                "not all nodes held all entries in time".to_owned(),
            ));
        }
        fs::rename(&directory, &newer).map_err(failed())?;
        fs::rename(&older, &directory).map_err(failed())?;
        self.say(format_args!("node {node} is started with an older copy"));
        let Start::Refused(line) = self.start_on_its_directory(node).await? else {
            self.count(|tally| tally.healed += 1);
            fs::remove_dir_all(&newer).map_err(failed())?;
            return Ok(Seen::Happened);
        };
        self.say(format_args!("node {node} is refused: {line}"));
        if way_out == WayOut::PutBack {
            fs::remove_dir_all(&directory).map_err(failed())?;
            fs::rename(&newer, &directory).map_err(failed())?;
            self.cluster.lock().await.start(&[node])?;
        } else {
            fs::remove_dir_all(&newer).map_err(failed())?;
            self.replace(node).await?;
        }
        Ok(Seen::Happened)
    }

    /// Has a node that was killed run until it holds more, kills it again, and waits until the others hold all that it can
    /// hold. Tells whether all that came about.
    async fn promise_more(&self, node: u64) -> Result<bool, HarnessError> {
        let Some(held) = self.wait_until_others_hold(node, 0).await? else {
            return Ok(false);
        };
        self.cluster.lock().await.start(&[node])?;
        let more = self.wait_until_it_holds(node, held + 1).await?;
        self.kill_for_its_directory(node).await?;
        Ok(more && self.wait_until_others_hold(node, held + 1).await?.is_some())
    }

    async fn kill_for_its_directory(&self, node: u64) -> Result<PathBuf, HarnessError> {
        let mut cluster = self.cluster.lock().await;
        cluster.kill(&[node]).await?;
        self.count(|tally| tally.kills += 1);
        let directory = cluster.data_dir(node).map(Path::to_owned);
        directory.ok_or(HarnessError::NoNode { node })
    }

    /// Starts a node, and waits until it serves or has ended.
    async fn start_on_its_directory(&self, node: u64) -> Result<Start, HarnessError> {
        self.cluster.lock().await.start(&[node])?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let mut cluster = self.cluster.lock().await;
            let ended = cluster.ended(node)?;
            let survey = cluster.survey();
            drop(cluster);
            if let Some((status, line)) = ended {
                self.count(|tally| tally.refused += 1);
                if status.code() != Some(1) || !WAYS_OUT.iter().any(|way| line.contains(way)) {
                    let text = format!("node {node} was refused without a way out: {line}");
                    self.find("I7", text);
                }
                return Ok(Start::Refused(line));
            }
            if survey.is_ready(node).await {
                return Ok(Start::Ready);
            }
            sleep(LOOK_INTERVAL).await;
        }
        let text = format!("node {node} neither serves nor ends, {PATIENCE:?} after its start");
        self.find("I10", text);
        Ok(Start::Neither)
    }

    /// Waits until the leader knows that this node holds its log up to here.
    async fn wait_until_it_holds(&self, node: u64, index: u64) -> Result<bool, HarnessError> {
        let holds = |members: &[MemberBody]| {
            let mut own = members.iter().filter(|member| member.id == node);
            own.any(|member| Some(index) <= member.match_index)
        };
        Ok(self.wait_for_members(holds).await?.is_some())
    }

    /// Waits until all voters but this node hold what the leader has at some moment after now, this much at least, and tells how
    /// much that is.
    async fn wait_until_others_hold(
        &self,
        node: u64,
        least: u64,
    ) -> Result<Option<u64>, HarnessError> {
        let mut wanted = None;
        let hold = |members: &[MemberBody]| {
            let others = members.iter().filter(|member| member.id != node);
            let voters = others.filter(|member| member.role != MemberRole::Learner);
            let held: Option<Vec<u64>> = voters.map(|member| member.match_index).collect();
            let (Some(most), Some(fewest)) = (
                held.iter().flatten().max().copied(),
                held.iter().flatten().min().copied(),
            ) else {
                return false;
            };
            let wanted = *wanted.get_or_insert(most.max(least));
            wanted <= fewest
        };
        Ok(self.wait_for_members(hold).await?.and(wanted))
    }

    /// Waits until the members are as wanted.
    async fn wait_for_members(
        &self,
        mut wanted: impl FnMut(&[MemberBody]) -> bool,
    ) -> Result<Option<()>, HarnessError> {
        let client = self.client().await?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Ok(members) = client.members().list().await
                && wanted(&members)
            {
                return Ok(Some(()));
            }
            sleep(LOOK_INTERVAL).await;
        }
        Ok(None)
    }
}
