//! Histories that do not fit into the memory they are given.

use proptest::prelude::*;

use super::reference::history;
use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_history_that_does_not_fit_into_memory_is_judged_alike(lines in history()) {
        let checker = Checker::new(GapRule::MustBeExplained).source(Source::text("h", text(&lines)));

        let spilled = checker.memory_bytes(1).check().unwrap();

        prop_assert_eq!(spilled, check(&lines));
    }
}
