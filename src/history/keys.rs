//! I4: a request key makes several lines one request. The lines of one key come together, in the order of sending.

use std::time::Duration;

use super::findings::Findings;
use super::op::{Op, OpKind};

/// How long a request key is kept at least. Later the same key may be another request.
const KEY_WINDOW: Duration = Duration::from_mins(10);

/// The lines of one request key.
#[derive(Debug, Default)]
pub(super) struct Key {
    /// Its ranges: one where all is well.
    grants: Vec<Op>,
    open: Vec<Op>,
}

/// What a line says that those before did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// What became of the request, or another range than before.
    First,
    /// The same range as before.
    Again,
}

impl Key {
    /// Takes the next line.
    pub(super) fn add(&mut self, line: Op) -> Told {
        if line.kind == OpKind::OpenLease {
            self.open.push(line);
            return Told::First;
        }
        let known = self
            .grants
            .iter_mut()
            .find(|known| (known.low, known.high) == (line.low, line.high));
        let Some(same) = known else {
            self.grants.push(line);
            return Told::First;
        };
        // A replay: the range was given no later than its first answer says, and asked for with its first question.
        if line.received_ns < same.received_ns {
            *same = Op {
                sent_ns: same.sent_ns,
                ..line
            };
        }
        Told::Again
    }

    /// The requests that they are, each once.
    pub(super) fn settle(mut self, name: &str, conflicts: &mut Findings) -> Vec<Op> {
        let mut requests: Vec<Op> = Vec::new();
        for open in self.open {
            let mut answered = false;
            for grant in &mut self.grants {
                answered |= within_window(grant, &open);
                // It may be the one that was granted, however long ago, because keys may be kept for longer. One of another
                // count is not: the grant would have been refused.
                if open.count == grant.count {
                    grant.sent_ns = grant.sent_ns.min(open.sent_ns);
                }
            }
            let repeated = requests
                .iter()
                .any(|other| other.count == open.count && within_window(other, &open));
            if !answered && !repeated {
                requests.push(open);
            }
        }
        self.grants.sort_unstable_by_key(Op::by_sent);
        for (index, grant) in self.grants.iter().enumerate() {
            let before = self.grants.get(..index).unwrap_or_default();
            let other = before
                .iter()
                .rev()
                .find(|other| within_window(other, grant));
            if let Some(other) = other {
                conflicts.add(&[other, grant], || {
                    format!("I4: a request key of {name} got two ranges")
                });
            }
        }
        requests.append(&mut self.grants);
        requests
    }
}

/// Whether both certainly happened within the window, if they did.
fn within_window(one: &Op, other: &Op) -> bool {
    let from = one.sent_ns.min(other.sent_ns);
    let to = one.received_ns.max(other.received_ns);
    Duration::from_nanos(to - from) <= KEY_WINDOW
}
