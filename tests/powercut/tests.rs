//! The node, and sled under the sync rules, after power cuts.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::cluster::RecordedCluster;
use crate::cuts::cuts;
use crate::disk::{Disk, FileSystem};
use crate::history::History;
use crate::image::{Image, Loss};
use crate::judge::judge;
use crate::node::{End, Life, Recording};
use crate::omission::Omission;
use crate::replay::{Replay, Tally, Verdict, scratch};
use crate::sled_only::{self, Broken, SledRecording};

/// How many power cuts; `HIGHWATER_TEST_POWER_CUTS` asks for more, and then for a longer recording too.
const POWER_CUTS: usize = 50;
/// How many of a whole cluster; `HIGHWATER_TEST_CLUSTER_POWER_CUTS` asks for more.
const CLUSTER_POWER_CUTS: usize = 5;
/// As many as are worth a longer recording.
const POWER_CUTS_MANY: usize = 500;
/// A fault that is there has to show within so many.
const POWER_CUTS_TO_A_FAULT: usize = 600;
/// How many of them at a time, on each file system in turn.
const POWER_CUTS_PER_TURN: usize = 10;

fn power_cuts() -> usize {
    asked("POWER_CUTS").unwrap_or(POWER_CUTS)
}

fn asked(name: &str) -> Option<usize> {
    let asked = std::env::var(format!("HIGHWATER_TEST_{name}")).ok()?;
    Some(asked.parse().unwrap())
}

fn life(entries: u64, end: End) -> Life {
    Life { entries, end }
}

/// Lives with a snapshot and a purge in them: openraft makes one every 10,000 entries.
fn lives() -> Vec<Life> {
    let (first, then) = if power_cuts() < POWER_CUTS_MANY {
        (10_200, 100)
    } else {
        (10_400, 10_300)
    };
    vec![
        life(first, End::Kill),
        life(then, End::Terminate),
        life(then, End::Kill),
        life(50, End::Kill),
    ]
}

/// A seed of its own for each run, printed for the one that fails.
fn seeded() -> StdRng {
    let seed = std::env::var("HIGHWATER_TEST_SEED");
    let seed = seed.map_or_else(|_| rand::random(), |text| text.parse().unwrap());
    println!("HIGHWATER_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// A recorded node, and where its images are made.
struct Recorded {
    recording: Recording,
    scratch: tempfile::TempDir,
}

impl Recorded {
    async fn make(lives: &[Life]) -> Self {
        let scratch = scratch();
        let root = scratch.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let recording = Recording::make(&root, History::default(), lives).await;
        Self { recording, scratch }
    }

    /// Cuts the power so many times, on each file system in turn.
    async fn cut(&self, wanted: usize, omission: Omission, random: &mut StdRng) -> Tally {
        let replay = Replay {
            trace: &self.recording.trace,
            base: None,
            omission,
            scratch: self.scratch.path(),
        };
        let mut tally = Tally::default();
        for file_system in FileSystem::ALL {
            let cuts = cuts(replay.trace, wanted / FileSystem::ALL.len(), random);
            let judged = replay.run(file_system, &cuts, random, |root, at_ns| {
                let owed = self.recording.history.owed_at(at_ns);
                async move { judge(&root, &owed).await }
            });
            tally.add(judged.await);
        }
        tally
    }
}

/// Keeps the first image at fault for whoever has to find out why.
fn assert_no_fault(tally: &Tally) {
    let faults: Vec<_> = tally.faults.iter().map(ToString::to_string).collect();
    println!("{} images, {} faults", tally.images, faults.len());
    if let Some(fault) = tally.faults.first() {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let kept = folder.keep().join("root");
        fault.image.write(&kept);
        panic!("{} is kept; all:\n{}", kept.display(), faults.join("\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_tells_all_that_the_node_did_to_its_disk() {
    for end in [End::Kill, End::Terminate] {
        let lives = [life(60, End::Kill), life(40, end)];

        let recorded = Recorded::make(&lives).await;

        let trace = &recorded.recording.trace;
        let mut disk = Disk::new(trace, FileSystem::Journal, Omission::Nothing);
        disk.go_to(trace.records.len());
        let told = Image::of(&disk, Loss::Nothing, &mut seeded());
        let real = Image::read(&recorded.scratch.path().join("root"));
        let differ = real.differences(&told);
        assert!(differ.is_empty(), "{end:?}: {differ:?}");
    }
}

/// What the database says, or is found to lack, after it lost what it was given.
const DATABASE_LACKS: [&str; 4] = [
    "sled does not open",
    "the log ends at",
    "the log is purged to",
    "the log record at",
];
/// What a node shows that has become another.
const FORMED_ANEW: [&str; 2] = ["it leads in term", "404"];

/// Syncs left out, and what a node that misses one says or shows.
fn needed() -> Vec<(Omission, Vec<&'static str>)> {
    vec![
        (Omission::Everything, vec![""]),
        (Omission::Database, DATABASE_LACKS.to_vec()),
        (
            Omission::Slots,
            vec![
                "superblock is damaged",
                "the log ends at",
                "the snapshot ends at",
                ".snapshot is missing",
                "wrong: ",
            ],
        ),
        (Omission::Configuration, vec!["sled does not open"]),
        (
            Omission::FirstOpening,
            [&DATABASE_LACKS[..], &["conf is missing", "db is missing"]].concat(),
        ),
        (Omission::LaterOpenings, DATABASE_LACKS.to_vec()),
        (Omission::Root, FORMED_ANEW.to_vec()),
        (
            Omission::DataDirectory,
            [
                &FORMED_ANEW[..],
                &["is missing", "holds a vote or a log", "belongs to another"],
            ]
            .concat(),
        ),
        (Omission::SnapshotDirectory, vec![".snapshot is missing"]),
        (
            Omission::Replacement,
            vec![
                "identity is damaged",
                "superblock is damaged",
                ".snapshot is damaged",
            ],
        ),
    ]
}

// etcd-io/etcd#14370: a cluster of one node lost what it had acknowledged. spacejam/sled#1533, spacejam/sled#1527: a
// crash left a store that did not open.
#[tokio::test(flavor = "multi_thread")]
async fn no_power_cut_takes_what_was_acknowledged_and_no_sync_can_be_left_out() {
    let recorded = Recorded::make(&lives()).await;
    let mut random = seeded();

    let tally = recorded
        .cut(power_cuts(), Omission::Nothing, &mut random)
        .await;
    assert_no_fault(&tally);

    for (omission, expected) in needed() {
        let mut tally = Tally::default();
        while tally.faults.is_empty() && tally.images < POWER_CUTS_TO_A_FAULT {
            tally.add(
                recorded
                    .cut(POWER_CUTS_PER_TURN, omission, &mut random)
                    .await,
            );
        }
        let images = tally.images;
        println!("{omission:?} left out: {} of {images}", tally.faults.len());
        for fault in &tally.faults {
            println!("  {fault}");
            let text = fault.verdict.to_string();
            let is_expected = expected.iter().any(|part| text.contains(part));
            assert!(is_expected, "{omission:?} left out: {fault}");
        }
        assert!(
            !tally.faults.is_empty(),
            "{omission:?} left out of {images} images, and nothing is missed"
        );
    }
}

// spacejam/sled#1533: always opens, also where the recovery from one crash ends in the next.
#[tokio::test(flavor = "multi_thread")]
async fn no_second_power_cut_during_the_recovery_from_a_first_takes_what_was_acknowledged() {
    let first = Recorded::make(&[life(300, End::Kill), life(50, End::Kill)]).await;
    let mut random = seeded();
    let images = (power_cuts() / 15).max(3);
    let mut tally = Tally::default();
    let trace = &first.recording.trace;

    for cut in cuts(trace, images, &mut random) {
        let file_system = FileSystem::ALL[random.random_range(0..FileSystem::ALL.len())];
        let mut disk = Disk::new(trace, file_system, Omission::Nothing);
        disk.go_to(cut);
        let loss = Loss::ALL[random.random_range(0..Loss::ALL.len())];
        let image = Image::of(&disk, loss, &mut random);
        let scratch = scratch();
        let root = scratch.path().join("root");
        image.write(&root);
        let history = first.recording.history.known_at(trace.time_before(cut));
        let again = Recording::make(&root, history, &[life(20, End::Kill)]).await;
        let replay = Replay {
            trace: &again.trace,
            base: Some(&image),
            omission: Omission::Nothing,
            scratch: scratch.path(),
        };
        let second = cuts(replay.trace, 8, &mut random);
        let judged = replay.run(file_system, &second, &mut random, |root, at_ns| {
            let owed = again.history.owed_at(at_ns);
            async move { judge(&root, &owed).await }
        });
        tally.add(judged.await);
    }

    assert_no_fault(&tally);
}

// canonical/raft#199: after all nodes were killed some refused to start.
#[tokio::test(flavor = "multi_thread")]
async fn no_power_cut_of_all_nodes_at_once_takes_what_they_acknowledged() {
    let scratch = scratch();
    let mut cluster = RecordedCluster::make(scratch.path()).await;
    let mut random = seeded();

    let cuts = asked("CLUSTER_POWER_CUTS").unwrap_or(CLUSTER_POWER_CUTS);
    for number in 1..=cuts {
        let verdict = cluster.cut(Omission::Nothing, &mut random).await;

        if verdict != Verdict::Right {
            let kept = scratch.keep();
            panic!(
                "power cut {number}: {verdict}; all is in {}",
                kept.display()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_syncs_a_power_cut_of_all_nodes_takes_what_they_acknowledged() {
    let scratch = scratch();
    let mut cluster = RecordedCluster::make(scratch.path()).await;
    let mut random = seeded();

    for _ in 0..POWER_CUTS_TO_A_FAULT {
        if cluster.cut(Omission::Everything, &mut random).await != Verdict::Right {
            return;
        }
    }
    panic!("{POWER_CUTS_TO_A_FAULT} power cuts took nothing that was never synced");
}

async fn cut_sled(broken: Broken, wanted: usize, random: &mut StdRng) -> Tally {
    let scratch = scratch();
    let recording = SledRecording::make(scratch.path(), broken);
    let replay = Replay {
        trace: &recording.trace,
        base: None,
        omission: Omission::Nothing,
        scratch: scratch.path(),
    };
    let mut tally = Tally::default();
    while tally.images < wanted && (broken == Broken::None || tally.faults.is_empty()) {
        for file_system in FileSystem::ALL {
            let cuts = cuts(replay.trace, POWER_CUTS_PER_TURN, random);
            let judged = replay.run(file_system, &cuts, random, |root, at_ns| {
                sled_only::judge(root, broken, recording.owed_at(at_ns))
            });
            tally.add(judged.await);
        }
    }
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn sled_loses_nothing_under_the_rules_and_something_where_one_is_broken() {
    let mut random = seeded();

    assert_no_fault(&cut_sled(Broken::None, power_cuts(), &mut random).await);

    for broken in [Broken::Changes, Broken::Values, Broken::Unfinished] {
        let tally = cut_sled(broken, POWER_CUTS_TO_A_FAULT, &mut random).await;
        println!(
            "{broken:?} broken: {} of {}",
            tally.faults.len(),
            tally.images
        );
        for fault in &tally.faults {
            println!("  {fault}");
        }
        assert!(
            !tally.faults.is_empty(),
            "{broken:?} broken, and nothing is missed"
        );
    }
}
