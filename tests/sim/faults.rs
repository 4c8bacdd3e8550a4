//! What goes wrong in a run, and when: drawn from its seed before it begins.

use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Which node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// Whichever leads at that moment.
    Leader,
    /// This one.
    Node(u64),
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A machine's power is cut, between two writes.
    PowerCut(Who),
    /// All machines' power is cut at once.
    PowerCutAll,
    /// A machine's power is cut within a write, at the so-manieth step of its writes.
    CutWithin(Who, u64),
    /// A machine is cut off from all others, not from the workers. Its power may be cut within the first writes after that,
    /// by which a leader that was deposed gives up what it had appended.
    Isolate(Who, Option<u64>),
    /// What a machine sends is lost, what is sent to it arrives.
    Mute(Who),
    /// This many of the machines are cut off from the rest.
    Split(u64),
    /// A machine's messages to and from all others wait.
    Hold(Who),
    /// Each message is lost with this chance in a thousand, and with it the connection.
    Lossy(u32),
    /// Syncs take up to so many milliseconds.
    SlowDisk(Who, u64),
    /// Leadership is handed over.
    HandOver,
    /// A machine that does not lead loses its store for good.
    LoseStore(u64),
}

impl Fault {
    /// The kinds, as they are counted.
    pub(super) const KINDS: [&str; 11] = [
        "power cut",
        "power cut of all",
        "power cut within a write",
        "isolated",
        "mute",
        "split",
        "held messages",
        "lost messages",
        "slow disk",
        "hand over",
        "lost store",
    ];

    pub(super) fn kind(self) -> &'static str {
        let at = match self {
            Self::PowerCut(_) => 0,
            Self::PowerCutAll => 1,
            Self::CutWithin(..) => 2,
            Self::Isolate(..) => 3,
            Self::Mute(_) => 4,
            Self::Split(_) => 5,
            Self::Hold(_) => 6,
            Self::Lossy(_) => 7,
            Self::SlowDisk(..) => 8,
            Self::HandOver => 9,
            Self::LoseStore(_) => 10,
        };
        Self::KINDS[at]
    }
}

/// A fault and its time. Several may last at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) begins: Duration,
    pub(super) ends: Duration,
    pub(super) fault: Fault,
}

/// The faults of a run, by the time at which they begin.
pub(super) fn draw(chance: &mut StdRng, nodes: u64, length: Duration) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut begins = Duration::from_millis(chance.random_range(500..1_500));
    while begins < length {
        let lasts = Duration::from_millis(chance.random_range(50..1_500));
        steps.push(Step {
            begins,
            ends: (begins + lasts).min(length),
            fault: fault(chance, nodes),
        });
        begins += Duration::from_millis(chance.random_range(100..1_200));
    }
    // At most one machine loses its store: the promises are kept by a majority of stores.
    if chance.random_bool(0.3) {
        steps.push(Step {
            begins: length * 2 / 3,
            ends: length,
            fault: Fault::LoseStore(chance.random_range(1..=nodes)),
        });
    }
    steps.sort_by_key(|step| step.begins);
    steps
}

fn fault(chance: &mut StdRng, nodes: u64) -> Fault {
    let node = Who::Node(chance.random_range(1..=nodes));
    let who = *[Who::Leader, node].choose(chance).unwrap();
    match chance.random_range(0..20) {
        0 | 1 => Fault::PowerCut(who),
        2 => Fault::PowerCutAll,
        3..6 => Fault::CutWithin(who, chance.random_range(0..6)),
        6..9 => {
            // The first is the vote's. What was not committed goes to the database in two, is given up in two, and removed in
            // the sixth; a node that gave it up in none removes it in the fourth. Most is at stake in the first and after that.
            let steps = *[0, 4, chance.random_range(0..8)].choose(chance).unwrap();
            let cut = chance.random_bool(0.5).then_some(steps);
            Fault::Isolate(who, cut)
        }
        9 => Fault::Mute(who),
        10 => Fault::Split(chance.random_range(1..nodes)),
        11..14 => Fault::Hold(who),
        14 => Fault::Lossy(chance.random_range(1..10)),
        15..17 => Fault::SlowDisk(who, chance.random_range(20..400)),
        _ => Fault::HandOver,
    }
}
