//! The operator: hands leadership over when told to, and sees at the end that every node serves.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::watch::wait_ms;
use super::workers::{Worker, client, sequences};
use crate::sequence::RangeCount;

const LOOK_EVERY_MS: u64 = 10;

/// What it works with, and how long it waits at the end.
#[derive(Debug)]
pub(super) struct Operator {
    pub(super) worker: Worker,
    pub(super) hand_overs: Rc<Cell<u32>>,
    pub(super) patience: Duration,
}

impl Operator {
    pub(super) async fn run(self) -> turmoil::Result {
        let all = client(1..=self.worker.nodes);
        while !self.worker.stop.get() {
            wait_ms(LOOK_EVERY_MS).await;
            if let Some(left) = self.hand_overs.get().checked_sub(1) {
                self.hand_overs.set(left);
                // Whether it did is seen in the nodes.
                drop(all.transfer_leader(None).await);
            }
        }
        let deadline = Instant::now() + self.patience;
        // What is read last has to show all that they were given.
        while 0 < self.worker.at_work.get() {
            wait_ms(LOOK_EVERY_MS).await;
        }
        let lost = self.worker.board.seen().lost;
        for node in (1..=self.worker.nodes).filter(|node| Some(*node) != lost) {
            self.see_served(node, deadline).await?;
        }
        for sequence in sequences() {
            while !self.worker.read_last(&all, &sequence).await {
                if deadline <= Instant::now() {
                    return Err(format!("nobody answers a read of {sequence}").into());
                }
            }
        }
        Ok(())
    }

    /// Leases at one node until it has given all of it.
    async fn see_served(&self, node: u64, deadline: Instant) -> turmoil::Result {
        let client = client([node].into_iter());
        for sequence in sequences() {
            while !self
                .worker
                .lease(&client, &sequence, RangeCount::ONE, None)
                .await
            {
                if deadline <= Instant::now() {
                    return Err(format!("node {node} does not serve").into());
                }
                wait_ms(LOOK_EVERY_MS).await;
            }
        }
        Ok(())
    }
}
