//! What a worker gets.

use crate::sequence::{Range, RangeCount, SequenceName};
use crate::wire::{GrantBody, SequenceBody};

/// A range that is the worker's own: nobody else gets a value of it, ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    body: GrantBody,
    range: Range,
    node: Option<u64>,
}

/// The answer to a creation.
#[derive(Debug, Clone, PartialEq)]
pub struct Created {
    /// False where it was there before with the same settings. A dry run does not tell: false.
    pub fresh: bool,
    /// What it is now.
    pub sequence: SequenceBody,
}

impl Grant {
    /// The grant in a node's answer, or `None` where the answer is not one to this request.
    pub(super) fn from_answer(
        body: GrantBody,
        node: Option<u64>,
        sequence: &SequenceName,
        count: RangeCount,
    ) -> Option<Self> {
        let increment = body.increment.get()?.try_into().ok()?;
        let range = Range::starting_at(body.first.get()?, count, increment)?;
        let asked_for = body.last.get() == Some(range.last())
            && body.count == count.get()
            && body.sequence == *sequence;
        asked_for.then_some(Self { body, range, node })
    }

    /// The values.
    #[must_use]
    pub fn range(&self) -> Range {
        self.range
    }

    /// The lowest value.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.range.first()
    }

    /// The highest value.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.range.last()
    }

    /// The distance between neighbours.
    #[must_use]
    pub fn increment(&self) -> u64 {
        self.range.increment().get()
    }

    /// How many values.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.body.count
    }

    /// Generation of the cluster's history.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.body.epoch
    }

    /// The cluster's id.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.body.cluster
    }

    /// The term of the leader that granted.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.body.term
    }

    /// The log index of the grant.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.body.index
    }

    /// The node that answered, as its `Highwater-Node` header says.
    #[must_use]
    pub fn node(&self) -> Option<u64> {
        self.node
    }

    /// The answer as it was received.
    #[must_use]
    pub fn body(&self) -> &GrantBody {
        &self.body
    }
}
