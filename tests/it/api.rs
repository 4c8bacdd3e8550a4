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

/// Method, path, body, status, code, detail.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    u16,
    &'static str,
    &'static str,
);

const CASES: &[Case] = &[
    (
        "GET",
        "/v1/sequences/none",
        "",
        404,
        "unknown_sequence",
        "no such sequence: create it first",
    ),
    (
        "POST",
        "/v1/sequences/none/leases",
        "",
        404,
        "unknown_sequence",
        "no such sequence: create it first",
    ),
    (
        "PUT",
        "/v1/sequences/small",
        r#"{"start":2}"#,
        409,
        "sequence_exists",
        "the sequence exists with other settings",
    ),
    (
        "POST",
        "/v1/sequences/small/leases?count=0",
        "",
        400,
        "invalid_count",
        "count 0 is not 1 to 4294967295",
    ),
    (
        "POST",
        "/v1/sequences/small/leases",
        r#"{"count":9007199254740993}"#,
        400,
        "invalid_count",
        "count 9007199254740993 is not 1 to 4294967295",
    ),
    (
        "POST",
        "/v1/sequences/small/leases",
        r#"{"count":5}"#,
        400,
        "invalid_count",
        "a lease of 5 values is too large: lease at most 4 at once",
    ),
    (
        "POST",
        "/v1/sequences/small/leases?count=1",
        r#"{"count":1}"#,
        400,
        "invalid_count",
        "the count is given twice, in the query and in the body",
    ),
    (
        "POST",
        "/v1/sequences/small/leases",
        r#"{"count":1.5}"#,
        400,
        "invalid_count",
        "the body is not understood: count: invalid type: floating point `1.5`, expected an integer from 0 to 2^64 - 1, as a number or a string of digits at line 1 column 12",
    ),
    (
        "POST",
        "/v1/sequences/small/leases",
        r#"{"cuont":1}"#,
        400,
        "unknown_field",
        "the body has an unknown field `cuont`, expected `count` at line 1 column 8",
    ),
    (
        "POST",
        "/v1/sequences/small/leases?cuont=1",
        "",
        400,
        "invalid_query",
        "the query is not understood: cuont: unknown field `cuont`, expected `count` or `timeout`",
    ),
    (
        "POST",
        "/v1/sequences/small/leases?timeout=1h",
        "",
        400,
        "invalid_query",
        "the query is not understood: timeout: \"1h\" is not 10ms to 60s, such as 500ms or 5s",
    ),
    (
        "PUT",
        "/v1/sequences/a%2Fb",
        "",
        400,
        "invalid_name",
        "a sequence name has '/' at byte 1: use letters and digits, and after the first also '.', '_', ':' and '-'",
    ),
    (
        "PUT",
        "/v1/sequences/x",
        r#"{"cache":10}"#,
        400,
        "unsupported_setting",
        "a cache other than 0 is not supported by this version",
    ),
    (
        "PUT",
        "/v1/sequences/x",
        r#"{"increment":0}"#,
        400,
        "invalid_body",
        "increment is 0: use 1 or more",
    ),
    (
        "POST",
        "/v1/sequences/small/advance",
        r#"{"to":11}"#,
        409,
        "above_max_value",
        "cannot advance to 11: max_value is 10",
    ),
    (
        "POST",
        "/v1/sequences/small/advance",
        "",
        400,
        "invalid_body",
        "the body is not understood: missing field `to`",
    ),
    (
        "GET",
        "/nothing",
        "",
        404,
        "unknown_path",
        "there is nothing at this path",
    ),
    (
        "POST",
        "/v1/sequences/small",
        "",
        405,
        "method_not_allowed",
        "the path has no such method",
    ),
];

#[tokio::test]
async fn a_refusal_says_what_is_wrong_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let small = format!("{url}/v1/sequences/small");
    send("PUT", &small, r#"{"max_value":10,"max_lease":4}"#, &[]).await;

    for (method, path, body, status, code, detail) in CASES {
        let answer = send(method, &format!("{url}{path}"), body, &[]).await;

        assert_eq!(
            answer.status, *status,
            "{method} {path} {body}: {}",
            answer.text
        );
        assert_eq!(answer.field("code"), *code, "{method} {path} {body}");
        assert_eq!(answer.field("detail"), *detail, "{method} {path} {body}");
        assert_eq!(answer.field("outcome"), "not_applied");
        assert_eq!(answer.headers["content-type"], "application/problem+json");
    }

    let shown = send("GET", &small, "", &[]).await.json();
    assert_eq!((&shown["high"], &shown["next"]), (&json!(null), &json!(1)));
}

#[tokio::test]
async fn what_is_too_large_or_not_built_yet_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let leases = format!("{url}/v1/sequences/p/leases");

    let large = send("POST", &leases, &" ".repeat(64 * 1024 + 1), &[]).await;
    let keyed = send("POST", &leases, "", &["idempotency-key: k"]).await;

    assert_eq!(
        (large.status, large.field("code").as_str()),
        (413, "body_too_large")
    );
    assert_eq!(
        (keyed.status, keyed.field("code").as_str()),
        (400, "unsupported_setting")
    );
    assert_eq!(
        keyed.field("detail"),
        "Idempotency-Key is not supported by this version"
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
