//! After the faults: everybody serves, and all hold one state. What does not come about in time is found.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::ChaosPlant;
use super::stage::{Finding, LOOK_INTERVAL, Stage};
use crate::chaos::HarnessError;
use crate::chaos::demo::duplicate_of;
use crate::chaos::worker::Worker;
use crate::client::{Client, Grant};
use crate::history::Line;
use crate::sequence::{RangeCount, SequenceName};
use crate::wire::MemberBody;

/// Time enough for starts, elections and a snapshot on a busy machine, and for a person to wait.
pub(super) const HEALED_WITHIN: Duration = Duration::from_secs(60);

/// How it was at last.
#[derive(Debug)]
pub(super) struct Healed {
    /// How long it took until all was well.
    pub(super) took: Duration,
}

impl Stage<'_> {
    /// Ends all that is wrong, and waits until all is well.
    pub(super) async fn heal(&self, lines: &mpsc::Sender<Line>) -> Result<Healed, HarnessError> {
        let begun = Instant::now();
        let deadline = begun + HEALED_WITHIN;
        let mut cluster = self.cluster.lock().await;
        if let Some(network) = cluster.network() {
            network.heal();
        }
        self.disks.lift_all(&cluster)?;
        let ids = cluster.ids();
        for node in &ids {
            cluster.thaw(*node)?;
        }
        cluster.start(&ids)?;
        let nodes = Nodes::new(ids.iter().copied().zip(cluster.urls()));
        drop(cluster);
        self.say(format_args!(
            "all faults end; nodes {ids:?} are to serve, and to agree"
        ));
        self.wait_until_ready(deadline).await;
        self.front.close().await;
        let sequences = self.front.sequences();
        let mut found = Vec::new();
        let grant = nodes
            .lease_last(sequences, (lines, deadline), &mut found)
            .await?;
        if let (ChaosPlant::Duplicate, Some((grant, sequence))) = (self.plan.plant, grant) {
            self.say("planting a duplicate: the last grant is recorded a second time");
            // The recorder lives as long as this sender.
            drop(lines.send(duplicate_of(&grant, &sequence)).await);
        }
        let members = one_state(&self.client().await?, deadline, &mut found).await;
        let members: BTreeSet<u64> = members.iter().map(|member| member.id).collect();
        if !members.is_empty() && members != ids.iter().copied().collect() {
            let text = format!("nodes {ids:?} run, and the members are {members:?}");
            found.push(Finding::new("I12", text));
        }
        nodes.read_last(sequences, lines, &mut found).await?;
        for finding in found {
            self.find(finding.invariant, finding.text);
        }
        Ok(Healed {
            took: begun.elapsed(),
        })
    }

    async fn wait_until_ready(&self, deadline: Instant) {
        loop {
            let survey = self.cluster.lock().await.survey();
            let Some(unready) = survey.first_unready().await else {
                return;
            };
            if deadline < Instant::now() {
                let line = self.cluster.lock().await.last_line(unready);
                let line = line.unwrap_or_default();
                let text = format!("node {unready} is not ready in {HEALED_WITHIN:?}: {line}");
                self.find("I10", text);
                return;
            }
            sleep(LOOK_INTERVAL).await;
        }
    }
}

/// Where each node serves.
pub(super) struct Nodes(Vec<(u64, String)>);

impl Nodes {
    pub(super) fn new(nodes: impl IntoIterator<Item = (u64, String)>) -> Self {
        Self(nodes.into_iter().collect())
    }

    /// Every sequence is served through every node, and what comes is recorded. Tells the last grant.
    pub(super) async fn lease_last(
        &self,
        sequences: &[SequenceName],
        (lines, deadline): (&mpsc::Sender<Line>, Instant),
        found: &mut Vec<Finding>,
    ) -> Result<Option<(Grant, SequenceName)>, HarnessError> {
        let mut last = None;
        for ((node, url), sequence) in self.with_each(sequences) {
            let name = format!("last-{node}");
            let nodes = (*node, std::slice::from_ref(url));
            let worker = Worker::new(name, nodes, sequence, lines)?;
            loop {
                let error = match worker.lease(RangeCount::ONE).await {
                    Ok(grant) => {
                        last = Some((grant, sequence.clone()));
                        break;
                    }
                    Err(error) => error,
                };
                if deadline < Instant::now() {
                    let text = format!("node {node} does not serve {sequence}: {error}");
                    found.push(Finding::new("I10", text));
                    break;
                }
            }
        }
        Ok(last)
    }

    /// The marks, which every node has to show: each is a final read of the history.
    pub(super) async fn read_last(
        &self,
        sequences: &[SequenceName],
        lines: &mpsc::Sender<Line>,
        found: &mut Vec<Finding>,
    ) -> Result<(), HarnessError> {
        for ((node, url), sequence) in self.with_each(sequences) {
            let name = format!("last-{node}");
            let nodes = (*node, std::slice::from_ref(url));
            let worker = Worker::new(name, nodes, sequence, lines)?;
            if let Err(error) = worker.read_finally().await {
                let text = format!("node {node} does not show {sequence}: {error}");
                found.push(Finding::new("I10", text));
            }
        }
        Ok(())
    }

    fn with_each<'a>(
        &'a self,
        sequences: &'a [SequenceName],
    ) -> impl Iterator<Item = (&'a (u64, String), &'a SequenceName)> {
        let nodes = self.0.iter();
        nodes.flat_map(move |node| sequences.iter().map(move |sequence| (node, sequence)))
    }
}

/// Waits until all members have applied the same entries: then they hold the same. Tells who they are.
pub(super) async fn one_state(
    client: &Client,
    deadline: Instant,
    found: &mut Vec<Finding>,
) -> Vec<MemberBody> {
    loop {
        let shown = client.cluster().await;
        let members = shown.map(|shown| shown.members).unwrap_or_default();
        let indexes: BTreeSet<_> = members.iter().map(|member| member.applied_index).collect();
        if indexes.len() == 1 && !indexes.contains(&None) {
            let hashes = members.iter().map(|member| &member.state_hash);
            if 1 < hashes.collect::<BTreeSet<_>>().len() {
                let text = format!("one log, and different states: {members:?}");
                found.push(Finding::new("I8", text));
            }
            return members;
        }
        if deadline < Instant::now() {
            let text = format!("the members do not agree in {HEALED_WITHIN:?}: {members:?}");
            found.push(Finding::new("I10", text));
            return members;
        }
        sleep(LOOK_INTERVAL).await;
    }
}
