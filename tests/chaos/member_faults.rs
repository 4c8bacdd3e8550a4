//! Changes of the members at bad moments: what is answered is so, and stays so.

use std::time::Duration;

use highwater::client::{Client, Members};
use highwater::wire::MemberRole;

use crate::members::{wait_until_done, wait_until_moved};
use crate::world::{PATIENCE, World};

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
