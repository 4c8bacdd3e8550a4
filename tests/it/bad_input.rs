//! Wrong counts, settings and bodies: each has its answer, and nothing changes (I5).

use serde_json::json;

use crate::refusals::{Request, Subject};
use crate::world::send;

const NOT_A_KEY: &str =
    "a request key is one Idempotency-Key header of 1 to 255 visible ASCII characters";
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

#[expect(clippy::too_many_lines, reason = "a table of cases")]
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
                        "[1].count: invalid type: integer `-1`, {NUMBER} at line 1 column 52"
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

#[expect(clippy::too_many_lines, reason = "a table of cases")]
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
    let long = "a".repeat(60_000);
    let whole = format!("the body has an unknown field `{long}");
    let cut: String = whole.chars().take(500).chain(['…']).collect();

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
            // What is quoted is cut.
            lease(format!("{{\"{long}\":1}}")).is(400, "unknown_field", cut),
        ])
        .await;
}

#[expect(clippy::too_many_lines, reason = "a table of cases")]
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
            advance("{\"to\":1,\"x\":2}").is(
                400,
                "unknown_field",
                "the body has an unknown field `x`, expected `to` at line 1 column 11",
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
            invalid(alter(""), "no setting is named: name max_value, cache or max_lease"),
            invalid(alter("{}"), "no setting is named: name max_value, cache or max_lease"),
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
            invalid(
                alter("{\"cache\":4294967296}"),
                "cache is out of bounds: 0 to 2^32 - 1",
            ),
            alter("{\"column\":\"id\"}").is(
                400,
                "unknown_field",
                "the body has an unknown field `column`, expected one of `start`, `increment`, `max_value`, `cache`, \
                 `max_lease` at line 1 column 9",
            ),
            invalid(
                create("{\"cache\":\"18446744073709551616\"}"),
                "cache is out of bounds: 0 to 2^32 - 1",
            ),
            create("{\"cycle\":true}").is(
                400,
                "unknown_field",
                "the body has an unknown field `cycle`, expected one of `start`, `increment`, `max_value`, `cache`, \
                 `max_lease` at line 1 column 8",
            ),
            lease("")
                .header(&format!("Idempotency-Key: {}", "k".repeat(256)))
                .is(400, "invalid_key", NOT_A_KEY),
            lease("")
                .header("Idempotency-Key: a")
                .header("Idempotency-Key: b")
                .is(400, "invalid_key", NOT_A_KEY),
            create("{}").header("Idempotency-Key: k").is(
                400,
                "invalid_key",
                "this request takes no Idempotency-Key: repeated, it changes nothing more anyway",
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
    // As long as it may be: it is read, and the table refuses the count.
    let count = "{\"count\":9}";
    let longest = " ".repeat(64 * 1024 - count.len()) + count;
    let too_many = "a lease of 9 values is too large: lease at most 4 at once";
    subject
        .refuses_in_log_order(
            &[chunked(&longest), lease(&longest)]
                .map(|whole| whole.is(400, "invalid_count", too_many)),
        )
        .await;
}
