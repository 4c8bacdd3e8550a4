//! A rolling upgrade under load: from a really older program where `scripts/upgrade` builds one, else from this one that is held
//! back.

use std::path::PathBuf;
use std::time::Instant;

use highwater::chaos::{Connection, Program};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::settings::{program, setting};
use crate::world::{PATIENCE, POLL_INTERVAL, Watched, World};

/// The feature level that came with imports.
const IMPORTS: u64 = 2;
/// Those who lease, each from all nodes in turn.
const WORKERS: usize = 8;

/// The older program, and what it is told.
fn older() -> (Program, &'static [&'static str]) {
    match setting::<PathBuf>("OLDER_PROGRAM") {
        Some(path) => {
            let arguments = Vec::new();
            (Program { path, arguments }, &[])
        }
        None => (program(), &["--feature-level-max", "1"]),
    }
}

async fn ask(url: &str, (method, path): (&str, &str), body: &str) -> (u16, Value) {
    let mut connection = Connection::open(url).await.unwrap();
    let answer = connection.ask(method, path, body).await.unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

/// Imports a mark at this node.
async fn import(url: &str) -> (u16, Value) {
    let body = json!([{ "sequence": "imported", "at_least": 5000 }]).to_string();
    ask(url, ("POST", "/v1/sequences?timeout=30s"), &body).await
}

/// The feature level in use, and what each member knows.
async fn levels(url: &str) -> (u64, Vec<u64>) {
    let (_, shown) = ask(url, ("GET", "/v1/cluster"), "").await;
    let members = shown["members"].as_array().unwrap().iter();
    let known = members.map(|member| member["feature_level_max"].as_u64().unwrap());
    (shown["feature_level"].as_u64().unwrap(), known.collect())
}

/// Waits until every member has said what it knows.
async fn wait_until_all_say(url: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (_, shown) = ask(url, ("GET", "/v1/cluster"), "").await;
        let mut members = shown["members"].as_array().unwrap().iter();
        if members.all(|member| member["feature_level_max"].is_u64()) {
            return;
        }
        assert!(Instant::now() < deadline, "{shown:#}");
        sleep(POLL_INTERVAL).await;
    }
}

/// Ends the node, and starts it by this program.
async fn restart_by(world: &mut World, node: u64, (program, settings): (Program, &[&str])) {
    let ended = world.cluster.terminate(&[node], PATIENCE).await.unwrap();
    assert!(ended.iter().all(std::process::ExitStatus::success));
    world.cluster.start_by(program);
    world.cluster.serve_with(settings);
    world.cluster.start(&[node]).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_upgrade_costs_workers_no_error_and_opens_what_is_new_at_its_end() {
    let (program_before, settings_before) = older();
    let mut world = World::of(program_before, settings_before).await;
    let urls = world.cluster.urls();
    wait_until_all_say(&urls[0]).await;
    let (_, known) = levels(&urls[0]).await;
    let gated = known.iter().all(|level| *level < IMPORTS);
    eprintln!("feature levels before: {known:?}");
    let mut watched = Watched::at_each(&world, 0);
    for number in 0..WORKERS {
        watched.add(format!("w{number}"), (1, &urls));
    }
    watched.wait_until_granted(100).await;

    for node in 1..=3 {
        restart_by(&mut world, node, (program(), &[])).await;
        world.all_ready().await;
        wait_until_all_say(&world.url(node)).await;
        watched.wait_until_granted(100).await;
        let (status, body) = import(&world.url(node)).await;
        eprintln!("node {node} is upgraded, and an import there is {status}: {body}");
        if gated && node < 3 {
            assert_eq!((status, &body["code"]), (503, &json!("upgrade_unfinished")));
            let who = format!("node {} knows levels up to {}", node + 1, known[0]);
            assert!(body["detail"].as_str().unwrap().contains(&who), "{body}");
        } else {
            assert_eq!(status, 200, "{body}");
        }
    }

    for url in &urls {
        assert_eq!(import(url).await.0, 200);
    }
    let (in_use, known) = levels(&urls[0]).await;
    eprintln!("feature levels after: {in_use} in use, {known:?}");
    assert!(IMPORTS <= in_use && known.iter().all(|level| in_use <= *level));
    if gated {
        // What is new is used: there is no way back.
        restart_by(&mut world, 3, older()).await;
        let died = world.cluster.all_ready(PATIENCE).await.unwrap_err();
        eprintln!("{died}");
        let line =
            format!("the cluster is at feature level {in_use}, and this node knows levels up to");
        let died = died.to_string();
        assert!(
            died.contains(&line) && died.contains("exit status: 1"),
            "{died}"
        );
        world.cluster.start_by(program());
        world.cluster.serve_with(&[]);
        world.restart().await;
    }
    watched.wait_until_granted(100).await;
    let seen = watched.leave(&world).await;
    assert_eq!(seen.not_granted(), 0);
}
