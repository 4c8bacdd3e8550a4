//! The windows of a leadership: what it reserved in the log, and which of those values are free.
//!
//! All of them belong to one leadership, and go with it: a later one of the same node has none of them, because others may
//! have granted higher values between the two. A window goes also as soon as anything else is proposed for its sequence,
//! and with it the reservation that is on its way. So a window that is here was reserved after everything else that this
//! leadership proposed for the sequence, and values only rise (I2).

use std::collections::BTreeMap;
use std::mem;

use tokio::sync::watch;

use super::line::{Line, Reply, Reserving, TakenFor, Told};
#[cfg(test)]
use crate::planted::Bug;
use crate::sequence::{Command, EntryId, Grant, GrantPart, RangeCount, SequenceName};
use crate::server::metrics::{Loss, WindowMetrics};
use crate::server::types::Leadership;

/// The most sequences that have windows here. Where there are more, those that were not used for longest lose theirs.
pub(super) const LINES_MAX: usize = 65_536;

/// What became of the wish for values.
#[derive(Debug)]
pub(super) enum Taking {
    /// These, of the window that this entry reserved. Nobody else gets them.
    Given(Grant, EntryId),
    /// The sequence has no windows.
    NotCached,
    /// Nothing is free: this tells when to ask again, by its end, or why that is no use.
    Waits(watch::Receiver<Told>),
    /// Another leadership owns the windows.
    NotOwner,
}

/// A reservation to be proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    ticket: u64,
    pub(super) sequence: SequenceName,
    pub(super) count: RangeCount,
}

/// All windows of the present leadership.
#[derive(Debug, Default)]
pub(super) struct Windows {
    metrics: WindowMetrics,
    owner: Option<Leadership>,
    /// Used lately.
    lines: BTreeMap<SequenceName, Line>,
    /// Not used since there were half as many as may be.
    older: BTreeMap<SequenceName, Line>,
    wishes: Wishes,
}

/// Reservations that were not proposed yet.
#[derive(Debug, Default)]
struct Wishes {
    waiting: Vec<Wish>,
    /// Of the last one. No two have the same.
    ticket: u64,
}

impl Windows {
    /// None yet, counted here.
    pub(super) fn new(metrics: WindowMetrics) -> Self {
        Self {
            metrics,
            ..Self::default()
        }
    }

    /// Takes values for a lease. `is_cached` tells of a sequence that has no window whether it may have one.
    pub(super) fn take(
        &mut self,
        owner: Leadership,
        GrantPart { sequence, count }: &GrantPart,
        taken_for: TakenFor,
        is_cached: impl FnOnce() -> bool,
    ) -> Taking {
        if self.owner != Some(owner) {
            if Some(owner) < self.owner {
                return Taking::NotOwner;
            }
            self.begin(owner);
        }
        if !self.lines.contains_key(sequence) {
            match self.older.remove(sequence) {
                Some(line) => self.insert(sequence, line),
                None if is_cached() => self.insert(sequence, Line::default()),
                None => return Taking::NotCached,
            }
        }
        let Some(line) = self.lines.get_mut(sequence) else {
            return Taking::NotCached;
        };
        if let Some((grant, entry)) = line.take(*count, taken_for, &self.metrics) {
            // Not for a command: the next reservation would end the window that it is of.
            if taken_for == TakenFor::Answer && line.reserving.is_none() && line.is_low() {
                line.reserving = Some(self.wishes.add(sequence, RangeCount::ONE));
            }
            return Taking::Given(grant, entry);
        }
        let wish = || self.wishes.add(sequence, *count);
        let reserving = line.reserving.get_or_insert_with(wish);
        Taking::Waits(reserving.told.subscribe())
    }

    /// Ends the windows of all that these commands change. It comes before the commands are proposed, and in the order in
    /// which they are.
    pub(super) fn close(&mut self, commands: &[Command]) {
        if self.lines.is_empty() && self.older.is_empty() {
            return;
        }
        for command in commands {
            #[cfg(test)]
            if Bug::WindowOpenAfterAdvance.is_planted()
                && matches!(command, Command::Advance { .. })
            {
                continue;
            }
            command.each_closed(|sequence| {
                let lines = [&mut self.lines, &mut self.older].into_iter();
                let ended = lines.filter_map(|lines| lines.remove(sequence)).next();
                self.metrics
                    .lost(Loss::Command, ended.map_or(0, |line| line.free()));
            });
        }
    }

    /// Ends all windows but those of the present leadership.
    pub(super) fn end_former(&mut self, present: Option<Leadership>) {
        if let Some(owner) = self.owner.filter(|owner| Some(*owner) != present) {
            self.begin(owner);
        }
    }

    /// Whether there is something to propose.
    pub(super) fn has_wishes(&self) -> bool {
        !self.wishes.waiting.is_empty()
    }

    /// Reservations that are still wanted, so many at most, and under which leadership.
    pub(super) fn wishes(&mut self, most: usize) -> Option<(Leadership, Vec<Wish>)> {
        let owner = self.owner?;
        let wishes = mem::take(&mut self.wishes.waiting);
        let mut wanted: Vec<Wish> = wishes.into_iter().filter(|wish| self.wants(wish)).collect();
        self.wishes.waiting = wanted.split_off(most.min(wanted.len()));
        (!wanted.is_empty()).then_some((owner, wanted))
    }

    /// A reservation that was proposed under this leadership has come to its end.
    pub(super) fn settle(&mut self, owner: Leadership, wish: &Wish, reply: Reply) {
        let is_wanted = self.owner == Some(owner) && self.wants(wish);
        let reserved = reply.reserved();
        self.metrics.reserved(reserved);
        #[cfg(test)]
        let is_wanted = is_wanted || Bug::LateReservation.is_planted();
        let lines = [&mut self.lines, &mut self.older].into_iter();
        let line = lines
            .filter_map(|lines| lines.get_mut(&wish.sequence))
            .next();
        let Some(line) = line.filter(|_| is_wanted) else {
            // Whatever it came to, somebody may have been given higher values since.
            tracing::debug!(sequence = %wish.sequence, ?reply, "a reservation came too late");
            self.metrics.lost(Loss::Late, reserved);
            return;
        };
        line.settle(reply, &self.metrics);
    }

    /// A leadership begins with nothing.
    fn begin(&mut self, owner: Leadership) {
        #[cfg(test)]
        if Bug::WindowsKept.is_planted() {
            self.owner = Some(owner);
            return;
        }
        let lines = mem::take(&mut self.lines).into_values();
        let ended = lines.chain(mem::take(&mut self.older).into_values());
        self.lose(Loss::Leadership, ended);
        self.wishes.waiting.clear();
        self.owner = Some(owner);
    }

    /// Of two halves the one that was not used for longer goes.
    fn insert(&mut self, sequence: &SequenceName, line: Line) {
        if LINES_MAX / 2 <= self.lines.len() {
            let unused = mem::replace(&mut self.older, mem::take(&mut self.lines));
            self.lose(Loss::Unused, unused.into_values());
        }
        self.lines.insert(sequence.clone(), line);
    }

    fn lose(&self, loss: Loss, ended: impl Iterator<Item = Line>) {
        let free = ended.map(|line| line.free()).fold(0, u64::saturating_add);
        self.metrics.lost(loss, free);
    }

    fn wants(&self, wish: &Wish) -> bool {
        let line = self
            .lines
            .get(&wish.sequence)
            .or_else(|| self.older.get(&wish.sequence));
        let reserving = line.and_then(|line| line.reserving.as_ref());
        reserving.is_some_and(|reserving| reserving.ticket == wish.ticket)
    }

    /// How many sequences have a line.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lines.len() + self.older.len()
    }

    /// Has values given again from this one on.
    #[cfg(test)]
    pub(super) fn give_again(&mut self, sequence: &SequenceName, first: u64) {
        let line = self.lines.get_mut(sequence);
        if let Some(window) = line.and_then(|line| line.present.as_mut()) {
            window.free = window.free.map(|free| free.min(first));
        }
    }
}

impl Wishes {
    fn add(&mut self, sequence: &SequenceName, count: RangeCount) -> Reserving {
        self.ticket += 1;
        let ticket = self.ticket;
        self.waiting.push(Wish {
            ticket,
            sequence: sequence.clone(),
            count,
        });
        Reserving {
            ticket,
            count,
            told: watch::Sender::new(Told::Nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use openraft::vote::RaftLeaderId as _;

    use super::super::line::values_from;
    use super::*;
    use crate::sequence::{
        Changes, GrantParts, IdForm, Outcome, Range, Refusal, RequestKey, Reserved,
    };

    fn name(text: &str) -> SequenceName {
        text.parse().unwrap()
    }

    fn count(count: u32) -> RangeCount {
        RangeCount::constant(count)
    }

    fn leadership(term: u64, node: u64) -> Leadership {
        Leadership::new(term, node.into())
    }

    fn part(of: u32) -> GrantPart {
        GrantPart {
            sequence: name("p"),
            count: count(of),
        }
    }

    /// The entry at this index, which reserved these values.
    fn reserved(index: u64, first: u64, last: u64) -> Reply {
        let entry = EntryId { term: 1, index };
        let reserved = Reserved {
            range: Range::from_bounds(first, last, 1.try_into().unwrap()).unwrap(),
            id_form: IdForm::Number,
            max_lease: count(50),
        };
        Reply::Applied(entry, Outcome::Reserved(reserved))
    }

    /// Windows of node 1 in term 1, which takes from `p`. All that they reserve is given, lost or free.
    struct World(Windows, u64);

    impl Drop for World {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                let Self(
                    Windows {
                        metrics,
                        lines,
                        older,
                        ..
                    },
                    given,
                ) = self;
                let free: u64 = lines.values().chain(older.values()).map(Line::free).sum();
                let lost = metrics.count_lost(&Loss::ALL);
                assert_eq!(metrics.count_reserved(), *given + lost + free);
            }
        }
    }

    impl World {
        fn new() -> Self {
            Self(Windows::default(), 0)
        }

        /// With a window of these values, of the entry 5.
        fn with(first: u64, last: u64) -> Self {
            let mut world = Self::new();
            world.waits(1);
            world.reserve(reserved(5, first, last));
            world
        }

        fn take_by(&mut self, owner: Leadership, of: u32, taken_for: TakenFor) -> Taking {
            let taking = self.0.take(owner, &part(of), taken_for, || true);
            if let Taking::Given(grant, _) = &taking {
                self.1 += values_from(grant.range.first(), grant.range);
            }
            taking
        }

        #[track_caller]
        fn has_lost(&self, loss: Loss, values: u64) {
            assert_eq!(self.0.metrics.count_lost(&[loss]), values);
            assert_eq!(self.0.metrics.count_lost(&Loss::ALL), values, "{loss:?}");
        }

        fn take(&mut self, of: u32, taken_for: TakenFor) -> Taking {
            self.take_by(leadership(1, 1), of, taken_for)
        }

        #[track_caller]
        fn given(&mut self, of: u32) -> (u64, u64, u64) {
            given(self.take(of, TakenFor::Answer))
        }

        #[track_caller]
        fn waits(&mut self, of: u32) -> watch::Receiver<Told> {
            waits(self.take(of, TakenFor::Answer))
        }

        fn wishes(&mut self) -> Vec<Wish> {
            self.0
                .wishes(100)
                .map(|(_, wishes)| wishes)
                .unwrap_or_default()
        }

        #[track_caller]
        fn wish(&mut self) -> Wish {
            let mut wishes = self.wishes();
            assert_eq!(wishes.len(), 1, "{wishes:?}");
            wishes.remove(0)
        }

        /// The only wish comes to this.
        #[track_caller]
        fn reserve(&mut self, reply: Reply) {
            let wish = self.wish();
            self.0.settle(leadership(1, 1), &wish, reply);
        }
    }

    #[track_caller]
    fn given(taking: Taking) -> (u64, u64, u64) {
        match taking {
            Taking::Given(grant, entry) => (grant.range.first(), grant.range.last(), entry.index),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn waits(taking: Taking) -> watch::Receiver<Told> {
        match taking {
            Taking::Waits(told) => told,
            other => panic!("{other:?}"),
        }
    }

    fn advance(to: u64) -> Command {
        Command::Advance {
            sequence: name("p"),
            to,
        }
    }

    #[test]
    fn values_of_a_window_are_given_once_and_upwards() {
        let mut world = World::with(1, 100);

        assert_eq!(world.given(3), (1, 3, 5));
        assert_eq!(world.given(1), (4, 4, 5));
        assert_eq!(world.given(40), (5, 44, 5));
        assert!(world.wishes().is_empty(), "half of it is left");
    }

    #[test]
    fn a_sequence_without_a_cache_has_no_line() {
        let mut windows = Windows::default();

        let taking = windows.take(leadership(1, 1), &part(1), TakenFor::Answer, || false);

        assert!(matches!(taking, Taking::NotCached), "{taking:?}");
        assert_eq!(windows.len(), 0);
    }

    #[test]
    fn the_next_window_is_reserved_while_half_of_the_present_one_is_left() {
        let mut world = World::with(1, 10);
        world.given(5);
        assert!(world.wishes().is_empty());

        assert_eq!(world.given(1), (6, 6, 5));
        world.reserve(reserved(6, 11, 20));

        assert_eq!(world.given(4), (7, 10, 5));
        assert_eq!(world.given(2), (11, 12, 6));
        assert!(world.wishes().is_empty());
    }

    #[test]
    fn what_is_left_of_a_window_is_lost_once_a_higher_value_was_given() {
        let mut world = World::with(1, 10);
        world.given(8);
        world.reserve(reserved(6, 11, 20));

        assert_eq!(world.given(3), (11, 13, 6));
        assert_eq!(world.given(2), (14, 15, 6), "I2: 9 and 10 are below");
        world.has_lost(Loss::Remainder, 2);
    }

    #[test]
    fn who_does_not_fit_waits_for_a_reservation_and_those_who_come_meanwhile_share_it() {
        let mut world = World::with(1, 4);
        world.given(2);
        let mut first = world.waits(20);
        let mut second = world.waits(7);
        assert_eq!(world.wish().count, count(20));
        assert_eq!(world.given(2), (3, 4, 5), "what fits goes on");
        assert!(first.has_changed().is_ok_and(|told| !told));

        let ticket = world.0.wishes.ticket;
        let wish = Wish {
            ticket,
            sequence: name("p"),
            count: count(20),
        };
        world.0.settle(leadership(1, 1), &wish, reserved(6, 5, 30));

        assert!(first.has_changed().is_err() && second.has_changed().is_err());
        assert_eq!(*first.borrow_and_update(), Told::Nothing);
        assert_eq!(*second.borrow_and_update(), Told::Nothing);
        assert_eq!(world.given(20), (5, 24, 6));
    }

    #[test]
    fn a_lease_above_the_largest_is_refused_by_the_log_and_not_by_a_window() {
        let mut world = World::with(1, 100);
        let told = world.waits(51);
        let refusal = Refusal::LeaseTooLarge {
            asked: count(51),
            limit: count(50),
        };

        world.reserve(Reply::Applied(
            EntryId { term: 1, index: 6 },
            Outcome::Refused(refusal.clone()),
        ));

        assert_eq!(*told.borrow(), Told::Refused(count(51), refusal));
        assert_eq!(world.given(1), (1, 1, 5), "the window stays");
    }

    #[test]
    fn where_no_value_is_left_none_is_reserved_ahead_again() {
        let mut world = World::with(1, 10);
        world.given(6);
        let refusal = Refusal::Exhausted {
            asked: RangeCount::ONE,
            left: 0,
        };
        let refused = || {
            let entry = EntryId { term: 1, index: 6 };
            Reply::Applied(entry, Outcome::Refused(refusal.clone()))
        };
        world.reserve(refused());

        assert_eq!(world.given(3), (7, 9, 5));
        assert!(world.wishes().is_empty());
        let told = world.waits(2);
        assert_eq!(world.wish().count, count(2), "the log tells");
        drop(told);
    }

    #[test]
    fn any_other_command_on_a_sequence_ends_its_windows_before_it_is_proposed() {
        let sequence = name("p");
        let parts = GrantParts::from(part(1));
        let key = RequestKey { id: 1, request: 2 };
        let changes = Changes::default();
        for command in [
            advance(5),
            Command::Grant {
                sequence: name("p"),
                count: count(1),
            },
            Command::Alter {
                sequence: name("p"),
                changes,
            },
            Command::GrantAllKeyed {
                key,
                parts,
                create: None,
            },
            Command::Retire { sequence },
        ] {
            let mut world = World::with(1, 100);

            world.0.close(&[advance_of("q"), command.clone()]);

            let told = world.waits(1);
            drop(told);
            assert_eq!(world.wish().count, count(1), "{command:?}");
            world.has_lost(Loss::Command, 100);
        }
    }

    fn advance_of(text: &str) -> Command {
        Command::Advance {
            sequence: name(text),
            to: 5,
        }
    }

    #[test]
    fn a_reservation_that_was_proposed_before_another_command_opens_nothing() {
        let mut world = World::new();
        let told = world.waits(1);
        let wish = world.wish();
        world.0.close(&[advance(1_000)]);
        assert!(told.has_changed().is_err(), "who waits asks again");
        let _again = world.waits(1);

        world.0.settle(leadership(1, 1), &wish, reserved(5, 1, 100));

        let _waits = world.waits(1);
        world.reserve(reserved(7, 1_001, 1_100));
        assert_eq!(world.given(1), (1_001, 1_001, 7));
        world.has_lost(Loss::Late, 100);
    }

    #[test]
    fn a_later_leadership_of_the_same_node_has_none_of_the_windows() {
        for later in [leadership(3, 1), leadership(2, 1)] {
            let mut world = World::with(1, 100);
            world.given(1);

            let taking = world.take_by(later, 1, TakenFor::Answer);

            drop(waits(taking));
            // And who still believes in the earlier one gets nothing.
            let taking = world.take(1, TakenFor::Answer);
            assert!(matches!(taking, Taking::NotOwner), "{taking:?}");
            world.has_lost(Loss::Leadership, 99);
        }
    }

    #[test]
    fn the_windows_of_a_leadership_that_is_over_end_without_a_lease() {
        for present in [None, Some(leadership(2, 2)), Some(leadership(3, 1))] {
            let mut world = World::with(1, 100);
            world.0.end_former(Some(leadership(1, 1)));
            assert_eq!(world.given(1), (1, 1, 5));

            world.0.end_former(present);

            world.has_lost(Loss::Leadership, 99);
            drop(world.waits(1));
        }
    }

    #[test]
    fn who_fits_into_neither_window_has_the_second_one_lost() {
        let mut world = World::with(1, 10);
        world.given(8);
        world.reserve(reserved(6, 11, 20));
        drop(world.waits(12));

        world.reserve(reserved(7, 21, 40));

        world.has_lost(Loss::Remainder, 10);
        assert_eq!(world.given(2), (9, 10, 5));
        assert_eq!(world.given(12), (21, 32, 7));
    }

    #[test]
    fn windows_of_the_most_values_are_counted_and_not_overflown() {
        let mut world = World::with(0, u64::MAX);

        world.0.close(&[advance(1)]);

        world.has_lost(Loss::Command, u64::MAX);
    }

    #[test]
    fn another_leader_of_the_same_term_is_another_leadership() {
        let mut world = World::with(1, 100);

        drop(waits(world.take_by(leadership(1, 2), 1, TakenFor::Answer)));
    }

    #[test]
    fn a_late_reservation_of_an_earlier_leadership_opens_nothing() {
        let mut world = World::new();
        let _told = world.waits(1);
        let wish = world.wish();
        let later = leadership(3, 1);
        let _told = waits(world.take_by(later, 1, TakenFor::Answer));

        world.0.settle(leadership(1, 1), &wish, reserved(5, 1, 100));

        drop(waits(world.take_by(later, 1, TakenFor::Answer)));
    }

    #[test]
    fn for_a_command_only_the_latest_window_will_do() {
        let mut world = World::with(1, 10);
        world.given(6);
        let wish = world.wish();
        drop(waits(world.take(1, TakenFor::Command)));

        world.0.settle(leadership(1, 1), &wish, reserved(6, 11, 20));

        assert_eq!(given(world.take(9, TakenFor::Command)), (11, 19, 6));
        assert!(world.wishes().is_empty(), "another would end this one");
        assert_eq!(world.given(1), (20, 20, 6), "I2: 7 is below");
    }

    #[test]
    fn what_no_reservation_came_of_is_asked_for_again_and_a_full_disk_is_told() {
        let mut world = World::new();
        let told = world.waits(1);
        world.reserve(Reply::Lost);
        assert!(told.has_changed().is_err());

        let told = world.waits(1);
        world.reserve(Reply::DiskFull);
        assert_eq!(*told.borrow(), Told::DiskFull);
    }

    #[test]
    fn so_many_sequences_have_windows_and_those_that_were_used_last_keep_theirs() {
        let mut world = World::with(1, 100);
        let owner = leadership(1, 1);
        let mut take = |number: usize| {
            let sequence = name(&format!("s{number}"));
            let count = RangeCount::ONE;
            let part = GrantPart { sequence, count };
            drop(world.0.take(owner, &part, TakenFor::Answer, || true));
            assert!(world.0.len() <= LINES_MAX);
        };
        (0..LINES_MAX / 2).for_each(&mut take);
        assert_eq!(world.given(1), (1, 1, 5), "it was used in the older half");

        let mut take = |number: usize| {
            let sequence = name(&format!("s{number}"));
            let count = RangeCount::ONE;
            let part = GrantPart { sequence, count };
            drop(world.0.take(owner, &part, TakenFor::Answer, || true));
            assert!(world.0.len() <= LINES_MAX);
        };
        (LINES_MAX / 2..2 * LINES_MAX).for_each(&mut take);

        world.has_lost(Loss::Unused, 99);
        drop(world.waits(1));
    }

    #[test]
    fn wishes_are_proposed_so_many_at_once_and_none_that_nobody_has_any_more() {
        let mut windows = Windows::default();
        let owner = leadership(1, 1);
        for number in 0..5 {
            let sequence = name(&format!("s{number}"));
            let count = RangeCount::ONE;
            let part = GrantPart { sequence, count };
            drop(windows.take(owner, &part, TakenFor::Answer, || true));
        }
        windows.close(&[advance_of("s1")]);

        let mut names = || {
            let wishes = windows.wishes(3).map(|(_, wishes)| wishes);
            let wishes = wishes.unwrap_or_default().into_iter();
            wishes
                .map(|wish| wish.sequence.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(), ["s0", "s2", "s3"]);
        assert_eq!(names(), ["s4"]);
        assert!(names().is_empty());
    }
}
