//! A request on its way: what it asks, by when, and whether it was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::{Committed, SubmitError};
#[cfg(test)]
use crate::planted::Bug;
use crate::sequence::Command;

/// A request that waits.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) command: Command,
    /// Its bytes in the budget of all that wait.
    pub(super) _room: OwnedSemaphorePermit,
    pub(super) deadline: Instant,
    pub(super) ticket: Arc<Ticket>,
    pub(super) reply: oneshot::Sender<Result<Committed, SubmitError>>,
}

impl Pending {
    pub(super) fn answer(self, answer: Result<Committed, SubmitError>) {
        // Who has stopped waiting was told at the deadline that the outcome is unknown.
        drop(self.reply.send(answer));
    }

    pub(super) fn lose(self) {
        self.answer(Err(SubmitError::LeaderLost));
    }
}

/// Where a request stands between the one who waits for it and the batcher: exactly one of the two decides
/// whether it is sent or given up.
#[derive(Debug, Default)]
pub(super) struct Ticket(AtomicU8);

impl Ticket {
    const QUEUED: u8 = 0;
    const SENT: u8 = 1;
    const ABANDONED: u8 = 2;

    /// The batcher is about to send it. False where it was given up before.
    pub(super) fn claim(&self) -> bool {
        self.turn(Self::QUEUED, Self::SENT)
    }

    /// Every send so far was refused before it was appended. False where its waiter has gone, told that the outcome
    /// is unknown.
    pub(super) fn release(&self) -> bool {
        self.turn(Self::SENT, Self::QUEUED)
    }

    /// Its waiter gives up. True where it was not sent, and now never will be; otherwise nobody knows.
    pub(super) fn abandon(&self) -> bool {
        let before = self.0.swap(Self::ABANDONED, Ordering::AcqRel);
        #[cfg(test)]
        if Bug::UnknownToldAsRefused.is_planted() {
            return true;
        }
        before == Self::QUEUED
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::ABANDONED
    }

    fn turn(&self, from: u8, to: u8) -> bool {
        self.0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// Gives up for whoever waits no more, however that came. Once there is an answer it means nothing.
#[derive(Debug)]
pub(super) struct AbandonOnDrop<'a>(pub(super) &'a Ticket);

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_sent_or_given_up_and_never_both() {
        let ticket = Ticket::default();
        assert!(ticket.claim());
        assert!(!ticket.abandon(), "it was sent: nobody knows");
        assert!(!ticket.release(), "its waiter has gone");

        let ticket = Ticket::default();
        assert!(ticket.abandon(), "it was never sent");
        assert!(!ticket.claim());
        assert!(ticket.is_abandoned());

        let ticket = Ticket::default();
        assert!(ticket.claim() && ticket.release());
        assert!(ticket.abandon(), "its only send was refused");
    }
}
