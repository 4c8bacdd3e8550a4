//! How many reads and surveys a node has in flight at once (I9).
//!
//! They share the calls' connection with batches and votes, of which only so many may be unanswered: without a bound, a
//! crowd of readers would keep a follower from forwarding its batches, and a candidate from being elected.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::ReadError;
use super::frame::IN_FLIGHT_MAX;

/// Proofs of leadership in flight. One takes a round trip, so this many serve any number of readers.
pub(super) const READS_MAX: usize = 64;
/// Surveys of all members in flight.
pub(super) const SURVEYS_MAX: usize = 16;

const _: () = assert!(READS_MAX + SURVEYS_MAX < IN_FLIGHT_MAX / 2);

/// Places for those who ask. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Reads {
    reads: Arc<Semaphore>,
    surveys: Arc<Semaphore>,
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            reads: Arc::new(Semaphore::new(READS_MAX)),
            surveys: Arc::new(Semaphore::new(SURVEYS_MAX)),
        }
    }
}

impl Reads {
    /// Waits for a place to prove a read in.
    ///
    /// # Errors
    /// [`ReadError::Crowded`] where there is none by the deadline.
    pub(super) async fn read(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, ReadError> {
        place(&self.reads, deadline).await
    }

    /// Waits for a place to survey the members in.
    ///
    /// # Errors
    /// [`ReadError::Crowded`] where there is none by the deadline.
    pub(super) async fn survey(
        &self,
        deadline: Instant,
    ) -> Result<OwnedSemaphorePermit, ReadError> {
        place(&self.surveys, deadline).await
    }
}

async fn place(
    places: &Arc<Semaphore>,
    deadline: Instant,
) -> Result<OwnedSemaphorePermit, ReadError> {
    let place = timeout_at(deadline, Arc::clone(places).acquire_owned()).await;
    // The semaphores are never closed.
    place.ok().and_then(Result::ok).ok_or(ReadError::Crowded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_read_beyond_the_bound_waits_until_its_deadline_and_not_for_surveys() {
        let reads = Reads::default();
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut held = Vec::new();
        for _ in 0..READS_MAX {
            held.push(reads.read(deadline).await.unwrap());
        }
        for _ in 0..SURVEYS_MAX {
            held.push(reads.survey(deadline).await.unwrap());
        }

        assert_eq!(reads.read(deadline).await.unwrap_err(), ReadError::Crowded);
        assert_eq!(
            reads.survey(deadline).await.unwrap_err().to_string(),
            "the read waited behind others until its deadline"
        );

        held.clear();
        let deadline = Instant::now() + Duration::from_secs(5);
        drop(reads.read(deadline).await.unwrap());
        drop(reads.survey(deadline).await.unwrap());
    }
}
