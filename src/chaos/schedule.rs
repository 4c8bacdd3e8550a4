//! Faults by chance: the same ones for the same seed.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::HarnessError;
use super::cluster::LocalCluster;
use super::flow::FlowFault;

/// From well below an election time-out to many of them.
const LASTS_MS: std::ops::RangeInclusive<u64> = 50..=2_000;
/// Late enough for an election where it is heartbeats that are late.
const DELAY_MS: std::ops::RangeInclusive<u64> = 1..=300;
/// From a rate at which heartbeats alone pass to one that load does not reach.
const BYTES_PER_SECOND: std::ops::RangeInclusive<u64> = 10_000..=10_000_000;
const LOSE_EVERY: std::ops::RangeInclusive<u64> = 1..=200;

/// Which node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// Whichever leads when the fault begins.
    Leader,
    /// One that does not.
    Follower,
}

/// Which links between nodes, both directions of each unless said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All.
    All,
    /// Those of one node.
    Of(Victim),
    /// What one node sends.
    From(Victim),
    /// What is sent to one node.
    To(Victim),
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A process ends as by kill -9.
    Kill(Victim),
    /// All of them do.
    KillAll,
    /// A process is told to end.
    Terminate(Victim),
    /// A process stands still.
    Stop(Victim),
    /// Links are like this.
    Links(Scope, FlowFault),
}

/// A fault and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What goes wrong.
    pub fault: Fault,
    /// Until it is healed.
    pub lasts: Duration,
}

/// Steps without end.
#[derive(Debug, Clone)]
pub struct Schedule {
    chance: StdRng,
}

impl Schedule {
    /// The same steps for the same seed, in one version of Highwater.
    pub fn new(seed: u64) -> Self {
        Self {
            chance: StdRng::seed_from_u64(seed),
        }
    }

    fn fault(&mut self) -> Fault {
        let victim = self.one_of(&[Victim::Leader, Victim::Follower]);
        match self.chance.random_range(0..10) {
            0 | 1 => Fault::Kill(victim),
            2 => Fault::KillAll,
            3 => Fault::Terminate(victim),
            4 => Fault::Stop(victim),
            _ => {
                let scopes = [
                    Scope::All,
                    Scope::Of(victim),
                    Scope::From(victim),
                    Scope::To(victim),
                ];
                Fault::Links(self.one_of(&scopes), self.flow_fault())
            }
        }
    }

    fn flow_fault(&mut self) -> FlowFault {
        match self.chance.random_range(0..8) {
            0..3 => FlowFault::Hold,
            3 => FlowFault::Delay(Duration::from_millis(self.chance.random_range(DELAY_MS))),
            4 => FlowFault::Throttle {
                bytes_per_second: self.at_least_one(BYTES_PER_SECOND),
            },
            5 => FlowFault::LoseEvery(self.at_least_one(LOSE_EVERY)),
            6 => FlowFault::HalfClose,
            _ => FlowFault::Cut,
        }
    }

    fn at_least_one(&mut self, range: std::ops::RangeInclusive<u64>) -> NonZeroU64 {
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

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        Some(Step {
            fault: self.fault(),
            lasts: Duration::from_millis(self.chance.random_range(LASTS_MS)),
        })
    }
}

impl Fault {
    /// Makes it happen. A leader is waited for where the fault is about one.
    ///
    /// # Errors
    /// [`HarnessError`] where there is no leader within the limit, or a process cannot be signalled.
    pub async fn strike(
        self,
        cluster: &mut LocalCluster,
        within: Duration,
    ) -> Result<(), HarnessError> {
        match self {
            Self::Kill(victim) => {
                let node = victim.choose(cluster, within).await?;
                cluster.kill(&[node]).await
            }
            Self::KillAll => cluster.kill(&cluster.ids()).await,
            Self::Terminate(victim) => {
                let node = victim.choose(cluster, within).await?;
                cluster.terminate(&[node], within).await.map(drop)
            }
            Self::Stop(victim) => {
                let node = victim.choose(cluster, within).await?;
                cluster.freeze(node, within).await
            }
            Self::Links(scope, fault) => scope.set(fault, cluster, within).await,
        }
    }

    /// Ends it, whichever it was: all nodes run, all links are whole. Waits until every node serves.
    ///
    /// # Errors
    /// [`HarnessError`] where a node does not within the limit.
    pub async fn heal(cluster: &mut LocalCluster, within: Duration) -> Result<(), HarnessError> {
        if let Some(network) = cluster.network() {
            network.heal();
        }
        for node in cluster.ids() {
            cluster.thaw(node)?;
        }
        cluster.start_all()?;
        cluster.all_ready(within).await
    }
}

impl Victim {
    async fn choose(
        self,
        cluster: &mut LocalCluster,
        within: Duration,
    ) -> Result<u64, HarnessError> {
        let leader = cluster.leader(within).await?;
        let mut others = cluster.ids().into_iter().filter(|id| *id != leader);
        Ok(match self {
            Self::Leader => leader,
            // A leader alone is its own follower: whatever befalls it befalls the cluster.
            Self::Follower => others.next().unwrap_or(leader),
        })
    }
}

impl Scope {
    async fn set(
        self,
        fault: FlowFault,
        cluster: &mut LocalCluster,
        within: Duration,
    ) -> Result<(), HarnessError> {
        let node = match self {
            Self::All => None,
            Self::Of(victim) | Self::From(victim) | Self::To(victim) => {
                Some(victim.choose(cluster, within).await?)
            }
        };
        let network = cluster.network().ok_or(HarnessError::NoNetwork)?;
        let Some(node) = node else {
            network.set_all(fault);
            return Ok(());
        };
        if !matches!(self, Self::To(_)) {
            network.set_from(node, fault);
        }
        if !matches!(self, Self::From(_)) {
            network.set_to(node, fault);
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} for {:?}", self.fault, self.lasts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_the_same_faults_and_another_gives_others() {
        let steps = |seed| Schedule::new(seed).take(50).collect::<Vec<_>>();

        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }

    #[test]
    fn every_kind_of_fault_comes_up_soon() {
        let kinds: std::collections::BTreeSet<String> = Schedule::new(1)
            .take(2_000)
            .map(|step| match step.fault {
                Fault::Links(scope, fault) => {
                    let fault = format!("{fault:?}");
                    let kind = fault.split(['(', ' ']).next().unwrap_or_default();
                    format!("{scope:?} {kind}")
                }
                process => format!("{process:?}"),
            })
            .collect();

        // Seven of processes; six of links in seven scopes.
        assert_eq!(kinds.len(), 7 + 6 * 7, "{kinds:#?}");
    }
}
