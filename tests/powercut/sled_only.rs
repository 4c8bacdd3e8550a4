//! sled by itself under the sync rules, for those which a node's trace cannot show broken.
//!
//! A sync left out of a trace says nothing about what a program would have written otherwise: larger groups (rule 1),
//! larger values (rule 2), a file that the next start does not remove (rule 4). So a process of this very binary
//! writes to sled with one rule broken, is recorded like a node, and each image is opened by such a process too.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};

use crate::history::now_ns;
use crate::node::{KILL_BETWEEN_EFFECTS, Recorder};
use crate::omission::DATA;
use crate::replay::Verdict;
use crate::trace::Trace;

/// Smaller than the store's, so that a short trace has many.
const SEGMENT_BYTES: usize = 512 * 1024;
/// sled's own use of a key beside its value, as the store counts it.
const RECORD_BYTES: usize = 72;
/// How many bytes are given to sled at once, and flushed by it.
const GROUP_BYTES: usize = SEGMENT_BYTES / 32;
/// How many bytes of records are kept: what is older is removed, and its segments are used again.
const KEPT_BYTES: usize = 2 * SEGMENT_BYTES;
/// Keys that are written anew all the time, and keys that are written once: what is old and still wanted lies in
/// segments that sled would like to use again.
const MARKS: u64 = 100;
const COLD: u64 = 200;
const COLD_BYTES: usize = 500;
const LIVES: usize = 3;
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

const WORK: &str = "HIGHWATER_TEST_SLED_WORK";
const CHECK: &str = "HIGHWATER_TEST_SLED_CHECK";
const BROKEN: &str = "HIGHWATER_TEST_SLED_BROKEN";

/// Which of the sync rules is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    None,
    /// Rule 1: between two syncs there is little against a segment.
    Changes,
    /// Rule 2: no value is so large that sled puts it into a file of its own.
    Values,
    /// Rule 4: a start removes what an earlier one left unfinished.
    Unfinished,
}

impl Broken {
    const ALL: [Self; 4] = [Self::None, Self::Changes, Self::Values, Self::Unfinished];

    /// The most bytes between two syncs.
    fn changes_bytes(self) -> usize {
        match self {
            Self::Changes => 4 * SEGMENT_BYTES,
            Self::Values => SEGMENT_BYTES / 2,
            Self::None | Self::Unfinished => GROUP_BYTES,
        }
    }

    fn value_bytes(self, index: u64) -> usize {
        let small = 200 + usize::try_from(index * 37 % 5000).unwrap();
        match self {
            Self::Values => small + SEGMENT_BYTES / 4,
            _ => small,
        }
    }

    fn written_bytes(self) -> usize {
        match self {
            Self::Changes => 24 * SEGMENT_BYTES,
            _ => 6 * SEGMENT_BYTES,
        }
    }

    fn value(self, index: u64) -> Vec<u8> {
        let bytes = index.to_le_bytes();
        let all = bytes.iter().cycle().take(self.value_bytes(index));
        all.copied().collect()
    }
}

/// A recorded process, and what it acknowledged.
#[derive(Debug)]
pub(crate) struct SledRecording {
    pub(crate) trace: Trace,
    notes: Notes,
}

impl SledRecording {
    /// Records a process that breaks a rule.
    pub(crate) fn make(scratch: &Path, broken: Broken) -> Self {
        let root = scratch.join("root");
        fs::create_dir(&root).unwrap();
        let recorder = Recorder::build(scratch);
        let notes = scratch.join("notes");
        for _ in 0..LIVES {
            let status = process(broken)
                .env(WORK, &root)
                .env("HIGHWATER_TEST_SLED_NOTES", &notes)
                .envs(recorder.environment(&root))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&status.stderr);
            assert!(
                status.status.code().is_none(),
                "it ends by a signal: {said}"
            );
        }
        Self {
            trace: recorder.trace(&root),
            notes: Notes::read(&notes),
        }
    }

    /// What a disk owes whose power is cut then; nothing before the store was made.
    pub(crate) fn owed_at(&self, at_ns: u64) -> Option<Range<u64>> {
        self.notes.owed_at(at_ns)
    }
}

/// What the process noted, in order: the time, and the records that were there from then on.
#[derive(Debug)]
struct Notes(Vec<(u64, Range<u64>)>);

impl Notes {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let note = |line: &str| {
            let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            (numbers[0], numbers[1]..numbers[2])
        };
        Self(text.lines().map(note).collect())
    }

    fn owed_at(&self, at_ns: u64) -> Option<Range<u64>> {
        let noted = self.0.iter().rev().find(|(noted_ns, _)| *noted_ns < at_ns);
        noted.map(|(_, owed)| owed.clone())
    }
}

/// Opens an image in a process of its own and compares it with what it owes.
pub(crate) async fn judge(root: PathBuf, broken: Broken, owed: Option<Range<u64>>) -> Verdict {
    let Some(owed) = owed else {
        return Verdict::Right;
    };
    let opened = tokio::task::spawn_blocking(move || open_apart(&root, broken));
    let found = match opened.await.unwrap() {
        Ok(found) => found,
        Err(verdict) => return verdict,
    };
    let has_all = found.records.start <= owed.start && owed.end <= found.records.end;
    let has_marks = owed.end <= found.marks_end;
    if (has_all && has_marks) || owed.is_empty() {
        Verdict::Right
    } else {
        Verdict::Wrong(format!("it has {found:?} and owes {owed:?}"))
    }
}

/// What is in a store.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    records: Range<u64>,
    /// The marks of all records below this one are there.
    marks_end: u64,
}

impl Found {
    fn write(&self, path: &Path) {
        let Range { start, end } = self.records;
        fs::write(path, format!("found {start} {end} {}", self.marks_end)).unwrap();
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.strip_prefix("found ")?.split(' ').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self {
            records: next()?..next()?,
            marks_end: next()?,
        })
    }
}

fn open_apart(root: &Path, broken: Broken) -> Result<Found, Verdict> {
    let (out, err) = (root.with_extension("out"), root.with_extension("err"));
    let mut child = process(broken)
        .env(CHECK, root)
        .stdout(Stdio::null())
        .env("HIGHWATER_TEST_SLED_FOUND", &out)
        .stderr(File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + OPEN_TIMEOUT;
    let status = wait_until_ended(&mut child, deadline);
    let said = fs::read_to_string(err).unwrap();
    let Some(status) = status else {
        return Err(Verdict::Hung(said));
    };
    let Ok(found) = fs::read_to_string(out) else {
        return Err(Verdict::Broke(format!("{status}: {said}")));
    };
    Found::parse(&found).ok_or(Verdict::Refused(found))
}

fn wait_until_ended(
    child: &mut std::process::Child,
    deadline: Instant,
) -> Option<std::process::ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if deadline < Instant::now() {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// This binary, running the test below.
fn process(broken: Broken) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "sled_only::a_process_works_on_sled_or_opens_it"])
        .arg("--nocapture")
        .env("RUST_BACKTRACE", "0")
        .env(BROKEN, format!("{broken:?}"));
    command
}

/// Not a test by itself: what the processes of the others do.
#[test]
fn a_process_works_on_sled_or_opens_it() {
    let Ok(broken) = std::env::var(BROKEN) else {
        return;
    };
    let mut all = Broken::ALL.into_iter();
    let broken = all.find(|one| format!("{one:?}") == broken).unwrap();
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    if let Some(root) = variable(WORK) {
        let notes = variable("HIGHWATER_TEST_SLED_NOTES").unwrap();
        work(&root.join(DATA), broken, &notes);
        kill_process(getpid(), KILL_BETWEEN_EFFECTS).unwrap();
        // It ends at the next effect at the latest.
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    if let Some(root) = variable(CHECK) {
        let out = variable("HIGHWATER_TEST_SLED_FOUND").unwrap();
        match Store::open(&root.join(DATA), broken).and_then(|store| store.found(broken)) {
            Ok(found) => found.write(&out),
            Err(error) => fs::write(out, error.to_string()).unwrap(),
        }
    }
}

struct Store {
    db: sled::Db,
    log: sled::Tree,
    marks: sled::Tree,
    cold: sled::Tree,
    file: File,
}

impl Store {
    /// Opens as the store does.
    fn open(path: &Path, broken: Broken) -> sled::Result<Self> {
        if path.exists() && broken != Broken::Unfinished {
            remove_unfinished(path);
        }
        let db = sled::Config::new()
            .path(path)
            .segment_size(SEGMENT_BYTES)
            .flush_every_ms(None)
            .open()?;
        let store = Self {
            log: db.open_tree("log")?,
            marks: db.open_tree("marks")?,
            cold: db.open_tree("cold")?,
            file: File::open(path.join("db"))?,
            db,
        };
        store.db.flush()?;
        for name in ["db", "conf", "blobs"] {
            sync(&path.join(name));
        }
        sync(path);
        sync(path.parent().unwrap());
        Ok(store)
    }

    /// Makes what sled has flushed durable.
    fn sync(&self) {
        self.db.flush().unwrap();
        self.file.sync_data().unwrap();
    }

    /// What is there; it has to be whole and without a hole.
    fn found(&self, broken: Broken) -> sled::Result<Found> {
        let mut records: Option<Range<u64>> = None;
        for record in &self.log {
            let (key, value) = record?;
            let index = number(&key);
            let start = records.map_or(index, |records| {
                assert_eq!(records.end, index, "a hole in the log");
                records.start
            });
            assert!(value == broken.value(index), "record {index} is another");
            records = Some(start..index + 1);
        }
        let records = records.unwrap_or_default();
        let mut marks_end = u64::MAX;
        for key in 0..MARKS {
            let mark = self.marks.get(key.to_be_bytes())?;
            marks_end = marks_end.min(mark.map_or(key, |mark| number(&mark) + MARKS));
        }
        if 0 < records.end {
            let cold = self.cold.iter().collect::<sled::Result<Vec<_>>>()?;
            assert_eq!(cold.len() as u64, COLD, "cold keys");
        }
        Ok(Found { records, marks_end })
    }
}

fn number(bytes: &sled::IVec) -> u64 {
    u64::from_be_bytes(bytes.as_ref().try_into().unwrap())
}

fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

fn remove_unfinished(path: &Path) {
    for entry in fs::read_dir(path).unwrap() {
        let found = entry.unwrap().path();
        if found
            .extension()
            .is_some_and(|extension| extension == "generating")
        {
            fs::remove_file(found).unwrap();
        }
    }
    sync(path);
}

/// Appends groups of records, each record with a mark, and removes the oldest.
fn work(path: &Path, broken: Broken, notes: &Path) {
    let mut worker = Worker::start(Store::open(path, broken).unwrap(), broken, notes);
    let mut written = 0;
    while written < broken.written_bytes() {
        written += worker.append();
        worker.remove();
    }
}

struct Worker {
    store: Store,
    broken: Broken,
    notes: File,
    there: Range<u64>,
    /// The end of the records that are durable.
    durable_end: u64,
    /// The end of those that sled flushed.
    flushed_end: u64,
    /// The bytes of the records that are there.
    kept: usize,
    /// The bytes of the changes since the last sync.
    unsynced: usize,
}

impl Worker {
    fn start(store: Store, broken: Broken, notes: &Path) -> Self {
        let there = store.found(broken).unwrap().records;
        let mut worker = Self {
            notes: OpenOptions::new()
                .create(true)
                .append(true)
                .open(notes)
                .unwrap(),
            kept: there.clone().map(|index| size(broken, index)).sum(),
            durable_end: there.end,
            flushed_end: there.end,
            unsynced: 0,
            store,
            broken,
            there,
        };
        for key in worker.store.cold.len() as u64..COLD {
            let cold = &worker.store.cold;
            cold.insert(key.to_be_bytes(), vec![7; COLD_BYTES]).unwrap();
            worker.store.sync();
        }
        worker.note();
        worker
    }

    /// Appends a group.
    fn append(&mut self) -> usize {
        let (mut log, mut marks) = (sled::Batch::default(), sled::Batch::default());
        let mut bytes = 0;
        while bytes == 0 || bytes + size(self.broken, self.there.end) <= GROUP_BYTES {
            let index = self.there.end;
            log.insert(&index.to_be_bytes(), self.broken.value(index));
            marks.insert(&(index % MARKS).to_be_bytes(), &index.to_be_bytes());
            bytes += size(self.broken, index);
            self.there.end += 1;
        }
        self.make_room(bytes);
        self.store.log.apply_batch(log).unwrap();
        self.store.marks.apply_batch(marks).unwrap();
        self.flush(bytes);
        self.kept += bytes;
        bytes
    }

    /// Removes what is too old, a group at a time.
    fn remove(&mut self) {
        while KEPT_BYTES < self.kept {
            let mut log = sled::Batch::default();
            let mut bytes = 0;
            while bytes == 0 || bytes + size(self.broken, self.there.start) <= GROUP_BYTES {
                log.remove(&self.there.start.to_be_bytes());
                bytes += size(self.broken, self.there.start);
                self.there.start += 1;
            }
            self.make_room(bytes);
            // From now on they may be gone.
            self.note();
            self.store.log.apply_batch(log).unwrap();
            self.flush(bytes);
            self.kept -= bytes;
        }
    }

    /// Syncs where further changes would be too many.
    fn make_room(&mut self, bytes: usize) {
        if self.broken.changes_bytes() < self.unsynced + bytes {
            self.store.sync();
            self.unsynced = 0;
            self.durable_end = self.flushed_end;
            self.note();
        }
    }

    /// sled's own barrier, on the strength of which it uses segments again.
    fn flush(&mut self, bytes: usize) {
        self.store.db.flush().unwrap();
        self.unsynced += bytes;
        self.flushed_end = self.there.end;
    }

    fn note(&mut self) {
        let (start, end) = (self.there.start, self.durable_end);
        writeln!(self.notes, "{} {start} {end}", now_ns()).unwrap();
    }
}

fn size(broken: Broken, index: u64) -> usize {
    2 * RECORD_BYTES + broken.value_bytes(index)
}
