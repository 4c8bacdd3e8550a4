//! The command line as a shell sees it: what is printed where, and the exit codes.

use std::io::{Read as _, Write as _};
use std::process::{Command, Output, Stdio};

const GRANT: &str = r#"{"v":1,"worker":"w1","node":2,"sequence":"photos","count":3,"key":null,"sent_ns":1,"received_ns":2,"outcome":"granted","first":1,"last":3,"increment":1}"#;

/// What a shell sees of a run.
pub(crate) struct Said {
    pub(crate) exit: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn highwater(arguments: &[&str]) -> Said {
    highwater_reading(arguments, "")
}

pub(crate) fn highwater_reading(arguments: &[&str], input: &str) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_highwater"))
        .args(arguments)
        .env_remove("HIGHWATER_URL")
        .env_remove("COLUMNS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    Said {
        exit: status.code().unwrap(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// An address where nothing listens: it was free a moment ago.
fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn every_verb_has_a_help_with_examples_on_standard_output() {
    for verb in [
        &[][..],
        &["serve"],
        &["demo"],
        &["lease"],
        &["sequence", "create"],
        &["sequence", "show"],
        &["sequence", "list"],
        &["sequence", "alter"],
        &["sequence", "retire"],
        &["sequence", "advance"],
        &["sequence", "import"],
        &["sequence", "check"],
        &["cluster", "status"],
        &["inspect"],
        &["backup"],
        &["restore"],
        &["verify"],
    ] {
        let said = highwater(&[verb, &["--help"]].concat());

        assert_eq!((said.exit, said.err.as_str()), (0, ""), "{verb:?}");
        assert!(said.out.contains("Examples:\n  "), "{verb:?}");
    }
}

#[test]
fn the_help_of_lease_reads_so() {
    let said = highwater(&["lease", "--help"]);

    assert_eq!(
        said.out,
        "Lease the next values of a sequence\n\
         \n\
         Usage: highwater lease [OPTIONS] <NAME> [COUNT]\n\
         \n\
         Arguments:\n\
         \x20 <NAME>   Of which sequence\n\
         \x20 [COUNT]  How many values [default: 1]\n\
         \n\
         Options:\n\
         \x20     --json            Write data, and errors, as JSON\n\
         \x20     --key <KEY>       Makes a repetition with the same key the same lease: 1 to 255 visible\n\
         \x20                       characters\n\
         \x20     --url <URL,…>     Nodes to call, separated by commas: the next one is asked where one does not\n\
         \x20                       serve [env: HIGHWATER_URL=] [default: http://127.0.0.1:7101]\n\
         \x20     --timeout <TIME>  How long to try in all, 50ms to 60s [default: 5s]\n\
         \x20 -h, --help            Print help\n\
         \n\
         Examples:\n\
         \x20 highwater lease photos             one value, the first and the last: `1 1`\n\
         \x20 highwater lease photos 1000        a thousand values: `2 1001`\n\
         \x20 read FIRST LAST < <(highwater lease photos 1000)\n\
         \x20 highwater lease photos 10 --url http://127.0.0.1:7101,http://127.0.0.1:7102\n\
         \x20 highwater lease photos 10 --key order-17     the same ten values, however often\n\
         \n\
         A key makes a repetition the same lease, for ten minutes. Without one, exit code 7\n\
         means that the range may have been granted: leasing again gives another range and\n\
         leaves a gap.\n"
    );
}

#[test]
fn what_is_not_understood_is_one_line_on_standard_error_and_exit_2() {
    for (arguments, line) in [
        (
            &["lease"][..],
            "highwater: the following required arguments were not provided: <NAME> Usage: highwater lease <NAME> \
             [COUNT] (--help tells more)\n",
        ),
        (
            &["lease", "photos", "0"],
            "highwater: invalid value '0' for '[COUNT]': 0 is not a count: lease 1 to 4294967295 values at once \
             (--help tells more)\n",
        ),
        (
            &["lease", "photos", "--timeout", "5"],
            "highwater: invalid value '5' for '--timeout <TIME>': \"5\" is not a time: write a number and ms, s, m \
             or h, for example 500ms or 20s (--help tells more)\n",
        ),
        (
            &["lease", "photos", "--timeout", "2m"],
            "highwater: a deadline of 120s is out of bounds: use 50ms to 60s\n",
        ),
        (
            &["lease", "photos", "--url", "https://127.0.0.1:7101"],
            "highwater: \"https://127.0.0.1:7101\" is not a node's address: only http:// is spoken so far\n",
        ),
        (
            &["demo", "--nodes", "4"],
            "highwater: invalid value '4' for '--nodes <N>': use 3 or 5 (--help tells more)\n",
        ),
        (
            &["demo", "--duration", "1s"],
            "highwater: invalid value '1s' for '--duration <TIME>': 1s is too short to kill a leader: use 2s or \
             more (--help tells more)\n",
        ),
    ] {
        let said = highwater(arguments);

        assert_eq!(said.exit, 2, "{arguments:?}");
        assert_eq!((said.out.as_str(), said.err.as_str()), ("", line));
    }
}

#[test]
fn a_name_that_is_none_is_refused_before_any_call() {
    let said = highwater(&["sequence", "show", "../photos"]);

    assert_eq!(said.exit, 2);
    assert!(
        said.err.starts_with(
            "highwater: invalid value '../photos' for '<NAME>': a sequence name has '.'"
        ),
        "{}",
        said.err
    );
    assert_eq!(said.err.lines().count(), 1);
}

#[test]
fn nobody_there_is_exit_8_and_says_that_nothing_was_changed() {
    let address = nobody();

    let text = highwater(&["lease", "photos", "--url", &address, "--timeout", "1s"]);
    let json = highwater(&[
        "lease",
        "photos",
        "--url",
        &address,
        "--timeout",
        "1s",
        "--json",
    ]);

    assert_eq!((text.exit, text.out.as_str()), (8, ""));
    assert!(
        text.err
            .starts_with("highwater: photos: no node served this within 1s ("),
        "{}",
        text.err
    );
    assert!(text.err.contains("nothing was changed"));
    assert_eq!(text.err.lines().count(), 1);
    assert_eq!(json.exit, 8);
    let error: serde_json::Value = serde_json::from_str(&json.err).unwrap();
    assert_eq!(error["error"]["code"], "unavailable");
    assert_eq!(error["error"]["exit"], 8);
    assert_eq!(error["error"]["outcome"], "not_applied");
}

/// An address where somebody takes every request and answers none.
fn nobody_who_answers() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            assert_ne!(stream.unwrap().read(&mut [0; 4096]).unwrap(), 0);
        }
    });
    address
}

#[test]
fn a_lost_answer_is_exit_7_and_says_that_it_may_have_happened() {
    let address = nobody_who_answers();
    let lease = |more: &[&str]| {
        let lease = ["lease", "photos", "--timeout", "500ms", "--url", &address];
        highwater(&[&lease, more].concat())
    };

    let text = lease(&[]);
    let json = lease(&["--json"]);

    assert_eq!((text.exit, text.out.as_str()), (7, ""), "{}", text.err);
    let line = format!(
        "highwater: photos: the outcome is unknown, the request may have been applied: http://{address} lost the \
         connection ("
    );
    assert!(text.err.starts_with(&line), "{}", text.err);
    let way_out = "); lease again, which gives other values and leaves at the worst a gap\n";
    assert!(text.err.ends_with(way_out), "{}", text.err);
    assert_eq!(json.exit, 7, "{}", json.err);
    let error: serde_json::Value = serde_json::from_str(&json.err).unwrap();
    assert_eq!(error["error"]["code"], "unknown_outcome");
    assert_eq!(error["error"]["exit"], 7);
    assert_eq!(error["error"]["outcome"], "unknown");
}

#[test]
fn a_history_that_holds_is_exit_0() {
    let said = highwater_reading(&["verify", "-"], GRANT);

    assert_eq!((said.exit, said.err.as_str()), (0, ""));
    let rows: Vec<(&str, &str)> = said
        .out
        .lines()
        .skip(1)
        .map(|row| row.split_once("  ").unwrap())
        .map(|(what, count)| (what, count.trim()))
        .collect();
    assert_eq!(said.out.lines().next(), Some("holds"));
    assert_eq!(
        rows,
        [
            ("grants", "1"),
            ("replays under a key", "0"),
            ("reads", "0"),
            ("advances", "0"),
            ("not applied", "0"),
            ("unknown", "0"),
            ("granted twice (I1)", "0"),
            ("out of order (I2)", "0"),
            ("lost (I3)", "0"),
            ("request keys with two ranges (I4)", "0"),
            ("reads of another mark (I6)", "0"),
            ("not what was asked for", "0"),
            ("gaps", "0"),
            ("gaps without an explanation", "0"),
            ("gaps not decided", "0"),
            ("sequences", "1"),
        ]
    );
}

#[test]
fn a_history_that_breaks_a_guarantee_is_exit_10_and_shows_two_lines() {
    let twice = format!("{GRANT}\n{GRANT}\n");

    let text = highwater_reading(&["verify", "-"], &twice);
    let json = highwater_reading(&["verify", "-", "--json"], &twice);

    assert_eq!((text.exit, json.exit), (10, 10));
    assert!(text.out.starts_with("violated\n"));
    assert!(text.out.ends_with(&format!(
        "I1: two grants of photos share values (1 such in all)\n  standard input:1 {GRANT}\n  standard input:2 {GRANT}\n"
    )));
    let report: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(report["verdict"], "violated");
    assert_eq!(report["overlaps"], 1);
    assert_eq!(report["violations"][0]["kind"], "overlap");
    assert_eq!(report["violations"][0]["lines"][1]["number"], 2);
}

#[test]
fn histories_of_several_files_are_judged_together() {
    let directory = tempfile::tempdir().unwrap();
    let files = ["a", "b"].map(|name| directory.path().join(name));
    for file in &files {
        std::fs::write(file, GRANT).unwrap();
    }
    let [a, b] = files.map(|file| file.display().to_string());

    assert_eq!(highwater(&["verify", &a]).exit, 0);
    let both = highwater(&["verify", &a, &b]);

    assert_eq!(both.exit, 10);
    assert!(both.out.contains(&format!("\n  {b}:1 ")), "{}", both.out);
}

#[test]
fn the_lines_that_show_a_violation_are_a_history_that_shows_it() {
    let directory = tempfile::tempdir().unwrap();
    let few = directory.path().join("few.ndjson").display().to_string();
    let later = GRANT.replace("\"first\":1,\"last\":3", "\"first\":4,\"last\":6");
    let lines = format!("{GRANT}\n{later}\n{GRANT}\n");

    // Standard input can be read once only.
    let said = highwater_reading(&["verify", "-", "--witness", &few], &lines);
    let again = highwater(&["verify", &few]);

    assert_eq!((said.exit, again.exit), (10, 10), "{}", said.err);
    let written = std::fs::read_to_string(&few).unwrap();
    assert_eq!(written, format!("{GRANT}\n{GRANT}\n"));
    assert!(again.out.contains("I1: two grants of photos share values"));
    let replaced = highwater_reading(&["verify", "-", "--witness", &few], &lines);
    assert_eq!(replaced.exit, 1);
    assert!(
        replaced
            .err
            .contains("few.ndjson cannot be written: File exists"),
        "{}",
        replaced.err
    );
}

#[test]
fn a_history_alone_says_that_what_was_acknowledged_is_gone() {
    let last = "{\"v\":2,\"op\":\"final_read\",\"worker\":\"w\",\"node\":1,\"sequence\":\"photos\",\"sent_ns\":30,\"received_ns\":31,\"high\":2}";

    let said = highwater_reading(&["verify", "-"], &format!("{GRANT}\n{last}\n"));

    assert_eq!(said.exit, 10);
    assert!(
        said.out.contains(
            "I3: the final read of photos is below an acknowledged grant (1 such in all)"
        ),
        "{}",
        said.out
    );
}

#[test]
fn gaps_can_be_allowed() {
    let gap = format!(
        "{GRANT}\n{}\n",
        GRANT.replace("\"first\":1,\"last\":3", "\"first\":7,\"last\":9")
    );

    assert_eq!(highwater_reading(&["verify", "-"], &gap).exit, 10);
    assert_eq!(
        highwater_reading(&["verify", "-", "--allow-gaps"], &gap).exit,
        0
    );
}

#[test]
fn a_history_that_cannot_be_read_is_exit_2_with_its_line() {
    let damaged = highwater_reading(&["verify", "-"], &GRANT.replace("\"v\":1", "\"v\":3"));
    let missing = highwater(&["verify", "/nonexistent/history"]);

    assert_eq!((damaged.exit, missing.exit), (2, 2));
    assert_eq!(
        damaged.err,
        "highwater: standard input: line 1: history version 3 is not known here: this program reads leases of version 1 \
         and other operations of version 2\n"
    );
    assert_eq!(
        missing.err,
        "highwater: /nonexistent/history cannot be opened: No such file or directory (os error 2)\n"
    );
}

#[test]
fn the_version_is_on_standard_output() {
    let said = highwater(&["--version"]);

    assert_eq!(said.exit, 0);
    assert_eq!(
        said.out,
        concat!("highwater ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn an_address_that_strangers_reach_is_refused_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");

    let said = highwater(&[
        "serve",
        "--listen",
        "192.0.2.1:0",
        "--peer-listen",
        "127.0.0.1:0",
        "--data-dir",
        data.to_str().unwrap(),
    ]);

    assert_eq!(said.exit, 2);
    assert_eq!(
        said.err,
        "highwater: address 192.0.2.1:0 is not loopback, and nothing protects it: listen on 127.0.0.1, or accept the risk with --insecure\n"
    );
    assert!(!data.exists());
}
