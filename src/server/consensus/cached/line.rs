//! One sequence's windows: values are taken upwards out of the present one, and then out of the next.

use std::mem;

use tokio::sync::watch;

use crate::sequence::{EntryId, Grant, Outcome, Range, RangeCount, Refusal, Reserved};
use crate::server::metrics::{Loss, WindowMetrics};

/// What values are taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum TakenFor {
    /// They are the answer, once it is proved that the owner still leads.
    Answer,
    /// They go into a command, which is applied only if the reservation is the latest one then.
    Command,
}

/// What those who wait for a window are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// Nothing yet.
    Nothing,
    /// For a lease of so many values it was refused.
    Refused(RangeCount, Refusal),
    /// The disk is full.
    DiskFull,
}

/// What became of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// It is applied by this entry.
    Applied(EntryId, Outcome),
    /// It is not, or nobody knows.
    Lost,
    /// It is not: the disk is full.
    DiskFull,
}

/// One sequence's windows: the present one, the next, and the one that is being reserved.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) present: Option<Window>,
    next: Option<Window>,
    pub(super) reserving: Option<Reserving>,
    /// The last was reserved: nothing is left for a next one.
    is_last: bool,
}

/// A reservation on its way.
#[derive(Debug)]
pub(super) struct Reserving {
    pub(super) ticket: u64,
    pub(super) count: RangeCount,
    pub(super) told: watch::Sender<Told>,
}

/// Values that one entry reserved.
#[derive(Debug)]
pub(super) struct Window {
    entry: EntryId,
    reserved: Reserved,
    /// From here on they are free; `None`: none is.
    pub(super) free: Option<u64>,
}

impl Reply {
    /// How many values were reserved.
    pub(super) fn reserved(&self) -> u64 {
        match self {
            Self::Applied(_, Outcome::Reserved(Reserved { range, .. })) => {
                values_from(range.first(), *range)
            }
            _ => 0,
        }
    }
}

impl Line {
    /// Values that nobody else is given, and the entry that reserved them.
    pub(super) fn take(
        &mut self,
        count: RangeCount,
        taken_for: TakenFor,
        metrics: &WindowMetrics,
    ) -> Option<(Grant, EntryId)> {
        if taken_for == TakenFor::Command {
            // Only of the latest reservation the command could be applied.
            if self.reserving.is_some() {
                return None;
            }
            if self.next.is_some() {
                self.pass_on(metrics);
            }
        }
        if let Some(given) = self.present.as_mut().and_then(|window| window.take(count)) {
            return Some(given);
        }
        let given = self.next.as_mut()?.take(count)?;
        self.pass_on(metrics);
        Some(given)
    }

    /// Goes on with the next window. What is left of the present one is lost, because what comes after has to be higher.
    fn pass_on(&mut self, metrics: &WindowMetrics) {
        let passed = mem::replace(&mut self.present, self.next.take());
        metrics.lost(Loss::Remainder, passed.map_or(0, |window| window.free()));
    }

    /// How many values are free in both windows.
    pub(super) fn free(&self) -> u64 {
        let windows = self.present.iter().chain(&self.next);
        windows.map(Window::free).fold(0, u64::saturating_add)
    }

    /// Whether the next window is to be reserved.
    pub(super) fn is_low(&self) -> bool {
        let is_low = self.present.as_ref().is_none_or(Window::is_low);
        is_low && self.next.is_none() && !self.is_last
    }

    /// The reservation that was on its way has come to its end.
    pub(super) fn settle(&mut self, reply: Reply, metrics: &WindowMetrics) {
        let count = self.reserving.as_ref().map(|reserving| reserving.count);
        let told = match reply {
            Reply::Applied(entry, Outcome::Reserved(reserved)) => {
                let window = Window {
                    entry,
                    reserved,
                    free: Some(reserved.range.first()),
                };
                let place = match &self.present {
                    Some(_) => &mut self.next,
                    None => &mut self.present,
                };
                // There is one already where somebody did not fit into it.
                let passed = place.replace(window);
                metrics.lost(Loss::Remainder, passed.map_or(0, |window| window.free()));
                None
            }
            Reply::Applied(_, Outcome::Refused(refusal)) => {
                self.is_last |= matches!(refusal, Refusal::Exhausted { .. });
                count.map(|count| Told::Refused(count, refusal))
            }
            Reply::Applied(..) | Reply::Lost => None,
            Reply::DiskFull => Some(Told::DiskFull),
        };
        // Without a word its end tells all who wait to ask again.
        if let (Some(reserving), Some(told)) = (self.reserving.take(), told) {
            reserving.told.send_replace(told);
        }
    }
}

impl Window {
    fn take(&mut self, count: RangeCount) -> Option<(Grant, EntryId)> {
        let Reserved {
            range: whole,
            id_form,
            max_lease,
        } = self.reserved;
        let range = Range::starting_at(self.free?, count, whole.increment())
            .filter(|range| range.last() <= whole.last() && count <= max_lease)?;
        self.free = range
            .last()
            .checked_add(whole.increment().get())
            .filter(|next| *next <= whole.last());
        Some((Grant { range, id_form }, self.entry))
    }

    /// Whether less than half of it is free.
    fn is_low(&self) -> bool {
        let whole = self.reserved.range;
        self.free.is_none_or(|free| {
            let used = (free - whole.first()) / whole.increment();
            values_from(free, whole) < used
        })
    }

    /// How many values are free.
    fn free(&self) -> u64 {
        self.free
            .map_or(0, |free| values_from(free, self.reserved.range))
    }
}

/// How many values a range has from this one of them on.
pub(super) fn values_from(first: u64, range: Range) -> u64 {
    ((range.last() - first) / range.increment()).saturating_add(1)
}
