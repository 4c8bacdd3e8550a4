//! The kinds of faults, by the names that `--faults` and the report use.

use std::fmt;

use serde::Serialize;

use crate::chaos::cluster::ClusterSize;

/// Faults that follow one another; those of different lanes happen at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// What ends a process, and what happens to its directory then.
    Processes,
    /// What befalls the links between nodes, and those of the workers.
    Links,
    /// What surrounds a process that goes on: its time, its disk, its clock.
    Surroundings,
    /// What an operator does meanwhile.
    Members,
}

impl Lane {
    pub(crate) const ALL: [Self; 4] = [
        Self::Processes,
        Self::Links,
        Self::Surroundings,
        Self::Members,
    ];
}

/// What a kind needs that not every machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing.
    Nothing,
    /// A library between nodes and their disks, which is compiled by a C compiler.
    Compiler,
    /// libfaketime.
    Faketime,
    /// More nodes than three.
    FiveNodes,
}

macro_rules! kinds {
    ($($kind:ident $name:literal $lane:ident $need:ident $what:literal)*) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Kind {
            $(#[doc = $what] $kind,)*
        }

        impl Kind {
            /// All of them, in the order of the report.
            pub(crate) const ALL: &[Self] = &[$(Self::$kind),*];

            /// What it is called.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }

            /// Which others it follows.
            pub(crate) const fn lane(self) -> Lane {
                match self { $(Self::$kind => Lane::$lane),* }
            }

            /// What it needs.
            pub(crate) const fn need(self) -> Need {
                match self { $(Self::$kind => Need::$need),* }
            }

            /// What happens.
            pub(crate) const fn what(self) -> &'static str {
                match self { $(Self::$kind => $what),* }
            }
        }
    };
}

kinds! {
    Kill "kill" Processes Nothing "a node that does not lead ends as by kill -9"
    KillLeader "kill-leader" Processes Nothing "the leader ends as by kill -9"
    KillAll "kill-all" Processes Nothing "all nodes end at once as by kill -9"
    Terminate "terminate" Processes Nothing "a node is told to end (SIGTERM)"
    FailingSync "failing-sync" Processes Compiler "a write or sync fails: the node ends, and is started again"
    FullDisk "full-disk" Processes Compiler "no write finds room: the node ends, and is started again when there is some"
    OldDirectory "old-directory" Processes Nothing "a node is started with an older copy of its directory, which is refused"
    WipedDirectory "wiped-directory" Processes Nothing "a node loses its directory, is refused and replaced"
    FlippedBits "flipped-bits" Processes Nothing "bits flip on a stopped node's disk: it is refused and replaced, or has lost nothing"
    TornTail "torn-tail" Processes Nothing "the end of a stopped node's database is torn off: the same"
    Isolate "isolate" Links Nothing "a node reaches no other"
    Split "split" Links Nothing "a minority and the others do not reach each other"
    OneWay "one-way" Links Nothing "a node hears nothing, or is not heard"
    Bridge "bridge" Links Nothing "two sides reach each other only through one node that both reach"
    Ring "ring" Links FiveNodes "each node reaches its two neighbours only"
    Apart "apart" Links Nothing "no node reaches another"
    Delay "delay" Links Nothing "what nodes send each other arrives late"
    Throttle "throttle" Links Nothing "what nodes send each other arrives slowly"
    HalfClose "half-close" Links Nothing "connections between nodes end in one direction"
    Cut "cut" Links Nothing "connections between nodes end, and new ones at once"
    LostReplies "lost-replies" Links Nothing "answers to workers are lost with their connections"
    Stop "stop" Surroundings Nothing "a node stands still (SIGSTOP), and goes on"
    SlowSync "slow-sync" Surroundings Compiler "each sync of a node takes long"
    HungSync "hung-sync" Surroundings Compiler "the syncs of a node hang, and go on"
    Clock "clock" Surroundings Faketime "the wall clock of a node is an hour wrong"
    MemberAdd "member-add" Members Nothing "a new node joins and votes"
    MemberRemove "member-remove" Members Nothing "a node is removed, and ends"
    MemberReplace "member-replace" Members Nothing "a new node takes the place of one, which ends"
    Backup "backup" Members Nothing "a backup is taken and checked"
    MoveLeader "move-leader" Members Nothing "leadership is handed over"
}

impl Kind {
    /// The kind of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let mut kinds = Self::ALL.iter().copied();
        kinds.find(|kind| kind.name() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Kind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Need {
    /// Why it is not there; nothing where it is.
    pub(crate) fn lacking(self, size: ClusterSize) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Compiler => {
                (!crate::chaos::preload::has_compiler()).then_some("there is no C compiler (cc)")
            }
            Self::Faketime => {
                let found = crate::chaos::preload::find_faketime();
                found.is_none().then_some("there is no libfaketime")
            }
            Self::FiveNodes => (size.nodes() < 5).then_some("it needs --nodes 5"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.name()), Some(*kind));
        }
        assert_eq!(Kind::named("flood"), None);
    }

    #[test]
    fn every_kind_stands_on_the_page() {
        let page = include_str!("../../../docs/chaos.md");
        for kind in Kind::ALL {
            let lane = format!("{:?}", kind.lane()).to_lowercase();
            let row = format!("| `{kind}` | {lane} | {} |", kind.what());
            assert!(page.contains(&row), "{row}");
        }
    }
}
