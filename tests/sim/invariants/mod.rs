//! What has to be true of every run, one file each. What the workers saw is judged by the checker of `highwater verify`.

mod durable;
mod fresh;
mod identity;
mod kept;
mod keyed;
mod live;
mod ordered;
mod quorum;
mod same_state;
mod told;
mod unique;

use super::run::Run;
use crate::history::{Checker, GapRule, Report, Source, ViolationKind};

/// A run, and the checker's judgement of its history.
struct Judged<'a> {
    run: &'a Run,
    report: Report,
}

impl Judged<'_> {
    /// What the checker found of these kinds, each with its witnesses.
    fn found(&self, kinds: &[ViolationKind]) -> Vec<String> {
        let found = self.report.violations.iter();
        let found = found.filter(|violation| kinds.contains(&violation.kind));
        found.map(ToString::to_string).collect()
    }
}

/// What is not true of it, in words.
pub(super) fn broken(run: &Run) -> Vec<String> {
    let lines: Vec<String> = run.seen.lines.iter().map(|line| line.to_json()).collect();
    let report = Checker::new(GapRule::MustBeExplained)
        .source(Source::text("run", lines.join("\n")))
        .check()
        .unwrap();
    let judged = Judged { run, report };
    let found = [
        unique::broken(&judged),
        ordered::broken(&judged),
        durable::broken(&judged),
        keyed::broken(&judged),
        told::broken(&judged),
        fresh::broken(&judged),
        kept::broken(&judged),
        same_state::broken(&judged),
        quorum::broken(&judged),
        identity::broken(&judged),
        // Last: of what is broken it says the least.
        live::broken(&judged),
    ];
    found.into_iter().flatten().collect()
}
