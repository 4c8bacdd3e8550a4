//! Faults by chance, one after another, of processes and of the network between them, while workers lease from all nodes.
//!
//! Here a few of them. `HIGHWATER_TEST_CHAOS_STEPS` asks for more, and `HIGHWATER_TEST_CHAOS_SEED` for those of another seed.

use highwater::chaos::{ClusterSize, Fault, Schedule, Step};
use tokio::time::sleep;

use crate::settings::setting;
use crate::world::{PATIENCE, Watched, World};

/// A seed whose first steps hit processes and links, leaders and followers.
const SEED: u64 = 3;
const STEPS: usize = 8;

/// Nothing shows that this is over: it is how long the fault lasts.
async fn wait_while_it_lasts(step: &Step) {
    sleep(step.lasts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_no_promise_is_broken_and_everybody_is_served_afterwards() {
    let seed = setting("CHAOS_SEED").unwrap_or(SEED);
    let steps = setting("CHAOS_STEPS").unwrap_or(STEPS);
    let mut world = World::with_network(ClusterSize::Three).await;
    let watched = Watched::at_each(&world, 2);

    for (number, step) in Schedule::new(seed).take(steps).enumerate() {
        eprintln!("seed {seed}, step {number}: {step}");
        watched.wait_until_granted(20).await;
        step.fault
            .strike(&mut world.cluster, PATIENCE)
            .await
            .unwrap();
        wait_while_it_lasts(&step).await;
        Fault::heal(&mut world.cluster, PATIENCE).await.unwrap();
        for node in world.cluster.ids() {
            watched.lease_at(&world, node).await;
        }
    }

    watched.leave(&world).await;
}
