//! What goes from the database: what was purged or truncated, a part at a time.

use std::io;
use std::ops::RangeBounds;

use super::super::database::{End, META_BYTES_MAX, MetaKey};
use super::super::snapshot::SnapshotName;
use super::super::view::next_index;
use super::Writer;
#[cfg(test)]
use crate::planted::Bug;
use crate::server::formats::LogIdFormat;
use crate::server::types::LogId;

impl Writer {
    /// The marker rises first; the records below it go later, a part at a time.
    pub(super) fn purge(&mut self, upto: LogId) -> io::Result<()> {
        if Some(upto) <= self.promised.purged {
            return Ok(());
        }
        self.make_room(META_BYTES_MAX)?;
        self.part
            .changes
            .put_meta(MetaKey::Purged, &LogIdFormat::from(upto));
        self.promised.purged = Some(upto);
        self.removing = Some(upto.index());
        let is_beyond = next_index(self.promised.last) <= upto.index();
        if is_beyond {
            self.promised.last = Some(upto);
        }
        self.settle()?;
        if is_beyond {
            // The next record appended would leave a hole behind those below the marker.
            self.remove_all()?;
        }
        Ok(())
    }

    /// The promise falls first; then the records go from the end backward, so no part of it leaves a hole.
    pub(super) fn truncate(&mut self, after: Option<LogId>) -> io::Result<()> {
        let last = after.max(self.promised.purged);
        if self.promised.last <= last {
            return Ok(());
        }
        self.promised.last = last;
        #[cfg(test)]
        if Bug::TruncateNotSynced.is_planted() {
            while self.remove(next_index(last).., End::Back)? == Removed::Some {}
            return Ok(());
        }
        self.write_both_slots()?;
        while self.remove(next_index(last).., End::Back)? == Removed::Some {}
        Ok(())
    }

    pub(super) fn name_snapshot(&mut self, name: SnapshotName) -> io::Result<()> {
        self.promised.snapshot = Some(name);
        self.write_both_slots()
    }

    /// What the older slot means is about to be removed. Should the newer one be damaged later, the older one
    /// must not promise what is gone on purpose.
    fn write_both_slots(&mut self) -> io::Result<()> {
        self.unsettled.promised = self.promised;
        self.superblock.write(&self.promised)?;
        self.superblock.write(&self.promised)
    }

    pub(super) fn remove_some(&mut self) -> io::Result<()> {
        if let Some(upto) = self.removing
            && self.remove(..=upto, End::Front)? == Removed::Nothing
        {
            self.removing = None;
        }
        Ok(())
    }

    pub(super) fn remove_all(&mut self) -> io::Result<()> {
        while self.removing.is_some() {
            self.remove_some()?;
        }
        Ok(())
    }

    fn remove(&self, range: impl RangeBounds<u64>, end: End) -> io::Result<Removed> {
        let changes = self.shared.database.removals(range, end)?;
        if changes.is_empty() {
            return Ok(Removed::Nothing);
        }
        self.shared.database.commit(changes)?;
        Ok(Removed::Some)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removed {
    Nothing,
    Some,
}
