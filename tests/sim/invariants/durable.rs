//! I3: the mark that is read at the end covers everything that was acknowledged.

use super::super::run::Run;
use super::super::workers::sequences;
use crate::history::LeaseOutcome;

pub(super) fn broken(run: &Run) -> Vec<String> {
    let lost = sequences().filter_map(|sequence| {
        let of = |line: &&crate::history::Line| line.sequence == sequence;
        let granted = run.seen.lines.iter().filter(of).filter_map(|line| {
            let LeaseOutcome::Granted { last, .. } = line.outcome else {
                return None;
            };
            Some(last)
        });
        let highest = granted.max()?;
        let last_read = run
            .seen
            .reads
            .iter()
            .rfind(|read| read.sequence == sequence)?;
        (last_read.high < Some(highest)).then(|| {
            format!(
                "I3: {highest} of {sequence} was granted, and at the end the mark is {last_read:?}"
            )
        })
    });
    lost.collect()
}
