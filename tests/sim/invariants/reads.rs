//! I6: a read shows every grant that was answered before it was sent, and none that was asked for after it was answered;
//! of two reads one after the other the second shows no less.

use super::super::run::Run;
use super::super::watch::Read;
use crate::history::LeaseOutcome;

pub(super) fn broken(run: &Run) -> Vec<String> {
    run.seen
        .reads
        .iter()
        .filter_map(|read| too_low(run, read).or_else(|| too_high(run, read)))
        .collect()
}

fn grants<'a>(run: &'a Run, read: &'a Read) -> impl Iterator<Item = (u64, u64, u64, u64)> + 'a {
    let of_it = run
        .seen
        .lines
        .iter()
        .filter(|line| line.sequence == read.sequence);
    of_it.filter_map(|line| match line.outcome {
        LeaseOutcome::Granted { first, last, .. } => {
            Some((first, last, line.sent_ns, line.received_ns))
        }
        _ => None,
    })
}

fn too_low(run: &Run, read: &Read) -> Option<String> {
    let granted = grants(run, read).filter(|(_, _, _, received)| *received < read.sent_ns);
    let earlier = run
        .seen
        .reads
        .iter()
        .filter(|other| other.sequence == read.sequence && other.received_ns < read.sent_ns);
    let shown = granted
        .map(|(_, last, _, _)| last)
        .chain(earlier.filter_map(|earlier| earlier.high))
        .max();
    (read.high < shown).then(|| format!("I6: {read:?} does not show {shown:?}"))
}

fn too_high(run: &Run, read: &Read) -> Option<String> {
    let high = read.high?;
    // Under a key that was used before, the range is an old one.
    let later = run.seen.lines.iter().filter(|line| {
        line.sequence == read.sequence && line.key.is_none() && read.received_ns < line.sent_ns
    });
    let mut firsts = later.filter_map(|line| match line.outcome {
        LeaseOutcome::Granted { first, .. } => Some(first),
        _ => None,
    });
    firsts
        .find(|first| *first <= high)
        .map(|first| format!("I6: {read:?} showed {first} before anybody asked for it"))
}
