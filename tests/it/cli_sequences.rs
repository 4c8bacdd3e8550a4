//! The command line's verbs for sequences, against real nodes.

use highwater::chaos::{ClusterSize, LocalCluster};
use serde_json::{Value, json};

use crate::cli::{Said, highwater};
use crate::world::{PATIENCE, follower, program, send, wait_for_one_state};

/// A cluster whose leases create, and a shell that calls it.
struct Shell {
    cluster: LocalCluster,
    _directory: tempfile::TempDir,
    url: String,
}

impl Shell {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut cluster =
            LocalCluster::create(directory.path(), ClusterSize::Three, program()).unwrap();
        cluster.serve_with(&["--auto-create"]);
        cluster.start_all().unwrap();
        cluster.all_ready(PATIENCE).await.unwrap();
        let url = follower(&mut cluster).await;
        Self {
            cluster,
            _directory: directory,
            url,
        }
    }

    /// `highwater` with these words.
    fn run(&self, words: &str) -> Said {
        let words: Vec<&str> = words.split(' ').chain(["--url", &self.url]).collect();
        highwater(&words)
    }

    /// The output of a verb that does what it is asked.
    fn out(&self, words: &str) -> String {
        let said = self.run(words);
        assert_eq!((said.exit, said.err.as_str()), (0, ""), "{words}");
        said.out
    }

    /// The line of a verb that does not, which ends with this code.
    fn err(&self, words: &str, exit: i32) -> String {
        let said = self.run(words);
        assert_eq!(
            (said.exit, said.out.as_str()),
            (exit, ""),
            "{words}: {}",
            said.err
        );
        said.err
    }

    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.out(&format!("{words} --json"))).unwrap()
    }
}

/// The cells of a table.
fn cells(table: &str) -> Vec<Vec<&str>> {
    let rows = table.lines().map(|row| row.split("  ").map(str::trim));
    rows.map(|row| row.filter(|cell| !cell.is_empty()).collect())
        .collect()
}

#[tokio::test]
async fn sequences_are_listed_by_name_page_after_page() {
    let shell = Shell::start().await;
    shell.out("sequence create small --max-value 4");
    shell.out("lease small 3");
    shell.out("sequence create eu.gone");
    shell.out("sequence retire eu.gone");
    shell.out("sequence create wide --start 9007199254740993 --max-value 18446744073709551615");

    let all = shell.out("sequence list");
    let json = shell.json("sequence list");
    let prefix = shell.out("sequence list --prefix eu.");
    let first = shell.run("sequence list --limit 1");
    let rest = shell.out("sequence list --after eu.gone --local");

    let heading = ["NAME", "HIGH", "NEXT", "REMAINING", "USED", "RETIRED"];
    let gone = ["eu.gone", "-", "1", "9007199254740991", "0.00 %", "yes"];
    let small = ["small", "3", "4", "1", "75.00 %", "no"];
    let wide = [
        "wide",
        "-",
        "9007199254740993",
        "18437736874454810623",
        "0.00 %",
        "no",
    ];
    assert_eq!(cells(&all), [heading, gone, small, wide]);
    assert_eq!(json["sequences"][2]["next"], json!("9007199254740993"));
    assert_eq!(
        (&json["sequences"][1]["high"], &json["next"]),
        (&json!(3), &json!(null))
    );
    assert_eq!(cells(&prefix), [heading, gone]);
    assert_eq!(cells(&first.out), [heading, gone]);
    assert_eq!(first.err, "there are more: --after eu.gone continues\n");
    assert_eq!(cells(&rest), [heading, small, wide]);

    for page in 0..4 {
        let lease = |name| json!({ "sequence": format!("page.{page}.{name:03}") });
        let body = Value::Array((0..256).map(lease).collect()).to_string();
        let granted = send("POST", &format!("{}/v1/leases", shell.url), &body, &[]).await;
        assert_eq!(granted.status, 201, "{}", granted.text);
    }
    let many = shell.out("sequence list --prefix page.");
    let some = shell.run("sequence list --prefix page. --limit 1001 --json");

    let names: Vec<&str> = cells(&many).iter().skip(1).map(|row| row[0]).collect();
    assert_eq!(
        (names.len(), names[0], names[1_023]),
        (1_024, "page.0.000", "page.3.255")
    );
    assert!(names.is_sorted());
    let note = format!("there are more: --after {} continues\n", names[1_000]);
    assert_eq!((some.exit, some.err), (0, note));
    let some: Value = serde_json::from_str(&some.out).unwrap();
    assert_eq!(some["sequences"].as_array().unwrap().len(), 1_001);
    assert_eq!(some["next"], json!(names[1_000]));
}

#[tokio::test]
async fn a_sequence_is_altered_and_what_was_granted_stays_granted() {
    let shell = Shell::start().await;
    shell.out("sequence create p --max-value 100");
    shell.out("lease p 10");
    shell.out("sequence create wide --max-value 18446744073709551615");

    let altered = shell.out("sequence alter p --max-value 50 --max-lease 5");
    let json = shell.json("sequence alter p --max-value 40");
    let wide = shell.out("sequence alter wide --max-value 9007199254740993");

    assert_eq!(altered, "p altered: max_value 50, cache 0, max_lease 5\n");
    assert_eq!(
        (&json["max_value"], &json["next"]),
        (&json!(40), &json!(11))
    );
    assert_eq!(
        wide,
        "wide altered: max_value 9007199254740993, cache 0, max_lease 1000000\n"
    );
    assert_eq!(
        shell.err("sequence alter p --max-value 9", 4),
        "highwater: p: max_value 9 is below the high-water mark: use 10 or more\n"
    );
    assert_eq!(
        shell.err("sequence alter p --max-value 9007199254740993", 4),
        "highwater: p: max_value cannot become 9007199254740993: the sequence's ids are JSON numbers, so stay at \
         2^53 - 1 or below\n"
    );
    assert_eq!(
        shell.err("sequence alter none --max-lease 5", 3),
        "highwater: none: no such sequence: create it first\n"
    );
    assert_eq!(
        shell.err("sequence alter p", 2),
        "highwater: the following required arguments were not provided: <--max-value <N>|--cache <N>|--max-lease <N>> \
         Usage: highwater sequence alter --url <URL,…> <--max-value <N>|--cache <N>|--max-lease <N>> <NAME> (--help tells \
         more)\n"
    );
    assert_eq!(shell.out("lease p 5"), "11 15\n");
}

#[tokio::test]
async fn a_retired_sequence_gives_nothing_and_continues_when_it_is_created_again() {
    let shell = Shell::start().await;
    shell.out("sequence create p");
    shell.out("lease p 10");
    shell.out("sequence create unused");

    let retired = shell.out("sequence retire p");
    let again = shell.out("sequence retire p");
    let unused = shell.out("sequence retire unused");

    assert_eq!(
        retired,
        "p is retired: created again, it continues above 10\n"
    );
    assert_eq!(again, retired);
    assert_eq!(unused, "unused is retired: no value of it was granted\n");
    let gives_nothing =
        "highwater: p: the sequence is retired: create it again, and it continues above its mark\n";
    assert_eq!(shell.err("lease p", 4), gives_nothing);
    assert_eq!(shell.err("sequence advance p 20", 4), gives_nothing);
    assert_eq!(
        shell.err("sequence create p --max-value 9", 4),
        "highwater: p: max_value 9 is below the high-water mark: use 10 or more\n"
    );
    assert_eq!(
        shell.err("sequence retire none", 3),
        "highwater: none: no such sequence: create it first\n"
    );
    assert_eq!(shell.json("sequence show p")["retired"], json!(true));
    assert_eq!(shell.out("sequence create p"), "p created\n");
    assert_eq!(shell.out("lease p"), "11 11\n");
}

#[tokio::test]
async fn a_dry_run_shows_what_would_be_and_changes_nothing() {
    let shell = Shell::start().await;
    shell.out("sequence create p --max-value 100");
    shell.out("lease p 10");
    let before = shell.json("sequence list");
    let would = |words: &str| {
        let said = shell.run(&format!("{words} --dry-run"));
        assert_eq!(said.exit, 0, "{words}: {}", said.err);
        assert_eq!(
            said.err,
            "dry run: nothing was changed, this is what would be\n"
        );
        said.out
    };

    let created = would("sequence create q --start 5");
    let altered = would("sequence alter p --max-value 50");
    let retired = would("sequence retire p");
    let advanced = would("sequence advance p 20");
    let stays = would("sequence advance p 5");

    assert_eq!(
        cells(&created)[..3],
        [["sequence", "q"], ["high", "-"], ["next", "5"]]
    );
    assert!(
        cells(&altered).contains(&vec!["max_value", "50"]),
        "{altered}"
    );
    assert!(
        cells(&retired).contains(&vec!["retired", "yes"]),
        "{retired}"
    );
    assert_eq!(advanced, "p would advance from 10 to 20\n");
    assert_eq!(stays, "p stays at 10\n");
    assert_eq!(
        shell.err("sequence alter p --max-value 9 --dry-run", 4),
        "highwater: p: max_value 9 is below the high-water mark: use 10 or more\n"
    );
    assert_eq!(shell.json("sequence list"), before);
}

// I6, I11: what a node has by itself may be old, so it is shown only to who asks for it.
#[tokio::test]
async fn a_node_without_a_quorum_shows_what_it_has_with_local_only() {
    let mut shell = Shell::start().await;
    shell.out("sequence create p --max-value 40");
    shell.out("lease p 10");
    wait_for_one_state(&shell.url).await;
    let urls = shell.cluster.urls();
    let others: Vec<u64> = (1..)
        .zip(urls)
        .filter(|(_, url)| *url != shell.url)
        .map(|(id, _)| id)
        .collect();

    shell.cluster.kill(&others).await.unwrap();

    assert_eq!(shell.json("sequence show p --local")["high"], json!(10));
    let list = shell.out("sequence list --local");
    assert_eq!(cells(&list)[1], ["p", "10", "11", "30", "25.00 %", "no"]);
    for verb in ["show p", "list"] {
        let line = shell.err(&format!("sequence {verb} --timeout 1s"), 8);
        assert!(line.contains("nothing was changed: http"), "{line}");
    }
}
