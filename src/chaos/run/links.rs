//! Links that fail: between the nodes, and between workers and nodes.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::sleep;

use super::schedule::{Scope, Victim};
use super::stage::{Seen, Stage};
use crate::chaos::{Flow, FlowFault, HarnessError, Network};

/// A fault that met nothing so far goes on for so much longer at most.
const LONGER: u32 = 8;

impl Stage<'_> {
    /// Links are like this for a while; longer, where nothing has gone that way meanwhile.
    pub(super) async fn links(
        &self,
        (scope, fault): (Scope, FlowFault),
        lasts: Duration,
    ) -> Result<Seen, HarnessError> {
        let leader = self.leader().await;
        let hits = |network: &Network| network.flows().iter().map(Flow::hits).sum::<u64>();
        let before = {
            let cluster = self.cluster.lock().await;
            let network = cluster.network().ok_or(HarnessError::NoNetwork)?;
            let nodes = Nodes {
                ids: cluster.ids(),
                leader,
            };
            let what = set(network, (scope, fault), &nodes);
            self.say(format_args!("{what} for {lasts:?}"));
            hits(network)
        };
        self.count(|tally| tally.links += 1);
        let mut seen = Seen::Not("nothing went over these links".to_owned());
        for _ in 0..LONGER {
            sleep(lasts).await;
            let cluster = self.cluster.lock().await;
            if cluster.network().map(hits) != Some(before) {
                seen = Seen::Happened;
                break;
            }
        }
        if let Some(network) = self.cluster.lock().await.network() {
            network.heal();
        }
        Ok(seen)
    }

    /// Of the answers to workers one in so many is lost with its connection.
    pub(super) async fn lost_replies(
        &self,
        every: NonZeroU64,
        lasts: Duration,
    ) -> Result<Seen, HarnessError> {
        self.say(format_args!("lose each {every}th reply for {lasts:?}"));
        let before = self.front.lost();
        self.front.set_answers(FlowFault::LoseEvery(every));
        let mut seen = Seen::Not("no reply was lost".to_owned());
        for _ in 0..LONGER {
            sleep(lasts).await;
            if before < self.front.lost() {
                seen = Seen::Happened;
                break;
            }
        }
        self.front.set_answers(FlowFault::None);
        Ok(seen)
    }
}

/// Those that there are when a fault begins.
struct Nodes {
    ids: Vec<u64>,
    leader: Option<u64>,
}

impl Nodes {
    fn choose(&self, victim: Victim) -> u64 {
        let chosen = match (victim, self.leader) {
            (Victim::Leader, Some(leader)) => Some(leader),
            (Victim::Leader, None) => None,
            (Victim::Other(number), leader) => {
                let others = self.ids.iter().filter(|id| Some(**id) != leader);
                let mut counted = others.cycle().copied();
                counted.nth(usize::from(number))
            }
        };
        chosen.or(self.ids.first().copied()).unwrap_or(0)
    }

    /// This one first, and then the others by id.
    fn from(&self, first: u64) -> Vec<u64> {
        let others = self.ids.iter().copied().filter(|id| *id != first);
        std::iter::once(first).chain(others).collect()
    }
}

/// Makes the links so, and says how.
fn set(network: &Network, (scope, fault): (Scope, FlowFault), nodes: &Nodes) -> String {
    match scope {
        Scope::All => {
            network.set_all(fault);
            format!("all links {fault:?}")
        }
        Scope::Of(victim) => {
            let node = nodes.choose(victim);
            network.set_from(node, fault);
            network.set_to(node, fault);
            format!("links of node {node} {fault:?}")
        }
        Scope::From(victim) => {
            let node = nodes.choose(victim);
            network.set_from(node, fault);
            format!("links from node {node} {fault:?}")
        }
        Scope::To(victim) => {
            let node = nodes.choose(victim);
            network.set_to(node, fault);
            format!("links to node {node} {fault:?}")
        }
        Scope::Minority(victim) => {
            let all = nodes.from(nodes.choose(victim));
            let (minority, others) = all.split_at(all.len().saturating_sub(1) / 2);
            network.split(&[minority, others]);
            format!("split {minority:?} from {others:?}")
        }
        Scope::Beside(victim) => {
            let all = nodes.from(nodes.choose(victim));
            let (bridge, others) = all.split_at(1);
            let (left, right) = others.split_at(others.len() / 2);
            network.split(&[&[bridge, left].concat(), &[bridge, right].concat()]);
            format!("{bridge:?} is the bridge between {left:?} and {right:?}")
        }
        Scope::Across => {
            let next = nodes.ids.iter().cycle().skip(1);
            let neighbours = nodes.ids.iter().zip(next);
            let pairs: Vec<[u64; 2]> = neighbours.map(|(one, other)| [*one, *other]).collect();
            let pairs: Vec<&[u64]> = pairs.iter().map(<[u64; 2]>::as_slice).collect();
            network.split(&pairs);
            format!("{:?} in a ring", nodes.ids)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_leads_or_does_not_and_somebody_is_always_chosen() {
        let nodes = |leader| Nodes {
            ids: vec![1, 4, 7],
            leader,
        };

        assert_eq!(nodes(Some(4)).choose(Victim::Leader), 4);
        let others = |number| nodes(Some(4)).choose(Victim::Other(number));
        assert_eq!([others(0), others(1), others(2)], [1, 7, 1]);
        assert_eq!(nodes(None).choose(Victim::Leader), 1);
        assert_eq!(nodes(Some(4)).from(7), [7, 1, 4]);
    }
}
