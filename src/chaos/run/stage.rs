//! What the lanes share: the cluster, who works there, which nodes are taken, and what was seen.
//!
//! The rule of damage: what a node promised is taken from at most one node at a time (an older directory, none, another one's
//! bits), and from the next only once that one is whole or replaced: the lane of processes does all of it, one step after another.
//! There are never fewer voters than planned, three at least. So it is a minority, and what was acknowledged has to survive it,
//! whatever else happens meanwhile.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use tokio::sync::{Mutex, RwLock};
use tokio::time::{Instant, sleep};

use super::ChaosPlan;
use super::coverage::{Coverage, Tally};
use super::disks::Disks;
use super::front::Front;
use super::kind::Kind;
use super::schedule::Victim;
use crate::chaos::HarnessError;
use crate::chaos::cluster::LocalCluster;
use crate::client::Client;

/// How often a condition is looked at again.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long a step waits for a leader before it goes on without.
const LEADER_WITHIN: Duration = Duration::from_secs(5);
/// How long a step waits for a leader that it needs, or for a node that no other step has taken.
const FREE_WITHIN: Duration = Duration::from_secs(60);
/// How long one call of an operator takes before it is made again.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Whatever has to come about meanwhile comes about by then, also with a few elections, partitions and starts between.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// Something that must not be: a promise was broken, which the history need not show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Which promise.
    pub(crate) invariant: &'static str,
    /// What was seen.
    pub(crate) text: String,
}

impl Finding {
    pub(super) fn new(invariant: &'static str, text: String) -> Self {
        Self { invariant, text }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.text)
    }
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was seen to happen.
    Happened,
    /// It was not, for this reason.
    Not(String),
}

/// How much of a node a step takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Whoever kills it meanwhile does no harm to the step.
    Shared,
    /// All of it: it may end, and nobody else touches it.
    Alone,
}

pub(super) struct Stage<'a> {
    pub(super) plan: &'a ChaosPlan,
    pub(super) tell: &'a dyn Fn(String),
    pub(super) started: Instant,
    pub(super) cluster: Mutex<LocalCluster>,
    pub(super) front: Front,
    pub(super) disks: Disks,
    pub(super) coverage: RefCell<Coverage>,
    pub(super) tally: RefCell<Tally>,
    pub(super) findings: RefCell<Vec<Finding>>,
    /// Held for reading while a step goes on. Who holds it for writing is alone with the cluster.
    pub(super) quiet: RwLock<()>,
    /// Held by whoever changes the members: what it counts stays so.
    pub(super) changing: Mutex<()>,
    claims: RefCell<Vec<(u64, Claim)>>,
}

/// A node that a step has taken. Given back when it is dropped.
pub(super) struct Held<'a> {
    claims: &'a RefCell<Vec<(u64, Claim)>>,
    pub(super) node: u64,
    claim: Claim,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut claims = self.claims.borrow_mut();
        let own = (self.node, self.claim);
        if let Some(at) = claims.iter().position(|claim| *claim == own) {
            claims.swap_remove(at);
        }
    }
}

impl<'a> Stage<'a> {
    pub(super) fn new(
        (plan, tell): (&'a ChaosPlan, &'a dyn Fn(String)),
        cluster: LocalCluster,
        front: Front,
        disks: Disks,
    ) -> Self {
        Self {
            plan,
            tell,
            started: Instant::now(),
            cluster: Mutex::new(cluster),
            front,
            disks,
            coverage: RefCell::new(Coverage::of(&plan.schedule.kinds)),
            tally: RefCell::default(),
            findings: RefCell::default(),
            quiet: RwLock::new(()),
            changing: Mutex::new(()),
            claims: RefCell::default(),
        }
    }

    pub(super) fn say(&self, text: impl fmt::Display) {
        let seconds = self.started.elapsed().as_secs_f64();
        (self.tell)(format!("{seconds:6.1} s  {text}"));
    }

    pub(super) fn find(&self, invariant: &'static str, text: String) {
        let finding = Finding::new(invariant, text);
        self.say(format_args!("FOUND {finding}"));
        self.findings.borrow_mut().push(finding);
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.tally.borrow_mut());
    }

    pub(super) fn missing(&self) -> Vec<Kind> {
        self.coverage.borrow().missing()
    }

    /// Whoever a call reaches first serves it.
    pub(super) async fn client(&self) -> Result<Client, HarnessError> {
        let nodes = Client::builder().nodes(self.cluster.lock().await.urls());
        Ok(nodes.deadline(CALL_DEADLINE).build()?)
    }

    pub(super) async fn leader(&self) -> Option<u64> {
        let survey = self.cluster.lock().await.survey();
        let deadline = Instant::now() + LEADER_WITHIN;
        loop {
            if let Some(leader) = survey.leader().await {
                return Some(leader);
            }
            if deadline < Instant::now() {
                return None;
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Takes the victim, as soon as it is free for that.
    pub(super) async fn take(&self, victim: Victim, claim: Claim) -> Option<Held<'_>> {
        self.take_where(victim, claim, |claims| claims.is_empty())
            .await
    }

    /// The same of one that may be killed, whatever else goes on with it.
    pub(super) async fn take_to_kill(&self, victim: Victim) -> Option<Held<'_>> {
        let free = |claims: &[Claim]| !claims.contains(&Claim::Alone);
        self.take_where(victim, Claim::Alone, free).await
    }

    async fn take_where(
        &self,
        victim: Victim,
        claim: Claim,
        free: impl Fn(&[Claim]) -> bool,
    ) -> Option<Held<'_>> {
        let deadline = Instant::now() + FREE_WITHIN;
        loop {
            let leader = self.leader().await;
            let running = self.cluster.lock().await.running();
            let claims_of = |node: u64| -> Vec<Claim> {
                let claims = self.claims.borrow();
                let own = claims.iter().filter(|(of, _)| *of == node);
                own.map(|(_, claim)| *claim).collect()
            };
            let mut candidates = running;
            candidates.retain(|node| free(&claims_of(*node)));
            let chosen = match victim {
                Victim::Leader => leader.filter(|leader| candidates.contains(leader)),
                Victim::Other(number) => {
                    candidates.retain(|node| Some(*node) != leader);
                    let mut counted = candidates.iter().cycle().copied();
                    counted.nth(usize::from(number))
                }
            };
            if let Some(node) = chosen {
                return Some(self.hold(node, claim));
            }
            if deadline < Instant::now() {
                return None;
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Takes this node.
    pub(super) fn hold(&self, node: u64, claim: Claim) -> Held<'_> {
        self.claims.borrow_mut().push((node, claim));
        Held {
            claims: &self.claims,
            node,
            claim,
        }
    }

    /// Which nodes may end without having to say why.
    fn held_alone(&self) -> BTreeSet<u64> {
        let claims = self.claims.borrow();
        let alone = claims.iter().filter(|(_, claim)| *claim == Claim::Alone);
        alone.map(|(node, _)| *node).collect()
    }

    /// Looks for nodes that end though nobody did anything to them, and starts them again.
    pub(super) async fn watch(&self) -> Result<(), HarnessError> {
        loop {
            let mut cluster = self.cluster.lock().await;
            let held = self.held_alone();
            for node in cluster
                .ids()
                .into_iter()
                .filter(|node| !held.contains(node))
            {
                if let Some((status, line)) = cluster.ended(node)? {
                    self.find(
                        "I10",
                        format!("node {node} ended by itself ({status}): {line}"),
                    );
                    cluster.start(&[node])?;
                }
            }
            drop(cluster);
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Waits until a node has ended, and tells how: its exit code, and the last line of its log.
    pub(super) async fn wait_until_ended(
        &self,
        node: u64,
        within: Duration,
    ) -> Result<Option<(Option<i32>, String)>, HarnessError> {
        let deadline = Instant::now() + within;
        loop {
            if let Some((status, line)) = self.cluster.lock().await.ended(node)? {
                return Ok(Some((status.code(), line)));
            }
            if deadline < Instant::now() {
                return Ok(None);
            }
            sleep(LOOK_INTERVAL).await;
        }
    }
}
