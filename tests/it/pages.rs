//! The examples of the pages do what the pages say they do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use highwater::chaos::{ClusterSize, LocalCluster};
use tokio::time::{sleep, timeout};

use crate::node::{Node, lease, serve, wait_until_ready, words};
use crate::world::{self, PATIENCE, POLL_INTERVAL, three_nodes};

/// A command and what it prints.
#[derive(Debug, PartialEq)]
struct Example {
    /// The heading above it.
    section: String,
    command: String,
    /// None where it goes on until it is stopped.
    output: Option<String>,
}

/// The `console` and `sh` blocks of a page, in order. A command goes on in lines that begin with `> `.
fn examples(page: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut section = "";
    let mut block = None;
    for line in page.lines().map(str::trim_start) {
        match (block, line) {
            (None, "```console" | "```sh") => block = line.strip_prefix("```"),
            (Some(_), "```") => block = None,
            (Some(kind), line) => {
                let command = line.strip_prefix("$ ").filter(|_| kind == "console");
                match (command.or((kind == "sh").then_some(line)), found.last_mut()) {
                    (Some(command), _) => found.push(Example {
                        section: section.to_owned(),
                        command: command.to_owned(),
                        output: (kind == "console").then(String::new),
                    }),
                    (
                        None,
                        Some(Example {
                            command,
                            output: Some(output),
                            ..
                        }),
                    ) => match line.strip_prefix("> ") {
                        Some(more) => {
                            command.push('\n');
                            command.push_str(more);
                        }
                        None => {
                            output.push_str(line);
                            output.push('\n');
                        }
                    },
                    (None, _) => panic!("output without a command: {line}"),
                }
            }
            (None, line) => section = line.strip_prefix("## ").unwrap_or(section),
        }
    }
    found
}

/// The commands of a page that print something and end, and what they print.
pub(crate) fn printing(page: &str) -> Vec<(String, String)> {
    let examples = examples(page).into_iter();
    let printing = examples.filter_map(|example| Some((example.command, example.output?)));
    printing.collect()
}

/// Runs it as a shell does, in this directory and at these nodes. Gives what it printed, and what it said.
pub(crate) fn run(directory: &Path, urls: &str, command: &str) -> (String, String) {
    let binary = env!("CARGO_BIN_EXE_highwater");
    let script = format!("highwater() {{ {binary} \"$@\"; }}; {command}");
    let said = Command::new("sh")
        .args(["-c", &script])
        .env("HIGHWATER_URL", urls)
        .current_dir(directory)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(said.stdout), text(said.stderr))
}

pub(crate) fn assert_prints(directory: &Path, url: &str, command: &str, output: &str) {
    let (printed, said) = run(directory, url, command);
    assert_eq!(printed, output, "{command}: {said}");
}

/// Waits until a command that only shows something prints this. What changes something is run once.
async fn wait_until_printed(directory: &Path, (command, output): (&str, &str), urls: &str) {
    let deadline = Instant::now() + PATIENCE;
    let only_shows = ["member list", "cluster status"]
        .iter()
        .any(|verb| command.contains(verb));
    loop {
        let (printed, said) = run(directory, urls, command);
        if printed == output {
            return;
        }
        let waits = only_shows && Instant::now() < deadline;
        assert!(waits, "{command} printed {printed}: {said}");
        sleep(POLL_INTERVAL).await;
    }
}

/// Runs the commands of a page in this directory, at these nodes. What it starts is added to the nodes, each with its data
/// directory.
pub(crate) async fn follow(
    page: &str,
    directory: &Path,
    urls: &str,
    nodes: &mut Vec<(PathBuf, Node)>,
) {
    for (command, output) in printing(page) {
        let Some(arguments) = command.strip_suffix(" &") else {
            wait_until_printed(directory, (&command, &output), urls).await;
            if command.starts_with("kill ") {
                let killed = |path: &Path| {
                    let path = path.strip_prefix(directory).unwrap();
                    command.contains(&format!("{}/ready.json", path.display()))
                };
                wait_until_ended(nodes, killed).await;
            }
            continue;
        };
        let arguments = arguments.strip_prefix("highwater ").unwrap();
        let data = directory.join("data");
        let arguments = arguments.replace("data/", &format!("{}/", data.display()));
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let at = arguments.iter().position(|word| *word == "--data-dir");
        let data_dir = PathBuf::from(arguments[at.unwrap() + 1]);
        let log = directory.join(format!("{}.log", nodes.len()));
        nodes.push((data_dir.clone(), Node::start(&log, words(&arguments))));
        wait_until_ready(&data_dir).await;
    }
}

/// As whoever follows the page: what was told to end has ended before the next command.
async fn wait_until_ended(nodes: &mut [(PathBuf, Node)], told: impl Fn(&Path) -> bool) {
    for (_, node) in nodes.iter_mut().filter(|(path, _)| told(path)) {
        let ended = timeout(PATIENCE, node.child.wait()).await;
        ended.expect("it ends").unwrap();
    }
}

#[tokio::test]
async fn every_example_of_the_readme_prints_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster =
        LocalCluster::create(directory.path(), ClusterSize::Three, world::program()).unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let url = cluster.urls().remove(0);

    let printing = printing(include_str!("../../README.md"));

    assert!(6 <= printing.len(), "the page has its examples");
    for (command, output) in printing {
        let command = command.replace("http://127.0.0.1:7101", &url);
        assert_prints(directory.path(), &url, &command, &output);
    }
}

#[tokio::test]
async fn every_command_of_the_page_about_chaos_does_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = three_nodes(directory.path()).await;
    let urls = cluster.urls();

    let printing = printing(include_str!("../../docs/chaos.md"));

    assert_eq!(printing.len(), 3, "the page has its commands");
    for (command, output) in printing {
        let command = command.replace("http://127.0.0.1:7101", &urls.join(","));
        assert_prints(directory.path(), &urls.join(","), &command, &output);
    }
}

#[tokio::test]
async fn every_command_of_the_restore_drill_does_what_the_page_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut cluster = three_nodes(path).await;
    lease(&cluster.urls()).await;
    let mut url = cluster.urls().remove(0);
    // What the page calls it.
    std::fs::create_dir(path.join("data")).unwrap();
    std::os::unix::fs::symlink(cluster.data_dir(1).unwrap(), path.join("data/1")).unwrap();
    let mut served = None;

    for example in examples(include_str!("../../docs/backup-and-restore.md")) {
        let Example {
            section,
            command,
            output,
        } = &example;
        if section == "Restore" && cluster.pid(1).is_some() {
            cluster.kill(&[1, 2, 3]).await.unwrap();
        }
        match output {
            Some(output) => assert_prints(path, &url, command, output),
            None => {
                assert_eq!(command, "highwater serve --data-dir ./restored");
                let data_dir = path.join("restored");
                served = Some(Node::start(&path.join("restored.log"), serve(&data_dir)));
                url = wait_until_ready(&data_dir).await;
            }
        }
    }

    assert!(served.is_some(), "the page serves what it restored");
}

#[test]
fn every_example_of_verifying_prints_what_it_says() {
    let directory = tempfile::tempdir().unwrap();

    let printing = printing(include_str!("../../docs/verifying.md"));

    assert!(6 <= printing.len(), "the page has its examples");
    for (command, output) in printing {
        assert_prints(directory.path(), "", &command, &output);
    }
}
