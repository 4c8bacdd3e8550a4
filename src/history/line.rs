//! One line of a history: one request as its worker saw it, and what became of it.

use crate::sequence::{RangeCount, SequenceName};

/// The version of leases.
pub(super) const LEASE_VERSION: u64 = 1;
/// The version of everything else.
pub(super) const VERSION: u64 = 2;

/// One request as its worker saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Who asked.
    pub worker: String,
    /// The node that answered, or was asked last; none where no node was reached.
    pub node: Option<u64>,
    /// Of which sequence.
    pub sequence: SequenceName,
    /// Before the request was sent first: nanoseconds of the machine's CLOCK_MONOTONIC.
    pub sent_ns: u64,
    /// After the answer came, or was given up: nanoseconds of the same clock.
    pub received_ns: u64,
    /// What was asked, and what was answered.
    pub operation: Operation,
}

/// What was asked, and what was answered.
///
/// The numbers are kept as they were received, also where they cannot be right: to find that is the checker's work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// A range was asked for.
    Lease {
        /// How many values.
        count: RangeCount,
        /// The request key, where the request had one.
        key: Option<String>,
        /// What the answer said.
        outcome: LeaseOutcome,
    },
    /// The high-water mark was asked for, up to date. A read without an answer says nothing, and is no line.
    Read(Mark),
    /// The same, when every other request of the history had ended.
    FinalRead(Mark),
    /// The mark was to be raised.
    Advance {
        /// To at least this.
        to: u64,
        /// What the answer said.
        outcome: AdvanceOutcome,
    },
}

/// What a read showed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// The high-water mark, none before the first grant.
    pub high: Option<u64>,
    /// The sequence's first value. Where there is no mark yet, grants begin with it.
    pub start: Option<u64>,
    /// Whether the sequence had a cache: then gaps need no explanation, and its mark may be ahead of later grants.
    pub cached: bool,
}

/// What became of a lease, as far as its worker can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// A range was given.
    Granted {
        /// Its lowest value.
        first: u64,
        /// Its highest value.
        last: u64,
        /// The distance between neighbours.
        increment: u64,
    },
    /// It certainly did not happen.
    NotApplied,
    /// It may have happened, or may still happen.
    Unknown,
}

/// What became of an advance, as far as its worker can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdvanceOutcome {
    /// The mark is at least where it was to be.
    Advanced {
        /// The mark before.
        previous: Option<u64>,
        /// The mark after.
        high: u64,
    },
    /// It certainly did not happen.
    NotApplied,
    /// It may have happened, or may still happen.
    Unknown,
}

impl Line {
    /// What became of the lease, where it is one.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseOutcome> {
        match &self.operation {
            Operation::Lease { outcome, .. } => Some(*outcome),
            Operation::Read(_) | Operation::FinalRead(_) | Operation::Advance { .. } => None,
        }
    }

    /// Whether it is a lease that was granted.
    #[must_use]
    pub fn is_grant(&self) -> bool {
        matches!(self.lease(), Some(LeaseOutcome::Granted { .. }))
    }
}

/// Why a text is not a line of a history.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Not the JSON object that its version is.
    #[error("this is not a history line of version {LEASE_VERSION} or {VERSION}")]
    Syntax {
        /// What is wrong where.
        source: serde_json::Error,
    },
    /// Written by another program version.
    #[error(
        "history version {found} is not known here: this program reads leases of version {LEASE_VERSION} and other \
         operations of version {VERSION}"
    )]
    Version {
        /// The version given.
        found: String,
    },
    /// No operation of version 2.
    #[error(
        "op {found} is not known in version {VERSION}: use read, final_read or advance; a lease is of version \
         {LEASE_VERSION} and has none"
    )]
    Operation {
        /// The operation given.
        found: String,
    },
    /// A grant without its numbers.
    #[error("the outcome is granted, but first, last or increment is missing")]
    RangeMissing,
    /// Numbers without a grant.
    #[error("first, last and increment belong to the outcome granted only")]
    RangeGiven,
    /// An advance without its numbers.
    #[error("the outcome is advanced, but previous or high is missing")]
    MarksMissing,
    /// Numbers without an advance.
    #[error("previous and high belong to the outcome advanced only")]
    MarksGiven,
    /// A read before the first grant that does not say where grants begin.
    #[error("high is null, but start is missing: it is the sequence's first value")]
    StartMissing,
    /// No clock runs backwards that way.
    #[error(
        "received at {received_ns} ns, before it was sent at {sent_ns} ns: both must be one machine's CLOCK_MONOTONIC"
    )]
    Clock {
        /// When it was sent.
        sent_ns: u64,
        /// When the answer came.
        received_ns: u64,
    },
}

impl LineError {
    pub(super) fn other_version(found: impl ToString) -> Self {
        Self::Version {
            found: found.to_string(),
        }
    }
}
