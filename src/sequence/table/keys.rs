//! Request keys: a request that is repeated under its key gets what it got before (I4).
//!
//! A key is kept for a time that the log itself counts, so that every node forgets it at the same entry. It costs memory for
//! each range that it stands for, which is bounded; where that is used up the oldest goes first, but never one whose
//! request may still be repeated by somebody who waits.

use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

#[cfg(test)]
use crate::planted::Bug;
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

    /// How many there are. A snapshot with two of them at one place is found out by it: only one of those is there.
    pub(crate) fn len(&self) -> usize {
        self.by_order.len()
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
            let kept_ms = KEPT_MS;
            #[cfg(test)]
            let kept_ms = if Bug::KeyForgotten.is_planted() {
                500
            } else {
                kept_ms
            };
            if !self.forget_oldest(kept_ms, now_ms, sum) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::testing::{at, batch, outcomes};
    use crate::sequence::{
        Command, GrantPart, Outcome, Position, RangeCount, SequenceName, Settings, Table,
    };

    fn name() -> SequenceName {
        "p".parse().unwrap()
    }

    fn key(id: u128) -> RequestKey {
        RequestKey { id, request: 1 }
    }

    /// So many leases of one value under this key.
    fn leases(key: RequestKey, count: usize) -> Command {
        let part = GrantPart {
            sequence: name(),
            count: RangeCount::ONE,
        };
        Command::GrantAllKeyed {
            key,
            parts: vec![part; count].try_into().unwrap(),
            create: None,
        }
    }

    fn table() -> Table {
        let mut table = Table::default();
        let create = Command::Create {
            sequence: name(),
            settings: Settings::default(),
        };
        run(&mut table, 0, vec![create]);
        table
    }

    /// Applies the commands by one entry, so many milliseconds after the last.
    fn run(table: &mut Table, elapsed_ms: u32, commands: Vec<Command>) -> Vec<Outcome> {
        let place = Position {
            elapsed_ms,
            ..at(7)
        };
        outcomes(table.apply(place, &[batch(commands)])).concat()
    }

    fn pass(table: &mut Table, millis: u64) {
        for _ in 0..millis / 60_000 {
            run(table, 60_000, Vec::new());
        }
        run(table, u32::try_from(millis % 60_000).unwrap(), Vec::new());
    }

    fn high(table: &Table) -> u64 {
        table.get(&name()).unwrap().high.unwrap_or(0)
    }

    #[test]
    fn a_repeated_request_gets_its_first_answer_and_its_entry() {
        let mut table = table();
        let Outcome::GrantedAll { grants } = run(&mut table, 0, vec![leases(key(1), 2)]).remove(0)
        else {
            panic!("not granted");
        };
        run(&mut table, 0, vec![leases(key(2), 1)]);

        let again = table.apply(at(9), &[batch(vec![leases(key(1), 2)])]);

        let answer = KeyedAnswer::Granted(grants);
        let entry = at(7).entry;
        assert_eq!(
            outcomes(again).concat(),
            [Outcome::Replayed { entry, answer }]
        );
        assert_eq!(high(&table), 3);
    }

    #[test]
    fn a_repeated_advance_changes_nothing_more() {
        let mut table = table();
        let advance = |to| Command::AdvanceKeyed {
            key: key(1),
            sequence: name(),
            to,
        };
        run(&mut table, 0, vec![advance(5)]);
        run(&mut table, 0, vec![leases(key(2), 1)]);

        let again = run(&mut table, 0, vec![advance(5)]).remove(0);

        assert!(
            matches!(
                again,
                Outcome::Replayed {
                    answer: KeyedAnswer::Advanced {
                        previous: None,
                        high: Some(5),
                        ..
                    },
                    ..
                }
            ),
            "{again:?}"
        );
    }

    #[test]
    fn another_request_under_a_used_key_is_refused_and_changes_nothing() {
        let mut table = table();
        run(&mut table, 0, vec![leases(key(1), 1)]);
        let before = table.clone();

        let other = RequestKey { id: 1, request: 2 };
        let refused = run(&mut table, 0, vec![leases(other, 1)]);

        assert_eq!(refused, [Outcome::Refused(Refusal::KeyReused)]);
        assert_eq!(table, before);
    }

    #[test]
    fn what_was_refused_may_be_tried_again_under_its_key() {
        let mut table = Table::default();
        let refused = run(&mut table, 0, vec![leases(key(1), 1)]).remove(0);
        assert!(matches!(refused, Outcome::RefusedAt { .. }), "{refused:?}");

        let create = Command::Create {
            sequence: name(),
            settings: Settings::default(),
        };
        let outcomes = run(&mut table, 0, vec![create, leases(key(1), 1)]);

        assert!(
            matches!(outcomes[1], Outcome::GrantedAll { .. }),
            "{outcomes:?}"
        );
    }

    #[test]
    fn a_key_is_kept_for_ten_minutes_of_state_time_and_no_longer() {
        let mut table = table();
        run(&mut table, 0, vec![leases(key(1), 1)]);

        pass(&mut table, KEPT_MS - 1);
        let inside = run(&mut table, 0, vec![leases(key(1), 1)]);
        assert!(
            matches!(inside[..], [Outcome::Replayed { .. }]),
            "{inside:?}"
        );

        let outside = run(&mut table, 1, vec![leases(key(1), 1)]);
        assert!(
            matches!(outside[..], [Outcome::GrantedAll { .. }]),
            "{outside:?}"
        );
        assert_eq!((high(&table), table.keys().len()), (2, 1));
    }

    #[test]
    fn an_entry_forgets_a_thousand_keys_of_those_that_are_too_old() {
        let mut table = table();
        let old = (0..2_500).map(|id| leases(key(id), 1));
        run(&mut table, 0, old.collect());
        pass(&mut table, KEPT_MS - 1);

        let left = [1_500, 500, 0, 0].map(|_| {
            run(&mut table, 1, Vec::new());
            table.keys().len()
        });

        assert_eq!(left, [1_500, 500, 0, 0]);
    }

    /// A table whose keys stand for as many ranges as may be, in this many keys.
    fn full() -> (Table, u128) {
        let mut table = table();
        let keys = GRANTS_MAX / 250;
        for id in 0..keys {
            run(&mut table, 0, vec![leases(key(id as u128), 250)]);
        }
        assert_eq!(table.keys().grants, GRANTS_MAX);
        (table, keys as u128)
    }

    #[test]
    fn under_a_flood_no_key_younger_than_15_seconds_is_forgotten_and_the_next_is_refused() {
        let (mut table, next) = full();
        pass(&mut table, KEPT_MIN_MS - 1);
        let before = table.clone();

        let refused = run(&mut table, 0, vec![leases(key(next), 1)]);

        let limit = GRANTS_MAX as u64;
        let (seconds, refusal) = (15, |seconds| Refusal::TooManyKeys { limit, seconds });
        assert_eq!(refused, [Outcome::Refused(refusal(seconds))]);
        assert_eq!(
            refusal(seconds).to_string(),
            "1000000 keyed grants of the last 15 s are kept already"
        );
        assert_eq!(table, before, "I5");

        // One that is older goes for it, and only that one.
        let granted = run(&mut table, 1, vec![leases(key(next), 250)]);
        assert!(
            matches!(granted[..], [Outcome::GrantedAll { .. }]),
            "{granted:?}"
        );
        assert_eq!(table.keys().grants, GRANTS_MAX);
        assert_eq!(table.keys().find(key(0)), Ok(None));
        assert!(table.keys().find(key(1)).unwrap().is_some());
    }

    #[test]
    fn where_keys_are_used_up_what_is_refused_costs_no_other_its_key() {
        let (mut table, next) = full();
        pass(&mut table, KEPT_MIN_MS);
        let before = table.clone();
        let retire = Command::Retire { sequence: name() };
        run(&mut table, 0, vec![retire]);

        let refused = run(&mut table, 0, vec![leases(key(next), 1)]);

        assert!(
            matches!(refused[..], [Outcome::RefusedAt { .. }]),
            "{refused:?}"
        );
        assert_eq!(table.keys(), before.keys(), "I5");
    }
}
