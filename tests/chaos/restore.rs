//! One history over two lives: a cluster under load, and the one that is made of its backup.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use highwater::client::Client;
use highwater::wire::Number;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::settings::program;
use crate::world::{PATIENCE, POLL_INTERVAL, Watched, World, p};

/// The binary with these arguments.
fn highwater<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(program().path);
    command.args(arguments).kill_on_drop(true);
    command
}

/// Runs a verb that succeeds.
async fn run(arguments: &[&str]) {
    let said = timeout(PATIENCE, highwater(arguments).output()).await;
    let said = said.unwrap().unwrap();
    let err = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{arguments:?}: {err}");
}

/// The only node of a cluster, and where it serves.
async fn wait_for_node(data_dir: &Path) -> (Child, String) {
    let mut command = highwater(&["serve", "--listen", "127.0.0.1:0"]);
    command.args(["--peer-listen", "127.0.0.1:0", "--data-dir"]);
    let command = command.arg(data_dir).stderr(Stdio::null());
    let node = command.spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(text) = std::fs::read_to_string(data_dir.join("ready.json")) {
            let ready: serde_json::Value = serde_json::from_str(&text).unwrap();
            return (node, format!("http://{}", ready["api"].as_str().unwrap()));
        }
        assert!(
            Instant::now() < deadline,
            "the restored node does not start"
        );
        sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test]
async fn over_the_lives_of_a_cluster_and_of_the_one_restored_from_its_backup_nothing_is_granted_twice()
 {
    let mut world = World::new().await;
    let mut watched = Watched::at_each(&world, 2);
    watched.wait_until_granted(200).await;
    let file = world.directory.path().join("p.backup");
    let data_dir = world.directory.path().join("restored");
    let (file, target) = (file.to_str().unwrap(), data_dir.to_str().unwrap());

    // Taken while all lease on, from a node that dies a moment later.
    run(&["backup", file, "--url", &world.url(2)]).await;
    watched.wait_until_granted(200).await;
    world.cluster.kill(&[2]).await.unwrap();
    watched.wait_until_granted(200).await;
    watched.rest().await;
    // What the operator knows: the highest id that was ever stored.
    let floor = format!("p={}", world.high().await);
    world.cluster.kill(&[1, 3]).await.unwrap();
    let choices = ["--floor", &floor, "--old-cluster-is-stopped"];
    run(&[&["restore", file, "--data-dir", target], &choices[..]].concat()).await;
    let (_node, url) = wait_for_node(&data_dir).await;
    for number in 0..4 {
        watched.add(format!("after-{number}"), (1, std::slice::from_ref(&url)));
    }
    watched.wait_until_granted(400).await;
    watched.rest().await;

    let client = Client::builder().nodes([url]).build().unwrap();
    let high = client.sequence(&p()).await.unwrap().high;
    watched.check(high.and_then(Number::get).unwrap()).await;
}
