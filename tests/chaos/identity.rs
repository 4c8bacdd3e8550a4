//! A node that is not who it says it is, or that is there twice: it is refused, says why, and the others serve on.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use highwater::chaos::{ClaimedPort, Connection};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::crowd::{self, Crowd};
use crate::settings::program;
use crate::world::{PATIENCE, POLL_INTERVAL, World, wait_until_ready};

/// Copies what a node has on its disk.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Starts one more process as this node, elsewhere, and waits for what it says last.
async fn said_by_another(world: &World, node: u64, data_dir: &Path) -> String {
    let ports = ClaimedPort::claim(2).unwrap();
    let address = |at: usize| ports[at].address().to_string();
    let serve = Command::new(program().path)
        .args(["serve", "--node", &node.to_string(), "--cluster"])
        .arg(world.cluster.directory().join("cluster.toml"))
        .args(["--listen", &address(0), "--peer-listen", &address(1)])
        .arg("--data-dir")
        .arg(data_dir)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, serve).await.expect("it ends by itself");
    let output = output.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said.lines().last().unwrap().to_owned()
}

/// Starts copies of a running node until one holds all that was promised: then it is not older, and there are two.
async fn wait_until_a_copy_runs_beside(world: &mut World, original: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let directory = tempfile::tempdir().unwrap();
        let copied = directory.path().join("copy");
        world.cluster.freeze(original, PATIENCE).await.unwrap();
        copy(world.cluster.data_dir(original).unwrap(), &copied);
        world.cluster.thaw(original).unwrap();
        world.all_ready().await;

        let told = said_by_another(world, original, &copied).await;

        if told.contains(&format!("node {original} runs twice: node ")) {
            return;
        }
        // On a busy machine there may have been an election since.
        let older = "was given an older copy of its data directory, or there are two";
        assert!(told.contains(older), "{told}");
        assert!(Instant::now() < deadline, "{told}");
    }
}

// A volume that was cloned, or a machine's image: each of the two would vote, and make a majority with another node.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_started_while_its_original_runs_is_refused_and_ends() {
    let mut world = World::new().await;
    let original = world.leader().await % 3 + 1;
    let crowd = Crowd::at(&world.cluster.urls(), 2);
    crowd.wait_until_granted(50).await;
    let mut values = crowd::values(&crowd.leave().await);
    world.wait_for_one_state().await;

    wait_until_a_copy_runs_beside(&mut world, original).await;

    let crowd = Crowd::at(&world.cluster.urls(), 2);
    crowd.wait_until_granted(50).await;
    world.cluster.check_alive().unwrap();
    values.extend(crowd::values(&crowd.leave().await));
    world.check(values).await;
}

// hashicorp/vault#10620: a new node under the leader's id.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_directory_under_the_id_of_a_running_node_is_refused_and_that_one_goes_on() {
    let mut world = World::new().await;
    let crowd = Crowd::at(&world.cluster.urls(), 2);
    for node in [world.leader().await, world.leader().await % 3 + 1] {
        let directory = tempfile::tempdir().unwrap();

        let told = said_by_another(&world, node, &directory.path().join("new")).await;

        let expected = format!("node {node} has lost its data: cluster ");
        assert!(told.contains(&expected), "{told}");
        let both = ["knows it as incarnation ", "this directory is incarnation "];
        assert!(both.iter().all(|text| told.contains(text)), "{told}");
    }
    crowd.wait_until_granted(50).await;
    world.cluster.check_alive().unwrap();

    let taken = crowd.leave().await;
    world.check(crowd::values(&taken)).await;
}

/// Waits until this node has ended by itself.
async fn wait_until_ended(world: &mut World, node: u64) -> String {
    let deadline = Instant::now() + PATIENCE;
    while world.cluster.check_alive().is_ok() {
        assert!(Instant::now() < deadline, "node {node} runs on");
        sleep(POLL_INTERVAL).await;
    }
    world.log_of(node)
}

// lni/dragonboat#256, restatedev/restate#2415: what two of three acknowledged, one of them forgot and the other is away. With the
// third, which never had it, the one that forgot would be a majority.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_forgot_its_vote_makes_no_majority_with_one_that_lags() {
    let mut world = World::new().await;
    let lagging = world.leader().await % 3 + 1;
    let forgets = lagging % 3 + 1;
    let away = forgets % 3 + 1;
    world.cluster.kill(&[lagging]).await.unwrap();
    let crowd = Crowd::at(&world.cluster.urls_without(lagging), 2);
    crowd.wait_until_granted(50).await;
    let mut values = crowd::values(&crowd.leave().await);
    world.cluster.kill(&[forgets, away]).await.unwrap();
    std::fs::remove_dir_all(world.cluster.data_dir(forgets).unwrap()).unwrap();

    world.cluster.start(&[forgets, lagging]).unwrap();
    let said = wait_until_ended(&mut world, forgets).await;
    let asked = async {
        let mut connection = Connection::open(&world.url(lagging)).await.unwrap();
        let path = "/v1/sequences/p/leases?timeout=1s";
        connection.ask("POST", path, "").await.unwrap()
    };
    let answer = asked.await;

    let expected = format!("node {forgets} has lost its data: cluster ");
    assert!(said.contains(&expected), "{said}");
    let body = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.status, 503, "{body}");
    // The one that has it is what was missing.
    world.cluster.start(&[away]).unwrap();
    for node in [away, lagging] {
        wait_until_ready(&world.url(node)).await;
    }
    let crowd = Crowd::at(&[world.url(away), world.url(lagging)], 1);
    crowd.wait_until_granted(50).await;
    values.extend(crowd::values(&crowd.leave().await));
    world.check_values(values).await;
}
