//! Syncs that did not happen: a trace is replayed as if the program had left them out.
//!
//! Each is a rule of the store, broken. The replay has to find disks on which that shows, or it proves nothing.

use crate::trace::{Event, Name};

/// Where the node's data directory is below the root.
pub(crate) const DATA: &str = "data";

/// What a node is doing, as its trace shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// It makes its store.
    Creating,
    /// It opens its store.
    Opening,
    /// Its store is open.
    Running,
}

/// Follows what a node is doing.
#[derive(Debug, Clone)]
pub(crate) struct Phase {
    activity: Activity,
    lives: u64,
    store_made: bool,
    blobs_synced: bool,
}

impl Default for Phase {
    fn default() -> Self {
        Self {
            activity: Activity::Creating,
            lives: 0,
            store_made: false,
            blobs_synced: false,
        }
    }
}

impl Phase {
    pub(crate) fn see(&mut self, event: &Event) {
        match event {
            Event::Start => {
                self.lives += 1;
                if self.store_made {
                    self.open();
                }
            }
            // A database is opened once the superblock is there.
            Event::Rename { to, .. } if *to == below("superblock") => {
                self.store_made = true;
                self.open();
            }
            _ => {}
        }
    }

    fn open(&mut self) {
        self.activity = Activity::Opening;
        self.blobs_synced = false;
    }

    /// A sync of this file or directory began. An opening ends with those of `blobs` and of the directory around it.
    pub(crate) fn see_sync(&mut self, name: &Name) {
        if self.activity != Activity::Opening {
            return;
        }
        if *name == below("sled/blobs") {
            self.blobs_synced = true;
        } else if *name == below("sled") && self.blobs_synced {
            self.activity = Activity::Running;
        }
    }
}

/// Which syncs did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Omission {
    Nothing,
    /// All.
    Everything,
    /// Those of the database while the node runs.
    Database,
    /// Those of the superblock's slots.
    Slots,
    /// Those of sled's configuration.
    Configuration,
    /// All of sled's files and directories in the first life, until the store is open.
    FirstOpening,
    /// The same in every later life.
    LaterOpenings,
    /// Those of the directory above the data directory.
    Root,
    /// Those of the data directory, after identity or superblock got its name.
    DataDirectory,
    /// Those of the directory of snapshots, after one got its name.
    SnapshotDirectory,
    /// Those of a file that is about to replace another: identity, superblock, a snapshot.
    Replacement,
}

impl Omission {
    /// Whether a sync of this file or directory did nothing.
    pub(crate) fn omits(self, name: &Name, phase: &Phase) -> bool {
        let is = |other: &str| *name == below(other);
        let is_of_sled = is("sled") || name.starts_with(&below("sled/"));
        let opens = phase.activity != Activity::Running;
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Database => is("sled/db") && !opens,
            Self::Slots => is("superblock"),
            Self::Configuration => is("sled/conf"),
            Self::FirstOpening => is_of_sled && opens && phase.lives <= 1,
            Self::LaterOpenings => is_of_sled && opens && 1 < phase.lives,
            Self::Root => name.is_empty(),
            Self::DataDirectory => name == DATA,
            Self::SnapshotDirectory => is("snapshots"),
            Self::Replacement => {
                let extension = name.rsplit_once('.');
                extension.is_some_and(|(_, extension)| extension == "new")
            }
        }
    }
}

/// A name in the data directory.
pub(crate) fn below(name: &str) -> Name {
    format!("{DATA}/{name}")
}
