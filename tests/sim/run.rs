//! One run: a cluster, its workers and its faults, from the first start to the time when all is well again.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use turmoil::Sim;

use super::disks::MachineDisk;
use super::faults::{self, Fault, Step, Who};
use super::machine::{self, Machine};
use super::operator::Operator;
use super::watch::{Board, End, Seen};
use super::workers::Worker;

const TICK: Duration = Duration::from_millis(1);
/// How long there are faults.
const LENGTH: Duration = Duration::from_secs(6);
/// How long the cluster may take after the last fault until every node has served. A lost answer takes a worker's whole
/// deadline, and a lost connection is found out after a second.
const HEALING_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: u32 = 20;
/// How long a machine is off whose power was cut within a write.
const OFF_TIME: Duration = Duration::from_millis(300);
const WORKERS: u64 = 8;
const OPERATOR: &str = "operator";

/// What was seen, and of what.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) seen: Seen,
    /// Which nodes reached no majority, and when.
    pub(super) cut_off: Vec<CutOff>,
    /// How often each kind of fault happened.
    pub(super) happened: BTreeMap<&'static str, u64>,
    /// Why it is not over, or not as it should be.
    pub(super) unfinished: Option<String>,
}

/// When a node reached no majority.
#[derive(Debug, Clone, Copy)]
pub(super) struct CutOff {
    pub(super) node: u64,
    pub(super) begins_ns: u64,
    pub(super) ends_ns: u64,
}

/// Runs a seed.
pub(super) fn run(seed: u64) -> Run {
    let directory = memory_directory();
    let mut chance = StdRng::seed_from_u64(seed);
    let nodes = if chance.random_bool(0.75) { 3 } else { 5 };
    let mut builder = turmoil::Builder::new();
    builder
        .rng_seed(seed)
        .epoch(SystemTime::UNIX_EPOCH)
        .tick_duration(TICK)
        .simulation_duration(LENGTH + HEALING_MAX * 2)
        .min_message_latency(Duration::ZERO)
        .max_message_latency(Duration::from_millis(chance.random_range(1..15)))
        .repair_rate(0.05)
        .tcp_capacity(4_096)
        .enable_random_order();
    let mut world = World {
        sim: builder.build(),
        machines: Vec::new(),
        board: Board::default(),
        down: BTreeSet::new(),
        returns: Vec::new(),
        ends: 0,
        cut_off: Vec::new(),
        happened: BTreeMap::new(),
        hand_overs: Rc::default(),
        stop: Rc::default(),
    };
    for id in 1..=nodes {
        let data_dir = directory.path().join(id.to_string());
        world.add(Machine {
            id,
            nodes,
            disk: MachineDisk::put(&data_dir),
            directory: data_dir,
            board: world.board.clone(),
        });
    }
    world.add_workers(&mut chance, nodes);
    let steps = faults::draw(&mut chance, nodes, LENGTH);
    let unfinished = world.go_through(&steps).err();
    // Handles to Raft end with their runtimes, not after them.
    let seen = world.board.take();
    drop(world.sim);
    Run {
        seen,
        cut_off: world.cut_off,
        happened: world.happened,
        unfinished,
    }
}

/// In memory where there is such a place: what is simulated waits for no real disk.
fn memory_directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

struct World {
    sim: Sim<'static>,
    machines: Vec<Machine>,
    board: Board,
    /// Without power.
    down: BTreeSet<u64>,
    cut_off: Vec<CutOff>,
    /// When the power of those comes back to whom it was cut within a write.
    returns: Vec<(Duration, u64)>,
    /// How many ends of nodes were noticed.
    ends: usize,
    happened: BTreeMap<&'static str, u64>,
    /// How many hand-overs the operator has still to ask for.
    hand_overs: Rc<Cell<u32>>,
    /// Set when the faults are over.
    stop: Rc<Cell<bool>>,
}

impl World {
    fn add(&mut self, machine: Machine) {
        let host = machine.clone();
        self.sim
            .host(machine::name(machine.id), move || host.clone().run());
        self.machines.push(machine);
    }

    fn add_workers(&mut self, chance: &mut StdRng, nodes: u64) {
        let at_work = Rc::new(Cell::new(WORKERS));
        for number in 1..=WORKERS {
            let worker = Worker {
                name: format!("worker-{number}"),
                nodes,
                seed: chance.random(),
                board: self.board.clone(),
                stop: Rc::clone(&self.stop),
                at_work: Rc::clone(&at_work),
            };
            self.sim.client(worker.name.clone(), worker.run());
        }
        let operator = Operator {
            worker: Worker {
                name: OPERATOR.to_owned(),
                nodes,
                seed: 0,
                board: self.board.clone(),
                stop: Rc::clone(&self.stop),
                at_work,
            },
            hand_overs: Rc::clone(&self.hand_overs),
            patience: HEALING_MAX,
        };
        self.sim.client(OPERATOR, operator.run());
    }

    fn go_through(&mut self, steps: &[Step]) -> Result<(), String> {
        let mut coming = steps.iter().peekable();
        let mut lasting: Vec<(Step, Option<u64>)> = Vec::new();
        for tick in 0_u32.. {
            let now = self.sim.elapsed();
            if tick.is_multiple_of(LOOK_EVERY) {
                self.board.look(now);
            }
            self.notice_ends();
            for (_, node) in self
                .returns
                .extract_if(.., |(at, _)| *at <= now)
                .collect::<Vec<_>>()
            {
                self.give_power(node);
            }
            let (over, still): (Vec<_>, _) =
                lasting.into_iter().partition(|(step, _)| step.ends <= now);
            lasting = still;
            for (step, node) in over {
                self.heal(step.fault, node);
            }
            while let Some(step) = coming.next_if(|step| step.begins <= now) {
                let node = self.strike(step.fault);
                lasting.push((*step, node));
            }
            if LENGTH <= now && lasting.is_empty() && !self.stop.replace(true) {
                self.heal_all();
            }
            match self.sim.step() {
                Ok(true) => return Ok(()),
                Ok(false) if LENGTH + HEALING_MAX * 3 / 2 < now => {
                    return Err("the workers do not come to an end".to_owned());
                }
                Ok(false) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// A node that says that its power was cut has lost what was not synced.
    fn notice_ends(&mut self) {
        let ends: Vec<End> = self.board.seen().ends[self.ends..].to_vec();
        self.ends += ends.len();
        for end in ends.iter().filter(|end| end.was_cut()) {
            self.count("power cut within a write");
            self.cut_power(end.node);
            self.returns.push((self.sim.elapsed() + OFF_TIME, end.node));
        }
    }

    fn count(&mut self, kind: &'static str) {
        *self.happened.entry(kind).or_default() += 1;
    }

    /// Makes it happen. The node that it befalls.
    fn strike(&mut self, fault: Fault) -> Option<u64> {
        let node = match fault {
            Fault::PowerCut(who)
            | Fault::CutWithin(who, _)
            | Fault::Isolate(who, _)
            | Fault::Mute(who)
            | Fault::Hold(who)
            | Fault::SlowDisk(who, _) => Some(self.find(who)?),
            Fault::LoseStore(node) => Some(node),
            Fault::PowerCutAll | Fault::Split(_) | Fault::Lossy(_) | Fault::HandOver => None,
        };
        self.board
            .note(self.sim.elapsed(), &format!("{fault:?} {node:?}"));
        let happens = match (fault, node) {
            (Fault::PowerCutAll, _) => {
                for node in 1..=self.nodes() {
                    self.cut_power(node);
                }
                true
            }
            (Fault::Split(size), _) => {
                self.between(1..=size, size + 1..=self.nodes(), |sim, one, other| {
                    sim.partition(one, other);
                });
                true
            }
            (Fault::Lossy(per_mille), _) => {
                self.sim.set_fail_rate(f64::from(per_mille) / 1_000.0);
                true
            }
            (Fault::HandOver, _) => {
                self.hand_overs.set(self.hand_overs.get() + 1);
                true
            }
            (_, None) => false,
            (Fault::PowerCut(_), Some(node)) => self.cut_power(node),
            // It is counted when it has happened.
            (Fault::CutWithin(_, steps), Some(node)) => {
                self.disk(node).cut_within(steps);
                return Some(node);
            }
            (Fault::Isolate(..), Some(node)) => {
                self.around(node, |sim, one, other| sim.partition(one, other));
                self.cut_off.push(CutOff {
                    node,
                    begins_ns: self.now_ns(),
                    ends_ns: u64::MAX,
                });
                true
            }
            (Fault::Mute(_), Some(node)) => {
                self.around(node, |sim, one, other| sim.partition_oneway(one, other));
                true
            }
            (Fault::Hold(_), Some(node)) => {
                self.around(node, |sim, one, other| sim.hold(one, other));
                true
            }
            (Fault::SlowDisk(_, millis), Some(node)) => {
                self.disk(node)
                    .slow_down(Some(Duration::from_millis(millis)));
                true
            }
            (Fault::LoseStore(_), Some(node)) => self.lose_store(node),
        };
        if happens {
            self.count(fault.kind());
        }
        node
    }

    /// Ends it, unless another of its kind lasts: then that one is shorter for it.
    fn heal(&mut self, fault: Fault, node: Option<u64>) {
        let now_ns = self.now_ns();
        for cut_off in &mut self.cut_off {
            cut_off.ends_ns = cut_off.ends_ns.min(now_ns);
        }
        match (fault, node) {
            (Fault::CutWithin(..), Some(node)) => self.disk(node).keep_power(),
            (Fault::PowerCut(_) | Fault::LoseStore(_), Some(node)) => {
                self.give_power(node);
            }
            (Fault::PowerCutAll, _) => {
                for node in 1..=self.nodes() {
                    self.give_power(node);
                }
            }
            (Fault::Isolate(..) | Fault::Mute(_), Some(node)) => {
                self.around(node, |sim, one, other| sim.repair(one, other));
                if let Fault::Isolate(_, Some(steps)) = fault {
                    self.disk(node).cut_within(steps);
                }
            }
            (Fault::Hold(_), Some(node)) => {
                self.around(node, |sim, one, other| sim.release(one, other));
            }
            (Fault::Split(size), _) => {
                self.between(1..=size, size + 1..=self.nodes(), |sim, one, other| {
                    sim.repair(one, other);
                });
            }
            (Fault::Lossy(_), _) => self.sim.set_fail_rate(0.0),
            (Fault::SlowDisk(..), Some(node)) => self.disk(node).slow_down(None),
            (_, None) | (Fault::HandOver, _) => {}
        }
    }

    fn heal_all(&mut self) {
        self.sim.set_fail_rate(0.0);
        let hosts: Vec<String> = (1..=self.nodes())
            .map(machine::name)
            .chain((1..=WORKERS).map(|number| format!("worker-{number}")))
            .chain([OPERATOR.to_owned()])
            .collect();
        for (at, one) in hosts.iter().enumerate() {
            for other in &hosts[..at] {
                self.sim.release(one.as_str(), other.as_str());
            }
        }
        for node in 1..=self.nodes() {
            self.give_power(node);
            self.disk(node).slow_down(None);
        }
        self.board.note(self.sim.elapsed(), "the faults are over");
    }

    /// Whether it had power.
    fn cut_power(&mut self, node: u64) -> bool {
        if !self.down.insert(node) {
            return false;
        }
        self.board.gone(node);
        self.sim.crash(machine::name(node));
        self.disk(node).cut_power();
        true
    }

    fn give_power(&mut self, node: u64) {
        self.disk(node).keep_power();
        if self.down.remove(&node) {
            self.sim.bounce(machine::name(node));
        }
    }

    fn lose_store(&mut self, node: u64) -> bool {
        if self.board.leader() == Some(node) {
            return false;
        }
        self.cut_power(node);
        let machine = &self.machines[usize::try_from(node - 1).unwrap()];
        machine.disk.lose_store(&machine.directory);
        self.board.lost(node);
        true
    }

    fn find(&self, who: Who) -> Option<u64> {
        match who {
            Who::Leader => self.board.leader(),
            Who::Node(node) => Some(node),
        }
    }

    fn now_ns(&self) -> u64 {
        self.sim.elapsed().as_nanos().try_into().unwrap()
    }

    fn nodes(&self) -> u64 {
        self.machines.len().try_into().unwrap()
    }

    fn disk(&self, node: u64) -> &MachineDisk {
        &self.machines[usize::try_from(node - 1).unwrap()].disk
    }

    /// Between a node and every other.
    fn around(&self, node: u64, change: impl Fn(&Sim<'static>, String, String)) {
        self.between(
            [node],
            (1..=self.nodes()).filter(|other| *other != node),
            change,
        );
    }

    fn between(
        &self,
        ones: impl IntoIterator<Item = u64>,
        others: impl IntoIterator<Item = u64> + Clone,
        change: impl Fn(&Sim<'static>, String, String),
    ) {
        for one in ones {
            for other in others.clone() {
                change(&self.sim, machine::name(one), machine::name(other));
            }
        }
    }
}
