//! A leader whose disk is full or does not answer is relieved: it hands over to a voter that is better off.
//!
//! Both are faults that Raft does not see. A full leader would refuse every request although others have room. One whose
//! disk hangs goes on committing, because its followers are a quorum without it, until what it has not written fills its
//! queue; then its core waits for the disk and says nothing any more, as at once where it has to store a vote.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::transfer::TransferError;
use super::{Consensus, ForwardReply, Leader};
use crate::server::store::DiskState;

/// How often a leader looks at its disk where no proposal makes it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a hand-over in vain: whoever was unfit is asked again soon.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause after one that succeeded: should this node be elected again at once, then because nobody else can be.
const ELECTED_AGAIN_PAUSE: Duration = Duration::from_secs(5);

/// What the proposer and the one who relieves tell each other.
#[derive(Debug, Clone, Default)]
pub(super) struct Relief {
    wanted: Arc<Notify>,
    /// The last attempt to hand over changed nothing, and the disk is as it was.
    in_vain: Arc<AtomicBool>,
}

impl Consensus {
    /// What a leader answers instead of proposing, if its disk is full: that another will lead in a moment, or, where
    /// none can, that the disk is full.
    pub(super) fn full_disk_refusal(&self) -> Option<ForwardReply> {
        if !self.disk.is_full() {
            return None;
        }
        if self.relief.in_vain.load(Ordering::Acquire) {
            return Some(ForwardReply::DiskFull);
        }
        self.relief.wanted.notify_one();
        Some(ForwardReply::NotLeader { leader: None })
    }

    /// Hands leadership over whenever this node has it and its disk is not fit for it, as long as the node runs.
    pub(crate) async fn relieve(self) {
        let mut told = None;
        loop {
            let look = Instant::now() + LOOK_INTERVAL;
            // Elapsed: it is time to look anyway.
            drop(timeout_at(look, self.relief.wanted.notified()).await);
            let state = self.disk.state();
            if state == DiskState::Fit || !matches!(self.leader(), Leader::Here(_)) {
                self.relief.in_vain.store(false, Ordering::Release);
                told = None;
                continue;
            }
            let handed = self.transfer_leader(None).await;
            self.relief.in_vain.store(true, Ordering::Release);
            let pause = match handed {
                Ok(peer) => {
                    tracing::warn!(%peer, "leadership handed over because of this node's disk");
                    ELECTED_AGAIN_PAUSE
                }
                Err(error) => {
                    tell(&error, &mut told);
                    RETRY_PAUSE
                }
            };
            sleep_until(Instant::now() + pause).await;
        }
    }
}

/// Says why leadership stays here, once for each reason.
fn tell(error: &TransferError, told: &mut Option<TransferError>) {
    if told.as_ref() != Some(error) {
        tracing::warn!(%error, "leadership not handed over in spite of this node's disk");
        *told = Some(error.clone());
    }
}
