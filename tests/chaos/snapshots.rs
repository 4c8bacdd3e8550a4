//! Snapshots that are built, sent and installed all the time, over links that are slow, by nodes that are killed.

use std::num::NonZeroU64;
use std::time::Instant;

use highwater::chaos::{ClusterSize, Connection, FlowFault};
use highwater::wire::MemberBody;
use tokio::time::sleep;

use crate::crowd::{self, Crowd};
use crate::settings::setting;
use crate::world::{PATIENCE, POLL_INTERVAL, World};

/// As often as nodes can be told to, so that there is one at every moment.
const SETTINGS: [&str; 3] = ["--snapshot-entries", "100", "--auto-create"];
/// The most leases of one request.
const LEASES_MAX: usize = 256;

/// Nodes with so many sequences, each of which adds some 80 bytes to a snapshot.
async fn world_with_sequences(count: usize) -> World {
    let world = World::with_network_and(ClusterSize::Three, &SETTINGS).await;
    let mut connection = Connection::open(&world.url(1)).await.unwrap();
    let names: Vec<String> = (0..count).map(|number| format!("s{number}")).collect();
    for names in names.chunks(LEASES_MAX) {
        let leases = names
            .iter()
            .map(|name| serde_json::json!({ "sequence": name }));
        let body = serde_json::Value::from_iter(leases).to_string();
        let answer = connection.ask("POST", "/v1/leases", &body).await.unwrap();
        assert_eq!(answer.status, 201);
    }
    world
}

/// No more than so many bytes a second arrive on each connection.
fn slow(bytes_per_second: u64) -> FlowFault {
    let bytes_per_second = NonZeroU64::new(bytes_per_second).unwrap();
    FlowFault::Throttle { bytes_per_second }
}

/// Waits until the leader says this of the node, and tells how it is then.
async fn wait_until_member(
    world: &World,
    node: u64,
    is_so: impl Fn(&MemberBody) -> bool,
) -> MemberBody {
    let client = world.client();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = client.cluster().await.unwrap();
        let mut members = shown.members.iter();
        let member = members.find(|member| member.id == node).unwrap();
        if is_so(member) {
            return member.clone();
        }
        assert!(Instant::now() < deadline, "{shown:#?}");
        sleep(POLL_INTERVAL).await;
    }
}

// databendlabs/openraft#1706: the log above the snapshot is purged while that is on its way, so that the next one has to be sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_far_behind_catches_up_over_a_slow_link_while_the_others_serve() {
    let mut world = world_with_sequences(setting("SNAPSHOT_SEQUENCES").unwrap_or(10_000)).await;
    let leader = world.leader().await;
    let behind = leader % 3 + 1;
    let crowd = Crowd::at(&world.cluster.urls_without(behind), 1);
    world.cluster.kill(&[behind]).await.unwrap();
    let left = wait_until_member(&world, leader, |member| member.snapshot_index.is_some()).await;
    let missed = left.match_index.unwrap() + setting("SNAPSHOT_MISSED_ENTRIES").unwrap_or(1_000);
    wait_until_member(&world, leader, |member| {
        Some(missed) < member.snapshot_index
    })
    .await;

    world.network().set_to(behind, slow(200_000));
    world.cluster.start_all().unwrap();
    let begun = Instant::now();
    let normal = |member: &MemberBody| {
        Some(missed) < member.snapshot_index && member.lag.is_some_and(|lag| lag < 64)
    };
    wait_until_member(&world, behind, normal).await;
    eprintln!("caught up after {:?}", begun.elapsed());
    crowd.wait_until_granted(100).await;

    let taken = crowd.leave().await;
    world.check(crowd::values(&taken)).await;
}
