//! Members that come and go while workers lease and nodes die.
//!
//! Here one round of growth and shrinking. `HIGHWATER_TEST_MEMBER_ROUNDS` asks for more, and `HIGHWATER_TEST_MEMBER_SEED` for
//! those of another seed.

use std::time::{Duration, Instant};

use highwater::RangeCount;
use highwater::client::{Client, ClientError, Members};
use highwater::wire::{MemberBody, MemberRole};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::sleep;

use crate::settings::setting;
use crate::world::{PATIENCE, POLL_INTERVAL, Watched, World, p};

const SEED: u64 = 5;
const ROUNDS: u64 = 1;

/// Asks until it is so: whoever was killed is not back at once. Tells whether the answer that came said that it changed.
pub(crate) async fn wait_until_done(
    client: &Client,
    ask: impl AsyncFn(Members<'_>) -> Result<bool, ClientError>,
) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask(client.members()).await {
            Ok(changed) => return changed,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Asks for a vote that cannot be given until it is certain that nothing changed: on a busy machine an answer may be late.
async fn wait_until_refused(client: &Client, node: u64) -> ClientError {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match client.members().promote(node).await.unwrap_err() {
            error @ ClientError::Unavailable { .. } => return error,
            error => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

/// Somewhere in the middle of a change of the members.
pub(crate) async fn wait_a_moment(chance: &mut StdRng) {
    sleep(Duration::from_millis(chance.random_range(0..60))).await;
}

impl World {
    async fn members(&self) -> Vec<MemberBody> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let listed = self.client().members().list().await;
            match listed {
                Ok(members) => return members,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }

    pub(crate) async fn role(&self, node: u64) -> Option<MemberRole> {
        let members = self.members().await;
        let found = members.into_iter().find(|member| member.id == node);
        found.map(|member| member.role)
    }

    /// One more voter.
    pub(crate) async fn grow(&mut self) -> u64 {
        let node = self.cluster.join(PATIENCE).await.unwrap();
        let client = self.client();
        wait_until_done(&client, async |members| members.promote(node).await).await;
        node
    }

    /// Does this to the members while a node is killed, which is started again.
    async fn under_fire(
        &mut self,
        chance: &mut StdRng,
        ask: impl AsyncFn(Members<'_>) -> Result<bool, ClientError>,
    ) {
        let victim = *self.cluster.ids().choose(chance).unwrap();
        let client = self.client();
        let fire = async {
            wait_a_moment(chance).await;
            self.cluster.kill(&[victim]).await.unwrap();
            self.cluster.start(&[victim]).unwrap();
        };
        tokio::join!(wait_until_done(&client, ask), fire);
    }

    /// Waits for the end of a node that was removed, and sees why it ended.
    pub(crate) async fn see_off(&mut self, node: u64) {
        // It may have been killed just then.
        self.cluster.start(&[node]).unwrap();
        let ended = self.cluster.left(node, PATIENCE).await.unwrap();
        let (status, line) = ended.unwrap();
        assert_eq!(status.code(), Some(1), "{line}");
        let told = format!("highwater: node {node} was removed from its cluster, as node ");
        assert!(line.starts_with(&told), "{line}");
    }

    /// All voters, by id.
    async fn assert_voters(&self, expected: &[u64]) {
        let members = self.members().await;
        let voters = members
            .iter()
            .filter(|member| member.role != MemberRole::Learner);
        let voters: Vec<u64> = voters.map(|member| member.id).collect();
        assert_eq!(voters, expected, "{members:#?}");
        assert_eq!(members.len(), expected.len(), "{members:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_grows_to_five_and_shrinks_to_three_while_nodes_are_killed() {
    let seed = setting("MEMBER_SEED").unwrap_or(SEED);
    let mut chance = StdRng::seed_from_u64(seed);
    let mut world = World::new().await;
    let mut watched = Watched::at_each(&world, 1);

    for round in 0..setting("MEMBER_ROUNDS").unwrap_or(ROUNDS) {
        eprintln!(
            "seed {seed}, round {round}: nodes {:?}",
            world.cluster.ids()
        );
        for _ in 0..2 {
            watched.wait_until_granted(20).await;
            let victim = *world.cluster.ids().choose(&mut chance).unwrap();
            world.cluster.kill(&[victim]).await.unwrap();
            let node = world.cluster.join(PATIENCE).await.unwrap();
            world.cluster.start(&[victim]).unwrap();
            world
                .under_fire(&mut chance, async |members| members.promote(node).await)
                .await;
            watched.add(format!("at-{node}"), (node, &[world.url(node)]));
        }
        world.all_ready().await;
        for _ in 0..2 {
            watched.wait_until_granted(20).await;
            let node = *world.cluster.ids().choose(&mut chance).unwrap();
            world
                .under_fire(&mut chance, async |members| members.remove(node).await)
                .await;
            world.see_off(node).await;
        }
        world.all_ready().await;
        world.assert_voters(&world.cluster.ids()).await;
        world.wait_for_one_state().await;
    }

    watched.leave(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_votes_when_it_has_caught_up_and_not_before() {
    let mut world = World::new().await;
    let node = world.cluster.join(PATIENCE).await.unwrap();
    world.all_ready().await;
    assert_eq!(world.role(node).await, Some(MemberRole::Learner));
    world.cluster.freeze(node, PATIENCE).await.unwrap();
    let client = Client::builder()
        .nodes(world.cluster.urls_without(node))
        .deadline(Duration::from_secs(3))
        .build()
        .unwrap();
    for _ in 0..50 {
        client.lease(&p(), RangeCount::ONE).await.unwrap();
    }

    let error = wait_until_refused(&client, node).await;

    let what = format!("node {node} is to vote, and ");
    assert!(error.to_string().contains(&what), "{error}");
    assert_eq!(world.role(node).await, Some(MemberRole::Learner));
    world.cluster.thaw(node).unwrap();
    assert!(wait_until_done(&client, async |members| members.promote(node).await).await);
    assert!(!client.members().promote(node).await.unwrap(), "it votes");
    assert_eq!(world.role(node).await, Some(MemberRole::Follower));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_leave_too_few_is_refused_with_the_arithmetic() {
    let mut world = World::new().await;
    let leader = world.leader().await;
    let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    let (silent, other) = (others[0], others[1]);
    world.cluster.freeze(silent, PATIENCE).await.unwrap();
    let client = Client::builder()
        .nodes(world.cluster.urls_without(silent))
        .build()
        .unwrap();
    let before = world.members().await.len();

    for ask in [
        client.members().remove(other).await,
        client.members().demote(other).await,
        client.members().remove(leader).await,
    ] {
        let Err(ClientError::Refused { problem }) = ask else {
            panic!("it was not refused: {ask:?}");
        };
        assert_eq!(
            (problem.status, problem.code.as_str()),
            (409, "quorum_at_risk")
        );
        let arithmetic = "of which 1 answer now, and 2 must: start";
        assert!(problem.detail.contains(arithmetic), "{problem:?}");
    }
    assert_eq!(world.members().await.len(), before);

    // Who is silent can go, and nobody else has to answer more than before.
    assert!(client.members().remove(silent).await.unwrap());
    assert!(!client.members().remove(silent).await.unwrap());
    world.cluster.thaw(silent).unwrap();
    world.see_off(silent).await;
    assert!(wait_until_done(&client, async |members| members.remove(leader).await).await);
    world.see_off(leader).await;
    let last = client.members().remove(other).await.unwrap_err();
    assert!(
        last.to_string().contains("that would leave no voter"),
        "{last}"
    );
    client.lease(&p(), RangeCount::ONE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_node_is_replaced_and_ends_when_it_comes_back() {
    let mut world = World::new().await;
    let watched = Watched::at_each(&world, 1);
    watched.wait_until_granted(20).await;
    let dead = world.leader().await;
    world.cluster.kill(&[dead]).await.unwrap();
    let new = world.cluster.join(PATIENCE).await.unwrap();
    let client = world.client();

    let changed = wait_until_done(&client, async |members| members.replace(dead, new).await).await;

    assert!(changed);
    assert!(!client.members().replace(dead, new).await.unwrap(), "again");
    world.see_off(dead).await;
    world.assert_voters(&world.cluster.ids()).await;
    watched.wait_until_granted(20).await;
    world.all_ready().await;
    watched.leave(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_addresses_change_is_found_again_also_as_the_leader() {
    let mut world = World::new().await;
    let node = world.grow().await;
    for leads in [false, true] {
        if leads {
            let client = world.client();
            let led = async |_: Members<'_>| client.transfer_leader(Some(node)).await.map(|_| true);
            wait_until_done(&client, led).await;
        }

        world.cluster.relocate(node).await.unwrap();

        world.all_ready().await;
        let at = world.url(node);
        let known = format!("http://{}", wait_until_moved(&world, node, &at).await.api);
        assert_eq!(known, at);
    }
    world.wait_for_one_state().await;
}

/// Waits until all know that a node is reached there, and it follows.
pub(crate) async fn wait_until_moved(world: &World, node: u64, url: &str) -> MemberBody {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let members = world.members().await;
        let found = members
            .into_iter()
            .find(|member| member.id == node)
            .unwrap();
        if format!("http://{}", found.api) == url && found.reachable == Some(true) {
            return found;
        }
        assert!(Instant::now() < deadline, "{found:#?}");
        sleep(POLL_INTERVAL).await;
    }
}
