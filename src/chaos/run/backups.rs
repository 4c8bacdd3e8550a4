//! Backups that are taken while all goes wrong, by the command that an operator has, and looked into by another.

use std::path::Path;
use std::process::{Output, Stdio};

use serde::Deserialize;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use super::schedule::Victim;
use super::stage::{Claim, LOOK_INTERVAL, PATIENCE, Seen, Stage};
use crate::chaos::{HarnessError, Program};
use crate::sequence::SequenceName;
use crate::wire::Number;

/// What `restore` shows of a backup, where nobody says how far to raise it.
#[derive(Debug, Deserialize)]
struct Shown {
    sequences: Vec<ShownSequence>,
}

#[derive(Debug, Deserialize)]
struct ShownSequence {
    sequence: SequenceName,
    high: Option<Number>,
}

impl Shown {
    fn high(&self, sequence: &SequenceName) -> Option<u64> {
        let mut all = self.sequences.iter();
        let found = all.find(|shown| shown.sequence == *sequence)?;
        found.high.and_then(Number::get)
    }
}

impl Stage<'_> {
    /// Takes a backup from a node. It holds all that was granted before it was asked for.
    pub(super) async fn backup(&self, victim: Victim) -> Result<Seen, HarnessError> {
        let Some(held) = self.take(victim, Claim::Shared).await else {
            return Ok(Seen::Not("no node was free for it".to_owned()));
        };
        let node = held.node;
        self.say(format_args!("back up from node {node}"));
        let (program, file) = {
            let cluster = self.cluster.lock().await;
            (cluster.program(), cluster.directory().join("backup"))
        };
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(before) = self.highs().await?
                && self.back_up((node, &program), &file).await?
            {
                let shown = shown(&program, &file).await?;
                for (sequence, high) in before {
                    let held = shown.high(&sequence);
                    if held < high {
                        let text = format!(
                            "a backup that was asked for after {high:?} was granted of {sequence} holds {held:?}"
                        );
                        self.find("I6", text);
                    }
                }
                return Ok(Seen::Happened);
            }
            sleep(LOOK_INTERVAL).await;
        }
        let text = format!("there was no backup from node {node} in {PATIENCE:?}");
        self.find("I10", text.clone());
        Ok(Seen::Not(text))
    }

    /// The marks, if somebody serves.
    async fn highs(&self) -> Result<Option<Vec<(SequenceName, Option<u64>)>>, HarnessError> {
        let client = self.client().await?;
        let mut highs = Vec::new();
        for sequence in self.front.sequences() {
            let Ok(shown) = client.sequence(sequence).await else {
                return Ok(None);
            };
            highs.push((sequence.clone(), shown.high.and_then(Number::get)));
        }
        Ok(Some(highs))
    }

    /// Whether it is there, whole and on disk.
    async fn back_up(
        &self,
        (node, program): (u64, &Program),
        file: &Path,
    ) -> Result<bool, HarnessError> {
        let url = self.cluster.lock().await.url(node).unwrap_or_default();
        let arguments = ["backup", "--force", "--url", &url].map(str::as_ref);
        let output = run(program, arguments.into_iter().chain([file.as_ref()])).await?;
        Ok(output.is_some_and(|output| output.status.success()))
    }
}

async fn shown(program: &Program, file: &Path) -> Result<Shown, HarnessError> {
    let nowhere = file.with_extension("nowhere");
    let arguments = ["restore", "--json", "--data-dir"].map(str::as_ref);
    let paths = [nowhere.as_ref(), file.as_ref()];
    let output = run(program, arguments.into_iter().chain(paths)).await?;
    let shown = output.map(|output| serde_json::from_slice(&output.stdout));
    let unreadable = std::io::ErrorKind::InvalidData;
    let shown = shown.and_then(Result::ok).ok_or(unreadable.into());
    shown.map_err(HarnessError::file(file, "shown by restore"))
}

/// Runs a verb to its end, if it comes to one.
async fn run<'a>(
    program: &Program,
    arguments: impl Iterator<Item = &'a std::ffi::OsStr>,
) -> Result<Option<Output>, HarnessError> {
    let running = Command::new(&program.path)
        .args(&program.arguments)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let Ok(output) = timeout(PATIENCE, running).await else {
        return Ok(None);
    };
    output
        .map(Some)
        .map_err(HarnessError::file(&program.path, "run"))
}
