//! I1, I2, I4 and I5: the checker's judgement of what the workers saw. Values are dense: one that nobody has is a request
//! that was applied twice, or one that was refused and applied.

use super::super::run::Run;
use crate::history::{Checker, GapRule, Verdict};

pub(super) fn broken(run: &Run) -> Vec<String> {
    let mut checker = Checker::new(GapRule::MustBeExplained);
    let source = checker.add_source("run");
    for (number, line) in (1..).zip(&run.seen.lines) {
        checker.add(source, number, line.clone());
    }
    let report = checker.check();
    if report.verdict() == Verdict::Holds {
        return Vec::new();
    }
    report.violations.iter().map(ToString::to_string).collect()
}
