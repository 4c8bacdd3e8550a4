//! Wrong input of every kind: each has its answer, and nothing changes (I5).

use serde_json::json;

use crate::raw::{Then, exchange, is_closed_at_once};
use crate::refusals::{Refusal, Request, Subject};
use crate::world::send;

const LEASES: &str = "/v1/sequences/small/leases";
const ADVANCE: &str = "/v1/sequences/small/advance";
const NUMBER: &str = "expected an integer from 0 to 2^64 - 1, as a number or a string of digits";

fn lease(body: impl AsRef<[u8]>) -> Request {
    Request::new("POST", LEASES).body(body)
}

fn advance(body: impl AsRef<[u8]>) -> Request {
    Request::new("POST", ADVANCE).body(body)
}

fn alter(body: impl AsRef<[u8]>) -> Request {
    Request::new("PATCH", "/v1/sequences/small").body(body)
}

fn lease_all(body: impl AsRef<[u8]>) -> Request {
    Request::new("POST", "/v1/leases").body(body)
}

fn create(body: impl AsRef<[u8]>) -> Request {
    Request::new("PUT", "/v1/sequences/x").body(body)
}

fn not_understood(what: &str) -> String {
    format!("the body is not understood: {what}")
}

fn out_of_bounds(count: &str) -> String {
    format!("count {count} is not 1 to 4294967295")
}

#[tokio::test]
async fn a_count_that_is_none_is_refused_wherever_it_stands() {
    let subject = Subject::start().await;
    let in_body = |count: &str, what: &str, column: usize| {
        let text = format!("count: {what}, {NUMBER} at line 1 column {column}");
        lease(format!("{{\"count\":{count}}}")).is(400, "invalid_count", not_understood(&text))
    };
    let out_of_body = |count: &str| {
        let shown = count.trim_matches('"');
        lease(format!("{{\"count\":{count}}}")).is(400, "invalid_count", out_of_bounds(shown))
    };
    let in_query = |count: &str, shown: &str| {
        Request::new("POST", &format!("{LEASES}?count={count}")).is(
            400,
            "invalid_count",
            out_of_bounds(shown),
        )
    };

    subject
        .refuses(&[
            out_of_body("0"),
            out_of_body("\"0\""),
            out_of_body("4294967296"),
            // jqlang/jq#1783: exactly what was sent, and not its neighbour.
            out_of_body("9007199254740993"),
            out_of_body("\"9007199254740993\""),
            out_of_body("18446744073709551615"),
            out_of_body("\"18446744073709551616\""),
            in_body("-1", "invalid type: integer `-1`", 11),
            in_body("1.5", "invalid type: floating point `1.5`", 12),
            in_body("1.0", "invalid type: floating point `1.0`", 12),
            in_body("1e3", "invalid type: floating point `1000.0`", 12),
            in_body(
                "18446744073709551616",
                "invalid type: floating point `1.8446744073709552e+19`",
                29,
            ),
            in_body("\"-1\"", "invalid value: string \"-1\"", 13),
            in_body("\"1.5\"", "invalid value: string \"1.5\"", 14),
            in_body("\"1e3\"", "invalid value: string \"1e3\"", 14),
            in_body("\"\"", "invalid value: string \"\"", 11),
            in_body("\" 1\"", "invalid value: string \" 1\"", 13),
            in_body("null", "invalid type: null", 13),
            in_body("true", "invalid type: boolean `true`", 13),
            in_body("[1]", "invalid type: list", 10),
            in_query("0", "0"),
            in_query("9007199254740993", "9007199254740993"),
            in_query("18446744073709551616", "18446744073709551616"),
            in_query("-1", "\"-1\""),
            in_query("1.5", "\"1.5\""),
            in_query("1e3", "\"1e3\""),
            in_query("", "\"\""),
            in_query("%00", "\"\\0\""),
            Request::new("POST", &format!("{LEASES}?count=1"))
                .body("{\"count\":1}")
                .is(
                    400,
                    "invalid_count",
                    "the count is given twice, in the query and in the body",
                ),
        ])
        .await;
}

#[tokio::test]
async fn what_the_table_refuses_changes_no_sequence() {
    let subject = Subject::start().await;
    let too_large = "a lease of 5 values is too large: lease at most 4 at once";
    let above = "cannot advance to 9007199254740993: max_value is 10";
    let unknown = "no such sequence: create it first";
    let retired = "the sequence is retired: create it again, and it continues above its mark";
    let none = |method: &str, rest: &str, body: &str| {
        let path = format!("/v1/sequences/none{rest}");
        let request = Request::new(method, &path).body(body);
        request.is(404, "unknown_sequence", unknown)
    };
    let gone = |method: &str, rest: &str, body: &str| {
        let path = format!("/v1/sequences/gone{rest}");
        let request = Request::new(method, &path).body(body);
        request.is(410, "retired", retired)
    };

    subject
        .refuses_in_log_order(&[
            lease("{\"count\":5}").is(400, "invalid_count", too_large),
            lease("{\"count\":\"5\"}").is(400, "invalid_count", too_large),
            advance("{\"to\":9007199254740993}").is(409, "above_max_value", above),
            advance("{\"to\":\"9007199254740993\"}").is(409, "above_max_value", above),
            Request::new("PUT", "/v1/sequences/small")
                .body("{\"start\":2}")
                .is(
                    409,
                    "sequence_exists",
                    "the sequence exists with other settings",
                ),
            none("GET", "", ""),
            none("PATCH", "", "{\"max_lease\":1}"),
            none("DELETE", "", ""),
            none("POST", "/leases", ""),
            none("POST", "/advance", "{\"to\":1}"),
            gone("PATCH", "", "{\"max_lease\":1}"),
            gone("POST", "/leases", ""),
            gone("POST", "/advance", "{\"to\":9}"),
            gone("POST", "/leases?count=4294967295", ""),
        ])
        .await;
}

#[tokio::test]
async fn settings_below_what_is_granted_or_for_life_are_refused() {
    let subject = Subject::start().await;
    let immutable = |request: Request, what: &str| request.is(409, "immutable_setting", what);
    let numbers = "the sequence's ids are JSON numbers, so stay at 2^53 - 1 or below";
    let strings = "the sequence's ids are JSON strings, so stay above 2^53 - 1";
    let below = "max_value 1 is below the high-water mark: use 2 or more";
    let big = |body: &str| Request::new("PATCH", "/v1/sequences/big").body(body);

    subject
        .refuses_in_log_order(&[
            alter("{\"max_value\":1}").is(409, "below_granted", below),
            alter("{\"max_value\":\"1\",\"max_lease\":2}").is(409, "below_granted", below),
            Request::new("PUT", "/v1/sequences/gone")
                .body("{\"max_value\":4}")
                .is(
                    409,
                    "below_granted",
                    "max_value 4 is below the high-water mark: use 5 or more",
                ),
            immutable(
                alter("{\"start\":2,\"max_lease\":2}"),
                "start is 1 for the sequence's whole life: it cannot become 2",
            ),
            immutable(
                alter("{\"increment\":\"9007199254740993\"}"),
                "increment is 1 for the sequence's whole life: it cannot become 9007199254740993",
            ),
            immutable(
                alter("{\"max_value\":9007199254740992}"),
                &format!("max_value cannot become 9007199254740992: {numbers}"),
            ),
            immutable(
                alter("{\"max_value\":18446744073709551615,\"max_lease\":2}"),
                &format!("max_value cannot become 18446744073709551615: {numbers}"),
            ),
            big("{\"max_value\":9007199254740992}").is(
                400,
                "invalid_body",
                "max_value 9007199254740992 is below start 9007199254740993: no value could be granted",
            ),
        ])
        .await;
    let wide = format!("{}/v1/sequences/wide", subject.url);
    let created = send("PUT", &wide, "{\"max_value\":9007199254740993}", &[]).await;
    assert_eq!(created.status, 201, "{}", created.text);
    subject
        .refuses_in_log_order(&[immutable(
            Request::new("PATCH", "/v1/sequences/wide").body("{\"max_value\":9007199254740991}"),
            &format!("max_value cannot become 9007199254740991: {strings}"),
        )])
        .await;
}

#[tokio::test]
async fn a_list_of_leases_is_refused_whole_and_says_which() {
    let subject = Subject::start().await;
    let invalid = |body: &str, what: &str| {
        let what = not_understood(what);
        lease_all(body).is(400, "invalid_body", what)
    };
    let many = |length: usize| {
        let list = vec!["{\"sequence\":\"small\"}"; length].join(",");
        let detail = format!("{length} leases are not 1 to 256");
        lease_all(format!("[{list}]")).is(400, "invalid_body", detail)
    };

    subject
        .refuses(&[
            invalid(
                "{}",
                "invalid type: object, expected a list at line 1 column 0",
            ),
            invalid(
                "null",
                "invalid type: null, expected a list at line 1 column 4",
            ),
            many(0),
            many(257),
            invalid(
                "[{\"sequence\":\"small\"},[\"small\",1]]",
                "[1]: invalid type: list, expected an object at line 1 column 22",
            )
            .at(1),
            invalid(
                "[{\"count\":1}]",
                "[0]: missing field `sequence` at line 1 column 12",
            )
            .at(0),
            lease_all("[{\"sequence\":\"small\",\"n\":1}]")
                .is(
                    400,
                    "unknown_field",
                    "the body has an unknown field `n`, expected `sequence` or `count` at line 1 column 24",
                )
                .at(0),
            lease_all("[{\"sequence\":\"small\"},{\"sequence\":\"small\",\"count\":-1}]")
                .is(
                    400,
                    "invalid_count",
                    not_understood(&format!(
                        "[1].count: invalid type: integer `-1`, {NUMBER} at line 1 column 54"
                    )),
                )
                .at(1),
            lease_all("[{\"sequence\":\"small\"},{\"sequence\":\"small\",\"count\":9007199254740993}]")
                .is(400, "invalid_count", out_of_bounds("9007199254740993"))
                .at(1),
            lease_all("[{\"sequence\":\"small\"},{\"sequence\":\"..\"}]")
                .is(
                    400,
                    "invalid_name",
                    "a sequence name has '.' at byte 0: use letters and digits, and after the first also '.', '_', \
                     ':' and '-'",
                )
                .at(1),
        ])
        .await;
    subject
        .refuses_in_log_order(&[
            lease_all("[{\"sequence\":\"small\",\"count\":2},{\"sequence\":\"none\"}]")
                .is(404, "unknown_sequence", "no such sequence: create it first")
                .at(1),
            lease_all("[{\"sequence\":\"small\"},{\"sequence\":\"gone\"}]")
                .is(
                    410,
                    "retired",
                    "the sequence is retired: create it again, and it continues above its mark",
                )
                .at(1),
            lease_all("[{\"sequence\":\"small\"},{\"sequence\":\"small\",\"count\":5}]")
                .is(
                    400,
                    "invalid_count",
                    "a lease of 5 values is too large: lease at most 4 at once",
                )
                .at(1),
            // The third sees what the first two took.
            lease_all(
                "[{\"sequence\":\"small\",\"count\":4},{\"sequence\":\"small\",\"count\":3},{\"sequence\":\"small\",\"count\":2}]",
            )
            .is(
                409,
                "exhausted",
                "2 values do not fit: 1 are left up to max_value",
            )
            .at(2),
        ])
        .await;
}

// jqlang/jq#1783, tdlib/td#85: never silently rounded.
#[tokio::test]
async fn a_number_above_the_exact_doubles_comes_back_as_it_was_sent() {
    let subject = Subject::start().await;
    let big = format!("{}/v1/sequences/big", subject.url);

    let sent_as_number = send("GET", &big, "", &[]).await.json();
    let again = send(
        "PUT",
        &big,
        r#"{"start":"9007199254740993","max_value":"18446744073709551615","max_lease":"4294967295"}"#,
        &[],
    )
    .await;
    let first = send("POST", &format!("{big}/leases"), "", &[]).await.json();
    let mut highs = Vec::new();
    for body in [r#"{"to":9007199254740995}"#, r#"{"to":"9007199254740997"}"#] {
        let advanced = send("POST", &format!("{big}/advance"), body, &[]).await;
        highs.push(advanced.json()["high"].clone());
    }
    let last = send(
        "POST",
        &format!("{big}/leases"),
        "{\"count\":\"4294967295\"}",
        &[],
    )
    .await;

    assert_eq!(sent_as_number["start"], json!("9007199254740993"));
    assert_eq!(sent_as_number["max_value"], json!("18446744073709551615"));
    assert_eq!(again.status, 200, "{}", again.text);
    assert_eq!(first["first"], json!("9007199254740993"));
    assert_eq!(
        highs,
        [json!("9007199254740995"), json!("9007199254740997")]
    );
    assert_eq!(last.json()["first"], json!("9007199254740998"));
    assert_eq!(last.json()["last"], json!("9007203549708292"));
}

#[tokio::test]
async fn a_body_that_is_no_object_of_known_fields_is_refused() {
    let subject = Subject::start().await;
    let body = |body: &[u8], what: &str| {
        let what = not_understood(what);
        lease(body).is(400, "invalid_body", what)
    };
    let unknown = |body: &str, what: &str| {
        let what = format!("the body has an unknown field {what}");
        lease(body).is(400, "unknown_field", what)
    };
    let no_object = |text: &[u8], what: &str, column: usize| {
        let what = format!("invalid type: {what}, expected an object at line 1 column {column}");
        body(text, &what)
    };
    let no_value = "expected value at line 1 column 1";

    subject
        .refuses(&[
            unknown(
                "{\"cuont\":1}",
                "`cuont`, expected `count` at line 1 column 8",
            ),
            unknown(
                "{\"Count\":1}",
                "`Count`, expected `count` at line 1 column 8",
            ),
            unknown(
                "{\"count\":1,\"x\":2}",
                "`x`, expected `count` at line 1 column 14",
            ),
            unknown(
                "{\"a: b\":1}",
                "`a: b`, expected `count` at line 1 column 7",
            ),
            body(
                b"{\"count\":1,\"count\":1}",
                "duplicate field `count` at line 1 column 18",
            ),
            body(
                b"{\"count\":1",
                "EOF while parsing an object at line 1 column 10",
            ),
            body(
                b"{\"count\":1}{}",
                "trailing characters at line 1 column 12",
            ),
            body(b"{\"count\":1,}", "trailing comma at line 1 column 12"),
            body(
                b"{\"count\":NaN}",
                "count: expected value at line 1 column 10",
            ),
            body(
                b"{\"count\":0x10}",
                "expected `,` or `}` at line 1 column 11",
            ),
            body(
                b"{\"count\":01}",
                "count: invalid number at line 1 column 11",
            ),
            body(b"{count:1}", "key must be a string at line 1 column 2"),
            body(
                b"{\"count\":\"\xff\"}",
                "count: invalid unicode code point at line 1 column 11",
            ),
            body(b"\xff\xfe", no_value),
            body(b"\xef\xbb\xbf{\"count\":1}", no_value),
            body(b"\xff\xfe{\0}\0", no_value),
            body(b"\0", no_value),
            body(b"count=1", no_value),
            body(b" ", "EOF while parsing a value at line 1 column 1"),
            no_object(b"[]", "list", 0),
            no_object(b"[1]", "list", 0),
            no_object("[".repeat(60_000).as_bytes(), "list", 0),
            no_object(b"null", "null", 4),
            no_object(b"3", "integer `3`", 1),
            no_object(b"\"3\"", "string \"3\"", 3),
            unknown(
                &"{\"a\":".repeat(12_000),
                "`a`, expected `count` at line 1 column 4",
            ),
        ])
        .await;
}

#[tokio::test]
async fn a_detail_that_quotes_a_long_body_is_cut() {
    let subject = Subject::start().await;
    let field = "a".repeat(60_000);
    let whole = format!("the body has an unknown field `{field}");
    let cut: String = whole.chars().take(500).chain(['…']).collect();

    let row = lease(format!("{{\"{field}\":1}}")).is(400, "unknown_field", cut);

    subject.refuses(&[row]).await;
}

#[tokio::test]
async fn settings_and_marks_that_are_none_are_refused() {
    let subject = Subject::start().await;
    let invalid = |request: Request, detail: &str| request.is(400, "invalid_body", detail);
    let field = |name: &str, what: &str, column: usize| {
        not_understood(&format!(
            "{name}: {what}, {NUMBER} at line 1 column {column}"
        ))
    };
    let pair = "0 to 2^64 - 1";

    subject
        .refuses(&[
            invalid(advance(""), &not_understood("missing field `to`")),
            invalid(advance("{}"), &not_understood("missing field `to` at line 1 column 2")),
            invalid(advance("{\"to\":null}"), &field("to", "invalid type: null", 10)),
            invalid(advance("{\"to\":-1}"), &field("to", "invalid type: integer `-1`", 8)),
            invalid(
                advance("{\"to\":1.5}"),
                &field("to", "invalid type: floating point `1.5`", 9),
            ),
            invalid(
                advance("{\"to\":\"18446744073709551616\"}"),
                &format!("to is out of bounds: {pair}"),
            ),
            invalid(
                create("{\"start\":-1}"),
                &field("start", "invalid type: integer `-1`", 11),
            ),
            invalid(
                create("{\"start\":\"18446744073709551616\"}"),
                &format!("start is out of bounds: {pair}"),
            ),
            invalid(create("{\"start\":null}"), &field("start", "invalid type: null", 13)),
            invalid(create("{\"increment\":0}"), "increment is 0: use 1 or more"),
            invalid(
                create("{\"max_value\":0}"),
                "max_value 0 is below start 1: no value could be granted",
            ),
            invalid(
                create("{\"start\":9007199254740993}"),
                "max_value 9007199254740991 is below start 9007199254740993: no value could be granted",
            ),
            invalid(
                create("{\"max_lease\":0}"),
                "max_lease is out of bounds: 1 to 2^32 - 1",
            ),
            invalid(
                create("{\"max_lease\":4294967296}"),
                "max_lease is out of bounds: 1 to 2^32 - 1",
            ),
            invalid(
                create("{\"start\":1,\"start\":1}"),
                &not_understood("duplicate field `start` at line 1 column 18"),
            ),
            invalid(
                create("[1,1]"),
                &not_understood("invalid type: list, expected an object at line 1 column 0"),
            ),
            invalid(alter(""), "no setting is named: name max_value or max_lease"),
            invalid(alter("{}"), "no setting is named: name max_value or max_lease"),
            invalid(alter("{\"max_value\":null}"), &field("max_value", "invalid type: null", 17)),
            invalid(
                alter("{\"max_lease\":0}"),
                "max_lease is out of bounds: 1 to 2^32 - 1",
            ),
            invalid(
                alter("{\"max_value\":\"18446744073709551616\"}"),
                &format!("max_value is out of bounds: {pair}"),
            ),
            invalid(
                Request::new("DELETE", "/v1/sequences/small").body("{}"),
                &not_understood("this request has no body"),
            ),
            alter("{\"cache\":1}").is(
                400,
                "unsupported_setting",
                "a cache other than 0 is not supported by this version",
            ),
            alter("{\"column\":\"id\"}").is(
                400,
                "unknown_field",
                "the body has an unknown field `column`, expected one of `start`, `increment`, `max_value`, `cache`, \
                 `max_lease` at line 1 column 9",
            ),
            create("{\"cache\":10}").is(
                400,
                "unsupported_setting",
                "a cache other than 0 is not supported by this version",
            ),
            create("{\"cycle\":true}").is(
                400,
                "unknown_field",
                "the body has an unknown field `cycle`, expected one of `start`, `increment`, `max_value`, `cache`, \
                 `max_lease` at line 1 column 8",
            ),
            lease("").header("Idempotency-Key: k").is(
                400,
                "unsupported_setting",
                "Idempotency-Key is not supported by this version",
            ),
        ])
        .await;
}

#[tokio::test]
async fn a_body_that_is_too_large_or_cut_off_is_refused() {
    let subject = Subject::start().await;
    let too_large =
        |request: Request| request.is(413, "body_too_large", "the body has more than 65536 bytes");
    let chunked = |body: &str| {
        let chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        Request::new("POST", LEASES)
            .header("Transfer-Encoding: chunked")
            .raw_body(chunks)
    };
    let cut_off = |request: Request, what: &str| {
        request
            .is(400, "invalid_body", not_understood(what))
            .cut_off()
    };

    subject
        .refuses(&[
            too_large(lease(" ".repeat(64 * 1024 + 1))),
            too_large(chunked(&" ".repeat(64 * 1024 + 1))),
            too_large(chunked(&"[".repeat(1024 * 1024))),
            too_large(
                Request::new("POST", LEASES)
                    .header("Content-Length: 18446744073709551613")
                    .raw_body("{"),
            ),
            cut_off(
                Request::new("POST", LEASES)
                    .header("Content-Length: 100")
                    .raw_body("{\"count\":1}"),
                "end of file before message length reached",
            ),
            cut_off(
                Request::new("POST", LEASES)
                    .header("Transfer-Encoding: chunked")
                    .raw_body("b\r\n{\"count\":1}\r\n"),
                "unexpected EOF during chunk size line",
            ),
        ])
        .await;
    let whole = chunked(&format!("{}{{\"count\":9}}", " ".repeat(60_000)));
    let too_many = "a lease of 9 values is too large: lease at most 4 at once";
    subject
        .refuses_in_log_order(&[whole.is(400, "invalid_count", too_many)])
        .await;
}

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
        ("/v1/sequences", &["GET", "HEAD"]),
        ("/v1/leases", &["POST"]),
        (LEASES, &["POST"]),
        (ADVANCE, &["POST"]),
        ("/v1/cluster", &["GET", "HEAD"]),
        ("/livez", &["GET", "HEAD"]),
        ("/readyz", &["GET", "HEAD"]),
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
        lease("{\"count\":3}")
            .header(header)
            .is(415, "unsupported_media_type", detail)
    };
    let too_many = "a lease of 9 values is too large: lease at most 4 at once";
    let read = |header: &str| {
        let request = lease("{\"count\":9}").header(header);
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

#[tokio::test]
async fn a_query_that_is_not_understood_is_refused() {
    let subject = Subject::start().await;
    let query = |path: &str, what: &str| {
        let detail = format!("the query is not understood: {what}");
        Request::new("GET", path).is(400, "invalid_query", detail)
    };
    let show = "/v1/sequences/small";
    let mut rows: Vec<Refusal> = [
        "9ms", "61s", "60001ms", "5", "-1s", "NaN", "inf", "", "0.5s", "1S", "5s%00",
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
