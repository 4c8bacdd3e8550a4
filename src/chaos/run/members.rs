//! What an operator does while all goes wrong: nodes come and go, and leadership moves.

use std::cell::Cell;

use tokio::time::{Instant, sleep};

use super::schedule::Victim;
use super::stage::{Claim, Held, LOOK_INTERVAL, PATIENCE, Seen, Stage};
use crate::chaos::HarnessError;
use crate::client::{Client, ClientError};
use crate::wire::{MemberBody, MemberRole};

/// What a node says last that was removed.
const REMOVED: &str = "was removed from its cluster";

impl Stage<'_> {
    /// Asks until it is done: whoever is needed may be gone for a while. What is not done in time is found.
    async fn insist<T>(
        &self,
        what: &str,
        ask: impl AsyncFn(&Client) -> Result<T, ClientError>,
    ) -> Result<Seen, HarnessError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // The nodes that there are change meanwhile.
            let client = self.client().await?;
            let Err(error) = ask(&client).await else {
                return Ok(Seen::Happened);
            };
            if deadline < Instant::now() {
                let text = format!("{what} was not done in {PATIENCE:?}: {error}");
                self.find("I10", text.clone());
                return Ok(Seen::Not(text));
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// One more node, with workers at it. It does not vote yet, and is not to be lost before it does: whoever waits for that
    /// would wait in vain.
    async fn join(&self) -> Result<Option<Held<'_>>, HarnessError> {
        let number = self.cluster.lock().await.begin_to_join()?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let mut cluster = self.cluster.lock().await;
            if let Some(node) = cluster.joined(number).await? {
                let held = self.hold(node, Claim::Shared);
                let api = cluster.api_address(node);
                drop(cluster);
                self.count(|tally| tally.joined += 1);
                if let Some(api) = api {
                    self.front.serve(node, api).await?;
                }
                return Ok(Some(held));
            }
            drop(cluster);
            sleep(LOOK_INTERVAL).await;
        }
        self.find(
            "I10",
            format!("a new node was not admitted in {PATIENCE:?}"),
        );
        Ok(None)
    }

    /// A node that has ended for good leaves the harness as well.
    async fn forget(&self, node: u64) -> Result<(), HarnessError> {
        self.front.leave(node);
        let mut cluster = self.cluster.lock().await;
        cluster.kill(&[node]).await?;
        cluster.forget(node);
        self.count(|tally| tally.left += 1);
        Ok(())
    }

    /// Puts a new node in the place of one that will not run again. Its caller holds `changing`, from before it was harmed: until
    /// then no other voter may go.
    pub(super) async fn replace(&self, old: u64) -> Result<(), HarnessError> {
        if let Some(held) = self.join().await? {
            let new = held.node;
            self.say(format_args!("node {new} replaces node {old}"));
            let what = format!("replacing node {old} by node {new}");
            self.insist(&what, async |client| {
                client.members().replace(old, new).await
            })
            .await?;
        }
        self.forget(old).await
    }

    /// Waits until a node that was removed has ended for that.
    async fn see_off(&self, node: u64) -> Result<(), HarnessError> {
        match self.wait_until_ended(node, PATIENCE).await? {
            Some((Some(1), line)) if line.contains(REMOVED) => {}
            Some((code, line)) => {
                let text = format!("node {node}, which was removed, ended with {code:?}: {line}");
                self.find("I12", text);
            }
            None => self.find("I12", format!("node {node} runs on though it was removed")),
        }
        self.forget(node).await
    }

    pub(super) async fn member_add(&self) -> Result<Seen, HarnessError> {
        let _changing = self.changing.lock().await;
        if self.has_voters_to_spare().await? {
            self.remove(Victim::Other(0)).await?;
        }
        self.add().await
    }

    pub(super) async fn member_remove(&self, victim: Victim) -> Result<Seen, HarnessError> {
        let _changing = self.changing.lock().await;
        if !self.has_voters_to_spare().await? {
            self.add().await?;
        }
        self.remove(victim).await
    }

    /// Whether one voter can go, and there are as many as planned. A node that has lost its directory is one until it is replaced.
    async fn has_voters_to_spare(&self) -> Result<bool, HarnessError> {
        let voters = Cell::new(0);
        let listed = async |client: &Client| {
            let members = client.members().list().await?;
            let votes = |member: &&MemberBody| member.role != MemberRole::Learner;
            voters.set(members.iter().filter(votes).count());
            Ok(())
        };
        self.insist("listing the members", listed).await?;
        Ok(usize::try_from(self.plan.size.nodes()).is_ok_and(|planned| planned < voters.get()))
    }

    async fn add(&self) -> Result<Seen, HarnessError> {
        let Some(held) = self.join().await? else {
            return Ok(Seen::Not("no node could join".to_owned()));
        };
        let node = held.node;
        self.say(format_args!("node {node} joined, and is to vote"));
        let what = format!("promoting node {node}");
        let promoted = async |client: &Client| client.members().promote(node).await;
        self.insist(&what, promoted).await
    }

    async fn remove(&self, victim: Victim) -> Result<Seen, HarnessError> {
        let Some(held) = self.take(victim, Claim::Alone).await else {
            return Ok(Seen::Not("no node was free to be removed".to_owned()));
        };
        let node = held.node;
        self.say(format_args!("remove node {node}"));
        let what = format!("removing node {node}");
        let removed = async |client: &Client| client.members().remove(node).await;
        let seen = self.insist(&what, removed).await?;
        if seen == Seen::Happened {
            self.see_off(node).await?;
        }
        Ok(seen)
    }

    pub(super) async fn member_replace(&self, victim: Victim) -> Result<Seen, HarnessError> {
        let _changing = self.changing.lock().await;
        let Some(held) = self.take(victim, Claim::Alone).await else {
            return Ok(Seen::Not("no node was free to be replaced".to_owned()));
        };
        let Some(joined) = self.join().await? else {
            return Ok(Seen::Not("no node could join".to_owned()));
        };
        let (old, new) = (held.node, joined.node);
        self.say(format_args!("node {new} replaces node {old}, which runs"));
        let what = format!("replacing node {old} by node {new}");
        let replaced = async |client: &Client| client.members().replace(old, new).await;
        let seen = self.insist(&what, replaced).await?;
        if seen == Seen::Happened {
            self.see_off(old).await?;
        }
        Ok(seen)
    }

    pub(super) async fn move_leader(&self) -> Result<Seen, HarnessError> {
        self.say("move leadership");
        let moved = async |client: &Client| client.transfer_leader(None).await;
        self.insist("moving leadership", moved).await
    }
}
