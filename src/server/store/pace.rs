//! How fast sequences rise: their marks of some minutes ago, beside those of now.
//!
//! It costs next to nothing, because a map of sequences shares structure with the one it was cloned from: only what changed
//! meanwhile is there twice. A backup carries it, so that whoever restores it can tell how much was granted afterwards.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use imbl::OrdMap;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::backup::Rises;
use super::state_machine::TableReader;
use crate::sequence::{Sequence, SequenceName, Table};

/// How often the marks are looked at. Those of the look before the last are compared with, so rates are those of the last 5 to
/// 10 minutes: long enough to even out bursts, short enough to be of now.
pub(super) const INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Less is no time to measure in: one lease in a moment makes no rate.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// Remembers the marks of some minutes ago. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    tables: TableReader,
    looks: Arc<Mutex<Looks>>,
}

/// The two last looks, or fewer.
#[derive(Debug, Default)]
struct Looks {
    before: Option<Look>,
    last: Option<Look>,
}

#[derive(Debug, Clone)]
struct Look {
    at: Instant,
    sequences: OrdMap<SequenceName, Sequence>,
}

impl Pace {
    /// Of the sequences in these tables.
    pub(crate) fn new(tables: TableReader) -> Self {
        Self {
            tables,
            looks: Arc::default(),
        }
    }

    /// Looks at the marks for ever, once they are those that were left: a node that starts applies its log anew.
    pub(crate) async fn run(self, mut recovered: watch::Receiver<bool>) {
        // Closed: the node ends.
        if recovered.wait_for(|recovered| *recovered).await.is_err() {
            return;
        }
        loop {
            let look = Look {
                at: Instant::now(),
                sequences: self.tables.table().sequences(),
            };
            let gone = self.lock().push(look);
            // Freed outside the lock: the last of a large map takes its time.
            drop(gone);
            sleep(INTERVAL).await;
        }
    }

    /// By how much the sequences of a table rose; nothing is known of it in the first second of a node.
    pub(crate) fn rises(&self, table: &Table) -> Rises {
        let oldest = self.lock().oldest();
        let Some(then) = oldest.filter(|then| WINDOW_MIN <= then.at.elapsed()) else {
            return Rises::default();
        };
        let risen = |(name, sequence): (&SequenceName, &Sequence)| {
            let before = then.sequences.get(name).and_then(|then| then.high);
            let rise = rise(sequence, before);
            (0 < rise).then(|| (name.clone(), rise))
        };
        let window = then.at.elapsed().as_millis();
        Rises {
            window_ms: u64::try_from(window).unwrap_or(u64::MAX),
            by_name: table.iter().filter_map(risen).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Looks> {
        // Nothing panics while it is changed.
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Looks {
    fn push(&mut self, look: Look) -> Option<Look> {
        let gone = self.before.take();
        self.before = self.last.replace(look);
        gone
    }

    fn oldest(&self) -> Option<Look> {
        self.before.as_ref().or(self.last.as_ref()).cloned()
    }
}

/// From where the mark was, or from below the first value.
fn rise(sequence: &Sequence, before: Option<u64>) -> u64 {
    let Some(high) = sequence.high else {
        return 0;
    };
    let below_first = sequence.settings.start().saturating_sub(1);
    high.saturating_sub(before.unwrap_or(below_first))
}
