//! Members by the command line, as the page on them does it, and nodes that join.

use std::fs;

use highwater::RangeCount;
use highwater::chaos::ClaimedPort;
use serde_json::{Value, json};

use crate::node::{Node, serve, wait_until_ready, with, words};
use crate::pages::{assert_prints, follow, run};
use crate::world::{PATIENCE, client, send, sequence, three_nodes};

#[tokio::test]
async fn every_command_on_the_page_about_members_does_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let ports = ClaimedPort::claim(10).unwrap();
    let mut page = include_str!("../../docs/members.md").to_owned();
    let mut urls = Vec::new();
    for (number, port) in (1..=5).flat_map(|n| [7100 + n, 7200 + n]).zip(&ports) {
        let address = port.address().to_string();
        page = page.replace(&format!("127.0.0.1:{number}"), &address);
        if number < 7200 {
            urls.push(address);
        }
    }
    let urls = urls.join(",");
    let mut nodes = Vec::new();

    follow(&page, directory.path(), &urls, &mut nodes).await;

    assert_eq!(nodes.len(), 6, "the page has its nodes");
}

#[tokio::test]
async fn a_node_that_joins_waits_for_a_cluster_that_does_not_answer() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("1"), directory.path().join("2"));
    let [api, peer] = <[_; 2]>::try_from(ClaimedPort::claim(2).unwrap()).unwrap();
    let api = api.address().to_string();
    let url = format!("http://{api}");
    let log = directory.path().join("2.log");
    let joins = Node::start(&log, with(serve(&second), &["--join", &url]));
    joins
        .wait_until_said("waiting for the cluster to admit this node", 1)
        .await;
    assert!(!second.join("ready.json").exists());

    let peer = peer.address().to_string();
    let first_arguments = words(&["serve", "--listen", &api, "--peer-listen", &peer]);
    let mut first_arguments = first_arguments;
    first_arguments.extend(["--data-dir".into(), first.clone().into()]);
    let _first = Node::start(&directory.path().join("1.log"), first_arguments);

    let at = wait_until_ready(&second).await;
    let ready: Value =
        serde_json::from_slice(&fs::read(second.join("ready.json")).unwrap()).unwrap();
    assert_eq!(ready["node"], 2);
    let created = send("PUT", &format!("{at}/v1/sequences/p"), "", &[]).await;
    assert_eq!(created.status, 201, "a learner takes requests");

    // It is started again by the same command, also where nobody answers there any more.
    joins.kill().await;
    let again = Node::start(
        &log,
        with(serve(&second), &["--join", "http://127.0.0.1:9"]),
    );
    wait_until_ready(&second).await;
    drop(again);
}

// databendlabs/openraft#2002: an empty disk under an old id.
#[tokio::test]
async fn a_wiped_node_is_refused_under_its_id_and_joins_under_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let p = sequence(&cluster, "p").await;
    let urls = cluster.urls();
    cluster.kill(&[3]).await.unwrap();
    fs::remove_dir_all(cluster.data_dir(3).unwrap()).unwrap();
    cluster.start(&[3]).unwrap();
    let died = cluster.all_ready(PATIENCE).await.unwrap_err().to_string();
    assert!(died.contains("node 3 has lost its data"), "{died}");

    let new = directory.path().join("new");
    let peer = cluster.peer_address(3).unwrap().to_string();
    let api = urls[2].strip_prefix("http://").unwrap();
    let mut arguments = words(&["serve", "--listen", api, "--peer-listen", &peer]);
    arguments.extend(["--data-dir".into(), new.clone().into()]);
    let arguments = with(arguments, &["--join", &urls[..2].join(",")]);
    let _new = Node::start(&directory.path().join("new.log"), arguments);
    wait_until_ready(&new).await;
    let replaced = client(&cluster).members().replace(3, 4).await;

    assert!(replaced.unwrap());
    let shown = client(&cluster).members().list().await.unwrap();
    let ids: Vec<u64> = shown.iter().map(|member| member.id).collect();
    assert_eq!(ids, [1, 2, 4]);
    cluster.kill(&[1]).await.unwrap();
    client(&cluster).lease(&p, RangeCount::ONE).await.unwrap();
}

#[tokio::test]
async fn what_is_no_node_and_no_member_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    let url = format!("{}/v1/cluster/members", cluster.urls()[0]);
    let node = |incarnation: &str, api: &str, peer: &str| {
        json!({ "incarnation": incarnation, "api": api, "peer": peer }).to_string()
    };
    let id = |number: u128| format!("{number:032x}");
    for (method, path, body, status, code) in [
        ("POST", "", node("x", "a:1", "b:2"), 400, "invalid_body"),
        ("POST", "", node(&id(9), "a", "b:2"), 400, "invalid_body"),
        ("POST", "", node(&id(9), "a:1", "b:0"), 400, "invalid_body"),
        ("POST", "", String::new(), 400, "invalid_body"),
        ("POST", "", "{\"id\":4}".to_owned(), 400, "unknown_field"),
        ("DELETE", "/x", String::new(), 400, "invalid_node_id"),
        ("DELETE", "/-1", String::new(), 400, "invalid_node_id"),
        ("DELETE", "/9", String::new(), 404, "unknown_member"),
        ("POST", "/9/promote", String::new(), 404, "unknown_member"),
        ("POST", "/9/demote", String::new(), 404, "unknown_member"),
        ("POST", "/3/replace", String::new(), 400, "invalid_body"),
        (
            "POST",
            "/3/replace",
            "{\"with\":9}".to_owned(),
            404,
            "unknown_member",
        ),
        (
            "POST",
            "/3/replace",
            "{\"with\":3}".to_owned(),
            400,
            "invalid_body",
        ),
        ("PUT", "/3", String::new(), 405, "method_not_allowed"),
    ] {
        let answer = send(method, &format!("{url}{path}"), &body, &[]).await;

        let said = (answer.status, answer.field("code"));
        assert_eq!(said, (status, code.to_owned()), "{method} {path} {body}");
    }
    let members = send("GET", &url, "", &[]).await.json();
    assert_eq!(members["members"].as_array().unwrap().len(), 3);

    // One directory is one node, however often and wherever it asks.
    let urls = cluster.urls();
    let mut given = Vec::new();
    for url in [&urls[0], &urls[1], &urls[2]] {
        let url = format!("{url}/v1/cluster/members");
        let answer = send(
            "POST",
            &url,
            &node(&id(9), "127.0.0.1:9", "127.0.0.1:9"),
            &[],
        )
        .await;
        given.push(answer.json()["id"].as_u64().unwrap());
    }
    assert_eq!(given, [4, 4, 4]);
}

#[tokio::test]
async fn a_restored_cluster_grows_and_gives_ids_above_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let old = Node::start(&path.join("old.log"), serve(&path.join("old")));
    let url = wait_until_ready(&path.join("old")).await;
    let created = send("PUT", &format!("{url}/v1/sequences/p"), "", &[]).await;
    assert_eq!(created.status, 201);
    run(path, &url, "highwater backup b");
    old.kill().await;
    let restore = "highwater restore b --data-dir 1 --advance-by 100 --old-cluster-is-stopped";
    assert!(run(path, &url, restore).0.contains("101"));

    let _first = Node::start(&path.join("1.log"), serve(&path.join("1")));
    let url = wait_until_ready(&path.join("1")).await;
    let _second = Node::start(
        &path.join("2.log"),
        with(serve(&path.join("2")), &["--join", &url]),
    );
    wait_until_ready(&path.join("2")).await;

    assert_prints(path, &url, "highwater member add", "node 2 votes\n");
    assert_prints(path, &url, "highwater lease p", "101 101\n");
}

// Whoever is admitted becomes a learner first, also while a change waits for just that.
#[tokio::test]
async fn nodes_that_were_admitted_and_never_started_are_removed_at_once_and_leave_their_room() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    let url = format!("{}/v1/cluster/members", cluster.urls()[0]);
    let admit = async |incarnation: u128| {
        let node = json!({
            "incarnation": format!("{incarnation:032x}"),
            "api": "127.0.0.1:9",
            "peer": "127.0.0.1:9",
        });
        send("POST", &url, &node.to_string(), &[]).await
    };
    let remove = async |id: u64| send("DELETE", &format!("{url}/{id}"), "", &[]).await.json();
    for id in 4..=8_u64 {
        assert_eq!(admit(id.into()).await.json()["id"], id);
        assert_eq!(remove(id).await, json!({ "changed": true }));
    }

    // As many as there may be, beside the three.
    for id in 9..=21_u64 {
        assert_eq!(admit(id.into()).await.json()["id"], id);
    }
    let one_more = admit(22).await;
    assert_eq!(
        (one_more.status, one_more.field("code")),
        (409, "too_many_nodes".to_owned())
    );
    for (gone, id) in (9..=21_u64).zip(22_u64..) {
        assert_eq!(remove(gone).await, json!({ "changed": true }));
        assert_eq!(admit(id.into()).await.json()["id"], id);
    }
}
