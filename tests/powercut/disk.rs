//! The disk while a trace is replayed: what is durable, and what a power cut could still take away.
//!
//! Bytes and lengths of a file are durable once a sync of that file, begun after them, has succeeded. When its name
//! is durable depends on the file system.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::content::Content;
use crate::image::Image;
use crate::omission::{Omission, Phase};
use crate::trace::{Event, Inode, Name, SyncKind, SyncNumber, Trace};

/// When the entries of directories are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// With one journal for all names, as ext4 has: a sync that has to commit the journal takes along every change of a
    /// name before it.
    Journal,
    /// The least that POSIX allows: a name is durable after a sync of its directory and not before.
    Bare,
}

impl FileSystem {
    pub(crate) const ALL: [Self; 2] = [Self::Bare, Self::Journal];
}

/// A file whatever it is called. Inodes are used again; this number is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(u64);

/// The index of a record in the trace.
pub(crate) type Moment = usize;

/// A change of a file that is not durable yet.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Write { offset: u64, bytes: Range<usize> },
    Truncate { length: u64 },
}

/// A file: what is durable of it, and what was done to it since, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct File {
    pub(crate) durable: Content,
    pub(crate) pending: Vec<(Moment, Change)>,
}

/// A change of a directory.
#[derive(Debug, Clone)]
pub(crate) enum NameChange {
    Create { name: Name, file: FileId },
    MakeDirectory { name: Name },
    Rename { from: Name, to: Name, file: FileId },
    Remove { name: Name },
    RemoveDirectory { name: Name },
}

impl NameChange {
    fn name(&self) -> &Name {
        match self {
            Self::Create { name, .. }
            | Self::MakeDirectory { name }
            | Self::Rename { to: name, .. }
            | Self::Remove { name }
            | Self::RemoveDirectory { name } => name,
        }
    }
}

/// All directories, and the files in them.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) files: BTreeMap<Name, FileId>,
    pub(crate) directories: BTreeSet<Name>,
}

impl Names {
    /// The root, which was there before.
    fn root() -> Self {
        Self {
            files: BTreeMap::new(),
            directories: BTreeSet::from([Name::new()]),
        }
    }

    pub(crate) fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::Create { name, file } => {
                self.files.insert(name.clone(), *file);
            }
            NameChange::MakeDirectory { name } => {
                self.directories.insert(name.clone());
            }
            NameChange::Rename { from, to, file } => {
                self.files.remove(from);
                self.files.insert(to.clone(), *file);
            }
            NameChange::Remove { name } => {
                self.files.remove(name);
            }
            NameChange::RemoveDirectory { name } => {
                self.directories.remove(name);
            }
        }
    }
}

/// What an open descriptor stands for.
#[derive(Debug, Clone)]
enum Opened {
    File(FileId),
    Directory(Name),
}

/// A sync that has begun.
#[derive(Debug, Clone)]
struct BegunSync {
    begun: Moment,
    kind: SyncKind,
    of: Opened,
}

/// The disk at one moment of a trace.
#[derive(Debug)]
pub(crate) struct Disk<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) file_system: FileSystem,
    omission: Omission,
    phase: Phase,
    next: Moment,
    files: BTreeMap<FileId, File>,
    /// As a process sees them.
    live: Names,
    pub(crate) durable: Names,
    pub(crate) pending_names: Vec<(Moment, NameChange)>,
    opened: BTreeMap<Inode, Opened>,
    syncs: BTreeMap<SyncNumber, BegunSync>,
}

impl<'t> Disk<'t> {
    /// An empty disk, on which the syncs of `omission` do nothing.
    pub(crate) fn new(trace: &'t Trace, file_system: FileSystem, omission: Omission) -> Self {
        Self {
            trace,
            file_system,
            omission,
            phase: Phase::default(),
            next: 0,
            files: BTreeMap::new(),
            live: Names::root(),
            durable: Names::root(),
            pending_names: Vec::new(),
            opened: BTreeMap::new(),
            syncs: BTreeMap::new(),
        }
    }

    /// Puts an image on the disk, all of it durable, from which the trace goes on.
    pub(crate) fn load(&mut self, image: &Image) {
        for name in &image.directories {
            self.live.directories.insert(name.clone());
        }
        for (name, content) in &image.files {
            let file = self.new_file(content.clone());
            self.live.files.insert(name.clone(), file);
        }
        self.durable = self.live.clone();
    }

    fn new_file(&mut self, durable: Content) -> FileId {
        let id = FileId(self.files.len() as u64);
        let pending = Vec::new();
        self.files.insert(id, File { durable, pending });
        id
    }

    /// The file.
    pub(crate) fn file(&self, id: FileId) -> &File {
        &self.files[&id]
    }

    /// All changes of files that are not durable, in order.
    pub(crate) fn pending_changes(&self) -> Vec<Moment> {
        let files = self.files.values();
        let changes = files.flat_map(|file| file.pending.iter().map(|(moment, _)| *moment));
        let mut moments: Vec<_> = changes.collect();
        moments.sort_unstable();
        moments
    }

    /// Goes on to the moment before the record at `until`.
    pub(crate) fn go_to(&mut self, until: Moment) {
        while self.next < until {
            self.step(self.next);
            self.next += 1;
        }
    }

    fn step(&mut self, now: Moment) {
        let event = self.trace.records[now].event.clone();
        self.phase.see(&event);
        match event {
            Event::Start => {
                self.opened.clear();
                self.syncs.clear();
            }
            Event::Open { inode, name } => {
                if let Some(file) = self.live.files.get(&name) {
                    self.opened.insert(inode, Opened::File(*file));
                } else if self.live.directories.contains(&name) {
                    self.opened.insert(inode, Opened::Directory(name));
                } else {
                    // It was there before and is only read: a write or a sync would not find it.
                    self.opened.remove(&inode);
                }
            }
            Event::Create { inode, name } => {
                let file = self.new_file(Content::default());
                self.opened.insert(inode, Opened::File(file));
                self.change_name(now, NameChange::Create { name, file });
            }
            Event::MakeDirectory { name } => {
                self.change_name(now, NameChange::MakeDirectory { name });
            }
            Event::Write {
                inode,
                offset,
                bytes,
            } => self.change_file(now, inode, Change::Write { offset, bytes }),
            Event::Truncate { inode, length } => {
                self.change_file(now, inode, Change::Truncate { length });
            }
            Event::Rename { from, to } => {
                let file = self.live.files[&from];
                self.change_name(now, NameChange::Rename { from, to, file });
            }
            Event::Remove { name } => self.change_name(now, NameChange::Remove { name }),
            Event::RemoveDirectory { name } => {
                self.change_name(now, NameChange::RemoveDirectory { name });
            }
            Event::SyncBegin { inode, sync, kind } => {
                let of = self.opened[&inode].clone();
                let name = self.name_of(&of);
                let omitted = self.omission.omits(&name, &self.phase);
                self.phase.see_sync(&name);
                if !omitted {
                    let begun = BegunSync {
                        begun: now,
                        kind,
                        of,
                    };
                    self.syncs.insert(sync, begun);
                }
            }
            Event::SyncEnd { sync } => {
                if let Some(begun) = self.syncs.remove(&sync) {
                    self.finish(&begun);
                }
            }
        }
    }

    fn change_name(&mut self, now: Moment, change: NameChange) {
        self.live.apply(&change);
        self.pending_names.push((now, change));
    }

    fn change_file(&mut self, now: Moment, inode: Inode, change: Change) {
        let Opened::File(file) = self.opened[&inode] else {
            panic!("a directory is written");
        };
        let file = self.files.get_mut(&file).unwrap();
        file.pending.push((now, change));
    }

    /// The sync succeeded.
    fn finish(&mut self, sync: &BegunSync) {
        let commits = match &sync.of {
            Opened::File(id) => self.finish_file(*id, sync),
            Opened::Directory(directory) => {
                let mut pending = self.pending_names.iter();
                pending.any(|(_, change)| parent(change.name()) == directory)
            }
        };
        let (journal, trace_names) = (self.file_system == FileSystem::Journal, &sync.of);
        let durable = &mut self.durable;
        self.pending_names.retain(|(moment, change)| {
            let in_directory = matches!(trace_names, Opened::Directory(directory) if parent(change.name()) == directory);
            let covered = *moment < sync.begun && (in_directory || (journal && commits));
            if covered {
                durable.apply(change);
            }
            !covered
        });
    }

    /// Makes a file's changes durable, and tells whether the journal had to be committed for it.
    fn finish_file(&mut self, id: FileId, sync: &BegunSync) -> bool {
        let trace = self.trace;
        let is_new =
            |change: &NameChange| matches!(change, NameChange::Create { file, .. } if *file == id);
        let mut commits = self.pending_names.iter().any(|(_, change)| is_new(change));
        let file = self.files.get_mut(&id).unwrap();
        let length_before = file.durable.length();
        let durable = &mut file.durable;
        file.pending.retain(|(moment, change)| {
            let covered = *moment < sync.begun;
            if covered {
                // Every write changes the time of the last one, which only a full sync has to keep.
                commits |= sync.kind == SyncKind::Full;
                change.apply(durable, trace);
            }
            !covered
        });
        commits || file.durable.length() != length_before
    }

    /// The name of what is synced, as a process sees it.
    fn name_of(&self, opened: &Opened) -> Name {
        match opened {
            Opened::Directory(name) => name.clone(),
            Opened::File(file) => {
                let mut names = self.live.files.iter();
                let found = names.find(|(_, other)| *other == file);
                found.map(|(name, _)| name.clone()).unwrap_or_default()
            }
        }
    }
}

impl Change {
    /// Does it to a file.
    pub(crate) fn apply(&self, content: &mut Content, trace: &Trace) {
        match self {
            Self::Write { offset, bytes } => content.write(*offset, trace.bytes(bytes)),
            Self::Truncate { length } => content.truncate(*length),
        }
    }
}

/// The directory that a name is in.
pub(crate) fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::testing::trace;

    const FILE: Inode = Inode(1);
    const DIRECTORY: Inode = Inode(2);

    fn create() -> Event {
        let name = "a".to_owned();
        Event::Create { inode: FILE, name }
    }

    fn write() -> Event {
        Event::Write {
            inode: FILE,
            offset: 0,
            bytes: 0..4,
        }
    }

    fn begin(inode: Inode, sync: u64, kind: SyncKind) -> Event {
        let sync = SyncNumber(sync);
        Event::SyncBegin { inode, sync, kind }
    }

    fn end(sync: u64) -> Event {
        let sync = SyncNumber(sync);
        Event::SyncEnd { sync }
    }

    fn sync_directory(sync: u64) -> [Event; 3] {
        let open = Event::Open {
            inode: DIRECTORY,
            name: Name::new(),
        };
        [open, begin(DIRECTORY, sync, SyncKind::Full), end(sync)]
    }

    /// The disk after these events: the durable bytes of the first file, and the durable names.
    fn durable(
        file_system: FileSystem,
        omission: Omission,
        events: Vec<Event>,
    ) -> (Vec<u8>, Vec<Name>) {
        let trace = trace(b"data", events);
        let mut disk = Disk::new(&trace, file_system, omission);
        disk.go_to(trace.records.len());
        let content = &disk.file(FileId(0)).durable;
        let names = disk.durable.files.keys().cloned().collect();
        (content.read(0..content.length()), names)
    }

    #[test]
    fn what_was_written_before_a_sync_began_is_durable_once_it_succeeded() {
        let full = SyncKind::Full;
        let bare = |events| durable(FileSystem::Bare, Omission::Nothing, events).0;

        assert_eq!(bare(vec![create(), write()]), b"");
        assert_eq!(bare(vec![create(), write(), begin(FILE, 1, full)]), b"");
        assert_eq!(
            bare(vec![create(), begin(FILE, 1, full), write(), end(1)]),
            b""
        );
        assert_eq!(
            bare(vec![create(), write(), begin(FILE, 1, full), end(1)]),
            b"data"
        );
        // A sync that a process began is not ended by the next one.
        let cut_off = vec![
            create(),
            write(),
            begin(FILE, 1, full),
            Event::Start,
            end(1),
        ];
        assert_eq!(bare(cut_off), b"");
    }

    #[test]
    fn a_sync_that_is_left_out_does_nothing() {
        let events = vec![create(), write(), begin(FILE, 1, SyncKind::Full), end(1)];

        let (bytes, _) = durable(FileSystem::Bare, Omission::Everything, events);

        assert_eq!(bytes, b"");
    }

    #[test]
    fn a_name_is_durable_by_its_directory_or_by_a_journal_that_had_to_be_committed() {
        let of_file = |kind| vec![create(), write(), begin(FILE, 1, kind), end(1)];
        let of_directory = [vec![create()], sync_directory(1).to_vec()].concat();
        let other = Inode(3);
        let of_another = vec![
            create(),
            Event::Create {
                inode: other,
                name: "b".to_owned(),
            },
            begin(other, 1, SyncKind::Full),
            end(1),
        ];
        let names = |file_system, events| durable(file_system, Omission::Nothing, events).1;

        for kind in [SyncKind::Full, SyncKind::Data] {
            assert_eq!(names(FileSystem::Bare, of_file(kind)), [""; 0]);
            assert_eq!(names(FileSystem::Journal, of_file(kind)), ["a"]);
        }
        assert_eq!(names(FileSystem::Bare, of_directory), ["a"]);
        assert_eq!(names(FileSystem::Bare, of_another.clone()), [""; 0]);
        assert_eq!(names(FileSystem::Journal, of_another), ["a", "b"]);
    }

    #[test]
    fn a_data_sync_that_lengthens_nothing_commits_no_journal() {
        let mut events = vec![create(), write(), begin(FILE, 1, SyncKind::Data), end(1)];
        let renamed = Event::Rename {
            from: "a".to_owned(),
            to: "b".to_owned(),
        };
        events.extend([renamed, write(), begin(FILE, 2, SyncKind::Data), end(2)]);
        let journal = |events| durable(FileSystem::Journal, Omission::Nothing, events).1;

        assert_eq!(journal(events.clone()), ["a"]);
        events.extend([write(), begin(FILE, 3, SyncKind::Full), end(3)]);
        assert_eq!(journal(events), ["b"]);
    }
}
