//! Wrong names, paths, methods, headers and queries, and what is no request at all: each has its answer, and nothing
//! changes (I5).

use serde_json::json;

use crate::raw::{Then, exchange, is_closed_at_once};
use crate::refusals::{Refusal, Request, Subject};
use crate::world::send;

const LEASES: &str = "/v1/sequences/small/leases";
const ADVANCE: &str = "/v1/sequences/small/advance";

#[tokio::test]
async fn a_name_that_is_none_is_refused_at_every_path() {
    let subject = Subject::start().await;
    let use_these = "use letters and digits, and after the first also '.', '_', ':' and '-'";
    let found = |character: char, at: usize| {
        format!("a sequence name has {character:?} at byte {at}: {use_these}")
    };
    let names = [
        (
            "a".repeat(129),
            "a sequence name of 129 bytes is too long: use at most 128".to_owned(),
        ),
        (".".to_owned(), found('.', 0)),
        ("..".to_owned(), found('.', 0)),
        ("%2e".to_owned(), found('.', 0)),
        ("%2e%2E".to_owned(), found('.', 0)),
        ("%2e%2f".to_owned(), found('.', 0)),
        ("..%2f..%2fsled".to_owned(), found('.', 0)),
        ("a%2fb".to_owned(), found('/', 1)),
        ("a%2Fb".to_owned(), found('/', 1)),
        ("a%5cb".to_owned(), found('\\', 1)),
        ("a%252fb".to_owned(), found('%', 1)),
        ("%".to_owned(), found('%', 0)),
        ("%zz".to_owned(), found('%', 0)),
        ("a%00".to_owned(), found('\0', 1)),
        ("a%0a".to_owned(), found('\n', 1)),
        ("a%7f".to_owned(), found('\u{7f}', 1)),
        ("a%20b".to_owned(), found(' ', 1)),
        ("a+b".to_owned(), found('+', 1)),
        ("caf%c3%a9".to_owned(), found('é', 3)),
        ("café".to_owned(), found('é', 3)),
        ("%ef%bc%8e".to_owned(), found('．', 0)),
        (
            "%ff".to_owned(),
            "a sequence name is not UTF-8: use letters, digits, '.', '_', ':' or '-'".to_owned(),
        ),
        ("-a".to_owned(), found('-', 0)),
        ("_a".to_owned(), found('_', 0)),
        ("*".to_owned(), found('*', 0)),
    ];
    let verbs = [
        ("PUT", ""),
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/leases"),
        ("POST", "/advance"),
    ];
    let rows: Vec<Refusal> = names
        .iter()
        .flat_map(|(name, detail)| {
            verbs.iter().map(move |(method, rest)| {
                let path = format!("/v1/sequences/{name}{rest}");
                Request::new(method, &path).is(400, "invalid_name", detail.as_str())
            })
        })
        .collect();
    let empty = "a sequence name is empty: use 1 to 128 letters, digits, '.', '_', ':' or '-'";
    let nothing = "there is nothing at this path";

    subject.refuses(&rows).await;
    subject
        .refuses(&[
            Request::new("POST", "/v1/sequences//leases").is(400, "invalid_name", empty),
            Request::new("POST", "/v1/sequences//advance").is(400, "invalid_name", empty),
            Request::new("GET", "/").is(404, "unknown_path", nothing),
            Request::new("GET", "/nothing").is(404, "unknown_path", nothing),
            Request::new("PUT", "/v1/sequences/").is(404, "unknown_path", nothing),
            Request::new("PUT", "/v1/sequences/a/b").is(404, "unknown_path", nothing),
            Request::new("PUT", "/v1/sequences/a/../b").is(404, "unknown_path", nothing),
        ])
        .await;
}

// meowdhavan/furdb#4, apify/apify-client-js#1005: no way out of the name space, whatever is encoded how.
#[tokio::test]
async fn no_encoding_of_dots_and_slashes_reaches_anything() {
    let subject = Subject::start().await;
    let before = (subject.state().await, subject.files());
    let methods = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "LIST",
    ];
    let places = [
        "/{}",
        "/v1/{}",
        "/v1/sequences/{}",
        "/v1/sequences/{}/leases",
        "/v1/sequences/{}/advance",
        "/v1/sequences/small/{}",
        "/v1/leases/{}",
        "/v1/cluster/{}",
        "//{}",
    ];
    let steps = [
        ".",
        "..",
        "./",
        "../",
        "%2e",
        "%2e%2e",
        "%2E%2e",
        ".%2e",
        "%2e%2f",
        "%2e%2e%2f",
        "..%2f",
        "%2e%2e/",
        "..%5c",
        "..\\",
        "%252e%252e%252f",
        "%c0%ae%c0%ae%c0%af",
        "%u002e%u002e/",
        "..;/",
        "..%00/",
        "....//",
        "%2e%2e%2f%2e%2e%2fsled%2fdb",
        "../../sled/db",
        "%2fetc%2fpasswd",
        "/etc/passwd",
    ];

    for method in methods {
        for place in places {
            for step in steps {
                let path = place.replace("{}", step);
                let request = Request::new(method, &path);
                let answers = exchange(&subject.url, &request.bytes(), Then::Wait).await;
                let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
                assert!(
                    matches!(statuses[..], [400 | 404 | 405]),
                    "{method} {path}: {statuses:?}"
                );
            }
        }
    }

    assert_eq!((subject.state().await, subject.files()), before);
}

#[tokio::test]
async fn a_wrong_method_names_the_right_ones() {
    let subject = Subject::start().await;
    for (path, methods) in [
        (
            "/v1/sequences/small",
            &["GET", "HEAD", "PUT", "PATCH", "DELETE"][..],
        ),
        ("/v1/sequences", &["GET", "HEAD", "POST"]),
        ("/v1/leases", &["POST"]),
        (LEASES, &["POST"]),
        (ADVANCE, &["POST"]),
        ("/v1/cluster", &["GET", "HEAD"]),
        ("/livez", &["GET", "HEAD"]),
        ("/readyz", &["GET", "HEAD"]),
        ("/metrics", &["GET", "HEAD"]),
    ] {
        let all = [
            "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "LIST", "get",
        ];
        for method in all.iter().filter(|method| !methods.contains(*method)) {
            let request = Request::new(method, path);
            let row = request.is(405, "method_not_allowed", "the path has no such method");
            subject.refuses(std::slice::from_ref(&row)).await;

            let answer = send(method, &format!("{}{path}", subject.url), "", &[]).await;
            let allowed = answer.headers["allow"].to_str().unwrap();
            assert_eq!(
                allowed.split(',').collect::<Vec<_>>(),
                methods,
                "{method} {path}"
            );
        }
    }
}

#[tokio::test]
async fn a_body_that_says_it_is_not_json_is_refused_and_others_are_read() {
    let subject = Subject::start().await;
    let media = |header: &str, reason: &str| {
        let detail = format!("the body is not read: its {reason}");
        Request::new("POST", LEASES)
            .body("{\"count\":3}")
            .header(header)
            .is(415, "unsupported_media_type", detail)
    };
    let too_many = "a lease of 9 values is too large: lease at most 4 at once";
    let read = |header: &str| {
        let request = Request::new("POST", LEASES)
            .body("{\"count\":9}")
            .header(header);
        request.is(400, "invalid_count", too_many)
    };

    subject
        .refuses(&[
            media("Content-Type: text/xml", "content type is \"text/xml\""),
            media(
                "Content-Type: multipart/form-data; boundary=x",
                "content type is \"multipart/form-data; boundary=x\"",
            ),
            media(
                "Content-Type: application/cbor",
                "content type is \"application/cbor\"",
            ),
            media("Content-Type:", "content type is \"\""),
            media("Content-Encoding: gzip", "content encoding is \"gzip\""),
        ])
        .await;
    subject
        .refuses_in_log_order(&[
            read("Content-Type: application/json"),
            read("content-type: Application/JSON; charset=utf-8"),
            read("Content-Type: application/x-www-form-urlencoded"),
            read("Content-Type: text/plain;charset=UTF-8"),
            read("Content-Encoding: identity"),
            read("X-Nothing: of the kind"),
        ])
        .await;
}

#[expect(clippy::too_many_lines, reason = "a table of cases")]
#[tokio::test]
async fn a_query_that_is_not_understood_is_refused() {
    let subject = Subject::start().await;
    let query = |path: &str, what: &str| {
        let detail = format!("the query is not understood: {what}");
        Request::new("GET", path).is(400, "invalid_query", detail)
    };
    let show = "/v1/sequences/small";
    let mut rows: Vec<Refusal> = [
        "9ms", "61s", "60001ms", "5", "-1s", "NaN", "inf", "1h", "", "0.5s", "1S", "5s%00",
    ]
    .into_iter()
    .flat_map(|timeout| {
        let shown = timeout.replace("%00", "\0");
        let what = format!("timeout: {shown:?} is not 10ms to 60s, such as 500ms or 5s");
        [show, "/v1/cluster"].map(|path| query(&format!("{path}?timeout={timeout}"), &what))
    })
    .collect();
    rows.extend([
        query(&format!("{show}?timeout=1s&timeout=1s"), "duplicate field `timeout`"),
        query("/v1/cluster?x=1", "x: unknown field `x`, expected `timeout`"),
        Request::new("POST", &format!("{LEASES}?count=1&count=1")).is(
            400,
            "invalid_query",
            "the query is not understood: duplicate field `count`",
        ),
        query(
            "/v1/sequences?limit=0",
            "limit: \"0\" is not 1 to 1000",
        ),
        query(
            "/v1/sequences?limit=1001",
            "limit: \"1001\" is not 1 to 1000",
        ),
        query(
            "/v1/sequences?limit=9007199254740993",
            "limit: \"9007199254740993\" is not 1 to 1000",
        ),
        query(
            "/v1/sequences?prefix=..",
            "prefix: a sequence name has '.' at byte 0: use letters and digits, and after the first also '.', '_', \
             ':' and '-'",
        ),
        query(
            "/v1/sequences?after=a%2fb",
            "after: a sequence name has '/' at byte 1: use letters and digits, and after the first also '.', '_', \
             ':' and '-'",
        ),
        query(
            "/v1/sequences?offset=1",
            "offset: unknown field `offset`, expected one of `prefix`, `after`, `limit`, `timeout`, `consistency`",
        ),
        query(
            &format!("{show}?consistency=weak"),
            "consistency: \"weak\" is not linearizable or local",
        ),
        Request::new("DELETE", &format!("{show}?dry_run=1")).is(
            400,
            "invalid_query",
            "the query is not understood: dry_run: \"1\" is not true or false",
        ),
        Request::new("DELETE", &format!("{show}?dryrun=true")).is(
            400,
            "invalid_query",
            "the query is not understood: dryrun: unknown field `dryrun`, expected `timeout` or `dry_run`",
        ),
        Request::new("POST", &format!("{LEASES}?cuont=1")).is(
            400,
            "invalid_query",
            "the query is not understood: cuont: unknown field `cuont`, expected `count` or `timeout`",
        ),
    ]);

    subject.refuses(&rows).await;
}

#[tokio::test]
async fn what_is_no_request_is_answered_without_a_body_or_closed() {
    let subject = Subject::start().await;
    let before = subject.state().await;
    let long = format!(
        "GET /livez HTTP/1.1\r\nHost: node\r\nX: {}\r\n\r\n",
        "a".repeat(20_000)
    );
    let many: String = (0..101).map(|n| format!("X-{n}: a\r\n")).collect();
    let many = format!("GET /livez HTTP/1.1\r\nHost: node\r\n{many}\r\n");
    let path = format!("GET /{} HTTP/1.1\r\nHost: node\r\n\r\n", "a".repeat(70_000));

    for (bytes, statuses) in [
        (long.as_bytes(), &[431][..]),
        (many.as_bytes(), &[431]),
        (path.as_bytes(), &[431]),
        (b"\0\x01\x02\xff\r\n\r\n", &[400]),
        // The first bytes of TLS.
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03", &[400]),
        (b"GET /livez\r\n\r\n", &[400]),
        (b"GET /livez HTTP/1.2\r\nHost: node\r\n\r\n", &[400]),
        (b"GET /livez HTTP/2.0\r\nHost: node\r\n\r\n", &[400]),
        (b"GET /a\0b HTTP/1.1\r\nHost: node\r\n\r\n", &[400]),
        (
            b"GET /livez HTTP/1.1\r\nHost: node\r\nX: a\x01b\r\n\r\n",
            &[400],
        ),
        (
            b"GET /livez HTTP/1.1\r\nHost: node\r\nX: a\r\n b\r\n\r\n",
            &[400],
        ),
        (b"GET /livez HTTP/1.1\r\nHost : node\r\n\r\n", &[400]),
        // HTTP/2 is not spoken.
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[]),
        (b"GET /livez HTTP/1.0\r\n\r\n", &[200]),
    ] {
        let answers = exchange(&subject.url, bytes, Then::Wait).await;

        let shown = String::from_utf8_lossy(bytes);
        let got: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(got, statuses, "{shown:.60}");
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            assert_eq!(
                (answer.text.as_str(), &answer.headers["connection"]),
                ("", &"close".parse().unwrap())
            );
        }
    }

    assert!(is_closed_at_once(&subject.url, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await);
    assert_eq!(subject.state().await, before);
}

#[tokio::test]
async fn a_request_for_no_host_or_two_is_refused() {
    let subject = Subject::start().await;
    let hosts =
        |count: usize| format!("the request has {count} Host headers: HTTP/1.1 has exactly one");

    let two = Request::new("POST", LEASES).header("Host: other");
    let none = exchange(
        &subject.url,
        b"POST /v1/sequences/small/leases HTTP/1.1\r\nConnection: close\r\n\r\n",
        Then::Wait,
    )
    .await;

    subject
        .refuses(&[two.is(400, "invalid_request", hosts(2))])
        .await;
    assert_eq!((none[0].status, none[0].field("detail")), (400, hosts(0)));
    assert_eq!(subject.sequences().await["sequences"][2]["high"], json!(2));
}

// hyperium/hyper#4123, #3860, rustsec/advisory-db#967: what another reader could take for two requests is at most one.
#[tokio::test]
async fn no_second_request_is_smuggled_in_a_body() {
    let subject = Subject::start().await;
    let before = subject.sequences().await;
    let smuggled = "0\r\n\r\nPOST /v1/sequences/small/leases HTTP/1.1\r\nHost: node\r\n\r\n";
    let invalid_chunk = "{}\r\n0\r\n\r\n";

    for (headers, body, status) in [
        // RFC 9112 §6.3: a message with both is read by its chunks, and the connection is closed after it.
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            smuggled,
            400,
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 5",
            smuggled,
            400,
        ),
        ("Content-Length: 2\r\nContent-Length: 3", "{}", 400),
        ("Content-Length: +2", "{}", 400),
        ("Content-Length: -2", "{}", 400),
        ("Content-Length: 2, 2", "{}", 400),
        ("Content-Length: 0x2", "{}", 400),
        ("Content-Length:", "{}", 400),
        ("Content-Length: 18446744073709551616", "{}", 400),
        ("Transfer-Encoding: gzip", smuggled, 400),
        ("Transfer-Encoding: xchunked", smuggled, 400),
        ("Transfer-Encoding: chunked, identity", smuggled, 400),
        ("Transfer-Encoding : chunked", smuggled, 400),
        (
            "Transfer-Encoding: chunked",
            &format!("10000000000000000\r\n{invalid_chunk}"),
            400,
        ),
        (
            "Transfer-Encoding: chunked",
            &format!("+2\r\n{invalid_chunk}"),
            400,
        ),
        (
            "Transfer-Encoding: chunked",
            &format!("-2\r\n{invalid_chunk}"),
            400,
        ),
        ("Transfer-Encoding: chunked", "2\n{}\n0\n\n", 400),
    ] {
        // A count that the table refuses: what is let through is seen by its answer.
        let request =
            format!("POST {LEASES}?count=9 HTTP/1.1\r\nHost: node\r\n{headers}\r\n\r\n{body}");
        let answers = exchange(&subject.url, request.as_bytes(), Then::Wait).await;

        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [status], "{headers}");
    }

    assert_eq!(subject.sequences().await, before);
}

#[tokio::test]
async fn requests_that_come_together_are_answered_in_their_order() {
    let subject = Subject::start().await;
    let first = "POST /v1/sequences/big/leases?count=2 HTTP/1.1\r\nHost: node\r\nAccept: text/plain\r\n\r\n";
    let none = "GET /v1/sequences/none HTTP/1.1\r\nHost: node\r\n\r\n";
    let last = "GET /livez HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";

    let together = [first, none, first, last].concat();
    let answers = exchange(&subject.url, together.as_bytes(), Then::Wait).await;

    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [201, 404, 201, 200]);
    assert_eq!(answers[0].text, "9007199254740993 9007199254740994\n");
    assert_eq!(answers[2].text, "9007199254740995 9007199254740996\n");
}
