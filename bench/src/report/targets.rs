//! The project's own targets beside what was measured.

use super::data::{Ending, Failover, LimitKind, Load, Run, Subject, Work};
use super::figures::{Spread, number, quantile};
use super::tables::{self, starts_by_table, works};

/// How many leases are asked for at once.
const LEASES: u32 = 100;
/// Of how many sequences a large table is.
const MILLION: u32 = 1_000_000;

/// On which side of it a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    AtLeast(f64),
    Above(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(bound) => bound <= figure,
            Self::Above(bound) => bound < figure,
            Self::AtMost(bound) => figure <= bound,
        }
    }

    fn written(self) -> String {
        match self {
            Self::AtLeast(bound) => format!("≥ {}", plain(bound)),
            Self::Above(bound) => format!("> {}", plain(bound)),
            Self::AtMost(bound) => format!("≤ {}", plain(bound)),
        }
    }
}

/// A bound as somebody would say it.
fn plain(bound: f64) -> String {
    if 1000.0 <= bound {
        number(bound)
    } else {
        bound.to_string()
    }
}

/// The word for a target that was missed.
const SHORT: &str = "**short**";

/// What a figure has to be, and what it is hoped to become.
#[derive(Debug, Clone)]
struct Target {
    what: String,
    bound: Bound,
    goal: Option<Bound>,
    measured: Option<Spread>,
}

impl Target {
    fn verdict(&self) -> &'static str {
        match self.measured.map(|spread| spread.median) {
            None => "not measured",
            Some(figure) if self.goal.is_some_and(|goal| goal.holds(figure)) => "goal reached",
            Some(figure) if self.bound.holds(figure) => "reached",
            Some(_) => SHORT,
        }
    }

    fn cells(&self) -> Vec<String> {
        let goal = self.goal.map_or_else(String::new, Bound::written);
        let measured = self.measured.map(|spread| spread.written(number));
        vec![
            self.what.clone(),
            self.bound.written(),
            goal,
            measured.unwrap_or_default(),
            self.verdict().to_owned(),
        ]
    }
}

/// A row for each; nothing where none of them was measured.
pub(super) fn table(run: &Run) -> String {
    let targets = targets(run);
    if targets.iter().all(|target| target.measured.is_none()) {
        return String::new();
    }
    let head = ["", "target", "goal", "measured", ""];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(targets.iter().map(Target::cells));
    tables::table(&rows)
}

/// Each that was missed, by how much.
pub(super) fn short(run: &Run) -> String {
    let targets = targets(run).into_iter();
    let missed = targets.filter(|target| target.verdict() == SHORT);
    let line = |target: Target| {
        let measured = target
            .measured
            .map_or_else(String::new, |spread| number(spread.median));
        format!(
            "- {}: {measured}, target {}\n",
            target.what,
            target.bound.written()
        )
    };
    missed.map(line).collect()
}

fn targets(run: &Run) -> Vec<Target> {
    [speed(run), batched(run), losses(run), costs(run)].concat()
}

fn target(what: &str, bound: Bound, goal: Option<Bound>, measured: Option<Spread>) -> Target {
    Target {
        what: what.to_owned(),
        bound,
        goal,
        measured,
    }
}

fn rate(load: &Load) -> f64 {
    load.grants_per_second
}

/// Grants per second by those of another, with as many workers.
fn rate_by(run: &Run, subject: Subject, other: Subject, workers: usize) -> Option<Spread> {
    let works = (Work::plain(subject, workers), Work::plain(other, workers));
    run.ratio(works, rate)
}

fn speed(run: &Run) -> Vec<Target> {
    use Bound::{Above, AtLeast, AtMost};
    use Subject::{EtcdPut, Handler, Highwater, HighwaterCached, Tsoracle};

    let append = Spread::of(run.limits(LimitKind::SyncAppend).map(|limit| limit.p50_us));
    let syncs = run.spread(Work::plain(Highwater, 1), |load| {
        load.p50_us / append.map_or(f64::NAN, |append| append.median)
    });
    let cached = run.spread(Work::plain(HighwaterCached, 1), |load| load.p50_us / 1000.0);
    vec![
        target(
            "c=1, grants/s ÷ etcd's",
            Above(1.0),
            None,
            rate_by(run, Highwater, EtcdPut, 1),
        ),
        target(
            "c=1, grants/s ÷ tsoracle's",
            Above(1.0),
            None,
            rate_by(run, Highwater, Tsoracle, 1),
        ),
        target(
            "c=1, p50 ÷ p50 of an fdatasync",
            AtMost(6.0),
            Some(AtMost(3.0)),
            syncs,
        ),
        target(
            "c=64, grants/s ÷ tsoracle's",
            AtLeast(1.2),
            Some(AtLeast(2.0)),
            rate_by(run, Highwater, Tsoracle, 64),
        ),
        target(
            "c=64, grants/s ÷ etcd's",
            AtLeast(4.0),
            None,
            rate_by(run, Highwater, EtcdPut, 64),
        ),
        target(
            "c=256, grants/s ÷ tsoracle's",
            AtLeast(1.2),
            None,
            rate_by(run, Highwater, Tsoracle, 256),
        ),
        target(
            "c=256, grants/s ÷ the handler's in memory",
            AtLeast(0.45),
            Some(AtLeast(0.7)),
            rate_by(run, Highwater, Handler, 256),
        ),
        target(
            "cached sequence, c=1, p50 in ms",
            AtMost(0.25),
            Some(AtMost(0.12)),
            cached,
        ),
        target(
            "cached sequence, c=64, grants/s ÷ the handler's in memory",
            AtLeast(0.6),
            Some(AtLeast(0.8)),
            rate_by(run, HighwaterCached, Handler, 64),
        ),
    ]
}

fn batched(run: &Run) -> Vec<Target> {
    use Bound::{AtLeast, AtMost};

    let several = works(run, |work| work.leases == LEASES).into_iter();
    let several = several.filter_map(|work| run.spread(work, rate));
    let best = several.max_by(|one, other| one.median.total_cmp(&other.median));
    let million = works(run, |work| work.existing == MILLION && 1 < work.sequences);
    let million = million
        .into_iter()
        .next()
        .and_then(|work| run.ratio((work, Work::plain(work.subject, work.workers)), rate));
    let starts = starts_by_table(run).into_iter();
    let start = starts.filter(|(existing, _)| *existing == MILLION);
    vec![
        target(
            "100 leases of 1 in a request, grants/s",
            AtLeast(200_000.0),
            Some(AtLeast(500_000.0)),
            best,
        ),
        target(
            "over a million sequences, grants/s ÷ one sequence's",
            AtLeast(0.9),
            Some(AtLeast(0.97)),
            million,
        ),
        target(
            "a million sequences, start in s",
            AtMost(5.0),
            None,
            start.map(|(_, seconds)| seconds).next(),
        ),
    ]
}

/// Over all losses of one kind, the figure that so many per cent of them do not exceed.
fn loss(run: &Run, ending: Ending, percent: usize, figure: fn(&Failover) -> f64) -> Option<Spread> {
    let of = |f: &&Failover| f.subject == Subject::Highwater && f.ending == ending;
    let mut values: Vec<f64> = run.failovers().filter(of).map(figure).collect();
    values.sort_by(f64::total_cmp);
    Spread::of(quantile(&values, percent))
}

fn losses(run: &Run) -> Vec<Target> {
    use Bound::AtMost;
    use Ending::{Killed, Told};

    let next = |percent| loss(run, Killed, percent, |failover| failover.next_grant_ms);
    let gap = loss(run, Told, 50, |failover| failover.gap_ms);
    let faults = |ending| {
        // The greatest: one that lost a request is one too many.
        loss(run, ending, 100, |failover| {
            f64::from(u32::try_from(failover.faults).unwrap_or(u32::MAX))
        })
    };
    vec![
        target(
            "leader killed, next grant: median in ms",
            AtMost(600.0),
            Some(AtMost(400.0)),
            next(50),
        ),
        target(
            "leader killed, next grant: p95 in ms",
            AtMost(1000.0),
            None,
            next(95),
        ),
        target(
            "leader killed, next grant: worst in ms",
            AtMost(2500.0),
            None,
            next(100),
        ),
        target(
            "leader killed, errors at the others",
            AtMost(0.0),
            None,
            faults(Killed),
        ),
        target(
            "leader told to end, longest gap: median in ms",
            AtMost(100.0),
            Some(AtMost(30.0)),
            gap,
        ),
        target(
            "leader told to end, errors at the others",
            AtMost(0.0),
            None,
            faults(Told),
        ),
    ]
}

fn costs(run: &Run) -> Vec<Target> {
    let works = [Subject::Highwater, Subject::Tsoracle].map(|subject| Work::plain(subject, 64));
    let processor = run.ratio(works.into(), |load| load.server_cpu_us);
    vec![target(
        "c=64, CPU of a grant on all nodes ÷ tsoracle's",
        Bound::AtMost(1.0),
        Some(Bound::AtMost(0.5)),
        processor,
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_judged_by_the_median_against_bound_and_goal() {
        let verdict = |median| {
            let measured = Spread::of([median]);
            target("", Bound::AtMost(6.0), Some(Bound::AtMost(3.0)), measured).verdict()
        };

        assert_eq!(
            [2.9, 3.0, 3.1, 6.0, 6.1].map(verdict),
            [
                "goal reached",
                "goal reached",
                "reached",
                "reached",
                "**short**"
            ]
        );
        assert_eq!(
            target("", Bound::Above(1.0), None, None).verdict(),
            "not measured"
        );
        assert_eq!(
            target("", Bound::Above(1.0), None, Spread::of([1.0])).verdict(),
            "**short**"
        );
    }
}
