//! What went wrong, and above all: whether the request may have happened nevertheless.

use std::fmt;
use std::time::Duration;

use super::{FenceReason, Grant, NodeUrl};
use crate::wire::{Problem, ProblemOutcome};

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The cluster understood it and said no. Nothing changed.
    #[error("{}", problem.detail)]
    Refused {
        /// The cluster's reason.
        problem: Box<Problem>,
    },
    /// No node carried it out before the deadline. Nothing changed.
    #[error(
        "no node served this within {deadline:?} ({attempts} attempts), nothing was changed: {last}; check that a \
         majority of the nodes runs and that the addresses are right"
    )]
    Unavailable {
        /// How long was tried.
        deadline: Duration,
        /// How often a node was asked.
        attempts: u32,
        /// What happened last.
        last: Box<Setback>,
    },
    /// It may have happened, or may still happen. Values that were granted to nobody are a gap, never granted again.
    #[error("the outcome is unknown, the request may have been applied: {last}; {way_out}")]
    Unknown {
        /// What happened.
        last: Box<Setback>,
        /// What the caller can do now.
        way_out: &'static str,
    },
    /// It was granted by a cluster that has forgotten what it granted before, or by another one: see [`FenceReason`]. Others
    /// may have the same values.
    #[error(
        "the cluster granted {} to {} of {} in epoch {}, which must not be used: {reason}",
        grant.first(), grant.last(), grant.body().sequence, grant.epoch()
    )]
    Fenced {
        /// What was granted.
        grant: Box<Grant>,
        /// Why it must not be used.
        reason: FenceReason,
    },
}

impl ClientError {
    /// Whether the request may have happened.
    #[must_use]
    pub fn outcome(&self) -> ProblemOutcome {
        match self {
            Self::Refused { .. } | Self::Unavailable { .. } => ProblemOutcome::NotApplied,
            Self::Unknown { .. } | Self::Fenced { .. } => ProblemOutcome::Unknown,
        }
    }

    /// The cluster's own description, where a node answered with one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused { problem } => Some(problem),
            Self::Fenced { .. } => None,
            Self::Unavailable { last, .. } | Self::Unknown { last, .. } => match &last.reason {
                SetbackReason::Problem(problem) => Some(problem),
                _ => None,
            },
        }
    }

    /// Which of several leases was refused, counted from 0.
    #[must_use]
    pub fn position(&self) -> Option<usize> {
        self.problem()?.position?.try_into().ok()
    }

    /// The node asked last, where none said no.
    #[must_use]
    pub fn node(&self) -> Option<&NodeUrl> {
        match self {
            Self::Refused { .. } | Self::Fenced { .. } => None,
            Self::Unavailable { last, .. } | Self::Unknown { last, .. } => Some(&last.node),
        }
    }
}

/// What happened at one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setback {
    /// Which node.
    pub node: NodeUrl,
    /// What it was.
    pub reason: SetbackReason,
}

/// Why a node did not serve a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetbackReason {
    /// No connection, so nothing was sent.
    NotConnected {
        /// What the system says.
        cause: String,
    },
    /// The connection broke after the request was begun.
    Lost {
        /// What the system says.
        cause: String,
    },
    /// No answer before the deadline.
    Elapsed,
    /// The node's own description.
    Problem(Box<Problem>),
    /// An answer that no node of ours gives.
    Foreign {
        /// Its HTTP status.
        status: u16,
    },
}

impl fmt::Display for Setback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.node)?;
        match &self.reason {
            SetbackReason::NotConnected { cause } => write!(f, "could not be reached ({cause})"),
            SetbackReason::Lost { cause } => write!(f, "lost the connection ({cause})"),
            SetbackReason::Elapsed => f.write_str("gave no answer in time"),
            SetbackReason::Problem(problem) => {
                write!(f, "answered {}: {}", problem.code, problem.detail)
            }
            SetbackReason::Foreign { status } => {
                write!(f, "answered {status} in a way that no Highwater node does")
            }
        }
    }
}
