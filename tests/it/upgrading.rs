//! Feature levels: what not every node knows is refused until all do, and then there is no way back.

use std::path::Path;

use highwater::chaos::{ClaimedPort, LocalCluster};
use serde_json::{Value, json};

use crate::cli::highwater;
use crate::node::{
    Node, cluster_file, ended, member, serve, started, wait_until, wait_until_ready, with,
};
use crate::pages::{assert_prints, follow};
use crate::world::{
    Answer, PATIENCE, send, sequence, three_nodes, wait_for_one_state, wait_until_one_ends,
};

/// What holds a node back to what the first level has, as if its program knew no more.
const HELD_BACK: [&str; 2] = ["--feature-level-max", "1"];
const LATER: &str = "the cluster is at feature level 2, and this node knows levels up to 1: start the version that the other nodes \
                     run, without --feature-level-max";

async fn import(url: &str) -> Answer {
    let body = json!([{ "sequence": "imported", "at_least": 5000 }]).to_string();
    let path = format!("{url}/v1/sequences?timeout=20s");
    send("POST", &path, &body, &[]).await
}

async fn shown(url: &str) -> Value {
    send("GET", &format!("{url}/v1/cluster"), "", &[])
        .await
        .json()
}

/// What each member knows, as this node shows it.
async fn known(url: &str) -> Value {
    let members = shown(url).await["members"].clone();
    let members = members.as_array().unwrap().iter();
    members
        .map(|member| member["feature_level_max"].clone())
        .collect()
}

/// Starts a node of the cluster with these settings, instead of the process that runs.
async fn start_with(cluster: &mut LocalCluster, node: u64, settings: &[&str]) {
    cluster.kill(&[node]).await.unwrap();
    cluster.serve_with(settings);
    cluster.start(&[node]).unwrap();
}

/// Waits until all nodes are ready, and the leader has heard of all what they know.
async fn wait_until_known(cluster: &mut LocalCluster, levels: Value) {
    cluster.all_ready(PATIENCE).await.unwrap();
    let url = cluster.urls().remove(0);
    wait_until("all say what they know", async || {
        known(&url).await == levels
    })
    .await;
}

/// Sees that an import is refused there, with this reason, and that it changed nothing.
async fn assert_refused(url: &str, reason: &str) {
    let refused = import(url).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert_eq!(refused.field("code"), "upgrade_unfinished");
    assert_eq!(refused.field("detail"), reason);
    assert_eq!(refused.field("outcome"), "not_applied");
    assert_eq!(refused.field("retryable"), "true");
    assert!(refused.headers.contains_key("retry-after"));
    assert!(refused.field("hint").contains("highwater cluster status"));
    let nothing = send("GET", &format!("{url}/v1/sequences/imported"), "", &[]).await;
    assert_eq!(nothing.status, 404, "I5");
    assert_eq!(shown(url).await["feature_level"], 1);
}

#[tokio::test]
async fn what_one_member_does_not_know_is_refused_until_it_does_and_then_there_is_no_way_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    sequence(&cluster, "p").await;
    let urls = cluster.urls();
    let lease = format!("{}/v1/sequences/p/leases", urls[0]);
    start_with(&mut cluster, 3, &HELD_BACK).await;
    wait_until_known(&mut cluster, json!([2, 2, 1])).await;

    for url in &urls {
        assert_refused(
            url,
            "feature level 2 is needed, and node 3 knows levels up to 1",
        )
        .await;
    }
    assert_eq!(send("POST", &lease, "", &[]).await.json()["first"], 1);
    let status = highwater(&["cluster", "status", "--url", &urls[1]]);
    let line =
        "feature level 1 in use; node 1 knows 2, node 2 knows 2, node 3 knows 1\n".to_owned();
    assert!(status.out.contains(&line), "{}", status.out);
    let list = directory.path().join("marks.csv");
    std::fs::write(&list, "sequence,at_least\nimported,5000\n").unwrap();
    let said = highwater(&[
        "sequence",
        "import",
        list.to_str().unwrap(),
        "--url",
        &urls[1],
    ]);
    assert_eq!(said.exit, 8, "{}", said.err);
    assert!(
        said.err.contains("node 3 knows levels up to 1"),
        "{}",
        said.err
    );

    start_with(&mut cluster, 3, &[]).await;
    wait_until_known(&mut cluster, json!([2, 2, 2])).await;
    for (url, result) in urls.iter().zip(["created", "unchanged", "unchanged"]) {
        let imported = import(url).await;
        assert_eq!(imported.status, 200, "{}", imported.text);
        assert_eq!(imported.json()["sequences"][0]["result"], result);
    }
    assert_eq!(send("POST", &lease, "", &[]).await.json()["first"], 2);
    for url in &urls {
        wait_until("every node has applied it", async || {
            shown(url).await["feature_level"] == 2
        })
        .await;
    }
    let status = highwater(&["cluster", "status", "--url", &urls[1]]);
    assert!(!status.out.contains("level"), "{}", status.out);

    start_with(&mut cluster, 3, &HELD_BACK).await;
    let ended = wait_until_one_ends(&mut cluster).await;
    assert_eq!((ended.node, ended.code), (3, Some(1)));
    assert_eq!(ended.last_line, format!("highwater: {LATER}"));
    assert_eq!(send("POST", &lease, "", &[]).await.json()["first"], 3);
}

#[tokio::test]
async fn a_member_that_does_not_answer_may_know_anything() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let urls = cluster.urls();
    cluster.kill(&[2]).await.unwrap();

    for url in [&urls[0], &urls[2]] {
        assert_refused(url, "feature level 2 is needed, and node 2 does not answer").await;
    }
    cluster.start(&[2]).unwrap();
    wait_until_known(&mut cluster, json!([2, 2, 2])).await;
    assert_eq!(import(&urls[0]).await.status, 200);
    // Once all know it, nobody is asked again.
    cluster.kill(&[2]).await.unwrap();
    assert_eq!(import(&urls[0]).await.status, 200);
}

#[tokio::test]
async fn imports_at_all_nodes_at_once_are_served_while_leadership_moves() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    wait_until_known(&mut cluster, json!([2, 2, 2])).await;
    let urls = cluster.urls();
    let transfer = format!("{}/v1/cluster/transfer-leader", urls[0]);

    let (moved, first, second, third) = tokio::join!(
        send("POST", &transfer, "", &[]),
        import(&urls[0]),
        import(&urls[1]),
        import(&urls[2]),
    );

    // A slow machine may not have elected another in time: 504.
    assert!([200, 504].contains(&moved.status), "{}", moved.text);
    let mut results = Vec::new();
    for imported in [first, second, third] {
        assert_eq!(imported.status, 200, "{}", imported.text);
        results.push(imported.json()["sequences"][0]["result"].clone());
    }
    results.sort_unstable_by_key(Value::to_string);
    assert_eq!(results, ["created", "unchanged", "unchanged"]);
    wait_for_one_state(&urls[0]).await;
    assert_eq!(shown(&urls[0]).await["feature_level"], 2);
}

#[tokio::test]
async fn a_node_that_does_not_know_the_level_is_not_admitted_and_given_no_id() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _first = Node::start(&path.join("1.log"), serve(&path.join("1")));
    let url = wait_until_ready(&path.join("1")).await;
    assert_eq!(import(&url).await.status, 200);
    let joins = |data_dir: &Path, more: &[&str]| {
        let arguments = with(serve(data_dir), &["--join", &url]);
        started(with(arguments, more))
    };

    let refused = ended(joins(&path.join("2"), &HELD_BACK)).await;

    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stderr).unwrap();
    let line = format!("highwater: the cluster does not admit this node: {LATER}\n");
    assert!(said.ends_with(&line), "{said}");
    let nothing_said = json!({
        "incarnation": format!("{:032x}", 9),
        "api": "127.0.0.1:9",
        "peer": "127.0.0.1:9",
    });
    let members = format!("{url}/v1/cluster/members");
    let older = send("POST", &members, &nothing_said.to_string(), &[]).await;
    assert_eq!(older.status, 409, "{}", older.text);
    assert_eq!(older.field("code"), "older_node");
    assert_eq!(older.field("detail"), LATER);
    // The id that none of them was given.
    let joined = with(serve(&path.join("2")), &["--join", &url]);
    let _second = Node::start(&path.join("2.log"), joined);
    wait_until("it is a member", async || {
        shown(&url).await["members"][1]["id"] == 2
    })
    .await;
    assert!(!shown(&url).await.to_string().contains("\"id\":3"));
}

#[tokio::test]
async fn a_restored_cluster_is_at_the_level_of_its_backup() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let old = Node::start(&path.join("old.log"), serve(&path.join("old")));
    let url = wait_until_ready(&path.join("old")).await;
    assert_eq!(import(&url).await.status, 200);
    assert_eq!(
        highwater(&["backup", path.join("b").to_str().unwrap(), "--url", &url]).exit,
        0
    );
    old.kill().await;
    let restore = "highwater restore b --data-dir new --no-advance --old-cluster-is-stopped > said";
    assert_prints(path, &url, restore, "");

    let refused = ended(started(with(serve(&path.join("new")), &HELD_BACK))).await;
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(said, format!("highwater: {LATER}\n"));
    let _new = Node::start(&path.join("new.log"), serve(&path.join("new")));
    let url = wait_until_ready(&path.join("new")).await;
    assert_eq!(shown(&url).await["feature_level"], 2);
}

#[tokio::test]
async fn a_node_is_held_back_by_flag_environment_or_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let file = path.join("settings.toml");
    std::fs::write(&file, "feature_level_max = 1").unwrap();
    let file = file.to_str().unwrap();
    let variable = "HIGHWATER_FEATURE_LEVEL_MAX";
    for (number, (flags, environment, level)) in (0..).zip([
        (&[][..], None, 2),
        (&HELD_BACK, None, 1),
        (&[], Some("1"), 1),
        (&["--config", file], None, 1),
        (&["--config", file], Some("2"), 2),
        (&["--feature-level-max", "2"], Some("1"), 2),
    ]) {
        let data_dir = path.join(number.to_string());
        let mut command = started(with(serve(&data_dir), flags));
        command.envs(environment.map(|value| (variable, value)));
        let child = command.spawn().unwrap();
        let url = wait_until_ready(&data_dir).await;

        assert_eq!(
            known(&url).await,
            json!([level]),
            "{flags:?} {environment:?}"
        );
        drop(child);
    }
}

#[tokio::test]
async fn a_level_that_the_program_does_not_know_cannot_be_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    for level in ["0", "9"] {
        let data_dir = directory.path().join(level);
        let arguments = with(serve(&data_dir), &["--feature-level-max", level]);

        let refused = ended(started(arguments)).await;

        let said = String::from_utf8(refused.stderr).unwrap();
        let line = format!("highwater: feature level {level} is out of bounds: use 1 to 2\n");
        assert_eq!(said, line);
        assert_eq!(refused.status.code(), Some(2));
        assert!(!data_dir.exists(), "nothing is made before");
    }
}

#[tokio::test]
async fn every_command_on_the_page_about_upgrades_does_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let file = path.join("cluster.toml");
    let ports = cluster_file(&file, &[1, 2, 3]);
    let apis = ports.iter().step_by(2).map(ClaimedPort::address);
    let urls: Vec<String> = apis.map(|api| format!("http://{api}")).collect();
    let mut nodes = Vec::new();
    for id in 1..=3 {
        let data_dir = path.join(format!("data/{id}"));
        let arguments = with(member(&file, id, &data_dir), &HELD_BACK);
        let log = path.join(format!("before-{id}.log"));
        nodes.push((data_dir, Node::start(&log, arguments)));
    }
    for (data_dir, _) in &nodes {
        wait_until_ready(data_dir).await;
    }
    let page = include_str!("../../docs/upgrading.md");
    let page = page.replace("cluster.toml", file.to_str().unwrap());

    follow(&page, path, &urls.join(","), &mut nodes).await;

    assert_eq!(nodes.len(), 7, "the page has its nodes");
}
