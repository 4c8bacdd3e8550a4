//! How fast sequences rise: their marks of some minutes ago, beside those of now.
//!
//! Only names and marks are kept: with the map of sequences itself each place that changes meanwhile would be there
//! twice, and first be copied. A backup carries the difference, so that whoever restores it can tell how much was granted
//! afterwards.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::backup::Rises;
use super::state_machine::TableReader;
use crate::sequence::{Sequence, SequenceName, Table};
use crate::server::host;

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
    marks: Marks,
}

/// The marks of those sequences that have one, in the order of their names.
type Marks = Arc<[(SequenceName, u64)]>;

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
            let (at, table) = (Instant::now(), self.tables.table());
            // Elsewhere: a large table takes its time.
            let Ok(marks) = host::blocking(move || marks(&table)).await else {
                return;
            };
            self.lock().push(Look { at, marks });
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
            let before = then.marks.binary_search_by(|(then, _)| then.cmp(name));
            let before = before.ok().and_then(|place| then.marks.get(place));
            let before = before.map(|(_, high)| *high);
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
    fn push(&mut self, look: Look) {
        self.before = self.last.replace(look);
    }

    fn oldest(&self) -> Option<Look> {
        self.before.as_ref().or(self.last.as_ref()).cloned()
    }
}

fn marks(table: &Table) -> Marks {
    let marked = |(name, sequence): (&SequenceName, &Sequence)| {
        let high = sequence.high?;
        Some((name.clone(), high))
    };
    table.iter().filter_map(marked).collect()
}

/// From where the mark was, or from below the first value.
fn rise(sequence: &Sequence, before: Option<u64>) -> u64 {
    let Some(high) = sequence.high else {
        return 0;
    };
    let below_first = sequence.settings.start().saturating_sub(1);
    high.saturating_sub(before.unwrap_or(below_first))
}
