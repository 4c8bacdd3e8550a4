//! Leadership is handed over when somebody asks for it, and an attempt that fails costs nobody anything.

use std::num::NonZeroU64;
use std::time::Duration;

use highwater::chaos::{ClusterSize, Connection, FlowFault, RawAnswer};
use serde_json::{Value, json};

use crate::crowd::{self, Crowd};
use crate::settings::setting;
use crate::world::{PATIENCE, World};

/// Asks this node to have leadership handed over.
async fn transfer(url: &str, body: &Value) -> (RawAnswer, Value) {
    let mut connection = Connection::open(url).await.unwrap();
    let path = "/v1/cluster/transfer-leader";
    let answer = connection.ask("POST", path, &body.to_string()).await;
    let answer = answer.unwrap();
    let body = serde_json::from_slice(&answer.body).unwrap();
    (answer, body)
}

// tikv/pd#3303: leadership goes round, and values only rise.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_goes_to_whom_it_is_asked_to_go_under_load_whichever_node_is_asked() {
    let mut world = World::with_cached().await;
    let urls = world.cluster.urls();
    let (crowd, of_cached) = (Crowd::at(&urls, 4), Crowd::of_cached(&urls, 4));

    for round in 0..setting("FAILOVER_TRANSFERS").unwrap_or(12) {
        crowd.wait_until_granted(20).await;
        of_cached.wait_until_granted(20).await;
        let (asked, to) = (&urls[round % 2], round % 3 + 1);
        let (answer, body) = transfer(asked, &json!({ "to": to })).await;
        assert_eq!((answer.status, body), (200, json!({ "leader": to })));
        assert_eq!(world.leader().await, u64::try_from(to).unwrap());
    }
    let before = world.leader().await;
    let (_, anybody) = transfer(&urls[0], &json!({})).await;
    let now = anybody["leader"].as_u64().unwrap();
    assert_ne!(now, before);
    assert_eq!(world.leader().await, now);

    let (answer, nobody) = transfer(&urls[0], &json!({ "to": 9 })).await;
    assert_eq!(
        (answer.status, &nobody["code"]),
        (404, &json!("unknown_voter"))
    );
    assert_eq!(nobody["outcome"], "not_applied");
    let taken = crowd.leave().await;
    world.check(crowd::values(&taken)).await;
    crowd::check_order(of_cached.leave().await);
}

// openraft's own transfer mutes a leader whose successor does not come: ours leads on.
#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_to_a_node_that_does_not_answer_leaves_the_leader_at_work() {
    let mut world = World::new().await;
    let leader = world.leader().await;
    let stopped = leader % 3 + 1;
    let url = world.url(leader);
    world.cluster.freeze(stopped, PATIENCE).await.unwrap();
    let crowd = Crowd::at(std::slice::from_ref(&url), 4);
    crowd.wait_until_granted(20).await;

    let (refused, body) = transfer(&url, &json!({ "to": stopped })).await;

    assert_eq!(
        (refused.status, &body["code"]),
        (503, &json!("no_successor"))
    );
    let told = format!("no other voter is fit to lead: node {stopped} does not answer");
    assert_eq!(body["detail"], told);
    crowd.wait_until_granted(100).await;
    assert_eq!(world.leader().await, leader);
    world.cluster.thaw(stopped).unwrap();
    let taken = crowd.leave().await;
    world.check(crowd::values(&taken)).await;
}

// One that lags behind, however far, and whether it takes over at last or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_to_a_voter_that_lags_leaves_somebody_at_work() {
    let mut world = World::with_network(ClusterSize::Three).await;
    let bytes_per_second = NonZeroU64::new(20_000).unwrap();
    let faults = [
        FlowFault::Delay(Duration::from_millis(25)),
        FlowFault::Delay(Duration::from_millis(200)),
        FlowFault::Throttle { bytes_per_second },
        FlowFault::Hold,
    ];
    let mut values = Vec::new();
    for fault in faults {
        let leader = world.leader().await;
        let lags = leader % 3 + 1;
        let crowd = Crowd::at(&[world.url(leader)], 8);
        crowd.wait_until_granted(50).await;
        world.network().set_to(lags, fault);
        crowd.wait_until_granted(50).await;

        let (answer, body) = transfer(&world.url(leader), &json!({ "to": lags })).await;

        // 504: it was asked to lead and had not done so in time, which nobody can tell from never.
        assert!(
            [200, 503, 504].contains(&answer.status),
            "{fault:?}: {body}"
        );
        if answer.status == 504 {
            assert_eq!(body["outcome"], "unknown");
        }
        crowd.wait_until_granted(50).await;
        world.network().heal();
        world.all_ready().await;
        crowd.wait_until_granted(50).await;
        values.extend(crowd::values(&crowd.leave().await));
    }

    world.check(values).await;
}
