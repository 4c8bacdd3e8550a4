//! The table of the page about scaling out: what a cluster gives by each way of asking, and how many clusters that makes.

use super::data::{Run, Subject, Work};
use super::figures::{count, number};
use super::tables::table;

/// A cluster is planned to do half of what it can: the rest is for the worst minute, and for the loss of a node.
const HEADROOM: f64 = 2.0;

/// So many values a second are wanted.
const WANTED: [u32; 3] = [100_000, 1_000_000, 10_000_000];

/// A way of asking for values.
struct Way {
    title: &'static str,
    work: Work,
    /// Of one lease. What a lease costs does not depend on it.
    values: u32,
}

const fn way(title: &'static str, work: Work, values: u32) -> Way {
    Way {
        title,
        work,
        values,
    }
}

const WAYS: [Way; 6] = [
    way(
        "one value a lease, c=64",
        Work::plain(Subject::Highwater, 64),
        1,
    ),
    way(
        "one value a lease, c=256",
        Work::plain(Subject::Highwater, 256),
        1,
    ),
    way(
        "1,000 values a lease, c=64",
        Work::plain(Subject::Highwater, 64),
        1_000,
    ),
    way(
        "100 leases of one value a request, c=64",
        Work {
            leases: 100,
            ..Work::plain(Subject::Highwater, 64)
        },
        1,
    ),
    way(
        "a cached sequence, one value a lease, c=64",
        Work::plain(Subject::HighwaterCached, 64),
        1,
    ),
    way(
        "a cached sequence, one value a lease, c=256",
        Work::plain(Subject::HighwaterCached, 256),
        1,
    ),
];

/// A row for each way that was measured.
pub(crate) fn scale(run: &Run) -> String {
    let mut head = vec![
        "asked for".to_owned(),
        "values/s of a cluster".to_owned(),
        "as many as the first".to_owned(),
        "CPU of all nodes for a value, µs".to_owned(),
    ];
    head.extend(WANTED.map(|wanted| format!("clusters for {}/s", count(wanted.into()))));
    let rate = |way: &Way| {
        let grants = run.spread(way.work, |load| load.grants_per_second)?.median;
        Some(grants * f64::from(way.values))
    };
    let first = WAYS.first().and_then(rate);
    let rows = WAYS.iter().filter_map(|way| {
        let (first, rate) = (first?, rate(way)?);
        let cpu = run.spread(way.work, |load| load.server_cpu_us)?.median;
        let mut row = vec![
            way.title.to_owned(),
            number(rate),
            format!("{} ×", number(rate / first)),
            number(cpu / f64::from(way.values)),
        ];
        row.extend(WANTED.map(|wanted| {
            let clusters = (f64::from(wanted) * HEADROOM / rate).ceil();
            format!("{clusters:.0}")
        }));
        Some(row)
    });
    let table = table(&std::iter::once(head).chain(rows).collect::<Vec<_>>());
    if table.is_empty() {
        return table;
    }
    format!("{table}\n")
}
