//! Every value that was received is judged: no two grants of a sequence overlap, and a grant that was asked for after another
//! was answered is above it.
//!
//! This knows nothing of any peer, and does not share its code with the checker of the histories.

/// The inclusive range that one request was granted, and when that was, in nanoseconds since a moment of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) sequence: u32,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) sent_ns: u64,
    pub(crate) received_ns: u64,
}

/// What is wrong with a set of grants.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Grants that hold a value of another one, or hold none at all.
    pub(crate) overlaps: u64,
    /// Grants that were asked for after a higher one was answered.
    pub(crate) out_of_order: u64,
}

/// The highest value of each sequence that any earlier load received.
#[derive(Debug, Default)]
pub(crate) struct Marks(std::collections::BTreeMap<u32, u64>);

impl Marks {
    /// Judges the grants of one load, all of which was asked for after all earlier ones were answered, and sorts them by
    /// sequence and value.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn check(&mut self, received: &mut [Received]) -> Result<(), Findings> {
        received.sort_unstable_by_key(|grant| (grant.sequence, grant.first, grant.last));
        let mut findings = Findings::default();
        for grants in received.chunk_by(|one, next| one.sequence == next.sequence) {
            let Some(sequence) = grants.first().map(|grant| grant.sequence) else {
                continue;
            };
            let mark = self.0.entry(sequence).or_default();
            // Of all grants below the one in hand.
            let mut sent_last_ns = 0;
            for grant in grants {
                if grant.first <= *mark || grant.last < grant.first {
                    findings.overlaps += 1;
                }
                if grant.received_ns < sent_last_ns {
                    findings.out_of_order += 1;
                }
                *mark = grant.last.max(*mark);
                sent_last_ns = grant.sent_ns.max(sent_last_ns);
            }
        }
        if findings == Findings::default() {
            Ok(())
        } else {
            Err(findings)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(first: u64, last: u64, sent_ns: u64, received_ns: u64) -> Received {
        Received {
            sequence: 0,
            first,
            last,
            sent_ns,
            received_ns,
        }
    }

    #[test]
    fn grants_that_overlap_in_time_may_come_in_any_order() {
        let mut grants = [grant(4, 6, 0, 9), grant(1, 3, 5, 20), grant(7, 7, 10, 30)];

        assert_eq!(Marks::default().check(&mut grants), Ok(()));
        assert_eq!(grants.map(|grant| grant.first), [1, 4, 7]);
    }

    #[test]
    fn a_value_that_was_granted_twice_is_found() {
        let findings = Marks::default().check(&mut [grant(1, 3, 0, 1), grant(3, 4, 2, 3)]);

        assert_eq!(findings.unwrap_err().overlaps, 1);
    }

    #[test]
    fn a_grant_below_one_that_was_answered_before_it_was_asked_for_is_found() {
        let findings = Marks::default().check(&mut [grant(2, 2, 0, 1), grant(1, 1, 2, 3)]);

        let found = Findings {
            overlaps: 0,
            out_of_order: 1,
        };
        assert_eq!(findings, Err(found));
    }

    #[test]
    fn a_value_that_an_earlier_load_received_is_found_and_another_sequence_has_its_own() {
        let mut marks = Marks::default();
        marks.check(&mut [grant(1, 5, 0, 1)]).unwrap();
        let other = Received {
            sequence: 1,
            ..grant(1, 1, 0, 1)
        };

        assert_eq!(marks.check(&mut [other]), Ok(()));
        assert_eq!(
            marks.check(&mut [grant(5, 6, 0, 1)]).unwrap_err().overlaps,
            1
        );
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_found() {
        let findings = Marks::default().check(&mut [grant(2, 1, 0, 1)]);

        assert_eq!(findings.unwrap_err().overlaps, 1);
    }
}
