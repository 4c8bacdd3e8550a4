//! The API's answers, by value and by text.

use serde_json::json;

use crate::world::{Answer, PATIENCE, POLL_INTERVAL, follower, send, three_nodes};

#[tokio::test]
async fn the_first_verbs_answer_as_described() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let photos = format!("{url}/v1/sequences/photos");
    let leases = format!("{photos}/leases");

    let created = send("PUT", &photos, "", &[]).await;
    let again = send("PUT", &photos, r#"{"start":1}"#, &[]).await;
    let lease = send("POST", &leases, r#"{"count":3}"#, &[]).await;
    let text = send(
        "POST",
        &format!("{leases}?count=3"),
        "",
        &["accept: text/plain"],
    )
    .await;
    let one = send("POST", &leases, "", &[]).await;
    let advanced = send("POST", &format!("{photos}/advance"), r#"{"to":"100"}"#, &[]).await;
    let below = send("POST", &format!("{photos}/advance"), r#"{"to":5}"#, &[]).await;
    let shown = send("GET", &photos, "", &[]).await;

    assert_eq!((created.status, again.status), (201, 200));
    assert_eq!((lease.status, text.status, one.status), (201, 201, 201));
    let grant = lease.json();
    assert_eq!(
        (
            &grant["first"],
            &grant["last"],
            &grant["count"],
            &grant["increment"]
        ),
        (&json!(1), &json!(3), &json!(3), &json!(1))
    );
    assert_eq!(
        (&grant["sequence"], &grant["epoch"]),
        (&json!("photos"), &json!(1))
    );
    assert_eq!(grant["cluster"].as_str().unwrap().len(), 32);
    assert!(grant["term"].is_u64() && grant["index"].is_u64());
    assert!(lease.headers.contains_key("highwater-node"));
    assert_eq!(text.text, "4 6\n");
    assert_eq!(one.json()["first"], json!(7));
    assert_eq!(
        advanced.json(),
        json!({"sequence": "photos", "previous": 7, "high": 100, "changed": true})
    );
    assert_eq!(
        below.json(),
        json!({"sequence": "photos", "previous": 100, "high": 100, "changed": false})
    );
    let shown = shown.json();
    assert_eq!((&shown["high"], &shown["next"]), (&json!(100), &json!(101)));
    assert_eq!(shown["index"], one.json()["index"]);
}

#[tokio::test]
async fn values_above_the_exact_doubles_are_strings_and_requests_may_use_both() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let big = format!("{url}/v1/sequences/big");
    let body = r#"{"start":"18446744073709551614","max_value":18446744073709551615}"#;

    let created = send("PUT", &big, body, &[]).await;
    let first = send("POST", &format!("{big}/leases"), "", &[]).await;
    let last = send("POST", &format!("{big}/leases"), "", &[]).await;
    let none = send("POST", &format!("{big}/leases"), "", &[]).await;

    assert_eq!(created.json()["remaining"], json!("2"));
    assert_eq!(first.json()["first"], json!("18446744073709551614"));
    assert_eq!(last.json()["last"], json!("18446744073709551615"));
    assert_eq!(
        (none.status, none.field("code").as_str()),
        (409, "exhausted")
    );
    assert_eq!(
        none.field("detail"),
        "1 values do not fit: 0 are left up to max_value"
    );
}

#[tokio::test]
async fn every_node_shows_the_leaders_view_of_the_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let leader = cluster.leader(PATIENCE).await.unwrap();
    wait_until_whole(&cluster.urls()[0]).await;

    let mut answers: Vec<Answer> = Vec::new();
    for url in cluster.urls() {
        answers.push(send("GET", &format!("{url}/v1/cluster"), "", &[]).await);
    }

    for (node, answer) in (1..).zip(&answers) {
        let body = answer.json();
        assert_eq!(
            (&body["node"], &body["leader"]),
            (&json!(node), &json!(leader))
        );
        assert_eq!(body["tolerates_loss_of"], json!(1), "{body}");
        for (member, id) in body["members"].as_array().unwrap().iter().zip(1..) {
            let role = if id == leader { "leader" } else { "follower" };
            assert_eq!((&member["id"], &member["role"]), (&json!(id), &json!(role)));
            assert_eq!(member["reachable"], json!(true));
            assert_eq!(member["version"], json!(env!("CARGO_PKG_VERSION")));
            assert!(member["match_index"].is_u64(), "{body}");
            assert!(member["applied_index"].is_u64(), "{body}");
            assert_eq!(member["state_hash"].as_str().unwrap().len(), 32, "{body}");
        }
    }
}

/// Waits until the leader has connections to all, and knows how far each is: a node that was refused while it started
/// tries again soon.
async fn wait_until_whole(url: &str) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let answer = send("GET", &format!("{url}/v1/cluster"), "", &[]).await;
        let body = answer.json();
        let mut members = body["members"].as_array().unwrap().iter();
        let known = members.all(|member| member["match_index"].is_u64());
        if known && body["tolerates_loss_of"] == json!(1) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{}", answer.text);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
