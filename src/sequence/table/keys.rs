//! Request keys: a request that is repeated under its key gets what it got before (I4).
//!
//! A key is kept for a time that the log itself counts, so that every node forgets it at the same entry. It costs memory for
//! each range that it stands for, which is bounded; where that is used up the oldest goes first, but never one whose
//! request may still be repeated by somebody who waits.

use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use crate::sequence::state_hash::{Part, PartsSum};
use crate::sequence::{EntryId, KeyedAnswer, Refusal, RequestKey};

/// How long a key is kept, in milliseconds of state time.
pub(crate) const KEPT_MS: u64 = 10 * 60 * 1_000;
/// How long it is kept whatever comes, in milliseconds of state time: a request with the default deadline may be repeated as
/// often as that.
pub(crate) const KEPT_MIN_MS: u64 = 15 * 1_000;
/// The most ranges that all keys together stand for; an advance counts as one.
pub(crate) const GRANTS_MAX: usize = 1_000_000;
/// The most keys that one entry forgets because of their age.
const EXPIRED_PER_ENTRY_MAX: usize = 1_000;

/// All keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    by_id: OrdMap<u128, Arc<Kept>>,
    /// The ids, the oldest first.
    by_order: OrdMap<u64, u128>,
    /// The ranges that they stand for.
    grants: usize,
}

/// What is kept of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Its key.
    pub(crate) key: RequestKey,
    /// Rises from each key to the next.
    pub(crate) order: u64,
    /// State time when it was applied, in milliseconds.
    pub(crate) at_ms: u64,
    /// The entry that applied it.
    pub(crate) entry: EntryId,
    /// What it was answered.
    pub(crate) answer: KeyedAnswer,
}

impl Kept {
    fn grants(&self) -> usize {
        match &self.answer {
            KeyedAnswer::Granted(grants) => grants.len(),
            KeyedAnswer::Advanced { .. } => 1,
        }
    }

    fn age_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.at_ms)
    }
}

impl Keys {
    /// All of them, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Kept> {
        let ids = self.by_order.values();
        ids.filter_map(|id| self.by_id.get(id).map(|kept| &**kept))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// What the same request was answered before; `None` where the key is new.
    ///
    /// # Errors
    /// [`Refusal::KeyReused`] where another request was.
    pub(super) fn find(&self, key: RequestKey) -> Result<Option<&Kept>, Refusal> {
        match self.by_id.get(&key.id) {
            Some(kept) if kept.key.request == key.request => Ok(Some(kept)),
            Some(_) => Err(Refusal::KeyReused),
            None => Ok(None),
        }
    }

    /// Forgets what is too old, some of it by each entry.
    pub(super) fn expire(&mut self, now_ms: u64, sum: &mut PartsSum) {
        for _ in 0..EXPIRED_PER_ENTRY_MAX {
            if !self.forget_oldest(KEPT_MS, now_ms, sum) {
                return;
            }
        }
    }

    /// Whether there is room for a key that stands for so many ranges, or can be made.
    ///
    /// # Errors
    /// [`Refusal::TooManyKeys`] where those that would have to go are too young.
    pub(super) fn check_room(&self, grants: usize, now_ms: u64) -> Result<(), Refusal> {
        let mut left = self.grants + grants;
        for kept in self.iter() {
            if left <= GRANTS_MAX {
                break;
            }
            if kept.age_ms(now_ms) < KEPT_MIN_MS {
                return Err(Refusal::TooManyKeys {
                    limit: GRANTS_MAX as u64,
                    seconds: KEPT_MIN_MS / 1_000,
                });
            }
            left -= kept.grants();
        }
        Ok(())
    }

    /// Keeps what a new request was answered, for which there is room. The oldest go for it.
    pub(super) fn keep(
        &mut self,
        key: RequestKey,
        (entry, at_ms): (EntryId, u64),
        answer: KeyedAnswer,
        sum: &mut PartsSum,
    ) {
        let newest = self.by_order.get_max().map_or(0, |(order, _)| *order);
        let kept = Kept {
            key,
            order: newest + 1,
            at_ms,
            entry,
            answer,
        };
        self.restore(kept, sum);
        while GRANTS_MAX < self.grants && self.forget_oldest(KEPT_MIN_MS, at_ms, sum) {}
    }

    /// Puts back one key of a snapshot.
    pub(super) fn restore(&mut self, kept: Kept, sum: &mut PartsSum) {
        self.forget(kept.key.id, sum);
        sum.add(Part::Key(&kept));
        self.grants += kept.grants();
        self.by_order.insert(kept.order, kept.key.id);
        self.by_id.insert(kept.key.id, Arc::new(kept));
    }

    /// Forgets the oldest, if it is at least this old.
    fn forget_oldest(&mut self, age_ms: u64, now_ms: u64, sum: &mut PartsSum) -> bool {
        let oldest = self.by_order.get_min().map(|(_, id)| *id);
        let oldest = oldest.filter(|id| {
            let kept = self.by_id.get(id);
            kept.is_some_and(|kept| age_ms <= kept.age_ms(now_ms))
        });
        oldest.is_some_and(|id| self.forget(id, sum))
    }

    fn forget(&mut self, id: u128, sum: &mut PartsSum) -> bool {
        let Some(kept) = self.by_id.remove(&id) else {
            return false;
        };
        sum.remove(Part::Key(&kept));
        self.grants -= kept.grants();
        self.by_order.remove(&kept.order);
        true
    }
}
