//! The client against nodes that answer what a test wants: what is asked again, what never is.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;
use crate::wire::{Number, Problem, ProblemOutcome};

/// What a stub does with one request.
#[derive(Clone)]
enum Reply {
    /// Answers.
    Http {
        status: u16,
        headers: String,
        body: String,
    },
    /// Reads the request and closes the connection.
    Close,
    /// Begins an answer with this status, and closes the connection.
    Cut(u16),
    /// Reads the request and never answers.
    Hang,
    /// Begins an answer, with this of its body, and never ends it.
    Stall(&'static str),
}

/// What a stub was asked.
#[derive(Clone)]
struct Asked {
    /// The request line.
    line: String,
    key: Option<String>,
}

/// A node that answers from a list, the last entry for ever.
struct Stub {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    _task: JoinSet<()>,
}

impl Stub {
    async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let replies = Arc::new(Mutex::new(replies.into_iter().collect::<VecDeque<_>>()));
        let mut task = JoinSet::new();
        let seen = Arc::clone(&asked);
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, Arc::clone(&replies), Arc::clone(&seen)));
            }
        });
        Self {
            address,
            asked,
            _task: task,
        }
    }

    fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|asked| asked.line.clone()).collect()
    }

    /// The request keys of those requests that had one.
    fn keys(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter_map(|asked| asked.key.clone()).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    replies: Arc<Mutex<VecDeque<Reply>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
) {
    while let Some(request) = read_request(&mut stream).await {
        asked.lock().unwrap().push(request);
        let reply = {
            let mut replies = replies.lock().unwrap();
            if 1 < replies.len() {
                replies.pop_front().unwrap()
            } else {
                replies[0].clone()
            }
        };
        match reply {
            Reply::Http {
                status,
                headers,
                body,
            } => {
                let text = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{headers}\r\n{body}",
                    body.len()
                );
                if stream.write_all(text.as_bytes()).await.is_err() {
                    return;
                }
            }
            Reply::Close => return,
            Reply::Cut(status) => {
                let text = format!("HTTP/1.1 {status} X\r\ncontent-length: 100\r\n\r\n{{");
                drop(stream.write_all(text.as_bytes()).await);
                return;
            }
            Reply::Hang => std::future::pending().await,
            Reply::Stall(body) => {
                let text = format!("HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\n{body}");
                stream.write_all(text.as_bytes()).await.unwrap();
                std::future::pending::<()>().await;
            }
        }
    }
}

/// What is asked, with the whole request read.
async fn read_request(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let header = |wanted: &str| {
                let mut headers = head.lines().filter_map(|line| line.split_once(": "));
                let found = headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
                found.map(|(_, value)| value.to_owned())
            };
            let length = header("content-length").map_or(0, |value| value.parse().unwrap());
            if length <= body.len() {
                return Some(Asked {
                    line: head.lines().next().unwrap().to_owned(),
                    key: header("idempotency-key"),
                });
            }
        }
        match stream.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

fn granted() -> Reply {
    Reply::Http {
        status: 201,
        headers: "Highwater-Node: 3\r\n".to_owned(),
        body: "{\"sequence\":\"photos\",\"first\":1,\"last\":3,\"count\":3,\"increment\":1,\"epoch\":1,\
               \"cluster\":\"c\",\"term\":2,\"index\":17}"
            .to_owned(),
    }
}

/// The same of three other values.
fn granted_from(first: u64, headers: &str) -> Reply {
    Reply::Http {
        status: 201,
        headers: headers.to_owned(),
        body: grant_of("photos", first, 3),
    }
}

fn problem(status: u16, code: &str, outcome: ProblemOutcome) -> Problem {
    Problem {
        kind: format!("/errors/{code}"),
        title: code.to_owned(),
        status,
        detail: format!("the detail of {code}"),
        position: None,
        code: code.to_owned(),
        outcome,
        retryable: status == 503,
        request_id: "r".to_owned(),
        hint: String::new(),
    }
}

fn refused(status: u16, code: &str) -> Reply {
    says(problem(status, code, ProblemOutcome::NotApplied), "")
}

fn says(problem: Problem, headers: &str) -> Reply {
    Reply::Http {
        status: problem.status,
        headers: headers.to_owned(),
        body: serde_json::to_string(&problem).unwrap(),
    }
}

fn unknown(status: u16) -> Reply {
    says(problem(status, "timed_out", ProblemOutcome::Unknown), "")
}

/// An address where nothing listens: it was free a moment ago.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

fn client(nodes: impl IntoIterator<Item = String>) -> Client {
    Client::builder().nodes(nodes).build().unwrap()
}

fn of(stubs: &[&Stub]) -> Client {
    client(stubs.iter().map(|stub| stub.address.to_string()))
}

async fn lease(client: &Client) -> Result<Grant, ClientError> {
    client
        .lease(&"photos".parse().unwrap(), RangeCount::constant(3))
        .await
}

#[tokio::test]
async fn a_grant_carries_what_the_node_says() {
    let stub = Stub::start([granted()]).await;

    let grant = lease(&of(&[&stub])).await.unwrap();

    assert_eq!((grant.first(), grant.last(), grant.increment()), (1, 3, 1));
    assert_eq!((grant.epoch(), grant.cluster()), (1, "c"));
    assert_eq!((grant.term(), grant.index()), (2, 17));
    assert_eq!((grant.count(), grant.node()), (3, Some(3)));
}

#[tokio::test]
async fn the_node_is_given_a_deadline_inside_the_clients() {
    let stub = Stub::start([granted()]).await;
    let client = Client::builder()
        .nodes([stub.address.to_string()])
        .deadline(Duration::from_secs(2))
        .build()
        .unwrap();

    lease(&client).await.unwrap();

    let millis = timeout_ms(&stub.asked()[0]);
    assert!((500..2_000).contains(&millis), "{millis}");
}

/// The deadline that the node was given, in milliseconds.
fn timeout_ms(asked: &str) -> u64 {
    let millis = asked
        .strip_prefix("POST /v1/sequences/photos/leases?timeout=")
        .and_then(|rest| rest.strip_suffix("ms HTTP/1.1"));
    millis.unwrap().parse().unwrap()
}

// etcd-io/etcd#8980: however long the deadline is, a node that says nothing is left soon.
#[tokio::test]
async fn of_several_nodes_each_is_given_twice_the_time_of_the_one_before() {
    let busy = [
        Stub::start([refused(503, "overloaded")]).await,
        Stub::start([refused(503, "overloaded")]).await,
    ];
    let good = Stub::start([granted()]).await;
    let nodes = [&busy[0], &busy[1], &good];
    let client = Client::builder()
        .nodes(nodes.map(|stub| stub.address.to_string()))
        .deadline(Duration::from_secs(60))
        .build()
        .unwrap();

    lease(&client).await.unwrap();

    let given = nodes.map(|stub| timeout_ms(&stub.asked()[0]));
    assert_eq!(
        given,
        [800, 1_750, 3_750],
        "a second, two, four, less the margin"
    );
}

#[tokio::test]
async fn another_node_is_asked_at_once_where_one_cannot_be_reached() {
    let stub = Stub::start([granted(), granted_from(4, "")]).await;
    let client = client([nobody().await, stub.address.to_string()]);

    lease(&client).await.unwrap();
    lease(&client).await.unwrap();

    assert_eq!(stub.asked().len(), 2);
}

#[tokio::test]
async fn calls_stay_with_the_node_that_answered() {
    let busy = Stub::start([refused(503, "overloaded")]).await;
    let good = Stub::start([granted(), granted_from(4, "")]).await;
    let client = of(&[&busy, &good]);

    lease(&client).await.unwrap();
    lease(&client).await.unwrap();

    assert_eq!((busy.asked().len(), good.asked().len()), (1, 2));
}

#[tokio::test]
async fn round_robin_begins_each_call_at_the_next_node() {
    let stubs = [
        Stub::start([granted(), granted_from(7, "")]).await,
        Stub::start([granted_from(4, ""), granted_from(10, "")]).await,
    ];
    let client = Client::builder()
        .nodes(stubs.iter().map(|stub| stub.address.to_string()))
        .spread(Spread::RoundRobin)
        .build()
        .unwrap();

    for _ in 0..4 {
        lease(&client).await.unwrap();
    }

    assert_eq!(stubs[0].asked().len(), 2);
    assert_eq!(stubs[1].asked().len(), 2);
}

#[tokio::test]
async fn what_was_not_applied_is_asked_again_of_the_same_node_if_there_is_no_other() {
    let stub = Stub::start([
        refused(503, "no_leader"),
        refused(503, "no_leader"),
        granted(),
    ])
    .await;

    lease(&of(&[&stub])).await.unwrap();

    assert_eq!(stub.asked().len(), 3);
}

/// What says nothing of whether the request happened.
fn lost() -> [Reply; 6] {
    [
        Reply::Close,
        // Whether it happened would have stood in what did not come.
        Reply::Cut(503),
        Reply::Cut(201),
        unknown(504),
        unknown(500),
        Reply::Http {
            status: 502,
            headers: String::new(),
            body: "a proxy's page".to_owned(),
        },
    ]
}

#[tokio::test]
async fn a_lease_whose_answer_is_lost_is_sent_again_under_its_key_to_another_node() {
    for reply in lost() {
        let stub = Stub::start([reply]).await;
        let other = Stub::start([granted(), granted_from(4, "")]).await;
        let client = of(&[&stub, &other]);

        let first = lease(&client).await.unwrap();
        let second = lease(&client).await.unwrap();

        assert_eq!((first.first(), second.first()), (1, 4));
        assert_eq!((stub.asked().len(), other.asked().len()), (1, 2));
        let keys = [&stub, &other].map(|stub| stub.keys());
        assert_eq!(keys[0][0], keys[1][0], "one request, one key");
        assert_ne!(keys[1][0], keys[1][1], "another request, another key");
        assert_eq!(keys[0][0].len(), 32);
    }
}

#[tokio::test]
async fn a_lease_has_the_key_that_its_caller_gives() {
    let stub = Stub::start([Reply::Close, granted()]).await;
    let key = "order 17".parse().unwrap();

    let leased = of(&[&stub])
        .lease_keyed(&"photos".parse().unwrap(), RangeCount::constant(3), &key)
        .await;

    leased.unwrap();
    assert_eq!(stub.keys(), ["order 17", "order 17"]);
}

// yugabyte/yugabyte-db#16137: what was leased before a restore outlives it in those who leased it.
#[tokio::test]
async fn a_range_that_was_granted_before_is_refused_and_not_asked_for_again() {
    let stub = Stub::start([granted_from(4, ""), granted_from(4, "")]).await;
    let client = of(&[&stub]);

    lease(&client).await.unwrap();
    let refused = lease(&client).await.unwrap_err();

    let ClientError::Fenced { grant, reason } = refused else {
        panic!("{refused}")
    };
    assert_eq!((grant.first(), grant.last()), (4, 6));
    assert_eq!(reason, FenceReason::NotAbove { highest: 6 });
    assert_eq!(stub.asked().len(), 2);
}

#[tokio::test]
async fn the_same_range_under_the_same_key_is_refused_only_where_it_is_said_to_be_new() {
    let photos = "photos".parse().unwrap();
    let key = "order 17".parse().unwrap();
    let three = RangeCount::constant(3);
    let replayed = granted_from(4, "idempotency-replayed: true\r\n");
    let stub = Stub::start([granted_from(4, ""), replayed, granted_from(4, "")]).await;
    let client = of(&[&stub]);

    for _ in 0..2 {
        let leased = client.lease_keyed(&photos, three, &key).await;
        assert_eq!(leased.unwrap().first(), 4);
    }
    let refused = client.lease_keyed(&photos, three, &key).await;

    assert!(
        matches!(refused, Err(ClientError::Fenced { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn each_of_several_grants_has_to_be_above_what_was_granted_before() {
    let both = |a, b| {
        let grants = [grant_of("a", a, 3), grant_of("b", b, 1)];
        answers(201, &format!("{{\"grants\":[{}]}}", grants.join(",")))
    };
    let stub = Stub::start([both(1, 1), both(4, 2), both(7, 2)]).await;
    let client = of(&[&stub]);

    for _ in 0..2 {
        client.lease_all(&two_leases()).await.unwrap();
    }
    let refused = client.lease_all(&two_leases()).await.unwrap_err();

    let ClientError::Fenced { grant, .. } = refused else {
        panic!("{refused}")
    };
    assert_eq!(grant.body().sequence.as_str(), "b");
}

#[tokio::test]
async fn a_success_that_is_no_grant_is_unknown_at_once() {
    for body in [
        "{}",
        // Another range than was asked for.
        "{\"sequence\":\"photos\",\"first\":1,\"last\":4,\"count\":4,\"increment\":1,\"epoch\":1,\
          \"cluster\":\"c\",\"term\":2,\"index\":17}",
    ] {
        let stub = Stub::start([answers(201, body), granted()]).await;
        let other = Stub::start([granted()]).await;

        let leased = lease(&of(&[&stub, &other])).await;

        let error = leased.expect_err("another answer would be no better");
        assert!(matches!(error, ClientError::Unknown { .. }), "{error:?}");
        assert_eq!(error.outcome(), ProblemOutcome::Unknown);
        assert_eq!((stub.asked().len(), other.asked().len()), (1, 0));
    }
}

// I5: what was sent before may still be on its way, and find the sequence there.
#[tokio::test]
async fn a_refusal_after_a_lost_answer_is_no_proof_that_nothing_happened() {
    let stub = Stub::start([Reply::Close]).await;
    let other = Stub::start([refused(404, "unknown_sequence")]).await;

    let error = lease(&of(&[&stub, &other])).await.unwrap_err();

    assert_eq!(error.outcome(), ProblemOutcome::Unknown);
    assert_eq!(error.problem().unwrap().code, "unknown_sequence");

    // Whoever chose the key.
    let (name, key) = ("photos".parse().unwrap(), "order 17".parse().unwrap());
    let client = of(&[&stub, &other]);
    let keyed = client.lease_keyed(&name, RangeCount::constant(3), &key);
    let error = keyed.await.unwrap_err();

    assert_eq!(error.outcome(), ProblemOutcome::Unknown);
    assert!(
        error
            .to_string()
            .ends_with("; send it again, which is safe")
    );
}

#[tokio::test]
async fn a_lease_that_nobody_answers_is_unknown_at_the_deadline() {
    let stubs = [
        Stub::start([Reply::Hang]).await,
        Stub::start([Reply::Hang]).await,
    ];
    let client = Client::builder()
        .nodes(stubs.iter().map(|stub| stub.address.to_string()))
        .deadline(Duration::from_millis(400))
        .build()
        .unwrap();

    let error = lease(&client).await.unwrap_err();

    assert_eq!(error.outcome(), ProblemOutcome::Unknown);
    let text = error.to_string();
    assert!(
        text.starts_with("the outcome is unknown, the request may have been applied: http://"),
        "{text}"
    );
    assert!(
        text.ends_with(
            " gave no answer in time; lease again, which gives other values and leaves at the worst a gap"
        ),
        "{text}"
    );
    assert!(stubs.iter().all(|stub| !stub.asked().is_empty()));
}

#[tokio::test]
async fn a_refusal_is_returned_at_once_with_the_clusters_reason() {
    let stub = Stub::start([refused(404, "unknown_sequence"), granted()]).await;

    let error = lease(&of(&[&stub])).await.unwrap_err();

    assert_eq!(error.to_string(), "the detail of unknown_sequence");
    assert_eq!(error.problem().unwrap().code, "unknown_sequence");
    assert_eq!(error.outcome(), ProblemOutcome::NotApplied);
    assert_eq!(stub.asked().len(), 1);
}

#[tokio::test]
async fn nobody_there_is_unavailable_and_says_so() {
    let address = nobody().await;
    let client = Client::builder()
        .nodes([address.clone()])
        .deadline(Duration::from_secs(1))
        .build()
        .unwrap();

    let error = lease(&client).await.unwrap_err();

    assert_eq!(error.outcome(), ProblemOutcome::NotApplied);
    let ClientError::Unavailable { attempts, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(
        error.to_string(),
        format!(
            "no node served this within 1s ({attempts} attempts), nothing was changed: http://{address} could not \
             be reached (Connection refused (os error 111)); check that a majority of the nodes runs and that the \
             addresses are right"
        )
    );
}

#[tokio::test]
async fn a_node_is_left_alone_for_as_long_as_it_asks() {
    let wait = says(
        problem(503, "overloaded", ProblemOutcome::NotApplied),
        "Retry-After: 1\r\n",
    );
    let stub = Stub::start([wait, granted()]).await;
    let patient = of(&[&stub]);
    let hurried = Client::builder()
        .nodes([stub.address.to_string()])
        .deadline(Duration::from_millis(500))
        .build()
        .unwrap();

    let error = lease(&hurried).await.unwrap_err();

    // Its second later is after the deadline: it is not asked again, and the caller does not wait for nothing.
    assert!(matches!(
        error,
        ClientError::Unavailable { attempts: 1, .. }
    ));
    assert_eq!(error.problem().unwrap().code, "overloaded");
    assert_eq!(stub.asked().len(), 1);
    lease(&patient).await.unwrap();
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let stub = Stub::start([granted()]).await;
    let elsewhere = Stub::start([Reply::Http {
        status: 307,
        headers: format!("Location: http://{}/elsewhere\r\n", stub.address),
        body: String::new(),
    }])
    .await;

    lease(&of(&[&elsewhere, &stub])).await.unwrap();

    let asked = stub.asked();
    assert_eq!((elsewhere.asked().len(), asked.len()), (1, 1));
    assert!(asked[0].starts_with("POST /v1/sequences/photos/leases?"));
}

#[tokio::test]
async fn what_is_safe_to_repeat_is_repeated_at_another_node() {
    let cut = Stub::start([Reply::Close]).await;
    let good = Stub::start([Reply::Http {
        status: 200,
        headers: String::new(),
        body: "{\"sequence\":\"photos\",\"previous\":null,\"high\":9,\"changed\":true}".to_owned(),
    }])
    .await;

    let advanced = of(&[&cut, &good])
        .advance(&"photos".parse().unwrap(), 9)
        .await
        .unwrap();

    assert_eq!(advanced.high.and_then(Number::get), Some(9));
    assert_eq!((cut.asked().len(), good.asked().len()), (1, 1));
}

#[tokio::test]
async fn a_change_that_was_lost_and_not_repeated_in_time_is_unknown_and_a_read_is_not() {
    let stub = Stub::start([Reply::Close]).await;
    let client = Client::builder()
        .nodes([stub.address.to_string()])
        .deadline(Duration::from_millis(100))
        .build()
        .unwrap();
    let name = "photos".parse().unwrap();

    let change = client.advance(&name, 9).await.unwrap_err();
    let read = client.sequence(&name).await.unwrap_err();

    assert_eq!(change.outcome(), ProblemOutcome::Unknown);
    assert_eq!(read.outcome(), ProblemOutcome::NotApplied);
}

#[tokio::test]
async fn an_answer_without_end_is_not_collected() {
    let stub = Stub::start([Reply::Http {
        status: 200,
        headers: String::new(),
        body: " ".repeat(2 * 1024 * 1024),
    }])
    .await;
    let client = Client::builder()
        .nodes([stub.address.to_string()])
        .deadline(Duration::from_millis(300))
        .build()
        .unwrap();

    let error = client.cluster().await.unwrap_err();

    assert!(matches!(
        error,
        ClientError::Unavailable { last, .. } if last.reason == SetbackReason::Foreign { status: 200 }
    ));
}

#[test]
fn a_client_is_refused_without_nodes_or_with_a_deadline_out_of_bounds() {
    let none = Client::builder().build().unwrap_err();
    let many = Client::builder()
        .nodes((1..=65).map(|port| format!("127.0.0.1:{port}")))
        .build()
        .unwrap_err();
    let long = Client::builder()
        .nodes(["127.0.0.1:1"])
        .deadline(Duration::from_secs(61))
        .build()
        .unwrap_err();

    assert_eq!(
        none.to_string(),
        "no node is named: give at least one address, for example http://127.0.0.1:7101"
    );
    assert_eq!(many.to_string(), "65 nodes are too many: name at most 64");
    assert_eq!(
        long.to_string(),
        "a deadline of 61s is out of bounds: use 50ms to 60s"
    );
}

/// An answer with this body.
fn answers(status: u16, body: &str) -> Reply {
    Reply::Http {
        status,
        headers: String::new(),
        body: body.to_owned(),
    }
}

fn grant_of(sequence: &str, first: u64, count: u64) -> String {
    let last = first + count - 1;
    format!(
        "{{\"sequence\":\"{sequence}\",\"first\":{first},\"last\":{last},\"count\":{count},\"increment\":1,\
         \"epoch\":1,\"cluster\":\"c\",\"term\":2,\"index\":17}}"
    )
}

fn two_leases() -> [(SequenceName, RangeCount); 2] {
    [("a", 3), ("b", 1)].map(|(name, count)| (name.parse().unwrap(), RangeCount::constant(count)))
}

#[tokio::test]
async fn several_leases_are_one_request_and_come_back_in_their_order() {
    let grants = [grant_of("a", 1, 3), grant_of("b", 7, 1)].join(",");
    let stub = Stub::start([answers(201, &format!("{{\"grants\":[{grants}]}}"))]).await;

    let granted = of(&[&stub]).lease_all(&two_leases()).await.unwrap();

    let ranges: Vec<_> = granted
        .iter()
        .map(|grant| (grant.first(), grant.last()))
        .collect();
    assert_eq!(ranges, [(1, 3), (7, 7)]);
    let asked = stub.asked();
    assert_eq!(asked.len(), 1);
    assert!(
        asked[0].starts_with("POST /v1/leases?timeout="),
        "{}",
        asked[0]
    );
}

#[tokio::test]
async fn several_leases_whose_answer_is_lost_are_sent_again_under_their_key() {
    let grants = [grant_of("a", 1, 3), grant_of("b", 7, 1)].join(",");
    let stub = Stub::start([Reply::Close]).await;
    let other = Stub::start([answers(201, &format!("{{\"grants\":[{grants}]}}"))]).await;

    let leased = of(&[&stub, &other]).lease_all(&two_leases()).await.unwrap();

    assert_eq!(leased.len(), 2);
    assert_eq!(stub.keys(), other.keys());
}

#[tokio::test]
async fn several_grants_that_are_not_those_asked_for_are_unknown_at_once() {
    let one = grant_of("a", 1, 3);
    let swapped = [grant_of("b", 7, 1), grant_of("a", 1, 3)].join(",");
    for reply in [
        answers(201, &format!("{{\"grants\":[{one}]}}")),
        answers(201, &format!("{{\"grants\":[{swapped}]}}")),
    ] {
        let stub = Stub::start([reply, granted()]).await;
        let other = Stub::start([granted()]).await;

        let error = of(&[&stub, &other])
            .lease_all(&two_leases())
            .await
            .unwrap_err();

        assert!(matches!(error, ClientError::Unknown { .. }), "{error:?}");
        assert_eq!((stub.asked().len(), other.asked().len()), (1, 0));
    }
}

#[tokio::test]
async fn a_refusal_of_several_leases_tells_which_one() {
    let mut refusal = problem(404, "unknown_sequence", ProblemOutcome::NotApplied);
    refusal.position = Some(1);
    let stub = Stub::start([says(refusal, "")]).await;

    let error = of(&[&stub]).lease_all(&two_leases()).await.unwrap_err();

    assert!(matches!(error, ClientError::Refused { .. }), "{error:?}");
    assert_eq!(error.position(), Some(1));
}

#[tokio::test]
async fn a_list_is_asked_for_by_prefix_and_page() {
    let stub = Stub::start([answers(200, "{\"sequences\":[],\"next\":\"p:2\"}")]).await;
    let client = of(&[&stub]);
    let query = ListQuery {
        prefix: Some("p:".parse().unwrap()),
        after: Some("p:1".parse().unwrap()),
        limit: std::num::NonZeroU32::new(2),
    };

    let page = client.list_sequences(&query).await.unwrap();
    let local = client.reads(Consistency::Local);
    local.list_sequences(&ListQuery::default()).await.unwrap();

    assert_eq!(page.next, Some("p:2".parse().unwrap()));
    let asked = stub.asked();
    let first = "GET /v1/sequences?prefix=p%3A&after=p%3A1&limit=2&timeout=";
    assert!(asked[0].starts_with(first), "{}", asked[0]);
    let second = "GET /v1/sequences?consistency=local&timeout=";
    assert!(asked[1].starts_with(second), "{}", asked[1]);
}

#[tokio::test]
async fn a_dry_run_says_so_and_is_a_read_to_the_client() {
    let stub = Stub::start([Reply::Close]).await;
    let client = Client::builder()
        .nodes([stub.address.to_string()])
        .deadline(Duration::from_millis(100))
        .build()
        .unwrap();
    let name = "photos".parse().unwrap();

    let error = client
        .changes(Run::Dry)
        .retire_sequence(&name)
        .await
        .unwrap_err();

    assert_eq!(error.outcome(), ProblemOutcome::NotApplied);
    let asked = stub.asked();
    let begin = "DELETE /v1/sequences/photos?dry_run=true&timeout=";
    assert!(asked[0].starts_with(begin), "{}", asked[0]);
}

#[tokio::test]
async fn a_backup_is_given_up_where_its_next_piece_does_not_come() {
    let busy = Stub::start([refused(503, "overloaded")]).await;
    let stalls = Stub::start([Reply::Stall("HWbkup")]).await;
    let mut backup = of(&[&busy, &stalls]).backup().await.unwrap();
    assert_eq!(backup.piece().await.unwrap().unwrap(), "HWbkup");
    assert!(
        backup
            .node()
            .to_string()
            .ends_with(&stalls.address.to_string())
    );
    tokio::time::pause();
    let begun = tokio::time::Instant::now();

    let error = backup.piece().await.unwrap_err();

    assert_eq!(begun.elapsed().as_secs(), 30);
    let text = error.to_string();
    assert!(text.contains("gave no answer in time"), "{text}");
}

#[tokio::test]
async fn a_backup_that_is_cut_off_says_so() {
    let stub = Stub::start([Reply::Cut(200)]).await;
    let mut backup = of(&[&stub]).backup().await.unwrap();

    let mut pieces = Vec::new();
    let error = loop {
        match backup.piece().await {
            Ok(piece) => pieces.extend(piece),
            Err(error) => break error,
        }
    };

    assert_eq!(pieces, ["{"]);
    assert!(error.to_string().contains("lost the connection"), "{error}");
}

/// A node that answers every request when all of a crowd have come, and counts the connections that stay open.
#[tokio::test]
async fn of_a_crowd_of_calls_a_few_connections_are_kept() {
    const CROWD: usize = 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Arc::new(client([listener.local_addr().unwrap().to_string()]));
    let node = async {
        let mut streams = Vec::new();
        for _ in 0..CROWD {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await.unwrap();
            streams.push(stream);
        }
        let Reply::Http { body, .. } = granted() else {
            panic!("an answer")
        };
        let answer = format!(
            "HTTP/1.1 201 X\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        for stream in &mut streams {
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        streams
    };
    let crowd = async {
        let mut calls = JoinSet::new();
        for _ in 0..CROWD {
            let client = Arc::clone(&client);
            calls.spawn(async move { lease(&client).await.unwrap() });
        }
        calls.join_all().await;
    };

    let (mut streams, ()) = tokio::join!(node, crowd);

    let closed = async {
        let mut closed = JoinSet::new();
        for mut stream in streams.drain(..) {
            closed.spawn(async move { stream.read(&mut [0]).await });
        }
        for _ in 0..CROWD - builder::IDLE_CONNECTIONS_MAX {
            closed.join_next().await;
        }
    };
    let within = tokio::time::timeout(Duration::from_secs(4), closed).await;
    within.expect("more connections are kept than the bound");
}
