//! A new node joins a cluster of many sequences under load: all of them come by a snapshot, and it is a member like any other.
//!
//! Here there are fewer. `HIGHWATER_TEST_LARGE_SEQUENCES` asks for more, and what that costs is printed.

use std::time::{Duration, Instant};

use highwater::client::Members;
use highwater::wire::{MemberBody, MemberRole};

use crate::large::tell_memory;
use crate::members::wait_until_done;
use crate::settings::setting;
use crate::snapshots::{make_sequences, wait_until_member};
use crate::world::{Watched, World, wait_until_ready};

/// How many sequences, one less than a table takes at most.
const SEQUENCES: usize = 20_000;
/// After how many entries they are saved; `HIGHWATER_TEST_LARGE_INTERVAL` says another number.
const INTERVAL: u64 = 100;
/// A node that lacks no more than this has caught up.
const LAG_MAX: u64 = 16;

#[tokio::test(flavor = "multi_thread")]
async fn a_new_node_gets_a_large_table_by_a_snapshot_and_then_votes_leads_and_restarts() {
    let interval = setting("LARGE_INTERVAL").unwrap_or(INTERVAL).to_string();
    let mut world = World::with(&["--auto-create", "--snapshot-entries", &interval]).await;
    let sequences = setting("LARGE_SEQUENCES").unwrap_or(SEQUENCES);
    make_sequences(&world.url(1), sequences).await;
    let watched = Watched::at_each(&world, 2);
    // What the new node lacks is in the log no more.
    let leader = world.leader().await;
    wait_until_member(&world, leader, |leader| leader.snapshot_index.is_some()).await;

    let begun = Instant::now();
    let node = world.cluster.join(Duration::from_secs(600)).await.unwrap();
    let caught_up = |member: &MemberBody| member.lag.is_some_and(|lag| lag <= LAG_MAX);
    wait_until_member(&world, node, caught_up).await;
    eprintln!(
        "{sequences} sequences: caught up after {:?}",
        begun.elapsed()
    );
    tell_memory(&world);
    assert_eq!(world.role(node).await, Some(MemberRole::Learner));
    assert!(world.log_of(node).contains("snapshot received"));
    let client = world.client();
    wait_until_done(&client, async |members| members.promote(node).await).await;
    let lost = world.leader().await;
    world.cluster.kill(&[lost]).await.unwrap();
    let led = async |_: Members<'_>| client.transfer_leader(Some(node)).await.map(|_| true);
    wait_until_done(&client, led).await;
    watched.lease_at(&world, node).await;
    world.cluster.kill(&[node]).await.unwrap();
    let begun = Instant::now();
    world.cluster.start(&[node, lost]).unwrap();
    wait_until_ready(&world.url(node)).await;
    eprintln!("restarted within {:?}", begun.elapsed());
    world.all_ready().await;
    watched.lease_at(&world, node).await;

    watched.leave(&world).await;
}
