//! What was said in the log, so that what is found again and again is said once, and once more for whoever looks later.

use std::time::Duration;

use tokio::time::Instant;

/// What was said so long ago is said again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// The most lines within that time, whoever causes them.
const LINES_MAX: usize = 16;

/// What was said last.
#[derive(Debug, Default)]
pub(crate) struct Told {
    what: Vec<(String, Instant)>,
}

impl Told {
    /// Whether a line about this is to be written now.
    pub(crate) fn is_due(&mut self, what: &str, now: Instant) -> bool {
        self.what.retain(|(_, at)| now < *at + REPEAT_INTERVAL);
        if LINES_MAX <= self.what.len() || self.what.iter().any(|(said, _)| said == what) {
            return false;
        }
        self.what.push((what.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_said_once_a_minute() {
        let mut told = Told::default();
        let begun = Instant::now();
        let mut is_due = |what: &str, seconds| {
            let now = begun + Duration::from_secs(seconds);
            told.is_due(what, now)
        };

        assert!(is_due("a", 0));
        assert!(is_due("b", 1));
        assert!(!is_due("a", 59));
        assert!(is_due("a", 60));
        assert!(!is_due("b", 60));
        assert!(is_due("b", 61));
    }

    #[test]
    fn within_a_minute_so_many_lines_are_said_and_no_more() {
        let mut told = Told::default();
        let now = Instant::now();
        for number in 0..LINES_MAX {
            assert!(told.is_due(&number.to_string(), now));
        }

        assert!(!told.is_due("another", now));
        assert!(told.is_due("another", now + REPEAT_INTERVAL));
    }
}
