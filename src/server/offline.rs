//! What is done with directories and backups where no node runs.

pub(crate) use super::store::{
    Backup, BackupError, EntryView, InspectError, Inspection, Raise, RestoreError, Restored,
    Verdict, VoteView, inspect, restore, salvage,
};

#[cfg(test)]
pub(crate) use super::store::Rises;
