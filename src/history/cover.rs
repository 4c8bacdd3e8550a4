//! Can the requests without an answer have taken exactly the missing values? An exact search with a bounded effort.
//!
//! Each gap is to be the sum of some requests' counts, and each request is used once at most. A request that may lie in
//! a gap may lie in all higher ones, so the gaps are taken upwards and the requests left over are a mere count
//! of each size.

use std::collections::BTreeMap;

/// Steps for one question. A history in which a kill leaves a dozen requests open needs some hundred.
const STEPS_PER_SEARCH: u64 = 200_000;
/// Steps for all gaps of one sequence together: some seconds at the worst.
const STEPS_IN_ALL: u64 = 20_000_000;

/// One gap, in rising order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Need {
    /// How many values are missing.
    pub(super) values: u64,
    /// The counts of the requests that may lie here and in no lower gap.
    pub(super) arrivals: Vec<u32>,
}

/// Whether a gap is explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Together with the gaps below it that are.
    Yes,
    /// In no way.
    No,
    /// Not found out within the bound on the search.
    Undecided,
}

/// For each gap, whether it is explained together with the explained gaps below it.
pub(super) fn explain(needs: &[Need]) -> Vec<Answer> {
    let mut effort = STEPS_IN_ALL;
    let mut left = Pool::default();
    let mut all = Pool::default();
    let mut explained: Vec<usize> = Vec::new();
    let mut answers = Vec::with_capacity(needs.len());
    for (place, need) in needs.iter().enumerate() {
        left.add(&need.arrivals);
        all.add(&need.arrivals);
        let alone = [Need {
            values: need.values,
            arrivals: Vec::new(),
        }];
        // Most gaps are explained by what is left over, whatever the gaps below have taken. Where not, the gaps
        // below may have taken the wrong ones; but first it must be possible at all.
        let mut answer = search(&alone, &mut left, &mut effort);
        if answer != Answer::Yes {
            answer = search(&alone, &mut all.clone(), &mut effort);
            if answer == Answer::Yes {
                let together = together(needs, &explained, place);
                let mut pool = Pool::default();
                answer = search(&together, &mut pool, &mut effort);
                if answer == Answer::Yes {
                    left = pool;
                }
            }
        }
        if answer == Answer::Yes {
            explained.push(place);
        }
        answers.push(answer);
    }
    answers
}

/// The explained gaps and one more. What arrives at a gap that is passed over arrives at the next.
fn together(needs: &[Need], explained: &[usize], place: usize) -> Vec<Need> {
    let mut chosen = Vec::with_capacity(explained.len() + 1);
    let mut arrivals = Vec::new();
    for (index, need) in needs.iter().enumerate().take(place + 1) {
        arrivals.extend_from_slice(&need.arrivals);
        if index == place || explained.binary_search(&index).is_ok() {
            chosen.push(Need {
                values: need.values,
                arrivals: std::mem::take(&mut arrivals),
            });
        }
    }
    chosen
}

/// How many requests of each count there are.
#[derive(Debug, Clone, Default)]
struct Pool(BTreeMap<u32, u64>);

impl Pool {
    fn add(&mut self, counts: &[u32]) {
        for count in counts {
            *self.0.entry(*count).or_default() += 1;
        }
    }

    fn remove(&mut self, counts: &[u32]) {
        for count in counts {
            self.take(*count);
        }
    }

    fn take(&mut self, count: u32) {
        if let Some(number) = self.0.get_mut(&count) {
            *number -= 1;
            if *number == 0 {
                self.0.remove(&count);
            }
        }
    }

    fn largest_up_to(&self, limit: u64) -> Option<u32> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        self.0.range(..=limit).next_back().map(|(count, _)| *count)
    }
}

/// A decision that can be taken back.
enum Step {
    /// A request of this count was put into the gap at hand.
    Took(u32),
    /// The gap at hand was full, and the next one was begun.
    Next,
}

/// Fills the gaps in order, the largest requests first. On success the pool holds what is left over, else what it
/// held before.
fn search(needs: &[Need], pool: &mut Pool, effort: &mut u64) -> Answer {
    let mut bound = STEPS_PER_SEARCH.min(*effort);
    let mut steps: Vec<Step> = Vec::new();
    let Some(first) = needs.first() else {
        return Answer::Yes;
    };
    pool.add(&first.arrivals);
    let mut place = 0;
    let mut missing = first.values;
    // Within one gap the counts fall, so that no set is tried in two orders.
    let mut limit = u64::MAX;
    loop {
        if bound == 0 {
            undo(needs, pool, steps, place);
            return Answer::Undecided;
        }
        bound -= 1;
        *effort -= 1;
        if missing == 0 {
            let Some(next) = needs.get(place + 1) else {
                return Answer::Yes;
            };
            pool.add(&next.arrivals);
            steps.push(Step::Next);
            (place, missing, limit) = (place + 1, next.values, u64::MAX);
        } else if let Some(count) = pool.largest_up_to(missing.min(limit)) {
            pool.take(count);
            steps.push(Step::Took(count));
            missing -= u64::from(count);
            limit = u64::from(count);
        } else {
            loop {
                match steps.pop() {
                    None => {
                        pool.remove(&first.arrivals);
                        return Answer::No;
                    }
                    Some(Step::Took(count)) => {
                        pool.add(&[count]);
                        missing += u64::from(count);
                        limit = u64::from(count - 1);
                        break;
                    }
                    Some(Step::Next) => {
                        if let Some(need) = needs.get(place) {
                            pool.remove(&need.arrivals);
                        }
                        (place, missing) = (place - 1, 0);
                    }
                }
            }
        }
    }
}

fn undo(needs: &[Need], pool: &mut Pool, steps: Vec<Step>, place: usize) {
    for step in steps {
        if let Step::Took(count) = step {
            pool.add(&[count]);
        }
    }
    for need in needs.iter().take(place + 1) {
        pool.remove(&need.arrivals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(gaps: &[(u64, &[u32])]) -> Vec<Need> {
        gaps.iter()
            .map(|(values, arrivals)| Need {
                values: *values,
                arrivals: arrivals.to_vec(),
            })
            .collect()
    }

    #[test]
    fn a_gap_is_explained_by_the_exact_sum_only() {
        assert_eq!(explain(&needs(&[(13, &[5, 8])])), [Answer::Yes]);
        assert_eq!(explain(&needs(&[(13, &[5, 9])])), [Answer::No]);
        assert_eq!(explain(&needs(&[(13, &[])])), [Answer::No]);
    }

    #[test]
    fn a_request_explains_one_gap_at_most() {
        assert_eq!(
            explain(&needs(&[(3, &[3]), (3, &[])])),
            [Answer::Yes, Answer::No]
        );
    }

    #[test]
    fn a_lower_gap_gives_back_what_a_higher_one_needs() {
        // Largest first takes the 4 for the gap of 4; only 1 + 3 leaves it to the second.
        assert_eq!(
            explain(&needs(&[(4, &[4, 3, 1]), (4, &[])])),
            [Answer::Yes, Answer::Yes]
        );
        assert_eq!(
            explain(&needs(&[(4, &[4, 3, 1]), (5, &[1])])),
            [Answer::Yes, Answer::Yes]
        );
    }

    #[test]
    fn an_unexplained_gap_does_not_spoil_the_others() {
        assert_eq!(
            explain(&needs(&[(2, &[2]), (7, &[]), (5, &[5])])),
            [Answer::Yes, Answer::No, Answer::Yes]
        );
    }

    #[test]
    fn what_cannot_be_found_out_in_bounded_effort_is_undecided() {
        // Even counts, an odd gap: every subset would have to be tried.
        let even: Vec<u32> = (1..200).map(|half| half * 2).collect();

        let answers = explain(&needs(&[(9_999, &even), (2, &[])]));

        assert_eq!(answers, [Answer::Undecided, Answer::Yes]);
    }
}
