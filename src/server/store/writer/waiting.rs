//! Those who wait until what they asked for is durable.

use std::io;

use openraft::storage::IOFlushed;
use tokio::sync::OwnedSemaphorePermit;

use super::{Command, Done};
use crate::server::types::TypeConfig;

/// Who is told when a part is durable.
pub(super) enum Waiting {
    Appended(IOFlushed<TypeConfig>, OwnedSemaphorePermit),
    Done(Done),
}

impl Command {
    /// Who waits for it.
    pub(super) fn into_waiting(self) -> Option<Waiting> {
        match self {
            Self::Append {
                flushed, permit, ..
            } => Some(Waiting::Appended(flushed, permit)),
            Self::SaveVote { done, .. }
            | Self::Truncate { done, .. }
            | Self::NameSnapshot { done, .. } => Some(Waiting::Done(done)),
            Self::SaveCommitted { .. } | Self::Purge { .. } => None,
        }
    }
}

impl Waiting {
    pub(super) fn tell(self, result: io::Result<()>) {
        match self {
            Self::Appended(flushed, permit) => {
                drop(permit);
                flushed.io_completed(result);
            }
            // Who stopped waiting needs no answer.
            Self::Done(done) => {
                done.send(result).ok();
            }
        }
    }
}
