//! What goes wrong when: the same for the same seed, kinds and duration, in one version of Highwater.
//!
//! Four lanes go side by side, so faults of several happen at once. In a lane one fault follows another, in rounds: each round
//! has every kind once, in an order of its own.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, SeedableRng as _};

use super::kind::{Kind, Lane};
use crate::chaos::flow::FlowFault;

/// Between two faults of a lane, so that grants go on now and then.
const PAUSE_MS: RangeInclusive<u64> = 200..=1_000;
/// From well below an election time-out to many of them; as all times, for a run of a minute.
const LASTS_MS: RangeInclusive<u64> = 200..=2_500;
/// A node stands still for so long at least, and for at most half a minute or this part of the run.
const STOP_MS_MIN: u64 = 100;
const STOP_MS_MAX: u64 = 30_000;
const STOP_PART: u32 = 6;
/// Longer than a leader waits for its disk before it hands over.
const HANG_MS: RangeInclusive<u64> = 3_200..=5_000;
const SLOW_MS: RangeInclusive<u32> = 5..=100;
/// Late enough for an election where it is heartbeats that are late.
const DELAY_MS: RangeInclusive<u64> = 1..=300;
/// From a rate at which heartbeats alone pass to one that load does not reach.
const BYTES_PER_SECOND: RangeInclusive<u64> = 10_000..=1_000_000;
const LOSE_EVERY: RangeInclusive<u64> = 2..=50;
/// A call of the disk within the first few groups.
const CALL_NUMBER: RangeInclusive<u32> = 1..=8;
/// For how much of its times a run of a minute is taken: shorter ones have shorter faults, within bounds.
const PACE: RangeInclusive<f64> = 0.4..=2.0;

/// Which node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    /// Whichever leads when the fault begins.
    Leader,
    /// Of the others that it can befall then, by id, the one of this number; counted on from the first after the last.
    Other(u8),
}

/// Which links between nodes, both directions of each unless said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All.
    All,
    /// Those of one node.
    Of(Victim),
    /// What one node sends.
    From(Victim),
    /// What is sent to one node.
    To(Victim),
    /// Those between a minority, with this node in it, and the others.
    Minority(Victim),
    /// Those between two sides that both have this node.
    Beside(Victim),
    /// Those between nodes that are no neighbours in a ring.
    Across,
}

/// How a directory is harmed while its node is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// Nothing is left.
    Wiped,
    /// Some bits are others, which this chooses.
    FlippedBits(u64),
    /// The end of the database is gone, of a length that this chooses.
    TornTail(u64),
}

/// What becomes of a node that was refused for its old directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WayOut {
    /// Its directory is put back.
    PutBack,
    /// It is replaced by a new node.
    Replaced,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(Victim),
    KillAll,
    Terminate(Victim),
    FailingSync(Victim, &'static str, u32),
    FullDisk(Victim),
    OldDirectory(Victim, WayOut),
    Harm(Victim, Harm),
    Links(Scope, FlowFault),
    LostReplies(NonZeroU64),
    Stop(Victim),
    SlowSync(Victim, u32),
    HungSync(Victim),
    Clock(Victim, i64),
    MemberAdd,
    MemberRemove(Victim),
    MemberReplace(Victim),
    Backup(Victim),
    MoveLeader,
}

/// A fault and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) fault: Fault,
    /// What is waited for before, since the last one of its lane ended.
    pub(crate) pause: Duration,
    /// Until it is over, where it is something that lasts.
    pub(crate) lasts: Duration,
}

/// The steps of all lanes, without end.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) duration: Duration,
}

impl Schedule {
    /// The steps of a lane; none where no kind of it was chosen.
    pub(crate) fn lane(&self, lane: Lane) -> Steps {
        let kinds = self.kinds.iter().copied();
        let seed = self.seed.wrapping_mul(8).wrapping_add(lane as u64);
        let pace = self.duration.as_secs_f64() / 60.0;
        Steps {
            chance: StdRng::seed_from_u64(seed),
            kinds: kinds.filter(|kind| kind.lane() == lane).collect(),
            round: Vec::new(),
            pace: pace.clamp(*PACE.start(), *PACE.end()),
            stop_max: (self.duration / STOP_PART).min(Duration::from_millis(STOP_MS_MAX)),
        }
    }
}

/// The steps of one lane.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    chance: StdRng,
    kinds: Vec<Kind>,
    /// What is left of this round.
    round: Vec<Kind>,
    pace: f64,
    stop_max: Duration,
}

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.round.is_empty() {
            self.round.clone_from(&self.kinds);
            self.round.shuffle(&mut self.chance);
        }
        let kind = self.round.pop()?;
        Some(Step {
            kind,
            pause: self.millis(PAUSE_MS).mul_f64(self.pace),
            fault: self.fault(kind),
            lasts: self.lasts(kind),
        })
    }
}

impl Steps {
    fn fault(&mut self, kind: Kind) -> Fault {
        let other = Victim::Other(self.chance.random());
        let victim = self.one_of(&[Victim::Leader, other]);
        match kind {
            Kind::Kill => Fault::Kill(other),
            Kind::KillLeader => Fault::Kill(Victim::Leader),
            Kind::KillAll => Fault::KillAll,
            Kind::Terminate => Fault::Terminate(victim),
            Kind::FailingSync => {
                let call = self.one_of(&["pwrite", "fdatasync"]);
                Fault::FailingSync(victim, call, self.chance.random_range(CALL_NUMBER))
            }
            Kind::FullDisk => Fault::FullDisk(victim),
            Kind::OldDirectory => {
                let way_out = self.one_of(&[WayOut::PutBack, WayOut::Replaced]);
                Fault::OldDirectory(victim, way_out)
            }
            Kind::WipedDirectory => Fault::Harm(victim, Harm::Wiped),
            Kind::FlippedBits => Fault::Harm(victim, Harm::FlippedBits(self.chance.random())),
            Kind::TornTail => Fault::Harm(victim, Harm::TornTail(self.chance.random())),
            Kind::Stop => Fault::Stop(victim),
            Kind::SlowSync => Fault::SlowSync(victim, self.chance.random_range(SLOW_MS)),
            Kind::HungSync => Fault::HungSync(victim),
            Kind::Clock => Fault::Clock(victim, self.one_of(&[3_600, -3_600])),
            Kind::MemberAdd => Fault::MemberAdd,
            Kind::MemberRemove => Fault::MemberRemove(victim),
            Kind::MemberReplace => Fault::MemberReplace(victim),
            Kind::Backup => Fault::Backup(victim),
            Kind::MoveLeader => Fault::MoveLeader,
            Kind::LostReplies => Fault::LostReplies(self.number(LOSE_EVERY)),
            _ => self.links(kind, victim),
        }
    }

    fn links(&mut self, kind: Kind, victim: Victim) -> Fault {
        let direction = self.one_of(&[Scope::From(victim), Scope::To(victim)]);
        let any = self.one_of(&[Scope::All, Scope::Of(victim), direction]);
        let late = Duration::from_millis(self.chance.random_range(DELAY_MS));
        let bytes_per_second = self.number(BYTES_PER_SECOND);
        let (scope, fault) = match kind {
            Kind::Isolate => (Scope::Of(victim), FlowFault::Hold),
            Kind::Split => (Scope::Minority(victim), FlowFault::Hold),
            Kind::OneWay => (direction, FlowFault::Hold),
            Kind::Bridge => (Scope::Beside(victim), FlowFault::Hold),
            Kind::Ring => (Scope::Across, FlowFault::Hold),
            Kind::Delay => (any, FlowFault::Delay(late)),
            Kind::Throttle => (any, FlowFault::Throttle { bytes_per_second }),
            Kind::HalfClose => (any, FlowFault::HalfClose),
            Kind::Cut => (any, FlowFault::Cut),
            _ => (Scope::All, FlowFault::Hold),
        };
        Fault::Links(scope, fault)
    }

    fn lasts(&mut self, kind: Kind) -> Duration {
        match kind {
            Kind::Stop => {
                let max = u64::try_from(self.stop_max.as_millis()).unwrap_or(STOP_MS_MAX);
                self.millis(STOP_MS_MIN..=max.max(STOP_MS_MIN))
            }
            Kind::HungSync => self.millis(HANG_MS),
            _ => self.millis(LASTS_MS).mul_f64(self.pace),
        }
    }

    fn millis(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.chance.random_range(range))
    }

    fn number(&mut self, range: RangeInclusive<u64>) -> NonZeroU64 {
        NonZeroU64::new(self.chance.random_range(range)).unwrap_or(NonZeroU64::MIN)
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        #[expect(
            clippy::expect_used,
            reason = "each caller has a list that is not empty"
        )]
        let chosen = choices.choose(&mut self.chance).expect("a choice");
        *chosen
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}, {:?}", self.kind, self.fault, self.lasts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(seed: u64) -> Schedule {
        Schedule {
            seed,
            kinds: Kind::ALL.to_vec(),
            duration: Duration::from_secs(60),
        }
    }

    fn steps(seed: u64, many: usize) -> Vec<Step> {
        let schedule = schedule(seed);
        let lanes = Lane::ALL.map(|lane| schedule.lane(lane).take(many));
        lanes.into_iter().flatten().collect()
    }

    #[test]
    fn one_seed_gives_the_same_steps_and_another_gives_others() {
        assert_eq!(steps(7, 50), steps(7, 50));
        assert_ne!(steps(7, 50), steps(8, 50));
    }

    #[test]
    fn each_round_has_every_kind_of_its_lane_once() {
        for lane in Lane::ALL {
            let all = Kind::ALL.iter().copied();
            let kinds: Vec<Kind> = all.filter(|kind| kind.lane() == lane).collect();
            let mut steps = schedule(3).lane(lane);
            for _ in 0..3 {
                let round = steps.by_ref().take(kinds.len());
                let mut round: Vec<Kind> = round.map(|step| step.kind).collect();
                round.sort_unstable();
                assert_eq!(round, kinds);
            }
        }
    }

    #[test]
    fn a_lane_of_which_nothing_was_chosen_has_no_step() {
        let mut schedule = schedule(1);
        schedule.kinds = vec![Kind::Kill];

        assert_eq!(schedule.lane(Lane::Links).next(), None);
        assert!(schedule.lane(Lane::Processes).next().is_some());
    }

    #[test]
    fn every_shape_of_fault_comes_up_and_none_lasts_too_long() {
        let steps = steps(1, 3_000);

        let faults: Vec<String> = steps
            .iter()
            .map(|step| format!("{:?}", step.fault))
            .collect();
        for shape in [
            "Links(Of(Leader), Hold",
            "Links(From(Leader), Cut",
            "Links(Across, Hold",
            "Links(All, Delay",
        ] {
            assert!(
                faults.iter().any(|fault| fault.starts_with(shape)),
                "{shape}"
            );
        }
        let longest = steps.iter().map(|step| step.lasts).max().unwrap();
        assert!(longest <= Duration::from_secs(10), "{longest:?}");
    }
}
