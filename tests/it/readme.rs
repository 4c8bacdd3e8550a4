//! The README's examples do what it says they do.

use std::process::Command;

use highwater::chaos::{ClusterSize, LocalCluster};

use crate::world::{self, PATIENCE};

/// A command and what it prints.
#[derive(Debug)]
pub(crate) struct Example {
    pub(crate) command: String,
    pub(crate) output: String,
}

/// The `console` blocks of a page, in order. A command goes on in lines that begin with `> `.
pub(crate) fn examples(page: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match (inside, line) {
            (false, "```console") => inside = true,
            (true, "```") => inside = false,
            (true, line) => match (line.split_at_checked(2), found.last_mut()) {
                (Some(("$ ", command)), _) => {
                    found.push(Example {
                        command: command.to_owned(),
                        output: String::new(),
                    });
                }
                (Some(("> ", more)), Some(example)) => {
                    example.command.push('\n');
                    example.command.push_str(more);
                }
                (_, Some(example)) => {
                    example.output.push_str(line);
                    example.output.push('\n');
                }
                (_, None) => panic!("output without a command: {line}"),
            },
            _ => {}
        }
    }
    found
}

#[tokio::test]
async fn every_example_prints_what_the_page_says() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster =
        LocalCluster::create(directory.path(), ClusterSize::Three, world::program()).unwrap();
    cluster.start_all().unwrap();
    cluster.all_ready(PATIENCE).await.unwrap();
    let url = cluster.urls().remove(0);
    let binary = env!("CARGO_BIN_EXE_highwater");

    let examples = examples(include_str!("../../README.md"));

    assert!(6 <= examples.len(), "the page has its examples");
    for Example { command, output } in examples {
        let command = command.replace("http://127.0.0.1:7101", &url);
        let script = format!("highwater() {{ {binary} \"$@\"; }}; {command}");
        let said = Command::new("sh")
            .args(["-c", &script])
            .env("HIGHWATER_URL", &url)
            .current_dir(&directory)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&said.stdout);
        assert_eq!(
            printed,
            output,
            "{command}: {}",
            String::from_utf8_lossy(&said.stderr)
        );
    }
}
