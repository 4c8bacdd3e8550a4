//! A worker: leases in a loop, each time at the next node, reads the mark now and then, and records what it saw.

use std::time::Duration;

use rand::Rng;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::HarnessError;
use super::clock::monotonic_ns;
use crate::client::{Client, ClientError, Grant, IdempotencyKey, SetbackReason, Spread};
use crate::history::{LeaseOutcome, Line, Mark, Operation};
use crate::sequence::{RangeCount, SequenceName};
use crate::wire::{Number, ProblemOutcome};

/// Longer than any election; short enough that a worker is not idle for most of a run when its answer is lost.
const LEASE_DEADLINE: Duration = Duration::from_secs(3);
/// The counts that are leased: many ones, as from a worker that takes ids singly, and some of every other size.
const COUNT_MAX: u64 = 20;
/// Of so many requests one is a read.
const READ_EVERY: u32 = 16;
/// Of so many leases one has a key of the worker's.
const KEY_EVERY: u32 = 8;

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

    /// Leases and reads until told to stop. A request that is under way is finished.
    ///
    /// # Errors
    /// [`HarnessError`] where the run has to end.
    pub async fn run(self, stop: CancellationToken) -> Result<(), HarnessError> {
        while !stop.is_cancelled() {
            let asked = if rand::rng().random_ratio(1, READ_EVERY) {
                self.read().await.map(drop)
            } else if rand::rng().random_ratio(1, KEY_EVERY) {
                self.lease_twice(random_count()).await.map(drop)
            } else {
                self.lease(random_count()).await.map(drop)
            };
            match asked {
                Err(source @ ClientError::Refused { .. }) => {
                    let step = "a worker's request was refused";
                    return Err(HarnessError::Call { step, source });
                }
                // Nothing else explains a gap that this leaves, and no node of ours answers so.
                Err(source) if is_no_grant(&source) => {
                    let step = "a node's answer to a request is none";
                    return Err(HarnessError::Call { step, source });
                }
                // What the client refused is for the checker to judge.
                Ok(())
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
        self.record_lease(sent_ns, count, None, &result).await;
        result
    }

    /// One lease under a key, asked for a second time whatever the first answer said: both get one range.
    async fn lease_twice(&self, count: RangeCount) -> Result<Grant, ClientError> {
        let key = IdempotencyKey::random();
        drop(self.lease_keyed(count, &key).await);
        self.lease_keyed(count, &key).await
    }

    async fn lease_keyed(
        &self,
        count: RangeCount,
        key: &IdempotencyKey,
    ) -> Result<Grant, ClientError> {
        let sent_ns = monotonic_ns();
        let result = self.client.lease_keyed(&self.sequence, count, key).await;
        self.record_lease(sent_ns, count, Some(key), &result).await;
        result
    }

    async fn record_lease(
        &self,
        sent_ns: u64,
        count: RangeCount,
        key: Option<&IdempotencyKey>,
        result: &Result<Grant, ClientError>,
    ) {
        let (node, outcome) = match result {
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
        let operation = Operation::Lease {
            count,
            key: key.map(|key| key.as_str().to_owned()),
            outcome,
        };
        self.record(node, sent_ns, operation).await;
    }

    /// Reads the mark, up to date, and records what it saw.
    ///
    /// # Errors
    /// [`ClientError`]: then there is nothing to record.
    pub async fn read(&self) -> Result<Mark, ClientError> {
        let sent_ns = monotonic_ns();
        let mark = self.mark().await?;
        self.record(None, sent_ns, Operation::Read(mark)).await;
        Ok(mark)
    }

    /// Reads the mark when all other requests have ended, and records it as what the history comes to.
    ///
    /// # Errors
    /// [`ClientError`]: then there is nothing to record.
    pub async fn read_finally(&self) -> Result<Mark, ClientError> {
        let sent_ns = monotonic_ns();
        let mark = self.mark().await?;
        self.record(None, sent_ns, Operation::FinalRead(mark)).await;
        Ok(mark)
    }

    async fn mark(&self) -> Result<Mark, ClientError> {
        let shown = self.client.sequence(&self.sequence).await?;
        Ok(Mark {
            high: shown.high.and_then(Number::get),
            start: shown.start.get(),
            cached: 0 < shown.cache,
        })
    }

    async fn record(&self, node: Option<u64>, sent_ns: u64, operation: Operation) {
        let line = Line {
            worker: self.name.clone(),
            node,
            sequence: self.sequence.clone(),
            sent_ns,
            received_ns: monotonic_ns(),
            operation,
        };
        // The recorder ends before its workers only by an error of its own, which ends the run.
        drop(self.lines.send(line).await);
    }

    fn asked_last(&self, error: &ClientError) -> Option<u64> {
        let asked = error.node()?;
        let mut nodes = (self.first_node..).zip(self.client.nodes());
        nodes.find(|(_, url)| *url == asked).map(|(id, _)| id)
    }
}

fn random_count() -> RangeCount {
    if rand::rng().random_bool(0.5) {
        return RangeCount::ONE;
    }
    // Bounded by two constants, both of them counts.
    let count = rand::rng().random_range(2..=COUNT_MAX);
    RangeCount::try_from(count).unwrap_or(RangeCount::ONE)
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
