//! Networks that split, in every shape: whoever is connected with a majority is served, nobody else is, and nothing that
//! was promised is broken.

use std::time::{Duration, Instant};

use highwater::chaos::{ClusterSize, FlowFault, Network, monotonic_ns};

use crate::pauses::Pauses;
use crate::settings::setting;
use crate::world::{Watched, World, wait_until_not_ready};

/// Grants between two steps.
const GRANTS: u64 = 50;
/// Leases at each node that serves, one after another, while those that do not are asked all the time.
const LEASES: u64 = 50;

/// A network that is to fail while workers lease from all nodes.
struct Partitions {
    world: World,
    watched: Watched,
    /// Who was cut off, and from when to when.
    cut_off: Vec<(u64, (u64, u64))>,
    served_after: Pauses,
    unready_after: Pauses,
}

impl Partitions {
    async fn of(size: ClusterSize) -> Self {
        let world = World::with_network(size).await;
        let watched = Watched::at_each(&world, 2);
        Self {
            world,
            watched,
            cut_off: Vec::new(),
            served_after: Pauses::default(),
            unready_after: Pauses::default(),
        }
    }

    /// The leader, and then the others.
    async fn leader_and_others(&mut self) -> (u64, Vec<u64>) {
        self.world.all_ready().await;
        self.watched.wait_until_granted(GRANTS).await;
        let leader = self.world.leader().await;
        let others = self.world.cluster.ids();
        (
            leader,
            others.into_iter().filter(|id| *id != leader).collect(),
        )
    }

    /// While the network is like this, these nodes serve and those do not; and then all of them do again.
    async fn while_it_is(&mut self, broken: impl FnOnce(&Network), serve: &[u64], mute: &[u64]) {
        let begun = Instant::now();
        broken(self.world.network());
        let begun_ns = monotonic_ns();
        let serves = async {
            for node in serve {
                self.watched.lease_at(&self.world, *node).await;
            }
            begun.elapsed()
        };
        let falls_silent = async {
            for node in mute {
                wait_until_not_ready(&self.world.url(*node)).await;
            }
            begun.elapsed()
        };
        let (served_after, unready_after) = tokio::join!(serves, falls_silent);
        if !serve.is_empty() {
            self.served_after.0.push(served_after);
        }
        if !mute.is_empty() {
            self.unready_after.0.push(unready_after);
        }
        let enough = begun + Duration::from_millis(setting("PARTITION_MS").unwrap_or(0));
        let mut leases = 0;
        while !serve.is_empty() && (leases < LEASES || Instant::now() < enough) {
            for node in serve {
                self.watched.lease_at(&self.world, *node).await;
            }
            leases += 1;
        }
        let healed_ns = monotonic_ns();
        self.world.network().heal();
        self.cut_off
            .extend(mute.iter().map(|node| (*node, (begun_ns, healed_ns))));
        self.world.all_ready().await;
        for node in self.world.cluster.ids() {
            self.watched.lease_at(&self.world, node).await;
        }
    }

    async fn check(self) {
        self.served_after.tell(
            "network split: until each served node grants",
            "FAILOVER_SPLIT_LIMITS",
        );
        self.unready_after.tell(
            "network split: until each other node says so",
            "FAILOVER_UNREADY_LIMITS",
        );
        let seen = self.watched.leave(&self.world).await;
        for (node, time) in self.cut_off {
            assert_eq!(seen.granted_by(node, time), 0, "I11: node {node} granted");
        }
    }
}

// tikv/pd#9157: clients keep asking the one that is cut off. KanishJebaMathewM/Truxify#10682: and repeat with their keys.
// tursodatabase/turso#8926: what it appended and nobody else has is truncated when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_grants_nothing_and_the_others_go_on() {
    let mut partitions = Partitions::of(ClusterSize::Three).await;
    let (leader, others) = partitions.leader_and_others().await;
    let split = |network: &Network| network.split(&[&[leader], &others]);

    partitions.while_it_is(split, &others, &[leader]).await;

    partitions.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_cut_off_disturbs_nobody() {
    let mut partitions = Partitions::of(ClusterSize::Three).await;
    let (leader, others) = partitions.leader_and_others().await;
    let cut_off = others[0];
    let split = |network: &Network| network.split(&[&[cut_off], &[leader, others[1]]]);

    partitions
        .while_it_is(split, &[leader, others[1]], &[cut_off])
        .await;

    partitions.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_not_heard_is_replaced() {
    let mut partitions = Partitions::of(ClusterSize::Three).await;
    let (leader, others) = partitions.leader_and_others().await;
    let unheard = |network: &Network| network.set_from(leader, FlowFault::Hold);

    partitions.while_it_is(unheard, &others, &[leader]).await;

    partitions.check().await;
}

// Its heartbeats arrive all the while: unless it falls silent by itself, nobody else is ever elected.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hears_nothing_is_replaced() {
    let mut partitions = Partitions::of(ClusterSize::Three).await;
    let (leader, others) = partitions.leader_and_others().await;
    let deaf = |network: &Network| network.set_to(leader, FlowFault::Hold);

    partitions.while_it_is(deaf, &others, &[leader]).await;

    partitions.check().await;
}

// It asks for votes that it never hears of, at a rising term or not: the others keep their leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_hears_nothing_or_is_not_heard_disturbs_nobody() {
    let mut partitions = Partitions::of(ClusterSize::Three).await;
    let (leader, others) = partitions.leader_and_others().await;
    let (broken, served) = (others[0], [leader, others[1]]);
    let deaf = |network: &Network| network.set_to(broken, FlowFault::Hold);
    partitions.while_it_is(deaf, &served, &[broken]).await;

    let unheard = |network: &Network| network.set_from(broken, FlowFault::Hold);
    partitions.while_it_is(unheard, &served, &[]).await;

    partitions.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_five_nodes_in_two_majorities_with_one_in_common_a_majority_is_served() {
    let mut partitions = Partitions::of(ClusterSize::Five).await;
    let (leader, others) = partitions.leader_and_others().await;
    // The leader on one side of the bridge, and then on it.
    let (bridge, near, far) = (others[0], others[1], &others[2..]);
    let leader_aside = |network: &Network| {
        network.split(&[&[leader, near, bridge], &[bridge, far[0], far[1]]]);
    };
    partitions.while_it_is(leader_aside, &[bridge], &[]).await;

    let (bridge, others) = partitions.leader_and_others().await;
    let leader_on_it = |network: &Network| {
        let (left, right) = others.split_at(2);
        let with_bridge = |side: &[u64]| [side, &[bridge]].concat();
        network.split(&[&with_bridge(left), &with_bridge(right)]);
    };
    // All are, unless another leader was elected in the meantime.
    partitions.while_it_is(leader_on_it, &[bridge], &[]).await;

    partitions.check().await;
}

// apache/hugegraph#3183: nobody says that it is ready.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nobody_is_served_and_afterwards_everybody_is() {
    let mut partitions = Partitions::of(ClusterSize::Five).await;
    let (leader, others) = partitions.leader_and_others().await;
    let split = |network: &Network| {
        network.split(&[&[leader, others[0]], &others[1..3], &others[3..]]);
    };
    let all = partitions.world.cluster.ids();

    partitions.while_it_is(split, &[], &all).await;

    partitions.check().await;
}
