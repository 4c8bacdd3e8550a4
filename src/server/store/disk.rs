//! How the disk under a running node is: fit, below its floor, or one that does not answer.
//!
//! The writer tells when it is about to ask the disk for something, and when it has its answer. Nobody waits for the
//! disk here: a disk that hangs is noticed by those it does not hold up.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use super::database::Database;
use super::space::Space;

/// How often the disk is looked at where nobody else does.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A disk that has not carried out one write or sync after this long does not answer. Slow ones take tenths of a second;
/// a leader that is too patient keeps its cluster waiting, one that is not costs an election.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);

/// How a node's disk is. Sent to peers: a change of order or type is a new protocol version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DiskState {
    /// As it should be.
    #[default]
    Fit,
    /// Less is free than the floor: nothing more is proposed.
    Full,
    /// It has not carried out a write or a sync for seconds.
    Stuck,
}

/// Looks at the disk. Clones look at the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// None in tests without a directory.
    space: Option<Space>,
    /// The bytes below which the disk counts as full; 0 never does.
    floor: u64,
    pulse: Pulse,
}

impl Disk {
    /// The disk of a store, with a floor in bytes; 0 is none.
    pub(crate) fn new(space: Space, floor: u64, pulse: Pulse) -> Self {
        Self {
            inner: Arc::new(Inner {
                space: Some(space),
                floor,
                pulse,
            }),
        }
    }

    /// How it is now.
    pub(crate) fn state(&self) -> DiskState {
        if self.inner.pulse.waits_for(ANSWER_TIME_MAX) {
            DiskState::Stuck
        } else if self.is_full() {
            DiskState::Full
        } else {
            DiskState::Fit
        }
    }

    /// Whether less is free than the floor. What cannot be measured is not taken for full.
    pub(crate) fn is_full(&self) -> bool {
        let Inner { space, floor, .. } = &*self.inner;
        let free = space.as_ref().and_then(|space| space.free().ok());
        free.is_some_and(|free| free < *floor)
    }

    fn keep_ballast(&self) -> io::Result<()> {
        match &self.inner.space {
            Some(space) => space.keep_ballast(self.inner.floor),
            None => Ok(()),
        }
    }
}

/// Since when the writer waits for the disk. Clones tell of the same writer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulse(Arc<Mutex<Option<Instant>>>);

impl Pulse {
    /// The disk is about to be asked. It has answered when what this returns is dropped.
    pub(super) fn ask(&self) -> Asked<'_> {
        self.set(Some(Instant::now()));
        Asked(self)
    }

    fn waits_for(&self, limit: Duration) -> bool {
        let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| limit <= since.elapsed())
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

/// A question to the disk that has no answer yet.
#[must_use = "the disk is asked for as long as this lives"]
pub(super) struct Asked<'a>(&'a Pulse);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Looks after the disk as long as the node runs.
#[derive(Debug)]
pub(crate) struct DiskWatch {
    disk: Disk,
    database: Weak<Database>,
    waking: Option<JoinHandle<()>>,
    told: DiskState,
}

impl DiskWatch {
    pub(super) fn new(disk: Disk, database: Weak<Database>) -> Self {
        Self {
            disk,
            database,
            waking: None,
            told: DiskState::Fit,
        }
    }

    /// Keeps the ballast, wakes the database where it sleeps over an error, and says how the disk is when that changes.
    pub(crate) async fn run(mut self) {
        let mut ticks = interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        if self.disk.inner.pulse.waits_for(LOOK_INTERVAL) {
            self.wake_database();
        }
        let state = self.disk.state();
        if state == DiskState::Fit {
            let disk = self.disk.clone();
            // On a thread that may wait for the disk. A panic in it has ended the process.
            let kept = tokio::task::spawn_blocking(move || disk.keep_ballast()).await;
            if let Ok(Err(error)) = kept {
                tracing::debug!(%error, "the ballast cannot be made");
            }
        }
        self.tell(state);
    }

    fn tell(&mut self, state: DiskState) {
        if std::mem::replace(&mut self.told, state) == state {
            return;
        }
        match state {
            DiskState::Fit => tracing::info!("the disk is fit again"),
            DiskState::Full => tracing::warn!(
                "the disk is full: less is free than the floor, and nothing is proposed from here"
            ),
            DiskState::Stuck => tracing::error!(
                "the disk does not answer: a write or a sync has not ended for seconds"
            ),
        }
    }

    /// sled has one path on which an error of a write wakes nobody who waits for that write. Any other flush finds the
    /// error and wakes them. A disk that only hangs holds this thread too, so there is one at a time.
    fn wake_database(&mut self) {
        if self
            .waking
            .as_ref()
            .is_some_and(|waking| !waking.is_finished())
        {
            return;
        }
        let Some(database) = self.database.upgrade() else {
            return;
        };
        let spawned = std::thread::Builder::new()
            .name("store-wake".to_owned())
            .spawn(move || database.wake());
        match spawned {
            Ok(waking) => self.waking = Some(waking),
            Err(error) => tracing::error!(%error, "no thread to wake the database with"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_stuck_while_one_question_has_no_answer_for_too_long() {
        let pulse = Pulse::default();
        assert!(!pulse.waits_for(Duration::ZERO), "nothing is asked");

        let asked = pulse.ask();
        assert!(pulse.waits_for(Duration::ZERO));
        assert!(!pulse.waits_for(Duration::from_secs(600)));

        drop(asked);
        assert!(!pulse.waits_for(Duration::ZERO), "it has answered");
    }

    #[test]
    fn a_disk_is_full_below_its_floor_and_never_without_one() {
        let directory = tempfile::tempdir().unwrap();
        for (floor, state) in [(0, DiskState::Fit), (u64::MAX, DiskState::Full)] {
            let space = Space::at(directory.path()).unwrap();
            let disk = Disk::new(space, floor, Pulse::default());

            assert_eq!(disk.state(), state);
        }
    }
}
