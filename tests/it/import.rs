//! Marks that other counters have reached, taken over in bulk: `POST /v1/sequences`, `highwater sequence import` and
//! `highwater sequence check`.

use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use highwater::chaos::{FlowFault, LocalCluster, Proxy};
use highwater::client::{Client, ClientError};
use highwater::wire::{ImportBody, ImportResult};
use highwater::{IMPORT_PARTS_MAX, NAME_LENGTH_MAX, RangeCount, SequenceName};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::cli::{Said, highwater, highwater_reading};
use crate::node::{ended, started, wait_until};
use crate::world::{
    PATIENCE, client, follower, send, three_nodes, wait_for_one_state, wait_until_led_by_another,
};

/// As many names as a large migration has.
const MANY: usize = 10_000;

/// And in which of them a node is killed.
const KILLED: usize = 4_000;

/// Three nodes, and a directory for lists.
struct World {
    cluster: LocalCluster,
    directory: tempfile::TempDir,
    url: String,
}

impl World {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = three_nodes(directory.path()).await;
        let url = follower(&mut cluster).await;
        Self {
            cluster,
            directory,
            url,
        }
    }

    fn list(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// `highwater sequence` with this verb, a list and more.
    fn run(&self, verb: &str, list: &Path, more: &[&str]) -> Said {
        let list = list.to_str().unwrap();
        let words = ["sequence", verb, list, "--url", &self.url];
        highwater(&[&words[..], more].concat())
    }

    /// The same, of which only the answer for programs counts.
    fn json(&self, verb: &str, list: &Path) -> (i32, Value) {
        let said = self.run(verb, list, &["--json"]);
        let json = serde_json::from_str(&said.out);
        (said.exit, json.unwrap_or_else(|_| panic!("{}", said.err)))
    }

    async fn high(&self, name: &str) -> Value {
        let shown = send("GET", &format!("{}/v1/sequences/{name}", self.url), "", &[]).await;
        shown.json()["high"].clone()
    }

    async fn import(&self, body: &Value) -> crate::world::Answer {
        let path = format!("{}/v1/sequences", self.url);
        send("POST", &path, &body.to_string(), &[]).await
    }
}

/// A CSV list of so many names, each with a mark of its own.
fn many(count: usize) -> String {
    let mut text = "sequence,at_least\n".to_owned();
    for number in 0..count {
        writeln!(text, "{},{}", numbered(number), mark(number)).unwrap();
    }
    text
}

fn numbered(number: usize) -> String {
    format!("import.{number:05}")
}

fn mark(number: usize) -> u64 {
    1_000 + u64::try_from(number).unwrap()
}

/// The counts of an import, without its lines.
fn counts(report: &Value) -> [u64; 4] {
    ["created", "advanced", "unchanged", "refused"].map(|field| report[field].as_u64().unwrap())
}

#[tokio::test]
async fn ten_thousand_names_are_imported_in_one_command_and_again_without_a_change() {
    let world = World::start().await;
    let list = world.list("many.csv", &many(MANY));

    let dry = world.run("import", &list, &["--dry-run"]);
    let first = world.run("import", &list, &[]);
    let before = wait_for_one_state(&world.url).await;
    let (exit, again) = world.json("import", &list);
    let (checked, report) = world.json("check", &list);

    assert_eq!((dry.exit, first.exit, exit, checked), (0, 0, 0, 0));
    let said = "10000 created, 0 advanced, 0 unchanged\n";
    assert_eq!((dry.out.as_str(), first.out.as_str()), (said, said));
    assert_eq!(
        dry.err,
        "dry run: nothing was changed, this is what would be\n"
    );
    assert_eq!(first.err, "");
    assert_eq!(counts(&again), [0, 0, 10_000, 0]);
    assert_eq!(again["changed"], json!(false));
    let line = &again["sequences"][9_999];
    assert_eq!(
        *line,
        json!({
            "file": list.to_str(), "line": 10_001, "sequence": numbered(9_999), "result": "unchanged",
            "changed": false, "previous": 10_999, "high": 10_999
        })
    );
    assert_eq!(report, json!({"checked": 10_000, "findings": []}));
    assert_ne!(wait_for_one_state(&world.url).await, before, "time goes on");
    let granted = client(&world.cluster)
        .lease(&numbered(77).parse().unwrap(), RangeCount::ONE)
        .await
        .unwrap();
    assert_eq!(granted.first(), mark(77) + 1);
}

#[tokio::test]
async fn marks_go_forward_only_and_what_is_refused_is_told_by_its_line() {
    let world = World::start().await;
    let first = world.list(
        "first.csv",
        "sequence,at_least,start,increment,max_value\np,50,,,\nodd,501,1,2,\nwide,18446744073709551614,1,1,18446744073709551615\ngone,5,,,\nsmall,5,,,10\n",
    );
    let second = world.list(
        "second.csv",
        "sequence,at_least,start,increment\np,40,,\nodd,601,2,2\nwide,18446744073709551615,,\ngone,6,,\nsmall,11,,\nnew,9,,\np,60,,\n",
    );

    let created = world.run("import", &first, &[]);
    let retired = highwater(&["sequence", "retire", "gone", "--url", &world.url]);
    let partly = world.run("import", &second, &[]);
    let (exit, again) = world.json("import", &second);

    assert_eq!((created.exit, retired.exit), (0, 0), "{}", created.err);
    assert_eq!(partly.exit, 4);
    let at = |line: u8| format!("{}:{line}", second.display());
    let refused = [
        format!(
            "{}: odd: the sequence exists with other settings (sequence_exists)",
            at(3)
        ),
        format!(
            "{}: gone: the sequence is retired: create it again, and it continues above its mark (retired)",
            at(5)
        ),
        format!(
            "{}: small: cannot advance to 11: max_value is 10 (above_max_value)",
            at(6)
        ),
    ];
    let said: Vec<&str> = partly.err.lines().collect();
    assert_eq!(said, refused);
    assert_eq!(
        partly.out,
        "1 created, 2 advanced, 1 unchanged, 3 refused: the others are imported, so correct these and run it again\n"
    );
    // What was accepted stays, and the repetition changes nothing more.
    assert_eq!((exit, counts(&again)), (4, [0, 0, 4, 3]));
    let results = again["sequences"].as_array().unwrap().iter();
    let codes: Vec<&Value> = results.map(|line| &line["problem"]["code"]).collect();
    let code = |text: &str| json!(text);
    assert_eq!(
        codes,
        [
            &Value::Null,
            &code("sequence_exists"),
            &Value::Null,
            &code("retired"),
            &code("above_max_value"),
            &Value::Null,
            &Value::Null,
        ]
    );
    assert_eq!(world.high("p").await, json!(60));
    assert_eq!(world.high("odd").await, json!(501));
    assert_eq!(world.high("wide").await, json!("18446744073709551615"));
    assert_eq!(world.high("gone").await, json!(5));
    assert_eq!(world.high("small").await, json!(5));
}

#[tokio::test]
async fn a_list_with_a_bad_line_is_not_sent_at_all() {
    let world = World::start().await;
    let bad = world.list("bad.csv", "sequence,at_least\np,1\nq,x\nr/s,1\n");
    let said = world.run("import", &bad, &[]);
    let json = world.run("import", &bad, &["--json"]);
    let missing = world.run("import", Path::new("/nonexistent/list"), &[]);
    let folder = world.run("check", world.directory.path(), &[]);

    let line = format!(
        "{}:3 (and 1 other line): at_least: invalid value: string \"x\", expected an integer from 0 to 2^64 - 1, as a \
         number or a string of digits",
        bad.display()
    );
    assert_eq!((said.exit, said.out.as_str()), (2, ""));
    assert_eq!(said.err, format!("highwater: {line}\n"));
    let error: Value = serde_json::from_str(&json.err).unwrap();
    assert_eq!(
        error,
        json!({"error": {"code": "invalid_list", "exit": 2, "outcome": null, "text": line}})
    );
    assert_eq!(missing.exit, 2);
    assert_eq!(
        missing.err,
        "highwater: /nonexistent/list cannot be opened: No such file or directory (os error 2)\n"
    );
    assert_eq!(folder.exit, 2);
    assert!(
        folder.err.contains(" cannot be read: Is a directory"),
        "{}",
        folder.err
    );
    assert_eq!(world.high("p").await, Value::Null);
}

// What only the nodes judge is told by its line too, and what was accepted before stays.
#[tokio::test]
async fn what_only_the_nodes_refuse_is_told_with_its_line() {
    let world = World::start().await;
    let mut text = many(300)
        .replace('\n', ",\n")
        .replace("at_least,", "at_least,cache");
    text.push_str("cached,5,4294967296\n");
    let list = world.list("list.csv", &text);

    let said = world.run("import", &list, &[]);

    assert_eq!((said.exit, said.out.as_str()), (2, ""));
    let line = format!(
        "highwater: {}:302: cached (the 256 lines before are done and stay, run it again to finish): at position 44: cache is \
         out of bounds: 0 to 2^32 - 1\n",
        list.display()
    );
    assert_eq!(said.err, line);
    assert_eq!(world.high(&numbered(255)).await, json!(mark(255)));
    // I5: of the list that was refused nothing was done.
    assert_eq!(world.high(&numbered(256)).await, Value::Null);
}

#[tokio::test]
async fn lists_come_in_each_form_from_several_files_and_standard_input() {
    let world = World::start().await;
    // The two servers of a pair count one sequence: the higher one counts.
    let odd = world.list("odd.tsv", "sequence\tat_least\nphotos\t72157623227190423\n");
    let even = world.list(
        "even.json",
        "[{\"sequence\":\"photos\",\"at_least\":\"72157623227190426\"}]",
    );
    let lines = "{\"sequence\":\"albums\",\"at_least\":7,\"max_lease\":10}\n{\"sequence\":\"albums\",\"at_least\":6}\n";
    let url = &world.url;
    let wide = "sequence,at_least,max_value\nphotos,0,18446744073709551615\n";

    let made = highwater_reading(&["sequence", "import", "-", "--url", url], wide);
    let pair = highwater(&[
        "sequence",
        "import",
        odd.to_str().unwrap(),
        even.to_str().unwrap(),
        "--url",
        url,
    ]);
    let read = highwater_reading(&["sequence", "import", "-", "--url", url], lines);

    assert_eq!((made.exit, pair.exit, read.exit), (0, 0, 0), "{}", pair.err);
    assert_eq!(pair.out, "0 created, 2 advanced, 0 unchanged\n");
    assert_eq!(read.out, "1 created, 0 advanced, 1 unchanged\n");
    assert_eq!(world.high("photos").await, json!("72157623227190426"));
    assert_eq!(world.high("albums").await, json!(7));
}

#[tokio::test]
async fn a_check_lists_values_above_their_marks_and_ends_with_10() {
    let world = World::start().await;
    let marks = world.list(
        "marks.csv",
        "sequence,at_least\na,50\nb,60\nwide,9007199254740993\nold,5\n",
    );
    let values = world.list(
        "values.csv",
        "sequence,at_least\na,50\nb,61\nnone,5\nwide,9007199254740994\nfresh,0\nfresh,1\nold,5\nnone,4\n",
    );
    highwater(&[
        "sequence",
        "create",
        "wide",
        "--max-value",
        "18446744073709551615",
        "--url",
        &world.url,
    ]);
    highwater(&["sequence", "create", "fresh", "--url", &world.url]);
    assert_eq!(world.run("import", &marks, &[]).exit, 0);

    // A retired name keeps its mark, and with it covers what it granted.
    highwater(&["sequence", "retire", "old", "--url", &world.url]);

    let well = world.run("check", &marks, &[]);
    let text = world.run("check", &values, &[]);
    let (exit, json) = world.json("check", &values);

    assert_eq!(
        (well.exit, well.out.as_str()),
        (0, "4 checked: no value is above its sequence's mark\n")
    );
    assert_eq!((text.exit, exit), (10, 10));
    let at = |line: u8| format!("{}:{line}", values.display());
    let rows: Vec<Vec<&str>> = text
        .out
        .lines()
        .map(|row| {
            row.split("  ")
                .filter(|cell| !cell.is_empty())
                .map(str::trim)
                .collect()
        })
        .collect();
    assert_eq!(
        rows,
        [
            ["LINE", "SEQUENCE", "VALUE", "HIGH", "FINDING"],
            [&at(3), "b", "61", "60", "above the mark"],
            [&at(4), "none", "5", "-", "no such sequence"],
            [
                &at(5),
                "wide",
                "9007199254740994",
                "9007199254740993",
                "above the mark"
            ],
            [&at(7), "fresh", "1", "-", "above the mark"],
            [&at(9), "none", "4", "-", "no such sequence"],
        ]
    );
    assert_eq!(json["checked"], json!(8));
    assert_eq!(
        json["findings"][2],
        json!({
            "file": values.to_str(), "line": 5, "sequence": "wide", "at_least": "9007199254740994",
            "high": "9007199254740993", "finding": "above_high"
        })
    );
    assert_eq!(json["findings"][1]["finding"], json!("unknown_sequence"));
    assert_eq!(world.high("none").await, Value::Null);
}

/// An import of many names through this proxy, cut off by the death of the node behind it when some are imported.
async fn import_and_kill(world: &mut World, more: &[String]) -> (PathBuf, Output) {
    let list = world.list("many.csv", &many(KILLED));
    let leader = world.cluster.leader(PATIENCE).await.unwrap();
    let at = usize::try_from(leader - 1).unwrap();
    let api = world.cluster.urls()[at].clone();
    let proxy = Proxy::start(api.trim_start_matches("http://").parse().unwrap())
        .await
        .unwrap();
    // Slow enough that it is not done before its node is killed: an answer has some 16 KB.
    let bytes_per_second = NonZeroU64::new(64 * 1024).unwrap();
    let throttle = FlowFault::Throttle { bytes_per_second };
    proxy.link().answers.set(throttle);
    let urls = [&[proxy.url()], more].concat().join(",");
    let words = ["sequence", "import", list.to_str().unwrap(), "--url", &urls];
    let import = started(words).spawn().unwrap();
    let some = format!("{}/v1/sequences/{}", world.url, numbered(300));
    wait_until("some are imported", async || {
        send("GET", &some, "", &[]).await.status == 200
    })
    .await;

    proxy.link().set(FlowFault::Hold);
    world.cluster.kill(&[leader]).await.unwrap();
    proxy.link().set(FlowFault::Cut);
    wait_until_led_by_another(&mut world.cluster, leader).await;

    let ended = tokio::time::timeout(PATIENCE, import.wait_with_output());
    (list, ended.await.unwrap().unwrap())
}

#[tokio::test]
async fn an_import_that_loses_its_node_says_how_far_it_came_and_is_finished_by_running_it_again() {
    let mut world = World::start().await;

    let (list, cut_off) = import_and_kill(&mut world, &[]).await;
    let (exit, again) = world.json("import", &list);

    let said = String::from_utf8(cut_off.stderr).unwrap();
    assert_eq!(cut_off.status.code(), Some(7), "{said}");
    let (place, rest) = said.split_once(": import.").unwrap();
    let line: usize = place.rsplit_once(':').unwrap().1.parse().unwrap();
    let done = line - 2;
    assert_eq!(done % IMPORT_PARTS_MAX, 0, "{said}");
    assert!((256..KILLED).contains(&done), "{said}");
    let stays = format!(
        " (the {done} lines before are done and stay, run it again to finish): the outcome is unknown"
    );
    assert!(rest.contains(&stays), "{said}");
    let [created, advanced, unchanged, refused] = counts(&again);
    assert_eq!((exit, advanced, refused), (0, 0, 0));
    assert_eq!(created + unchanged, 4_000);
    assert!(
        u64::try_from(done).unwrap() <= unchanged,
        "what was told as imported is there"
    );
    assert_eq!(world.run("check", &list, &[]).exit, 0);
}

#[tokio::test]
async fn an_import_that_knows_more_nodes_goes_on_when_one_is_killed() {
    let mut world = World::start().await;
    let others = world.cluster.urls();

    let (list, ended) = import_and_kill(&mut world, &others).await;

    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(0), "{said}");
    assert_eq!(world.run("check", &list, &[]).exit, 0);
    let (_, again) = world.json("import", &list);
    assert_eq!(counts(&again), [0, 0, 4_000, 0]);
}

#[tokio::test]
async fn who_watches_an_import_is_told_how_far_it_is_and_nobody_else() {
    let world = World::start().await;
    let list = world.list("list.csv", &many(1_000));
    let node = world.url.trim_start_matches("http://").parse().unwrap();
    let proxy = Proxy::start(node).await.unwrap();
    // Some seconds: a line a second tells.
    let bytes_per_second = NonZeroU64::new(32 * 1024).unwrap();
    proxy
        .link()
        .answers
        .set(FlowFault::Throttle { bytes_per_second });
    let binary = env!("CARGO_BIN_EXE_highwater");
    let command = format!(
        "{binary} sequence import {} --url {}",
        list.display(),
        proxy.url()
    );

    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    terminal.stdin(Stdio::null()).stdout(Stdio::piped());
    let watched = ended(terminal).await;
    let unwatched = world.run("import", &list, &[]);

    let said = String::from_utf8(watched.stdout).unwrap();
    assert!(watched.status.success(), "{said}");
    assert!(said.contains(" of 1000\r\n"), "{said}");
    assert!(
        said.ends_with("1000 created, 0 advanced, 0 unchanged\r\n"),
        "{said}"
    );
    assert_eq!((unwatched.exit, unwatched.err.as_str()), (0, ""));
}

// A creation and an advance by two commands would let a worker in between.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_up_to_its_mark_is_granted_while_a_sequence_is_imported() {
    let world = World::start().await;
    let names: Vec<SequenceName> = (0..40).map(|at| numbered(at).parse().unwrap()).collect();
    let mut workers = JoinSet::new();
    for name in names.clone() {
        let client = client(&world.cluster);
        workers.spawn(async move {
            loop {
                match client.lease(&name, RangeCount::ONE).await {
                    Ok(grant) => return grant.first(),
                    Err(ClientError::Refused { problem }) => {
                        assert_eq!(problem.code, "unknown_sequence");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }

    let bodies: Vec<ImportBody> = names
        .iter()
        .map(|name| ImportBody::new(name.as_str(), 500))
        .collect();
    let answers = client(&world.cluster).import(&bodies).await.unwrap();

    assert!(
        answers
            .iter()
            .all(|answer| answer.result == ImportResult::Created)
    );
    let granted = workers.join_all().await;
    assert_eq!(granted, vec![501; names.len()]);
}

#[tokio::test]
async fn the_largest_import_is_one_request() {
    let world = World::start().await;
    let longest = |number: usize| format!("{number:0>NAME_LENGTH_MAX$}");
    let all = u64::MAX.to_string();
    let part = |number| {
        json!({
            "sequence": longest(number), "at_least": all, "start": all, "increment": all, "max_value": all,
            "cache": "00000000000000000000", "max_lease": "00000000004294967295"
        })
    };
    let parts = |count| Value::Array((0..count).map(part).collect());

    let most = world.import(&parts(IMPORT_PARTS_MAX)).await;
    let more = world.import(&parts(IMPORT_PARTS_MAX + 1)).await;
    let none = world.import(&parts(0)).await;

    assert_eq!(most.status, 200, "{}", most.text);
    let sequences = most.json()["sequences"].as_array().unwrap().clone();
    assert_eq!(sequences.len(), IMPORT_PARTS_MAX);
    assert!(sequences.iter().all(|part| part["result"] == "created"));
    for (refused, found) in [(more, 129), (none, 0)] {
        assert_eq!(
            (refused.status, refused.field("code").as_str()),
            (400, "invalid_body")
        );
        assert_eq!(
            refused.field("detail"),
            format!("{found} sequences are not 1 to 128")
        );
    }
    let url = &world.url;
    let dry = send(
        "POST",
        &format!("{url}/v1/sequences?dry_run=true"),
        "[{\"sequence\":\"p\",\"at_least\":1}]",
        &[],
    )
    .await;
    assert_eq!(dry.headers["highwater-dry-run"], "true");
    assert_eq!(world.high("p").await, Value::Null);
}

#[tokio::test]
async fn an_import_that_is_not_understood_is_refused_whole_with_the_position() {
    let world = World::start().await;
    for (body, code, position, detail) in [
        (
            json!([{"sequence": "p", "at_least": 1}, {"sequence": "q"}]),
            "invalid_body",
            json!(1),
            "at position 1: the body is not understood: [1]: missing field `at_least`",
        ),
        (
            json!([{"sequence": "p", "at_least": 1, "cycle": true}]),
            "unknown_field",
            json!(0),
            "at position 0: the body has an unknown field `cycle`",
        ),
        (
            json!([{"sequence": "p", "at_least": 1}, {"sequence": "a/b", "at_least": 1}]),
            "invalid_name",
            json!(1),
            "at position 1: a sequence name has '/' at byte 1",
        ),
        (
            json!([{"sequence": "p", "at_least": "18446744073709551616"}]),
            "invalid_body",
            json!(0),
            "at position 0: at_least is out of bounds: 0 to 2^64 - 1",
        ),
        (
            json!([{"sequence": "p", "at_least": 1, "cache": 4294967296_u64}]),
            "invalid_body",
            json!(0),
            "at position 0: cache is out of bounds: 0 to 2^32 - 1",
        ),
        (
            json!({"sequence": "p", "at_least": 1}),
            "invalid_body",
            Value::Null,
            "the body is not understood: invalid type: object, expected a list",
        ),
    ] {
        let refused = world.import(&body).await;

        assert_eq!(refused.status, 400, "{}", refused.text);
        assert_eq!(refused.field("code"), code, "{}", refused.text);
        assert_eq!(refused.json()["position"], position, "{}", refused.text);
        assert!(
            refused.field("detail").starts_with(detail),
            "{}",
            refused.text
        );
        assert_eq!(refused.field("outcome"), "not_applied");
        assert_eq!(world.high("p").await, Value::Null);
    }
    let url = &world.url;
    let keyed = send(
        "POST",
        &format!("{url}/v1/sequences"),
        "[]",
        &["Idempotency-Key: k"],
    )
    .await;
    assert_eq!(keyed.field("code"), "invalid_key");
}

// The client is told of a refusal of the whole which of its sequences is wrong.
#[tokio::test]
async fn the_library_imports_and_tells_what_is_wrong() {
    let world = World::start().await;
    let client = Client::builder().nodes([&world.url]).build().unwrap();
    let mut bodies = vec![ImportBody::new("p", 5), ImportBody::new("q", u64::MAX)];

    let answers = client.import(&bodies).await.unwrap();
    bodies.push(ImportBody::new("-", 1));
    let error = client.import(&bodies).await.unwrap_err();

    assert_eq!(answers[0].result, ImportResult::Created);
    assert_eq!(answers[1].result, ImportResult::Refused);
    let problem = answers[1].problem.as_ref().unwrap();
    assert_eq!(
        (problem.code.as_str(), problem.position),
        ("above_max_value", None)
    );
    assert_eq!(error.position(), Some(2));
}
