//! A worker: leases in a loop, each time at the next node, and records what it saw.

use std::time::Duration;

use rand::Rng;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::HarnessError;
use super::clock::monotonic_ns;
use crate::client::{Client, ClientError, Grant, SetbackReason, Spread};
use crate::history::{LeaseOutcome, Line};
use crate::sequence::{RangeCount, SequenceName};
use crate::wire::ProblemOutcome;

/// Longer than any election; short enough that a worker is not idle for most of a run when its answer is lost.
const LEASE_DEADLINE: Duration = Duration::from_secs(3);
/// The counts that are leased: many ones, as from a worker that takes ids singly, and some of every other size.
const COUNT_MAX: u64 = 20;

/// Leases and records.
#[derive(Debug)]
pub struct Worker {
    name: String,
    client: Client,
    /// The id of the client's first node: the others follow.
    first_node: u64,
    sequence: SequenceName,
    lines: mpsc::Sender<Line>,
}

impl Worker {
    /// A worker over nodes whose ids rise by one from `first_node` on.
    ///
    /// # Errors
    /// [`HarnessError`] where the nodes make no client.
    pub fn new(
        name: String,
        (first_node, urls): (u64, &[String]),
        sequence: &SequenceName,
        lines: &mpsc::Sender<Line>,
    ) -> Result<Self, HarnessError> {
        let client = Client::builder()
            .nodes(urls)
            .deadline(LEASE_DEADLINE)
            .spread(Spread::RoundRobin)
            .build()?;
        Ok(Self {
            name,
            client,
            first_node,
            sequence: sequence.clone(),
            lines: lines.clone(),
        })
    }

    /// Leases until told to stop. A lease that is under way is finished.
    ///
    /// # Errors
    /// [`HarnessError`] where the run has to end.
    pub async fn run(self, stop: CancellationToken) -> Result<(), HarnessError> {
        while !stop.is_cancelled() {
            let count = if rand::rng().random_bool(0.5) {
                RangeCount::ONE
            } else {
                // Bounded by two constants, both of them counts.
                let count = rand::rng().random_range(2..=COUNT_MAX);
                RangeCount::try_from(count).unwrap_or(RangeCount::ONE)
            };
            match self.lease(count).await {
                Err(source @ ClientError::Refused { .. }) => {
                    let step = "a worker's lease was refused";
                    return Err(HarnessError::Call { step, source });
                }
                // Nothing else explains a gap that this leaves, and no node of ours answers so.
                Err(source) if is_no_grant(&source) => {
                    let step = "a node's answer to a lease is no grant";
                    return Err(HarnessError::Call { step, source });
                }
                // What the client refused is for the checker to judge.
                Ok(_)
                | Err(
                    ClientError::Unavailable { .. }
                    | ClientError::Unknown { .. }
                    | ClientError::Fenced { .. },
                ) => {}
            }
        }
        Ok(())
    }

    /// One lease, recorded whatever becomes of it.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened.
    pub async fn lease(&self, count: RangeCount) -> Result<Grant, ClientError> {
        let sent_ns = monotonic_ns();
        let result = self.client.lease(&self.sequence, count).await;
        let received_ns = monotonic_ns();
        let (node, outcome) = match &result {
            Ok(grant) => (grant.node(), granted(grant)),
            // It was granted, and whether that was right is what histories are for.
            Err(ClientError::Fenced { grant, .. }) => (grant.node(), granted(grant)),
            Err(error) => {
                let outcome = match error.outcome() {
                    ProblemOutcome::NotApplied => LeaseOutcome::NotApplied,
                    ProblemOutcome::Unknown => LeaseOutcome::Unknown,
                };
                (self.asked_last(error), outcome)
            }
        };
        let line = Line {
            worker: self.name.clone(),
            node,
            sequence: self.sequence.clone(),
            count,
            key: None,
            sent_ns,
            received_ns,
            outcome,
        };
        // The recorder ends before its workers only by an error of its own, which ends the run.
        drop(self.lines.send(line).await);
        result
    }

    fn asked_last(&self, error: &ClientError) -> Option<u64> {
        let asked = error.node()?;
        let mut nodes = (self.first_node..).zip(self.client.nodes());
        nodes.find(|(_, url)| *url == asked).map(|(id, _)| id)
    }
}

fn is_no_grant(error: &ClientError) -> bool {
    matches!(error, ClientError::Unknown { last, .. } if matches!(last.reason, SetbackReason::Foreign { .. }))
}

fn granted(grant: &Grant) -> LeaseOutcome {
    LeaseOutcome::Granted {
        first: grant.first(),
        last: grant.last(),
        increment: grant.increment(),
    }
}
