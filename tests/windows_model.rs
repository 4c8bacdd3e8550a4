//! Cached sequences as a model whose every state is visited: three nodes, three leaderships, any partition, one advance, and two
//! leases from windows, of which the second may be under a key. `docs/cached-sequences.md` argues what this looks for.
//!
//! Raft is as small as it can be here: an append carries the leader's whole log, and a message that does not arrive is a step
//! that is not taken. So every partition and every delay is among the states. What can only make a violation less likely is left
//! out: a lease is sent at the last moment before a value is taken for it, a proof begins at the first moment after that, and
//! what is committed is answered at once.
#![expect(
    clippy::indexing_slicing,
    reason = "nodes, leases and entries are numbered here"
)]

use std::mem;

use stateright::{Checker, Model, Property};

const NODES: usize = 3;
/// Those that may lead: the third only votes and holds the log.
const LEADERS: usize = 2;
const LEADERSHIPS: u8 = 3;
/// Entries of a log at most.
const LOG_MAX: usize = 3;
/// Reservations: one by each of the nodes that may lead.
const RESERVATIONS: u8 = 2;
/// Values of a window.
const WINDOW: u8 = 2;

/// A rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// Who takes values while a proof is under way shares it.
    ProofTooEarly,
    /// A window is used, and a proof is taken, whichever leadership of the node it is of.
    WindowsKept,
    /// A reservation that is answered late opens a window of the present leadership.
    LateReservation,
    /// An advance ends no window.
    OpenAfterAdvance,
    /// Values that were taken and not proved are given again.
    GivenAgain,
    /// A range that was taken out of a window is granted whatever came after its reservation.
    AnyReservation,
    /// There are no proofs.
    NoProof,
}

/// Leaderships are numbered as they are won: the node does not matter for their order.
type Leadership = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Command {
    Reserve,
    /// Two values up from the mark.
    Advance,
    /// Grants a value of the window that the entry at this place reserved.
    Taken(u8, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    by: Leadership,
    command: Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Window {
    owner: Leadership,
    entry: usize,
    free: u8,
    end: u8,
}

/// Where a lease is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Lease {
    NotSent,
    /// A node took a value for it; whether the proof under way is its own. All that was granted before it was sent is at
    /// most `floor`.
    Taken {
        floor: u8,
        node: usize,
        owner: Leadership,
        value: u8,
        in_round: bool,
    },
    Answered,
}

/// Where the lease under a key, or the advance, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Commanded {
    NotSent,
    /// A value was taken out of the window of this entry.
    Taken {
        floor: u8,
        value: u8,
        entry: usize,
    },
    /// The entry at this place, if it stays, is its own.
    Proposed {
        floor: u8,
        value: u8,
        at: usize,
        by: Leadership,
    },
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    vote: Leadership,
    /// Whether the vote is for itself, and was won.
    leads: bool,
    log: Vec<Entry>,
    window: Option<Window>,
    /// The reservation that is not answered yet.
    reserving: Option<(usize, Leadership)>,
    /// The proof under way, and whether another node has answered it: with this one that is a majority.
    round: Option<(Leadership, bool)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; NODES],
    leaderships: u8,
    reservations: u8,
    /// Whether a proof was given up: once is enough.
    gave_up: bool,
    committed: Vec<Entry>,
    leases: [Lease; 2],
    keyed: Commanded,
    advance: Commanded,
    /// The values that were answered.
    granted: Vec<u8>,
    /// The highest value that was granted, or that an advance was answered with.
    highest: u8,
    /// What must never be.
    wrong: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Elect(usize, usize),
    Append(usize, usize),
    Reserve(usize),
    Open(usize),
    Take(usize, usize),
    Acknowledge(usize, usize),
    Prove(usize),
    GiveUp(usize),
    TakeForCommand(usize),
    ProposeTaken(usize),
    ProposeAdvance(usize),
}

struct Cluster {
    broken: Broken,
    /// The second lease is under a key, else it is one as the first.
    second: Second,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    Lease,
    Keyed,
}

/// The mark after these entries, and the place of the reservation that is the latest command, if it is.
fn applied(log: &[Entry]) -> (u8, Option<usize>) {
    let mut state = (0, None);
    for (at, entry) in log.iter().enumerate() {
        state = match entry.command {
            Command::Reserve => (state.0 + WINDOW, Some(at)),
            Command::Advance => (state.0 + 2, None),
            Command::Taken(..) => state,
        };
    }
    state
}

impl State {
    fn leads(&self, node: usize) -> Option<Leadership> {
        let node = &self.nodes[node];
        node.leads.then_some(node.vote)
    }

    /// The node hears of this leadership.
    fn hear(&mut self, node: usize, of: Leadership) -> bool {
        let node = &mut self.nodes[node];
        if of < node.vote {
            return false;
        }
        if node.vote < of {
            node.vote = of;
            node.leads = false;
        }
        true
    }

    fn elect(&mut self, node: usize, voter: usize) -> Option<()> {
        let last = |node: &Node| (node.log.last().map(|last| last.by), node.log.len());
        if self.leaderships == LEADERSHIPS
            || self.nodes[node].leads
            || last(&self.nodes[node]) < last(&self.nodes[voter])
        {
            return None;
        }
        self.leaderships += 1;
        let won = self.leaderships;
        for heard in [node, voter] {
            self.hear(heard, won);
        }
        self.nodes[node].leads = true;
        Some(())
    }

    /// The node proposes a command, of which somebody waits for the answer, with what its lease knows.
    fn propose(
        &mut self,
        node: usize,
        command: Command,
        (floor, value): (u8, u8),
    ) -> Option<Commanded> {
        let by = self.leads(node)?;
        let log = &mut self.nodes[node].log;
        if log.len() == LOG_MAX {
            return None;
        }
        log.push(Entry { by, command });
        let at = log.len() - 1;
        Some(Commanded::Proposed {
            floor,
            value,
            at,
            by,
        })
    }

    fn reserve(&mut self, node: usize) -> Option<()> {
        let leads = self.leads(node);
        let is_open = |window: Window| Some(window.owner) == leads && window.free <= window.end;
        if self.reservations == RESERVATIONS
            || self.nodes[node].window.is_some_and(is_open)
            || self.nodes[node].reserving.is_some()
        {
            return None;
        }
        let Commanded::Proposed { at, by, .. } = self.propose(node, Command::Reserve, (0, 0))?
        else {
            return None;
        };
        self.reservations += 1;
        self.nodes[node].reserving = Some((at, by));
        Some(())
    }

    fn acknowledge(&mut self, from: usize, to: usize) -> Option<()> {
        let (by, _) = self.nodes[from].round?;
        if !self.hear(to, by) {
            return None;
        }
        self.nodes[from].round = Some((by, true));
        Some(())
    }

    /// Whoever waits for a proof shares one, unless one is under way.
    fn begin_round(&mut self, node: usize) {
        let Some(by) = self.leads(node) else { return };
        if self.nodes[node].round.is_some() {
            return;
        }
        for lease in &mut self.leases {
            if let Lease::Taken {
                node: at, in_round, ..
            } = lease
                && *at == node
            {
                *in_round = true;
                self.nodes[node].round = Some((by, false));
            }
        }
    }

    fn answer(&mut self, floor: u8, value: u8) {
        self.wrong |= value <= floor || self.granted.contains(&value);
        self.granted.push(value);
        self.granted.sort_unstable();
        self.highest = self.highest.max(value);
    }

    /// Whether this entry of this leadership is committed; `None`: it never will be.
    fn outcome(&self, at: usize, by: Leadership) -> Option<bool> {
        match self.committed.get(at) {
            Some(entry) if entry.by == by => Some(true),
            Some(_) => None,
            None => Some(false),
        }
    }
}

impl Cluster {
    fn is(&self, broken: Broken) -> bool {
        self.broken == broken
    }

    /// What becomes of the state, or `None` where this cannot happen.
    fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Elect(node, voter) => state.elect(node, voter),
            Action::Append(from, to) => self.append(state, from, to),
            Action::Reserve(node) => state.reserve(node),
            Action::Open(node) => self.open(state, node),
            Action::Take(node, lease) => self.lease(state, node, lease),
            Action::Acknowledge(from, to) => state.acknowledge(from, to),
            Action::Prove(node) => self.prove(state, node),
            Action::GiveUp(node) => self.give_up(state, node),
            Action::TakeForCommand(node) => self.take_for_command(state, node),
            Action::ProposeTaken(node) => {
                let Commanded::Taken {
                    floor,
                    value,
                    entry,
                } = state.keyed
                else {
                    return None;
                };
                state.keyed = state.propose(node, Command::Taken(value, entry), (floor, value))?;
                Some(())
            }
            Action::ProposeAdvance(node) => self.propose_advance(state, node),
        }
    }

    fn append(&self, state: &mut State, from: usize, to: usize) -> Option<()> {
        let by = state.leads(from)?;
        if !state.hear(to, by) {
            return None;
        }
        let log = state.nodes[from].log.clone();
        let is_new = state.committed.len() < log.len();
        if is_new && log.last().is_some_and(|last| last.by == by) {
            state.committed.clone_from(&log);
        }
        state.nodes[to].log = log;
        self.answer_commands(state);
        Some(())
    }

    /// Takes a value for a lease, which is sent at this moment.
    fn lease(&self, state: &mut State, node: usize, lease: usize) -> Option<()> {
        if lease == 1 && self.second == Second::Keyed {
            return None;
        }
        // Which of the two is sent first makes no difference.
        let is_next = lease == 0 || state.leases[0] != Lease::NotSent;
        if state.leases[lease] != Lease::NotSent || !is_next {
            return None;
        }
        let floor = state.highest;
        let owner = state.leads(node)?;
        let value = self.take(state, node)?;
        let in_round = self.is(Broken::ProofTooEarly) && state.nodes[node].round.is_some();
        state.leases[lease] = Lease::Taken {
            floor,
            node,
            owner,
            value,
            in_round,
        };
        state.begin_round(node);
        Some(())
    }

    fn prove(&self, state: &mut State, node: usize) -> Option<()> {
        let (by, is_answered) = state.nodes[node].round?;
        if !is_answered && !self.is(Broken::NoProof) || state.leads(node) != Some(by) {
            return None;
        }
        self.end_round(state, node, Some(by));
        Some(())
    }

    fn give_up(&self, state: &mut State, node: usize) -> Option<()> {
        state.nodes[node].round?;
        if mem::replace(&mut state.gave_up, true) {
            return None;
        }
        self.end_round(state, node, None);
        Some(())
    }

    fn take_for_command(&self, state: &mut State, node: usize) -> Option<()> {
        let is_asked = self.second == Second::Keyed && state.keyed == Commanded::NotSent;
        if !is_asked || state.nodes[node].reserving.is_some() {
            return None;
        }
        state.leads(node)?;
        let value = self.take(state, node)?;
        let entry = state.nodes[node].window?.entry;
        let floor = state.highest;
        state.keyed = Commanded::Taken {
            floor,
            value,
            entry,
        };
        Some(())
    }

    fn propose_advance(&self, state: &mut State, node: usize) -> Option<()> {
        if state.advance != Commanded::NotSent {
            return None;
        }
        if !self.is(Broken::OpenAfterAdvance) {
            let node = &mut state.nodes[node];
            (node.window, node.reserving) = (None, None);
        }
        state.advance = state.propose(node, Command::Advance, (0, 0))?;
        Some(())
    }

    /// The advance and the lease under a key are answered when they are committed.
    fn answer_commands(&self, state: &mut State) {
        if let Commanded::Proposed { at, by, .. } = state.advance
            && state.outcome(at, by) != Some(false)
        {
            if state.outcome(at, by) == Some(true) {
                let (mark, _) = applied(&state.committed[..=at]);
                state.highest = state.highest.max(mark);
            }
            state.advance = Commanded::Done;
        }
        if let Commanded::Proposed {
            floor,
            value,
            at,
            by,
        } = state.keyed
            && state.outcome(at, by) != Some(false)
        {
            state.keyed = Commanded::Done;
            if let (Some(true), Command::Taken(_, entry)) =
                (state.outcome(at, by), state.committed[at].command)
            {
                let (_, latest) = applied(&state.committed[..at]);
                if latest == Some(entry) || self.is(Broken::AnyReservation) {
                    state.answer(floor, value);
                }
            }
        }
    }

    /// A reservation is answered.
    fn open(&self, state: &mut State, node: usize) -> Option<()> {
        let (at, by) = state.nodes[node].reserving?;
        let is_committed = state.outcome(at, by);
        if is_committed == Some(false) {
            return None;
        }
        state.nodes[node].reserving = None;
        let leads = state.leads(node);
        let is_own = leads == Some(by) || self.is(Broken::LateReservation) && leads.is_some();
        if is_committed == Some(true) && is_own {
            let (end, _) = applied(&state.committed[..=at]);
            state.nodes[node].window = Some(Window {
                owner: leads?,
                entry: at,
                free: end - WINDOW + 1,
                end,
            });
        }
        Some(())
    }

    /// The next value of the node's window, which is of the leadership that it has.
    fn take(&self, state: &mut State, node: usize) -> Option<u8> {
        let leads = state.leads(node);
        let window = state.nodes[node].window.as_mut()?;
        if window.end < window.free {
            return None;
        }
        if Some(window.owner) != leads && !self.is(Broken::WindowsKept) {
            return None;
        }
        window.free += 1;
        Some(window.free - 1)
    }

    fn end_round(&self, state: &mut State, node: usize, proved: Option<Leadership>) {
        state.nodes[node].round = None;
        for at in 0..state.leases.len() {
            let Lease::Taken {
                floor,
                node: by,
                owner,
                value,
                in_round: true,
            } = state.leases[at]
            else {
                continue;
            };
            if by != node {
                continue;
            }
            if proved == Some(owner) || self.is(Broken::WindowsKept) && proved.is_some() {
                state.leases[at] = Lease::Answered;
                state.answer(floor, value);
                continue;
            }
            // Whoever asks next knows more than who asked before.
            state.leases[at] = Lease::NotSent;
            if self.is(Broken::GivenAgain)
                && let Some(window) = &mut state.nodes[node].window
                && window.owner == owner
            {
                window.free = window.free.min(value);
            }
        }
        state.begin_round(node);
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = Node {
            vote: 0,
            leads: false,
            log: Vec::new(),
            window: None,
            reserving: None,
            round: None,
        };
        // Whoever leads first is as good as any other.
        let mut state = State {
            nodes: [node.clone(), node.clone(), node],
            leaderships: 1,
            reservations: 0,
            gave_up: false,
            committed: Vec::new(),
            leases: [Lease::NotSent; 2],
            keyed: Commanded::NotSent,
            advance: Commanded::NotSent,
            granted: Vec::new(),
            highest: 0,
            wrong: false,
        };
        for heard in 0..NODES {
            state.hear(heard, 1);
        }
        state.nodes[0].leads = true;
        vec![state]
    }

    fn actions(&self, _: &State, actions: &mut Vec<Action>) {
        for node in 0..LEADERS {
            for other in (0..NODES).filter(|other| *other != node) {
                actions.extend([
                    Action::Elect(node, other),
                    Action::Append(node, other),
                    Action::Acknowledge(node, other),
                ]);
            }
            actions.extend([
                Action::Reserve(node),
                Action::Open(node),
                Action::Take(node, 0),
                Action::Take(node, 1),
                Action::Prove(node),
                Action::GiveUp(node),
                Action::TakeForCommand(node),
                Action::ProposeTaken(node),
                Action::ProposeAdvance(node),
            ]);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.step(&mut next, action)?;
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("unique and ordered", |_, state: &State| !state.wrong),
            Property::sometimes("all is answered", |_, state: &State| {
                state.granted.len() == 2 && state.advance == Commanded::Done
            }),
        ]
    }
}

fn check(broken: Broken, second: Second) -> impl Checker<Cluster> {
    let cluster = Cluster { broken, second };
    cluster.checker().threads(2).spawn_bfs().join()
}

#[test]
fn in_every_state_values_are_unique_and_ordered() {
    for second in [Second::Lease, Second::Keyed] {
        check(Broken::Nothing, second).assert_properties();
    }
}

#[test]
fn without_any_one_of_the_rules_a_state_is_reached_in_which_they_are_not() {
    for (broken, second) in [
        (Broken::ProofTooEarly, Second::Lease),
        (Broken::WindowsKept, Second::Lease),
        (Broken::LateReservation, Second::Lease),
        (Broken::OpenAfterAdvance, Second::Lease),
        (Broken::GivenAgain, Second::Lease),
        (Broken::AnyReservation, Second::Keyed),
        (Broken::NoProof, Second::Lease),
    ] {
        let found = check(broken, second).discovery("unique and ordered");
        assert!(found.is_some(), "{broken:?} is not found");
    }
}
