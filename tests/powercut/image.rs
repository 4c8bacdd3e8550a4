//! What a power cut leaves on the disk: one image of many that are possible.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::content::Content;
use crate::disk::{Change, Disk, File, FileSystem, Moment, Names, parent};
use crate::trace::{Name, Trace};

/// What becomes of the changes that are not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loss {
    /// All are lost.
    All,
    /// None is lost, as after kill -9.
    Nothing,
    /// Those after some moment are lost, and the one at that moment is torn.
    Tail,
    /// Those before some moment are lost.
    Head,
    /// One is lost.
    One,
    /// Each is lost or not.
    Scattered,
    /// Each page of each is lost or not.
    Pages,
    /// Each sector of each is lost or not.
    Sectors,
}

impl Loss {
    pub(crate) const ALL: [Self; 8] = [
        Self::All,
        Self::Nothing,
        Self::Tail,
        Self::Head,
        Self::One,
        Self::Scattered,
        Self::Pages,
        Self::Sectors,
    ];
}

const PAGE: u64 = 4096;
/// The most that a disk writes at once.
const SECTOR: u64 = 512;

/// A directory as the power cut leaves it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) directories: BTreeSet<Name>,
    pub(crate) files: BTreeMap<Name, Content>,
}

impl Image {
    /// One of the images that are possible now.
    pub(crate) fn of(disk: &Disk<'_>, loss: Loss, random: &mut StdRng) -> Self {
        let names = surviving_names(disk, loss, random);
        let mut survival = Survival::new(disk, loss, random);
        let mut directories = BTreeSet::new();
        for name in names.directories {
            // In order, so that a directory comes after the one it is in. What is in a lost one is lost.
            if name.is_empty() || directories.contains(parent(&name)) {
                directories.insert(name);
            }
        }
        let mut files = BTreeMap::new();
        for (name, file) in names.files {
            if directories.contains(parent(&name)) {
                files.insert(name, survival.content(disk.file(file)));
            }
        }
        Self { directories, files }
    }

    /// What is in a directory now.
    pub(crate) fn read(root: &Path) -> Self {
        let mut image = Self {
            directories: BTreeSet::from([Name::new()]),
            files: BTreeMap::new(),
        };
        let mut open = vec![root.to_owned()];
        while let Some(directory) = open.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                if path.is_dir() {
                    image.directories.insert(name.to_owned());
                    open.push(path);
                } else {
                    image
                        .files
                        .insert(name.to_owned(), Content::read_file(&path));
                }
            }
        }
        image
    }

    /// The names of what is not the same in both. A file of nothing but zeros holds nothing: space may be allocated in
    /// ways that no recorder sees.
    pub(crate) fn differences(&self, other: &Self) -> BTreeSet<Name> {
        let directories = self.directories.symmetric_difference(&other.directories);
        let files = self.files.keys().chain(other.files.keys());
        let differ = files.filter(
            |name| match (self.files.get(*name), other.files.get(*name)) {
                (Some(one), Some(two)) => one != two && !(one.is_blank() && two.is_blank()),
                _ => true,
            },
        );
        directories.chain(differ).cloned().collect()
    }

    /// Makes the directory.
    pub(crate) fn write(&self, root: &Path) {
        for name in &self.directories {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        for (name, content) in &self.files {
            content.write_file(&root.join(name));
        }
    }
}

fn surviving_names(disk: &Disk<'_>, loss: Loss, random: &mut StdRng) -> Names {
    let pending = &disk.pending_names;
    let cut = random.random_range(0..=pending.len());
    let mut names = disk.durable.clone();
    for (number, (_, change)) in pending.iter().enumerate() {
        let kept = match (loss, disk.file_system) {
            (Loss::All, _) => false,
            (Loss::Nothing, _) => true,
            (_, FileSystem::Journal) => number < cut,
            (_, FileSystem::Bare) => random.random_bool(0.5),
        };
        if kept {
            names.apply(change);
        }
    }
    names
}

/// Which changes of files survive one power cut.
struct Survival<'a> {
    loss: Loss,
    /// The moment that the loss is about, where it is about one.
    pivot: Moment,
    /// How likely a change or a part of it survives, where each does by itself.
    chance: f64,
    trace: &'a Trace,
    random: &'a mut StdRng,
}

/// How much of one change survives.
enum Survives {
    Whole,
    Nothing,
    /// The first bytes.
    Torn,
    /// Some blocks of this size.
    Blocks(u64),
}

impl<'a> Survival<'a> {
    fn new(disk: &Disk<'a>, loss: Loss, random: &'a mut StdRng) -> Self {
        let pivot = disk.pending_changes().choose(random).copied();
        Self {
            loss,
            pivot: pivot.unwrap_or_default(),
            chance: *[0.1, 0.5, 0.9].choose(random).unwrap(),
            trace: disk.trace,
            random,
        }
    }

    /// What survives of a file.
    fn content(&mut self, file: &File) -> Content {
        let mut kept = file.durable.clone();
        if self.loss == Loss::All {
            return kept;
        }
        let mut live = file.durable.clone();
        let mut lengths = vec![live.length()];
        for (moment, change) in &file.pending {
            change.apply(&mut live, self.trace);
            lengths.push(live.length());
            self.keep(*moment, change, &live, &mut kept);
        }
        if self.loss == Loss::Nothing {
            return live;
        }
        kept.truncate(self.length(file, &kept, &lengths));
        kept
    }

    /// Takes over what survives of one change. `live` is the file after it: a disk is given pages, in which earlier
    /// changes are as well.
    fn keep(&mut self, moment: Moment, change: &Change, live: &Content, kept: &mut Content) {
        let survives = self.survives(moment);
        let Change::Write { offset, bytes } = change else {
            let whole = match survives {
                Survives::Whole => true,
                Survives::Nothing => false,
                Survives::Torn | Survives::Blocks(_) => self.random.random_bool(0.5),
            };
            if whole {
                kept.truncate(live.length());
            }
            return;
        };
        let end = offset + bytes.len() as u64;
        match survives {
            Survives::Nothing => {}
            Survives::Whole => copy_blocks(kept, live, *offset..end, SECTOR, || true),
            Survives::Torn => {
                let torn = self.random.random_range(*offset..=end);
                kept.write(*offset, &live.read(*offset..torn));
            }
            Survives::Blocks(size) => {
                let (chance, random) = (self.chance, &mut *self.random);
                copy_blocks(kept, live, *offset..end, size, || {
                    random.random_bool(chance)
                });
            }
        }
    }

    fn survives(&mut self, moment: Moment) -> Survives {
        let kept = match self.loss {
            Loss::All => false,
            Loss::Nothing => true,
            Loss::Tail if moment == self.pivot => return Survives::Torn,
            Loss::Tail => moment < self.pivot,
            Loss::Head => self.pivot <= moment,
            Loss::One => moment != self.pivot,
            Loss::Scattered => self.random.random_bool(self.chance),
            Loss::Pages => return Survives::Blocks(PAGE),
            Loss::Sectors => return Survives::Blocks(SECTOR),
        };
        if kept {
            Survives::Whole
        } else {
            Survives::Nothing
        }
    }

    /// A length that the file had since it was durable: bytes and length reach the disk by themselves. Only a
    /// truncation makes a file shorter than it durably was.
    fn length(&mut self, file: &File, kept: &Content, lengths: &[u64]) -> u64 {
        let truncated = file
            .pending
            .iter()
            .any(|(_, change)| matches!(change, Change::Truncate { .. }));
        let last = *lengths.last().unwrap();
        let any = *lengths.choose(self.random).unwrap();
        // Mostly as long as what survived.
        let length = *[kept.length(), kept.length(), last, any]
            .choose(self.random)
            .unwrap();
        if truncated {
            length
        } else {
            length.max(file.durable.length())
        }
    }
}

/// Takes over those blocks of a range, as they are in the whole file, that are `wanted`.
fn copy_blocks(
    kept: &mut Content,
    live: &Content,
    range: Range<u64>,
    size: u64,
    mut wanted: impl FnMut() -> bool,
) {
    let mut start = range.start / size * size;
    while start < range.end {
        let end = (start + size).min(live.length());
        if wanted() {
            kept.copy(live, start..end);
        }
        start += size;
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::omission::Omission;
    use crate::trace::testing::trace;
    use crate::trace::{Event, Inode, SyncKind, SyncNumber};

    const FILE: Inode = Inode(1);
    const BYTES: usize = 2 * 4096;

    fn write(byte: u8) -> Event {
        let start = usize::from(byte) * BYTES;
        Event::Write {
            inode: FILE,
            offset: 0,
            bytes: start..start + BYTES,
        }
    }

    /// Ones that are durable, then twos and threes that are not.
    fn overwritten() -> Trace {
        let data = [[0; BYTES], [1; BYTES], [2; BYTES], [3; BYTES]].concat();
        let sync = SyncNumber(1);
        let events = vec![
            Event::Create {
                inode: FILE,
                name: "a".to_owned(),
            },
            write(1),
            Event::SyncBegin {
                inode: FILE,
                sync,
                kind: SyncKind::Full,
            },
            Event::SyncEnd { sync },
            write(2),
            write(3),
        ];
        trace(&data, events)
    }

    /// The file in many images.
    fn images(loss: Loss) -> BTreeSet<Vec<u8>> {
        let trace = overwritten();
        let mut disk = Disk::new(&trace, FileSystem::Journal, Omission::Nothing);
        disk.go_to(trace.records.len());
        let mut random = StdRng::seed_from_u64(1);
        let image = |_| {
            let image = Image::of(&disk, loss, &mut random);
            image.files["a"].read(0..BYTES as u64)
        };
        (0..200).map(image).collect()
    }

    fn all(byte: u8) -> Vec<u8> {
        vec![byte; BYTES]
    }

    #[test]
    fn what_is_not_durable_is_lost_wholly_or_not_at_all() {
        assert_eq!(images(Loss::All), BTreeSet::from([all(1)]));
        assert_eq!(images(Loss::Nothing), BTreeSet::from([all(3)]));
    }

    #[test]
    fn changes_are_lost_from_either_end_and_one_by_one() {
        assert_eq!(images(Loss::Head), BTreeSet::from([all(3)]));
        assert_eq!(images(Loss::One), BTreeSet::from([all(2), all(3)]));
        assert_eq!(
            images(Loss::Scattered),
            BTreeSet::from([all(1), all(2), all(3)])
        );
        let tails = images(Loss::Tail);
        let torn = |bytes: &Vec<u8>| bytes.is_sorted_by(|one, next| one >= next);
        assert!(tails.len() > 100 && tails.iter().all(torn));
    }

    #[test]
    fn changes_are_torn_at_blocks() {
        for (loss, size) in [(Loss::Pages, 4096), (Loss::Sectors, 512)] {
            let images = images(loss);

            let mixed = images
                .iter()
                .filter(|bytes| bytes.iter().any(|byte| *byte != bytes[0]));
            assert!(mixed.count() > 3, "{loss:?}");
            for bytes in images {
                for block in bytes.chunks(size) {
                    assert!(block.iter().all(|byte| *byte == block[0]), "{loss:?}");
                }
            }
        }
    }

    #[test]
    fn an_image_is_the_directory_that_it_makes() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("root");
        let directories = ["", "d", "d/e"].map(str::to_owned).into();
        let files = BTreeMap::from([("d/f".to_owned(), Content::of(b"bytes"))]);
        let image = Image { directories, files };

        image.write(&root);

        assert_eq!(std::fs::read(root.join("d/f")).unwrap(), b"bytes");
        assert_eq!(Image::read(&root), image);
        std::fs::write(root.join("d/g"), "").unwrap();
        assert_eq!(
            Image::read(&root).differences(&image),
            ["d/g".to_owned()].into()
        );
    }
}
