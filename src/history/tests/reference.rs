//! The slow judge: is there any order in which one counter could have answered all this? It tries them all. And the rules
//! one by one, by all pairs of lines.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A counter, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counter {
    /// None where nothing was seen of it yet.
    mark: Option<Option<u64>>,
    keys: BTreeMap<String, (u64, (u64, u64))>,
}

/// The lattice, where there is one that fits all grants.
#[derive(Debug, Clone)]
struct Values {
    start: Option<u64>,
    increment: u64,
    origin: u64,
    /// What each key got, where some answer says so.
    by_key: BTreeMap<String, (u64, u64)>,
}

impl Values {
    fn of(lines: &[Line]) -> Option<Self> {
        let start = lines
            .iter()
            .filter_map(|line| match line.operation {
                Operation::Read(Mark {
                    high: None, start, ..
                })
                | Operation::FinalRead(Mark {
                    high: None, start, ..
                }) => start,
                _ => None,
            })
            .min();
        let grants = lines.iter().filter_map(granted);
        let mut values = None;
        for (key, first, last, count, increment) in grants {
            let known = values.get_or_insert_with(|| Self {
                start,
                increment,
                origin: start.unwrap_or(first),
                by_key: BTreeMap::new(),
            });
            if let Some(key) = key {
                known.by_key.insert(key.clone(), (first, last));
            }
            let is_range =
                increment != 0 && first.checked_add((count - 1) * increment) == Some(last);
            let is_on = increment == known.increment
                && first % increment == known.origin % increment
                && start.is_none_or(|start| start <= first);
            if !is_range || !is_on {
                return None;
            }
        }
        values
    }

    fn next(&self, mark: Option<u64>) -> u64 {
        let from = mark.map_or(0, |mark| mark + 1).max(self.start.unwrap_or(0));
        (from..)
            .find(|value| value % self.increment == self.origin % self.increment)
            .unwrap()
    }
}

type Granted<'a> = (Option<&'a String>, u64, u64, u64, u64);

fn granted(line: &Line) -> Option<Granted<'_>> {
    match &line.operation {
        Operation::Lease {
            count,
            key,
            outcome:
                LeaseOutcome::Granted {
                    first,
                    last,
                    increment,
                },
        } => Some((
            key.as_ref(),
            *first,
            *last,
            u64::from(count.get()),
            *increment,
        )),
        _ => None,
    }
}

impl Counter {
    /// The counter after this line, if it can have answered so.
    fn after(&self, line: &Line, values: &Values) -> Option<Self> {
        let mut after = self.clone();
        match &line.operation {
            Operation::Lease {
                count,
                key,
                outcome,
            } => {
                let count = u64::from(count.get());
                let kept = key.as_ref().and_then(|key| self.keys.get(key));
                let range = match outcome {
                    LeaseOutcome::Granted { first, last, .. } => Some((*first, *last)),
                    LeaseOutcome::Unknown => None,
                    LeaseOutcome::NotApplied => return Some(after),
                };
                if let Some((asked, kept)) = kept {
                    let same = range.is_none_or(|range| range == *kept && count == *asked);
                    return same.then_some(after);
                }
                let given = match self.mark {
                    Some(mark) => {
                        let first = values.next(mark);
                        Some((first, first + (count - 1) * values.increment))
                    }
                    // Whatever was before, an answer tells, or one to a retry.
                    None => {
                        let by_key = key.as_ref().and_then(|key| values.by_key.get(key));
                        range.or(by_key.copied())
                    }
                };
                if range.is_some_and(|range| given != Some(range)) {
                    return None;
                }
                if let Some(given) = given {
                    after.mark = Some(Some(given.1));
                    if let Some(key) = key {
                        after.keys.insert(key.clone(), (count, given));
                    }
                }
            }
            Operation::Read(Mark { high, .. }) | Operation::FinalRead(Mark { high, .. }) => {
                after.mark = Some(*high);
                return (self.mark.is_none() || self.mark == after.mark).then_some(after);
            }
            Operation::Advance { to, outcome } => match outcome {
                AdvanceOutcome::Advanced { previous, high } => {
                    after.mark = Some(Some(*high));
                    let fits = self.mark.is_none() || self.mark == Some(*previous);
                    let is_right = (*previous).max(Some(*to)) == Some(*high);
                    return (fits && is_right).then_some(after);
                }
                AdvanceOutcome::Unknown => {
                    after.mark = self.mark.map(|mark| mark.max(Some(*to)));
                }
                AdvanceOutcome::NotApplied => {}
            },
        }
        Some(after)
    }
}

fn is_answered(line: &Line) -> bool {
    !matches!(
        &line.operation,
        Operation::Lease {
            outcome: LeaseOutcome::Unknown,
            ..
        } | Operation::Advance {
            outcome: AdvanceOutcome::Unknown,
            ..
        }
    )
}

/// Whether the lines that are left can follow.
fn can_follow(counter: &Counter, left: &[&Line], values: &Values) -> bool {
    if !left.iter().any(|line| is_answered(line)) {
        return true;
    }
    (0..left.len()).any(|index| {
        let next = left[index];
        let rest: Vec<&Line> = [&left[..index], &left[index + 1..]].concat();
        let waits = rest
            .iter()
            .any(|other| is_answered(other) && other.received_ns < next.sent_ns);
        !waits
            && counter
                .after(next, values)
                .is_some_and(|after| can_follow(&after, &rest, values))
    })
}

fn slow_verdict(lines: &[Line]) -> Verdict {
    let nothing = Counter {
        mark: None,
        keys: BTreeMap::new(),
    };
    let lines_left: Vec<&Line> = lines.iter().collect();
    match Values::of(lines) {
        Some(values) if can_follow(&nothing, &lines_left, &values) => Verdict::Holds,
        _ => Verdict::Violated,
    }
}

/// What was asked of a counter.
#[derive(Debug, Clone)]
struct Asked {
    sent: u64,
    took: u64,
    /// When it was carried out, from the first moment to the last.
    done_at: u64,
    what: What,
    answered: bool,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Lease { count: u64, key: Option<u8> },
    Read,
    FinalRead,
    Advance { by: u64 },
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        6 => (1..4_u64).prop_map(|count| What::Lease { count, key: None }),
        3 => (0..2_u8).prop_map(|key| What::Lease { count: u64::from(key) + 1, key: Some(key) }),
        3 => Just(What::Read),
        1 => Just(What::FinalRead),
        1 => (0..6_u64).prop_map(|by| What::Advance { by }),
    ]
}

prop_compose! {
    fn asked()(
        sent in 0..12_u64,
        took in 0..6_u64,
        done_at in 0..6_u64,
        what in what(),
        answered in prop::bool::weighted(0.75),
    ) -> Asked {
        Asked { sent, took, done_at: sent + done_at.min(took), what, answered }
    }
}

/// What a counter answers that carries out everything at its moment.
fn served(asked: &[Asked], start: u64, increment: u64) -> Vec<Line> {
    let mut by_time = asked.to_vec();
    by_time.sort_by_key(|asked| asked.done_at);
    let values = Values {
        start: Some(start),
        increment,
        origin: start,
        by_key: BTreeMap::new(),
    };
    let mut mark: Option<u64> = None;
    let mut keys: BTreeMap<u8, (u64, u64)> = BTreeMap::new();
    let answer = |asked: Asked| {
        let times = (asked.sent, asked.sent + asked.took);
        match asked.what {
            What::Lease { count, key } => {
                let kept = key.and_then(|key| keys.get(&key).copied());
                let (first, last) = kept.unwrap_or_else(|| {
                    let first = values.next(mark);
                    let last = first + (count - 1) * increment;
                    mark = Some(last);
                    (first, last)
                });
                if let Some(key) = key {
                    keys.insert(key, (first, last));
                }
                let line = if asked.answered {
                    stepped(times, (first, last), increment)
                } else {
                    unknown(times, count)
                };
                match key {
                    Some(key) => keyed(line, &key.to_string()),
                    None => line,
                }
            }
            What::Read | What::FinalRead => {
                let shown = Mark {
                    high: mark,
                    start: mark.is_none().then_some(start),
                    cached: false,
                };
                if matches!(asked.what, What::Read) {
                    operation(times, Operation::Read(shown))
                } else {
                    operation(times, Operation::FinalRead(shown))
                }
            }
            What::Advance { by } => {
                let previous = mark;
                let to = mark.unwrap_or(start) + by;
                mark = mark.max(Some(to));
                if asked.answered {
                    advance(times, to, previous, mark.unwrap())
                } else {
                    unknown_advance(times, to)
                }
            }
        }
    };
    by_time.into_iter().map(answer).collect()
}

/// A fault in a history.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    Dropped,
    Twice,
    Shifted(i64),
    Sent(i64),
    Received(i64),
}

fn fault() -> impl Strategy<Value = Fault> {
    let by = prop::sample::select(vec![-4, -2, -1, 1, 2, 4_i64]);
    prop_oneof![
        2 => Just(Fault::None),
        1 => Just(Fault::Dropped),
        1 => Just(Fault::Twice),
        3 => by.clone().prop_map(Fault::Shifted),
        2 => by.clone().prop_map(Fault::Sent),
        2 => by.prop_map(Fault::Received),
    ]
}

fn planted(mut lines: Vec<Line>, fault: Fault, place: prop::sample::Index) -> Vec<Line> {
    if lines.is_empty() {
        return lines;
    }
    let place = place.index(lines.len());
    let moved = |value: &mut u64, by: i64| *value = value.saturating_add_signed(by);
    match fault {
        Fault::None => {}
        Fault::Dropped => drop(lines.remove(place)),
        Fault::Twice => lines.push(lines[place].clone()),
        Fault::Sent(by) => {
            let line = &mut lines[place];
            moved(&mut line.sent_ns, by);
            line.sent_ns = line.sent_ns.min(line.received_ns);
        }
        Fault::Received(by) => {
            let line = &mut lines[place];
            moved(&mut line.received_ns, by);
            line.received_ns = line.received_ns.max(line.sent_ns);
        }
        Fault::Shifted(by) => match &mut lines[place].operation {
            Operation::Lease {
                outcome: LeaseOutcome::Granted { first, last, .. },
                ..
            } => {
                moved(first, by);
                moved(last, by);
            }
            Operation::Lease { .. } => {}
            Operation::Read(mark) | Operation::FinalRead(mark) => {
                if let Some(high) = &mut mark.high {
                    moved(high, by);
                }
            }
            Operation::Advance { outcome, .. } => {
                if let AdvanceOutcome::Advanced { previous, high } = outcome {
                    moved(high, by);
                    if let Some(previous) = previous {
                        moved(previous, by);
                    }
                }
            }
        },
    }
    lines
}

prop_compose! {
    /// A history of a counter, mostly with a fault.
    pub(super) fn history()(
        asked in prop::collection::vec(asked(), 0..8),
        start in 0..3_u64,
        increment in prop::sample::select(vec![1, 1, 3_u64]),
        faults in prop::collection::vec((fault(), any::<prop::sample::Index>()), 1..3),
    ) -> Vec<Line> {
        faults
            .into_iter()
            .fold(served(&asked, start, increment), |lines, (fault, place)| planted(lines, fault, place))
    }
}

// The rules one by one.

struct Pairs<'a> {
    lines: &'a [Line],
}

impl Pairs<'_> {
    /// How many lines have some other line to which they stand so.
    fn count(&self, bad: impl Fn(&Line, &Line) -> bool) -> u64 {
        let others = |index: usize| {
            let (before, after) = self.lines.split_at(index);
            before.iter().chain(&after[1..])
        };
        let bad = (0..self.lines.len())
            .filter(|index| others(*index).any(|other| bad(other, &self.lines[*index])));
        u64::try_from(bad.count()).unwrap()
    }
}

fn before(earlier: &Line, later: &Line) -> bool {
    earlier.received_ns < later.sent_ns
}

/// The range of a grant.
fn range(line: &Line) -> Option<(u64, u64)> {
    granted(line).map(|(_, first, last, ..)| (first, last))
}

/// What a read shows.
fn mark(line: &Line) -> Option<u64> {
    match line.operation {
        Operation::Read(Mark { high, .. }) => high,
        _ => None,
    }
}

prop_compose! {
    fn any_line()(
        (sent, took, first, more) in (0..12_u64, 0..6_u64, 0..30_u64, 0..4_u64),
        is_read in any::<bool>(),
    ) -> Line {
        if is_read {
            read((sent, sent + took), first)
        } else {
            grant((sent, sent + took), first, first + more)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_checker_agrees_with_the_slow_judge(lines in history()) {
        let report = check(&lines);

        let slow = slow_verdict(&lines);
        if slow == Verdict::Holds || (report.gaps_undecided == 0 && lines.iter().any(Line::is_grant)) {
            prop_assert_eq!(report.verdict(), slow, "{}{:#?}", text(&lines), report);
        }
    }

    #[test]
    fn each_rule_counts_what_all_pairs_show(lines in prop::collection::vec(any_line(), 0..9)) {
        let report = check_by(GapRule::Allowed, &lines);
        let pairs = Pairs { lines: &lines };

        let overlapping = |one: &Line, other: &Line| match (range(one), range(other)) {
            (Some(one), Some(other)) => one.0 <= other.1 && other.0 <= one.1,
            _ => false,
        };
        let below_a_grant = |earlier: &Line, later: &Line| match (range(earlier), range(later)) {
            (Some(earlier_range), Some(later_range)) => before(earlier, later) && later_range.0 <= earlier_range.1,
            _ => false,
        };
        let stale = |earlier: &Line, later: &Line| match (range(earlier).map(|range| range.1).or(mark(earlier)), mark(later)) {
            (Some(shown), Some(later_mark)) => before(earlier, later) && later_mark < shown,
            _ => false,
        };
        prop_assert_eq!(report.overlaps > 0, pairs.count(overlapping) > 0);
        prop_assert_eq!(report.order_violations, pairs.count(below_a_grant));
        prop_assert_eq!(report.read_violations, pairs.count(stale));
    }

    #[test]
    fn what_a_correct_counter_answers_holds(
        asked in prop::collection::vec(asked(), 0..40),
        (start, increment) in (0..9_u64, 1..9_u64),
    ) {
        let lines = served(&asked, start, increment);

        let report = check(&lines);

        prop_assert_eq!(report.verdict(), Verdict::Holds, "{}{:#?}", text(&lines), report);
    }
}
