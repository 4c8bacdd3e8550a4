//! Changes of the members at bad moments: what is answered is so, and stays so.

use std::path::Path;
use std::time::Duration;

use futures::future::{Either, join_all, select};
use highwater::chaos::{ClusterSize, Connection};
use highwater::client::{Client, Members};
use highwater::wire::MemberRole;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use tokio::process::Command;

use crate::members::{wait_a_moment, wait_until_done, wait_until_moved};
use crate::settings::{program, setting};
use crate::world::{PATIENCE, Watched, World, wait_until_not_ready};

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

// Whoever is asked for is not who answers there. The third has entries that the two lack, so neither can lead, and knows of
// neither where it is.
#[tokio::test(flavor = "multi_thread")]
async fn two_of_three_members_that_have_swapped_their_addresses_are_found_again() {
    let mut world = World::new().await;
    let watched = Watched::at_each(&world, 1);
    watched.wait_until_granted(20).await;
    let third = world.leader().await;
    let (one, other) = (third % 3 + 1, (third + 1) % 3 + 1);
    for node in [one, other] {
        world.cluster.freeze(node, PATIENCE).await.unwrap();
    }
    let mut connection = Connection::open(&world.url(third)).await.unwrap();
    let path = "/v1/sequences/p/leases?timeout=200ms";
    let answer = connection.ask("POST", path, "").await.unwrap();
    assert_ne!(answer.status, 201, "it is in one log only");

    world.cluster.swap_addresses(one, other).await.unwrap();

    for node in [one, other] {
        wait_until_moved(&world, node, &world.url(node)).await;
    }
    world.all_ready().await;
    watched.wait_until_granted(20).await;
    watched.leave(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_stood_still_while_it_was_removed_ends_when_it_goes_on() {
    let mut world = World::new().await;
    let node = world.cluster.join(PATIENCE).await.unwrap();
    world.all_ready().await;
    world.cluster.freeze(node, PATIENCE).await.unwrap();
    let client = client_of(world.cluster.urls_without(node));

    let removed = wait_until_done(&client, async |members| members.remove(node).await).await;

    assert!(removed);
    assert_eq!(client.members().list().await.unwrap().len(), 3);
    world.cluster.thaw(node).unwrap();
    world.see_off(node).await;
}

/// Whether the last vote of a node that has ended is for somebody who then led, as its directory has it.
async fn has_voted_for_a_leader(data_dir: &Path) -> bool {
    let inspect = Command::new(program().path)
        .args(["inspect", "--json"])
        .arg(data_dir)
        .output();
    let output = inspect.await.unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    told["vote"]["committed"].as_bool().unwrap()
}

// Raft dissertation, section 4.2.3: who does not know that it was removed would have itself voted for, in ever higher terms.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_removed_while_it_was_cut_off_ends_when_it_is_back_and_has_begun_no_term() {
    let mut world = World::with_network(ClusterSize::Three).await;
    let watched = Watched::at_each(&world, 1);
    watched.wait_until_granted(20).await;
    // One that led would go on believing that it does.
    let gone = world.leader().await % 3 + 1;
    let others = [gone % 3 + 1, (gone + 1) % 3 + 1];
    world.network().split(&[&[gone], &others]);
    let client = client_of(world.cluster.urls_without(gone));
    wait_until_done(&client, async |members| members.remove(gone).await).await;
    // It finds that nobody leads, and would lead itself.
    wait_until_not_ready(&world.url(gone)).await;
    watched.wait_until_granted(50).await;
    let data_dir = world.cluster.data_dir(gone).unwrap().to_owned();

    world.network().heal();

    world.see_off(gone).await;
    assert!(has_voted_for_a_leader(&data_dir).await, "it began a term");
    let refused =
        format!("peer refused peer={gone} error=node {gone} was removed from the cluster");
    let logs = others.map(|node| world.log_of(node));
    assert!(logs.iter().any(|log| log.contains(&refused)), "{logs:?}");
    watched.leave(&world).await;
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
