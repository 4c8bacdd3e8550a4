//! The tables of the page.

use std::fmt::Write as _;

use super::data::{Ending, Failover, LimitKind, Load, Run, Sample, Subject, Work};
use super::figures::{Spread, count, number, quantile};
use super::targets;

/// At which concurrency a grant's costs are compared.
const COSTS_WORKERS: usize = 64;

/// All of them, each under its heading.
pub(crate) fn tables(run: &Run) -> String {
    let sections = [
        ("The machine, and this run", machine(run)),
        ("Targets", targets::table(run)),
        ("Short of its target", targets::short(run)),
        ("Grants per second", rates(run)),
        ("Latency", latencies(run)),
        ("What a grant costs", costs(run)),
        ("Several leases in one request", several(run)),
        ("Many sequences", sequences(run)),
        ("Loss of the leader", failovers(run)),
        ("Limits of the machine", limits(run)),
        ("Not measured", skipped(run)),
    ];
    let mut text = String::new();
    for (heading, section) in sections {
        if !section.is_empty() {
            let _infallible = write!(text, "## {heading}\n\n{section}\n");
        }
    }
    text
}

/// A table of these rows, the first of which is its head; nothing where that is all.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let [head, body @ ..] = rows else {
        return String::new();
    };
    if body.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    let mut add = |cells: &[String]| {
        let _infallible = writeln!(text, "| {} |", cells.join(" | "));
    };
    add(head);
    add(&vec!["---".to_owned(); head.len()]);
    for row in body {
        add(row);
    }
    text
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// How many workers there were in samples of plain leases.
fn concurrencies(run: &Run) -> Vec<usize> {
    let mut found: Vec<usize> = run
        .all_loads()
        .filter(|load| load.work == Work::plain(load.work.subject, load.work.workers))
        .map(|load| load.work.workers)
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn machine(run: &Run) -> String {
    let about = &run.about;
    let versions: Vec<String> = about
        .versions
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let others = Spread::of(run.all_loads().map(|load| load.others_busy * 100.0));
    let average = Spread::of(run.all_loads().map(|load| load.load_average));
    let written = |spread: Option<Spread>| spread.map_or_else(String::new, |s| s.written(number));
    table(&[
        row(["", ""]),
        row(["date", &about.date]),
        row([
            "machine",
            &format!(
                "{}, {} cores, {} GiB, {}, Linux {}",
                about.processor, about.cores, about.memory_gib, about.filesystem, about.kernel
            ),
        ]),
        row(["versions", &versions.join(", ")]),
        row([
            "rounds",
            &format!(
                "{} interleaved, each {} ms after {} ms of warming up",
                about.rounds, about.measured_ms, about.warm_ms
            ),
        ]),
        row(["processor time of others, % of all", &written(others)]),
        row(["load average of the last minute", &written(average)]),
        row(["grants verified", &count(run.verified)]),
    ])
}

/// A row for each subject, and a column for each concurrency.
fn by_concurrency(run: &Run, cell: impl Fn(Work) -> Option<String>) -> String {
    let concurrencies = concurrencies(run);
    let mut head = row(["", "on"]);
    head.extend(concurrencies.iter().map(|workers| format!("c={workers}")));
    let mut rows = vec![head];
    for subject in Subject::ALL {
        let cells: Vec<_> = concurrencies
            .iter()
            .map(|workers| cell(Work::plain(subject, *workers)))
            .collect();
        if cells.iter().any(Option::is_some) {
            let mut row = row([subject.title(), subject.kept()]);
            row.extend(cells.into_iter().map(Option::unwrap_or_default));
            rows.push(row);
        }
    }
    table(&rows)
}

fn rates(run: &Run) -> String {
    let table = by_concurrency(run, |work| {
        let spread = run.spread(work, |load| load.grants_per_second)?;
        Some(spread.written(number))
    });
    if table.is_empty() {
        return table;
    }
    format!("{table}\n![Grants per second by concurrency](benchmarks.svg)\n")
}

fn latencies(run: &Run) -> String {
    let table = by_concurrency(run, |work| {
        let p50 = run.spread(work, |load| load.p50_us / 1000.0)?.median;
        let p99 = run.spread(work, |load| load.p99_us / 1000.0)?.median;
        Some(format!("{} / {}", number(p50), number(p99)))
    });
    if table.is_empty() {
        return table;
    }
    format!("Median of the rounds' p50 / p99, in milliseconds.\n\n{table}")
}

fn costs(run: &Run) -> String {
    let mut rows = vec![row([
        "at c=64",
        "CPU of the servers, µs",
        "CPU of the worker, µs",
        "disk flushes",
        "bytes written",
        "memory of all servers, MiB",
    ])];
    for subject in Subject::ALL {
        let work = Work::plain(subject, COSTS_WORKERS);
        let cell = |figure: &dyn Fn(&Load) -> Option<f64>| {
            let spread = Spread::of(run.loads(work).filter_map(figure));
            spread.map_or_else(|| "–".to_owned(), |spread| spread.written(number))
        };
        if run.loads(work).next().is_some() {
            rows.push(row([
                subject.title(),
                &cell(&|load| Some(load.server_cpu_us)),
                &cell(&|load| Some(load.client_cpu_us)),
                &cell(&|load| load.syncs),
                &cell(&|load| load.written_bytes),
                &cell(&|load| Some(load.memory_mib)),
            ]));
        }
    }
    table(&rows)
}

fn several(run: &Run) -> String {
    let mut rows = vec![row([
        "leases a request",
        "c",
        "grants/s",
        "p50, ms",
        "p99, ms",
    ])];
    for work in works(run, |work| 1 < work.leases) {
        rows.push(vec![
            work.leases.to_string(),
            work.workers.to_string(),
            cell(run, work, |load| load.grants_per_second),
            cell(run, work, |load| load.p50_us / 1000.0),
            cell(run, work, |load| load.p99_us / 1000.0),
        ]);
    }
    table(&rows)
}

/// The works of this kind, each once, in the order of the samples.
pub(super) fn works(run: &Run, kind: impl Fn(Work) -> bool) -> Vec<Work> {
    let mut found = Vec::new();
    for load in run.all_loads().filter(|load| kind(load.work)) {
        if !found.contains(&load.work) {
            found.push(load.work);
        }
    }
    found
}

fn cell(run: &Run, work: Work, figure: impl Fn(&Load) -> f64) -> String {
    let spread = run.spread(work, figure);
    spread.map_or_else(String::new, |spread| spread.written(number))
}

fn sequences(run: &Run) -> String {
    let mut rows = vec![row([
        "sequences",
        "asked",
        "c",
        "grants/s",
        "p50, ms",
        "p99, ms",
        "memory of all nodes, MiB",
    ])];
    for work in works(run, |work| 1 < work.existing) {
        rows.push(vec![
            count(work.existing.into()),
            count(work.sequences.into()),
            work.workers.to_string(),
            cell(run, work, |load| load.grants_per_second),
            cell(run, work, |load| load.p50_us / 1000.0),
            cell(run, work, |load| load.p99_us / 1000.0),
            cell(run, work, |load| load.memory_mib),
        ]);
    }
    let mut starts = Vec::new();
    for (existing, seconds) in starts_by_table(run) {
        let seconds = seconds.written(number);
        starts.push(format!(
            "All three nodes, stopped with {} sequences, were started and served again after {seconds} s.\n",
            count(existing.into())
        ));
    }
    let table = table(&rows);
    if starts.is_empty() {
        return table;
    }
    format!("{table}\n{}", starts.join(""))
}

/// The seconds that starts took, by how many sequences there were.
pub(super) fn starts_by_table(run: &Run) -> Vec<(u32, Spread)> {
    let starts = || {
        run.samples.iter().filter_map(|sample| match sample {
            Sample::Start {
                existing, seconds, ..
            } => Some((*existing, *seconds)),
            _ => None,
        })
    };
    let mut tables: Vec<u32> = starts().map(|(existing, _)| existing).collect();
    tables.sort_unstable();
    tables.dedup();
    let of_table = |table| {
        let of = starts().filter(move |(existing, _)| *existing == table);
        Some((table, Spread::of(of.map(|(_, seconds)| seconds))?))
    };
    tables.into_iter().filter_map(of_table).collect()
}

fn failovers(run: &Run) -> String {
    let mut rows = vec![row([
        "the leader is",
        "of",
        "times",
        "until the next grant, ms: median",
        "p95",
        "worst",
        "longest gap between grants, ms: median",
        "worst",
        "errors",
    ])];
    for subject in Subject::ALL {
        for ending in [Ending::Killed, Ending::Told] {
            rows.extend(endings(run, subject, ending));
        }
    }
    let table = table(&rows);
    if table.is_empty() {
        return table;
    }
    format!("Eight workers ask the other nodes meanwhile.\n\n{table}")
}

fn endings(run: &Run, subject: Subject, ending: Ending) -> Option<Vec<String>> {
    let of = || {
        let failovers = run.failovers();
        failovers.filter(move |f| f.subject == subject && f.ending == ending)
    };
    let sorted = |figure: fn(&Failover) -> f64| {
        let mut values: Vec<f64> = of().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let (next, gap) = (sorted(|f| f.next_grant_ms), sorted(|f| f.gap_ms));
    let at = |values: &[f64], percent| quantile(values, percent).map(number);
    let faults: u64 = of().map(|failover| failover.faults).sum();
    Some(vec![
        match ending {
            Ending::Killed => "killed (kill -9)".to_owned(),
            Ending::Told => "told to end (SIGTERM)".to_owned(),
        },
        subject.title().to_owned(),
        next.len().to_string(),
        at(&next, 50)?,
        at(&next, 95)?,
        at(&next, 100)?,
        at(&gap, 50)?,
        at(&gap, 100)?,
        faults.to_string(),
    ])
}

fn limits(run: &Run) -> String {
    let mut rows = vec![row(["", "per second", "p50, ms", "p99, ms"])];
    for kind in LimitKind::ALL {
        let spread =
            |figure: fn(&super::data::Limit) -> f64| Spread::of(run.limits(kind).map(figure));
        let cells = [
            spread(|limit| limit.per_second),
            spread(|limit| limit.p50_us / 1000.0),
            spread(|limit| limit.p99_us / 1000.0),
        ];
        if let [Some(per_second), Some(p50), Some(p99)] = cells {
            rows.push(row([
                kind.title(),
                &per_second.written(number),
                &p50.written(number),
                &p99.written(number),
            ]));
        }
    }
    table(&rows)
}

fn skipped(run: &Run) -> String {
    let mut text = String::new();
    for sample in &run.samples {
        if let Sample::Skipped { what, why } = sample {
            let _infallible = writeln!(text, "- {what}: {why}");
        }
    }
    text
}
