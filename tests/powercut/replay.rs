//! Cuts the power many times in one trace, and has every disk judged that this leaves.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tokio::task::JoinSet;

use crate::disk::{Disk, FileSystem, Moment};
use crate::image::{Image, Loss};
use crate::omission::Omission;
use crate::trace::Trace;

/// How many images are judged at once. A start mostly waits.
const JUDGES: usize = 4;

/// What became of an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Right,
    /// It opens, and something acknowledged is gone, or something is there that nobody asked for.
    Wrong(String),
    /// It is refused, with this line.
    Refused(String),
    /// It ended in a panic, or in another way than by a refusal.
    Broke(String),
    Hung(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right => f.write_str("right"),
            Self::Wrong(what) => write!(f, "wrong: {what}"),
            Self::Refused(line) => write!(f, "refused: {line}"),
            Self::Broke(said) => write!(f, "broke: {said}"),
            Self::Hung(said) => write!(f, "hung: {said}"),
        }
    }
}

/// A disk that does not have what it owes.
#[derive(Debug)]
pub(crate) struct Fault {
    cut: Moment,
    loss: Loss,
    file_system: FileSystem,
    pub(crate) verdict: Verdict,
    /// As the power cut left it.
    pub(crate) image: Image,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cut,
            loss,
            file_system,
            verdict,
            image: _,
        } = self;
        write!(
            f,
            "cut at {cut}, {loss:?} lost on {file_system:?}: {verdict}"
        )
    }
}

/// What came of some images.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) images: usize,
    pub(crate) faults: Vec<Fault>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.images += other.images;
        self.faults.extend(other.faults);
    }
}

/// What is replayed, and how.
#[derive(Debug)]
pub(crate) struct Replay<'t> {
    pub(crate) trace: &'t Trace,
    /// What was on the disk before.
    pub(crate) base: Option<&'t Image>,
    pub(crate) omission: Omission,
    /// Where images are made.
    pub(crate) scratch: &'t Path,
}

impl Replay<'_> {
    /// Cuts the power at these moments on one file system. `judge` is given the directory and the time of the cut.
    pub(crate) async fn run<J>(
        &self,
        file_system: FileSystem,
        cuts: &[Moment],
        random: &mut StdRng,
        judge: impl Fn(PathBuf, u64) -> J,
    ) -> Tally
    where
        J: Future<Output = Verdict> + Send + 'static,
    {
        let mut disk = Disk::new(self.trace, file_system, self.omission);
        if let Some(base) = self.base {
            disk.load(base);
        }
        let mut tally = Tally::default();
        let mut judges = JoinSet::new();
        for cut in cuts {
            disk.go_to(*cut);
            let loss = *Loss::ALL.choose(random).unwrap();
            let image = Image::of(&disk, loss, random);
            let directory = tempfile::tempdir_in(self.scratch).unwrap();
            let root = directory.path().join("root");
            image.write(&root);
            let judged = judge(root, self.trace.time_before(*cut));
            let cut = *cut;
            judges.spawn(async move {
                let verdict = judged.await;
                drop(directory);
                Fault {
                    cut,
                    loss,
                    file_system,
                    verdict,
                    image,
                }
            });
            if judges.len() == JUDGES {
                tally.count(judges.join_next().await.unwrap().unwrap());
            }
        }
        while let Some(judged) = judges.join_next().await {
            tally.count(judged.unwrap());
        }
        tally
    }
}

impl Tally {
    fn count(&mut self, judged: Fault) {
        self.images += 1;
        if judged.verdict != Verdict::Right {
            self.faults.push(judged);
        }
    }
}

/// A folder in memory where there is one: thousands of images are made in it.
pub(crate) fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    made.unwrap()
}
