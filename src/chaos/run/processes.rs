//! Processes that are killed, told to end, or stand still.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use super::schedule::Victim;
use super::stage::{Claim, PATIENCE, Seen, Stage};
use crate::chaos::HarnessError;

impl Stage<'_> {
    pub(super) async fn kill(&self, victim: Victim, lasts: Duration) -> Result<Seen, HarnessError> {
        let Some(held) = self.take_to_kill(victim).await else {
            return Ok(Seen::Not("no node was free to be killed".to_owned()));
        };
        self.say(format_args!("kill node {}: {victim:?}", held.node));
        self.cluster.lock().await.kill(&[held.node]).await?;
        self.count(|tally| tally.kills += 1);
        sleep(lasts).await;
        self.cluster.lock().await.start(&[held.node])?;
        Ok(Seen::Happened)
    }

    /// A machine room without power: what hung before does not hang afterwards.
    pub(super) async fn kill_all(&self, lasts: Duration) -> Result<Seen, HarnessError> {
        let mut cluster = self.cluster.lock().await;
        let running = cluster.running();
        self.say(format_args!("kill nodes {running:?}, which are all"));
        cluster.kill(&running).await?;
        self.count(|tally| tally.kills += running.len() as u64);
        // Nobody else starts one meanwhile.
        sleep(lasts).await;
        self.disks.lift_all(&cluster)?;
        cluster.start(&running)?;
        Ok(Seen::Happened)
    }

    pub(super) async fn terminate(
        &self,
        victim: Victim,
        lasts: Duration,
    ) -> Result<Seen, HarnessError> {
        let Some(held) = self.take(victim, Claim::Alone).await else {
            return Ok(Seen::Not("no node was free to be ended".to_owned()));
        };
        let node = held.node;
        self.say(format_args!("terminate node {node}"));
        self.cluster.lock().await.signal(node, Signal::TERM)?;
        let seen = match self.wait_until_ended(node, PATIENCE).await? {
            Some((Some(0), _)) => Seen::Happened,
            Some((code, line)) => {
                let text = format!("node {node} was told to end, and did with {code:?}: {line}");
                self.find("I10", text);
                Seen::Happened
            }
            None => {
                let text = format!("node {node} was told to end, and had not after {PATIENCE:?}");
                self.find("I10", text);
                self.cluster.lock().await.kill(&[node]).await?;
                Seen::Happened
            }
        };
        sleep(lasts).await;
        self.cluster.lock().await.start(&[node])?;
        Ok(seen)
    }

    pub(super) async fn stop(&self, victim: Victim, lasts: Duration) -> Result<Seen, HarnessError> {
        let Some(held) = self.take(victim, Claim::Shared).await else {
            return Ok(Seen::Not("no node was free to be stopped".to_owned()));
        };
        let node = held.node;
        self.say(format_args!("stop node {node} for {lasts:?}"));
        let frozen = self.cluster.lock().await.freeze(node, PATIENCE).await;
        sleep(lasts).await;
        // It may have been killed meanwhile; then nothing stands still.
        self.cluster.lock().await.thaw(node)?;
        frozen.map(|()| Seen::Happened)
    }
}
