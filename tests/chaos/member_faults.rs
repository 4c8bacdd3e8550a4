//! Changes of the members at bad moments: what is answered is so, and stays so.

use std::time::Duration;

use futures::future::{Either, join_all, select};
use highwater::client::{Client, Members};
use highwater::wire::MemberRole;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use crate::members::{wait_a_moment, wait_until_done, wait_until_moved};
use crate::settings::setting;
use crate::world::{PATIENCE, Watched, World};

const SEED: u64 = 7;
const ROUNDS: u64 = 4;

/// A client of one node, or of all but one.
fn client_of(urls: impl IntoIterator<Item = String>) -> Client {
    let nodes = Client::builder().nodes(urls);
    nodes.deadline(Duration::from_secs(3)).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_is_gone_is_not_made_a_voter_however_little_it_lacks() {
    let mut world = World::new().await;
    let node = world.cluster.join(PATIENCE).await.unwrap();
    world.all_ready().await;
    world.wait_for_one_state().await;
    world.cluster.kill(&[node]).await.unwrap();
    let client = client_of(world.cluster.urls_without(node));

    let error = client.members().promote(node).await.unwrap_err();

    let what = format!("node {node} is to vote, and does not answer yet");
    assert!(error.to_string().contains(&what), "{error}");
    assert_eq!(world.role(node).await, Some(MemberRole::Learner));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_moves_while_the_leader_has_moved_is_found_again() {
    let mut world = World::new().await;
    let (leader, node) = (world.grow().await, world.grow().await);
    world.all_ready().await;
    world.cluster.freeze(node, PATIENCE).await.unwrap();
    world.cluster.relocate(leader).await.unwrap();
    wait_until_moved(&world, leader, &world.url(leader)).await;
    let client = client_of(world.cluster.urls_without(node));
    let led = async |_: Members<'_>| client.transfer_leader(Some(leader)).await.map(|_| true);
    wait_until_done(&client, led).await;

    // Each of the two knows only where the other was.
    world.cluster.relocate(node).await.unwrap();

    wait_until_moved(&world, node, &world.url(node)).await;
    world.all_ready().await;
    world.wait_for_one_state().await;
}

/// Has a node vote and not vote, in turns. Nobody else changes it, so what is done is found done.
async fn change_to_and_fro(client: Client, node: u64, rounds: u64) {
    for _ in 0..rounds {
        let promote = async |members: Members<'_>| members.promote(node).await;
        wait_until_done(&client, promote).await;
        assert!(!wait_until_done(&client, promote).await, "{node} votes");
        let demote = async |members: Members<'_>| members.demote(node).await;
        wait_until_done(&client, demote).await;
        assert!(!wait_until_done(&client, demote).await, "{node} learns");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_two_clients_change_at_once_is_done_and_stays_whoever_is_lost_meanwhile() {
    let seed = setting("MEMBER_SEED").unwrap_or(SEED);
    let rounds = setting("MEMBER_ROUNDS").unwrap_or(ROUNDS);
    eprintln!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let mut world = World::new().await;
    let changed = [
        world.cluster.join(PATIENCE).await.unwrap(),
        world.cluster.join(PATIENCE).await.unwrap(),
    ];
    world.all_ready().await;
    let watched = Watched::at_each(&world, 1);
    let changes = changed.map(|node| change_to_and_fro(world.client(), node, rounds));
    let mut changes = Box::pin(join_all(changes));

    let mut done = false;
    while !done {
        let troubles = async {
            let stands_still = world.leader().await;
            world.cluster.freeze(stands_still, PATIENCE).await.unwrap();
            for _ in 0..8 {
                wait_a_moment(&mut chance).await;
            }
            world.cluster.thaw(stands_still).unwrap();
            let dies = *world.cluster.ids().choose(&mut chance).unwrap();
            world.cluster.kill(&[dies]).await.unwrap();
            world.cluster.start(&[dies]).unwrap();
            world.all_ready().await;
            watched.wait_until_granted(20).await;
        };
        // Whichever ends first: what was begun with a node is gone through with.
        match select(Box::pin(troubles), &mut changes).await {
            Either::Left(((), _)) => {}
            Either::Right((_, troubles)) => {
                troubles.await;
                done = true;
            }
        }
    }

    world.wait_for_one_state().await;
    watched.leave(&world).await;
}
