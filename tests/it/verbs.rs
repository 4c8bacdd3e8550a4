//! The API's other verbs, at a follower of three nodes: list, alter, retire, several leases at once, dry runs, local
//! reads, and sequences that are created by being leased.

use std::collections::BTreeSet;

use highwater::chaos::{ClusterSize, LocalCluster};
use serde_json::{Value, json};

use crate::node::wait_until;
use crate::world::{Answer, PATIENCE, follower, program, send, three_nodes, wait_for_one_state};

/// It is refused like this, and says that nothing happened.
#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str, detail: &str) {
    assert_eq!(
        (answer.status, answer.field("code").as_str()),
        (status, code),
        "{}",
        answer.text
    );
    assert_eq!(answer.field("detail"), detail);
    assert_eq!(answer.field("outcome"), "not_applied");
}

fn names(answer: &Answer) -> Vec<String> {
    let body = answer.json();
    let sequences = body["sequences"].as_array().unwrap();
    let name = |sequence: &Value| sequence["sequence"].as_str().unwrap().to_owned();
    sequences.iter().map(name).collect()
}

#[tokio::test]
async fn sequences_are_listed_page_by_page_in_the_order_of_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let list = format!("{url}/v1/sequences");
    let empty = send("GET", &list, "", &[]).await;
    let numbered: Vec<String> = (0..101).map(|number| format!("n{number:03}")).collect();
    for name in numbered.iter().chain([&"Z".to_owned(), &"n".to_owned()]) {
        send("PUT", &format!("{list}/{name}"), "", &[]).await;
    }
    send("DELETE", &format!("{list}/n001"), "", &[]).await;

    let mut pages = Vec::new();
    let mut after = String::new();
    loop {
        let page = send("GET", &format!("{list}?limit=40&after={after}"), "", &[]).await;
        let next = page.json()["next"].clone();
        pages.push(names(&page));
        match next {
            Value::String(next) => after = next,
            _ => break,
        }
    }
    let first = send("GET", &list, "", &[]).await;
    let within = send("GET", &format!("{list}?prefix=n09&limit=10"), "", &[]).await;
    let between = send(
        "GET",
        &format!("{list}?prefix=n00&after=n000zzz&limit=2&consistency=linearizable"),
        "",
        &[],
    )
    .await;
    let none = send("GET", &format!("{list}?prefix=x"), "", &[]).await;

    assert_eq!(empty.json(), json!({"sequences": [], "next": null}));
    let sizes: Vec<usize> = pages.iter().map(Vec::len).collect();
    assert_eq!(sizes, [40, 40, 23]);
    let mut all = vec!["Z".to_owned(), "n".to_owned()];
    all.extend(numbered.clone());
    assert_eq!(pages.concat(), all);
    assert_eq!(names(&first), all[..100]);
    assert_eq!(first.json()["next"], json!("n097"));
    assert_eq!(names(&within), numbered[90..100]);
    assert_eq!(within.json()["next"], json!(null));
    assert_eq!(names(&between), ["n001", "n002"]);
    assert_eq!(between.json()["next"], json!("n002"));
    let alone = send("GET", &format!("{list}/n001"), "", &[]).await;
    assert_eq!(between.json()["sequences"][0], alone.json());
    assert_eq!(alone.json()["retired"], json!(true));
    assert_eq!(none.json(), json!({"sequences": [], "next": null}));
}

#[tokio::test]
async fn a_query_that_is_not_understood_names_what_is() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;

    for (method, query, reason) in [
        ("GET", "?limit=0", "limit: \"0\" is not 1 to 1000"),
        ("GET", "?limit=1001", "limit: \"1001\" is not 1 to 1000"),
        (
            "GET",
            "?prefix=a%2Fb",
            "prefix: a sequence name has '/' at byte 1: use letters and digits, and after the first also '.', '_', ':' and '-'",
        ),
        (
            "GET",
            "?after=-",
            "after: a sequence name has '-' at byte 0: use letters and digits, and after the first also '.', '_', ':' and '-'",
        ),
        (
            "GET",
            "?consistency=stale",
            "consistency: \"stale\" is not linearizable or local",
        ),
        (
            "GET",
            "/p?consistency=",
            "consistency: \"\" is not linearizable or local",
        ),
        (
            "GET",
            "/p?limit=1",
            "limit: unknown field `limit`, expected `timeout` or `consistency`",
        ),
        ("PUT", "/p?dry_run=1", "dry_run: \"1\" is not true or false"),
        (
            "POST",
            "/p/leases?dry_run=true",
            "dry_run: unknown field `dry_run`, expected `count` or `timeout`",
        ),
        (
            "DELETE",
            "/p?dry_run=true&dry_run=false",
            "duplicate field `dry_run`",
        ),
    ] {
        let answer = send(method, &format!("{url}/v1/sequences{query}"), "", &[]).await;

        let detail = format!("the query is not understood: {reason}");
        refused(&answer, 400, "invalid_query", &detail);
    }
    let several = send("POST", &format!("{url}/v1/leases?dry_run=true"), "[]", &[]).await;
    refused(
        &several,
        400,
        "invalid_query",
        "the query is not understood: dry_run: unknown field `dry_run`, expected `timeout`",
    );
}

/// Of a sequence that starts at 10 and has come to 17: body, status, code, detail.
const ALTERATIONS: &[(&str, u16, &str, &str)] = &[
    (
        r#"{"max_value":16}"#,
        409,
        "below_granted",
        "max_value 16 is below the high-water mark: use 17 or more",
    ),
    (
        r#"{"start":11}"#,
        409,
        "immutable_setting",
        "start is 10 for the sequence's whole life: it cannot become 11",
    ),
    (
        r#"{"increment":"2"}"#,
        409,
        "immutable_setting",
        "increment is 1 for the sequence's whole life: it cannot become 2",
    ),
    (
        r#"{"max_value":9007199254740992}"#,
        409,
        "immutable_setting",
        "max_value cannot become 9007199254740992: the sequence's ids are JSON numbers, so stay at 2^53 - 1 or below",
    ),
    (
        r#"{"max_lease":5,"cache":4294967296}"#,
        400,
        "invalid_body",
        "cache is out of bounds: 0 to 2^32 - 1",
    ),
    (
        r#"{"max_lease":0}"#,
        400,
        "invalid_body",
        "max_lease is out of bounds: 1 to 2^32 - 1",
    ),
    (
        r#"{"column":"photos.id"}"#,
        400,
        "unknown_field",
        "the body has an unknown field `column`, expected one of `start`, `increment`, `max_value`, `cache`, `max_lease` at line 1 column 9",
    ),
    (
        "{}",
        400,
        "invalid_body",
        "no setting is named: name max_value, cache or max_lease",
    ),
    (
        "",
        400,
        "invalid_body",
        "no setting is named: name max_value, cache or max_lease",
    ),
    (
        r#"{"max_lease":7,"max_lease":7}"#,
        400,
        "invalid_body",
        "the body is not understood: duplicate field `max_lease` at line 1 column 26",
    ),
];

#[tokio::test]
async fn a_sequence_is_altered_but_never_below_what_is_granted() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let photos = format!("{url}/v1/sequences/photos");
    let wide = format!("{url}/v1/sequences/wide");
    send("PUT", &photos, r#"{"start":10,"max_value":100}"#, &[]).await;
    send("PUT", &wide, r#"{"max_value":"18446744073709551615"}"#, &[]).await;
    send("POST", &format!("{photos}/leases?count=5"), "", &[]).await;

    let altered = send(
        "PATCH",
        &photos,
        r#"{"start":"10","increment":1,"max_value":14,"max_lease":3,"cache":0}"#,
        &[],
    )
    .await;
    let full = send("POST", &format!("{photos}/leases"), "", &[]).await;
    let raised = send("PATCH", &photos, r#"{"max_value":9007199254740991}"#, &[]).await;
    let next = send("POST", &format!("{photos}/leases?count=3"), "", &[]).await;
    let top = send("PATCH", &wide, r#"{"max_value":9007199254740992}"#, &[]).await;

    assert_eq!(altered.status, 200);
    let body = altered.json();
    assert_eq!(
        (&body["max_value"], &body["max_lease"], &body["high"]),
        (&json!(14), &json!(3), &json!(14))
    );
    assert_eq!(
        (&body["next"], &body["remaining"]),
        (&json!(null), &json!(0))
    );
    refused(
        &full,
        409,
        "exhausted",
        "1 values do not fit: 0 are left up to max_value",
    );
    assert_eq!(raised.status, 200, "{}", raised.text);
    assert_eq!(next.json()["first"], json!(15));
    assert_eq!(top.json()["max_value"], json!("9007199254740992"));

    let before = send("GET", &photos, "", &[]).await.json();
    for (body, status, code, detail) in ALTERATIONS {
        let answer = send("PATCH", &photos, body, &[]).await;

        refused(&answer, *status, code, detail);
    }
    let narrow = send("PATCH", &wide, r#"{"max_value":9007199254740991}"#, &[]).await;
    refused(
        &narrow,
        409,
        "immutable_setting",
        "max_value cannot become 9007199254740991: the sequence's ids are JSON strings, so stay above 2^53 - 1",
    );
    let unknown = send(
        "PATCH",
        &format!("{url}/v1/sequences/none"),
        r#"{"max_lease":1}"#,
        &[],
    )
    .await;
    refused(
        &unknown,
        404,
        "unknown_sequence",
        "no such sequence: create it first",
    );
    assert_eq!(send("GET", &photos, "", &[]).await.json(), before);
}

#[tokio::test]
async fn a_retired_name_gives_nothing_until_it_is_created_again_above_its_mark() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let photos = format!("{url}/v1/sequences/photos");
    let leases = format!("{photos}/leases");
    send("PUT", &photos, "", &[]).await;
    let lease = send("POST", &format!("{leases}?count=10"), "", &[]).await;

    let retired = send("DELETE", &photos, "", &[]).await;
    let again = send("DELETE", &photos, "", &[]).await;
    let shown = send("GET", &photos, "", &[]).await;

    assert_eq!(
        (retired.status, again.status, shown.status),
        (200, 200, 200)
    );
    let body = retired.json();
    assert_eq!(
        (&body["retired"], &body["high"], &body["index"]),
        (&json!(true), &json!(10), &lease.json()["index"])
    );
    assert_eq!((again.json(), shown.json()), (body.clone(), body));
    let text = "the sequence is retired: create it again, and it continues above its mark";
    for (method, path, body) in [
        ("POST", "/leases", ""),
        ("POST", "/advance", r#"{"to":50}"#),
        ("PATCH", "", r#"{"max_lease":7}"#),
    ] {
        let answer = send(method, &format!("{photos}{path}"), body, &[]).await;
        refused(&answer, 410, "retired", text);
    }
    let below = send("PUT", &photos, r#"{"max_value":9}"#, &[]).await;
    refused(
        &below,
        409,
        "below_granted",
        "max_value 9 is below the high-water mark: use 10 or more",
    );
    let unknown = send("DELETE", &format!("{url}/v1/sequences/none"), "", &[]).await;
    refused(
        &unknown,
        404,
        "unknown_sequence",
        "no such sequence: create it first",
    );
    let bodied = send("DELETE", &photos, "{}", &[]).await;
    refused(
        &bodied,
        400,
        "invalid_body",
        "the body is not understood: this request has no body",
    );

    // Killed at once, a cluster knows which names are retired, and how far each has come.
    cluster.kill(&cluster.ids()).await.unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let created = send("PUT", &photos, r#"{"start":1,"increment":5}"#, &[]).await;
    let equal = send("PUT", &photos, r#"{"increment":5}"#, &[]).await;
    let other = send("PUT", &photos, "", &[]).await;
    let next = send("POST", &leases, "", &[]).await;

    assert_eq!((created.status, equal.status), (201, 200));
    assert_eq!(
        (&created.json()["retired"], &created.json()["high"]),
        (&json!(false), &json!(10))
    );
    refused(
        &other,
        409,
        "sequence_exists",
        "the sequence exists with other settings",
    );
    assert_eq!(next.json()["first"], json!(11));
}

#[tokio::test]
async fn several_leases_are_one_commit_and_all_granted_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let leases = format!("{url}/v1/leases");
    for (name, body) in [
        ("photos", r#"{"max_value":10}"#),
        (
            "wide",
            r#"{"start":"18446744073709551614","max_value":"18446744073709551615"}"#,
        ),
    ] {
        send("PUT", &format!("{url}/v1/sequences/{name}"), body, &[]).await;
    }

    let all = send(
        "POST",
        &leases,
        r#"[{"sequence":"photos","count":3},{"sequence":"wide","count":"2"},{"sequence":"photos"}]"#,
        &[],
    )
    .await;
    let text = send(
        "POST",
        &leases,
        r#"[{"sequence":"photos","count":2},{"sequence":"photos"}]"#,
        &["accept: text/plain"],
    )
    .await;

    assert_eq!((all.status, text.status), (201, 201), "{}", all.text);
    let grants = all.json()["grants"].clone();
    let bounds: Vec<_> = grants
        .as_array()
        .unwrap()
        .iter()
        .map(|grant| {
            json!([
                grant["sequence"],
                grant["first"],
                grant["last"],
                grant["count"]
            ])
        })
        .collect();
    assert_eq!(
        bounds,
        [
            json!(["photos", 1, 3, 3]),
            json!(["wide", "18446744073709551614", "18446744073709551615", 2]),
            json!(["photos", 4, 4, 1])
        ]
    );
    let indices: BTreeSet<u64> = grants
        .as_array()
        .unwrap()
        .iter()
        .map(|grant| grant["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices.len(), 1, "one commit");
    assert_eq!(text.text, "5 6\n7 7\n");
}

/// Body, position, status, code, detail.
const LEASE_LISTS: &[(&str, Option<u32>, u16, &str, &str)] = &[
    (
        r#"[{"sequence":"photos"},{"sequence":"none"}]"#,
        Some(1),
        404,
        "unknown_sequence",
        "at position 1: no such sequence: create it first",
    ),
    (
        r#"[{"sequence":"gone"}]"#,
        Some(0),
        410,
        "retired",
        "at position 0: the sequence is retired: create it again, and it continues above its mark",
    ),
    (
        r#"[{"sequence":"photos","count":2},{"sequence":"photos","count":2}]"#,
        Some(1),
        409,
        "exhausted",
        "at position 1: 2 values do not fit: 1 are left up to max_value",
    ),
    (
        r#"[{"sequence":"photos"},{"sequence":"photos","count":0}]"#,
        Some(1),
        400,
        "invalid_count",
        "at position 1: count 0 is not 1 to 4294967295",
    ),
    (
        r#"[{"sequence":"photos"},{"sequence":"photos","count":1000001}]"#,
        Some(1),
        400,
        "invalid_count",
        "at position 1: a lease of 1000001 values is too large: lease at most 1000000 at once",
    ),
    (
        r#"[{"sequence":"photos"},{"sequence":"../photos"}]"#,
        Some(1),
        400,
        "invalid_name",
        "at position 1: a sequence name has '.' at byte 0: use letters and digits, and after the first also '.', '_', ':' and '-'",
    ),
    (
        r#"[{"sequence":"photos"},{"sequence":"photos","cuont":1}]"#,
        Some(1),
        400,
        "unknown_field",
        "at position 1: the body has an unknown field `cuont`, expected `sequence` or `count` at line 1 column 51",
    ),
    (
        r#"[{"count":1}]"#,
        Some(0),
        400,
        "invalid_body",
        "at position 0: the body is not understood: [0]: missing field `sequence` at line 1 column 12",
    ),
    ("[]", None, 400, "invalid_body", "0 leases are not 1 to 256"),
    ("", None, 400, "invalid_body", "0 leases are not 1 to 256"),
    (
        r#"{"sequence":"photos"}"#,
        None,
        400,
        "invalid_body",
        "the body is not understood: invalid type: object, expected a list at line 1 column 0",
    ),
];

#[tokio::test]
async fn a_refused_list_of_leases_names_the_position_and_grants_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let leases = format!("{url}/v1/leases");
    let sequence = |name: &str| format!("{url}/v1/sequences/{name}");
    send("PUT", &sequence("photos"), r#"{"max_value":3}"#, &[]).await;
    send("PUT", &sequence("gone"), "", &[]).await;
    send("DELETE", &sequence("gone"), "", &[]).await;

    let list = format!("{url}/v1/sequences");
    let before = send("GET", &list, "", &[]).await.json();
    for (body, position, status, code, detail) in LEASE_LISTS {
        let answer = send("POST", &leases, body, &[]).await;

        refused(&answer, *status, code, detail);
        assert_eq!(
            answer.json()["position"],
            json!(position),
            "{}",
            answer.text
        );
    }
    let many = format!("[{}]", vec![r#"{"sequence":"photos"}"#; 257].join(","));
    let many = send("POST", &leases, &many, &[]).await;
    refused(&many, 400, "invalid_body", "257 leases are not 1 to 256");
    assert_eq!(send("GET", &list, "", &[]).await.json(), before);
}

#[tokio::test]
async fn a_dry_run_answers_what_would_be_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let photos = format!("{url}/v1/sequences/photos");
    send("PUT", &photos, "", &[]).await;
    send("POST", &format!("{photos}/leases?count=10"), "", &[]).await;

    for (method, path, body) in [
        ("PUT", "/v1/sequences/new", r#"{"start":5}"#),
        ("PUT", "/v1/sequences/photos", ""),
        ("PATCH", "/v1/sequences/photos", r#"{"max_value":50}"#),
        ("POST", "/v1/sequences/photos/advance", r#"{"to":40}"#),
        ("DELETE", "/v1/sequences/photos", ""),
    ] {
        let before = wait_for_one_state(&url).await;

        let dry = send(method, &format!("{url}{path}?dry_run=true"), body, &[]).await;
        let after = wait_for_one_state(&url).await;
        let done = send(method, &format!("{url}{path}?dry_run=false"), body, &[]).await;

        assert_eq!(dry.status, 200, "{}", dry.text);
        assert_eq!(dry.headers["highwater-dry-run"], "true");
        assert_eq!(after, before, "{method} {path}");
        assert_eq!(dry.json(), done.json());
        assert!(!done.headers.contains_key("highwater-dry-run"));
    }
    let refusal = send(
        "PUT",
        &format!("{photos}?dry_run=true"),
        r#"{"max_value":1}"#,
        &[],
    )
    .await;
    refused(
        &refusal,
        409,
        "below_granted",
        "max_value 1 is below the high-water mark: use 40 or more",
    );
}

// I6, I11: a node by itself can say what it knows, if it is asked for no more.
#[tokio::test]
async fn a_node_without_a_quorum_answers_only_local_reads() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = three_nodes(directory.path()).await;
    let url = follower(&mut cluster).await;
    let photos = format!("{url}/v1/sequences/photos");
    send("PUT", &photos, "", &[]).await;
    send("POST", &format!("{photos}/leases?count=3"), "", &[]).await;
    wait_for_one_state(&url).await;
    let urls = cluster.urls();
    let own = urls
        .iter()
        .zip(cluster.ids())
        .find(|(other, _)| **other == url);
    let own = own.unwrap().1;
    let others: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != own).collect();

    cluster.kill(&others).await.unwrap();

    let list = format!("{url}/v1/sequences");
    for read in [&photos, &list] {
        let local = send("GET", &format!("{read}?consistency=local"), "", &[]).await;
        assert_eq!(local.status, 200, "{}", local.text);
        for query in ["?timeout=200ms", "?timeout=200ms&consistency=linearizable"] {
            let proved = send("GET", &format!("{read}{query}"), "", &[]).await;
            refused(&proved, 503, "no_leader", "no leader proved itself in time");
        }
    }
    let local = send("GET", &format!("{photos}?consistency=local"), "", &[]).await;
    assert_eq!(local.json()["high"], json!(3));
    let dry = send(
        "DELETE",
        &format!("{photos}?dry_run=true&timeout=200ms"),
        "",
        &[],
    )
    .await;
    refused(&dry, 503, "no_leader", "no leader proved itself in time");

    // Started again by itself, it does not know what the others may have committed since.
    cluster.kill(&[own]).await.unwrap();
    cluster.start(&[own]).unwrap();
    wait_until_up(&url).await;
    let text = "this node is starting: it has not caught up with the cluster yet";
    for read in [&photos, &list] {
        let local = send("GET", &format!("{read}?consistency=local"), "", &[]).await;
        refused(&local, 503, "starting", text);
    }
    let lease = send("POST", &format!("{photos}/leases"), "", &[]).await;
    refused(&lease, 503, "starting", text);
}

/// Waits until the node has opened its store and runs: before that it answers nothing but `starting` to anybody.
async fn wait_until_up(url: &str) {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let cluster = format!("{url}/v1/cluster");
    wait_until("the node runs", async || {
        let answer = http.get(&cluster).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    })
    .await;
}

#[tokio::test]
async fn where_it_is_told_to_a_node_creates_what_is_leased() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster =
        LocalCluster::create(directory.path(), ClusterSize::Three, program()).unwrap();
    cluster.serve_with(&["--auto-create"]);
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let url = follower(&mut cluster).await;
    let photos = format!("{url}/v1/sequences/photos");

    let large = send("POST", &format!("{photos}/leases?count=1000001"), "", &[]).await;
    let still = send("GET", &photos, "", &[]).await;
    let first = send("POST", &format!("{photos}/leases?count=3"), "", &[]).await;
    let second = send(
        "POST",
        &format!("{photos}/leases"),
        "",
        &["accept: text/plain"],
    )
    .await;
    let shown = send("GET", &photos, "", &[]).await;

    refused(
        &large,
        400,
        "invalid_count",
        "a lease of 1000001 values is too large: lease at most 1000000 at once",
    );
    assert_eq!(still.status, 404, "I5: what was refused created nothing");
    assert_eq!(
        (first.status, first.json()["last"].clone()),
        (201, json!(3))
    );
    assert_eq!(second.text, "4 4\n");
    assert_eq!(shown.json()["max_value"], json!(9_007_199_254_740_991_u64));

    // The largest list there is: everything that carries it has to hold it.
    let names: Vec<String> = (0..256).map(|number| format!("{number:0>128}")).collect();
    let parts: Vec<String> = names
        .iter()
        .map(|name| format!(r#"{{"sequence":"{name}","count":1000000}}"#))
        .collect();
    let body = format!("[{}]", parts.join(","));
    let all = send("POST", &format!("{url}/v1/leases"), &body, &[]).await;
    assert_eq!(all.status, 201, "{}", all.text);
    let grants = all.json()["grants"].as_array().unwrap().clone();
    for (name, grant) in names.iter().zip(&grants) {
        assert_eq!(
            (&grant["sequence"], &grant["last"]),
            (&json!(name), &json!(1_000_000))
        );
    }

    send("DELETE", &photos, "", &[]).await;
    let text = "the sequence is retired: create it again, and it continues above its mark";
    let retired = send("POST", &format!("{photos}/leases"), "", &[]).await;
    refused(&retired, 410, "retired", text);
    let several = r#"[{"sequence":"fresh"},{"sequence":"photos"}]"#;
    let several = send("POST", &format!("{url}/v1/leases"), several, &[]).await;
    refused(&several, 410, "retired", &format!("at position 1: {text}"));
    let fresh = send("GET", &format!("{url}/v1/sequences/fresh"), "", &[]).await;
    assert_eq!(fresh.status, 404, "I5: what was refused created nothing");

    let list = format!("{url}/v1/sequences?limit=1000");
    let before = send("GET", &list, "", &[]).await;
    cluster.kill(&cluster.ids()).await.unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    wait_for_one_state(&url).await;
    assert_eq!(
        send("GET", &list, "", &[]).await.json(),
        before.json(),
        "I3, I8: the log makes the same sequences again"
    );
}

// Meituan-Dianping/Leaf#143: a crowd on one cold name, here one that nobody has created.
#[tokio::test]
async fn a_crowd_that_creates_one_sequence_by_leasing_it_shares_no_value() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster =
        LocalCluster::create(directory.path(), ClusterSize::Three, program()).unwrap();
    cluster.serve_with(&["--auto-create"]);
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    cluster.leader(PATIENCE).await.unwrap();

    let mut leases = tokio::task::JoinSet::new();
    for url in cluster.urls().into_iter().cycle().take(60) {
        let leases_at = format!("{url}/v1/sequences/cold/leases");
        leases.spawn(async move { send("POST", &leases_at, "", &[]).await });
    }
    let answers = leases.join_all().await;

    let values: BTreeSet<u64> = answers
        .iter()
        .map(|answer| {
            assert_eq!(answer.status, 201, "{}", answer.text);
            answer.json()["first"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(values, (1..=60).collect());
}
