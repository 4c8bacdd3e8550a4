//! What was said in the log, so that what is found again and again is said once, and once more for whoever looks later.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// What was said so long ago is said again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// Lines come no faster, whoever causes them.
const LINE_INTERVAL: Duration = Duration::from_millis(500);
/// How many lines are remembered.
const LINES_MAX: usize = 16;

/// The lines that were said last.
#[derive(Debug, Default)]
pub(crate) struct Told {
    lines: VecDeque<(String, Instant)>,
}

impl Told {
    /// Whether this is to be said now. What is not comes again.
    pub(crate) fn is_due(&mut self, line: &str, now: Instant) -> bool {
        self.lines.retain(|(_, at)| now < *at + REPEAT_INTERVAL);
        let last = self.lines.back();
        if last.is_some_and(|(_, at)| now < *at + LINE_INTERVAL)
            || self.lines.iter().any(|(said, _)| said == line)
        {
            return false;
        }
        if LINES_MAX <= self.lines.len() {
            self.lines.pop_front();
        }
        self.lines.push_back((line.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_said_once_a_minute_and_no_two_at_once() {
        let mut told = Told::default();
        let begun = Instant::now();
        let mut is_due = |line: &str, millis| {
            let now = begun + Duration::from_millis(millis);
            told.is_due(line, now)
        };

        assert!(is_due("a", 0));
        assert!(!is_due("b", 499));
        assert!(is_due("b", 500));
        assert!(!is_due("a", 59_999));
        assert!(is_due("a", 60_000));
        assert!(!is_due("b", 60_499));
        assert!(is_due("b", 60_500));
    }

    #[test]
    fn so_many_lines_are_remembered() {
        let mut told = Told::default();
        let mut now = Instant::now();
        for number in 0..=LINES_MAX {
            assert!(told.is_due(&number.to_string(), now));
            now += LINE_INTERVAL;
        }

        assert!(!told.is_due("1", now));
        assert!(told.is_due("0", now), "forgotten");
    }
}
