//! One node of the built binary: started, refused, ended, and what its directory holds.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};

use highwater::RangeCount;
use highwater::chaos::ClaimedPort;
use highwater::client::{Client, Grant};
use highwater::wire::CreateBody;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::world::{PATIENCE, POLL_INTERVAL};

/// The binary with these arguments, without the settings of whoever runs the tests.
pub(crate) fn started<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    started_by(&[], arguments)
}

/// The same, by another program: `wrapper highwater arguments`.
pub(crate) fn started_by<S: AsRef<OsStr>>(
    wrapper: &[String],
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let binary = env!("CARGO_BIN_EXE_highwater").to_owned();
    let words: Vec<&String> = wrapper.iter().chain([&binary]).collect();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HIGHWATER_") {
            command.env_remove(name);
        }
    }
    command
}

/// `serve` on free ports of its own.
pub(crate) fn serve(data_dir: &Path) -> Vec<OsString> {
    let mut arguments = ["serve", "--listen", "127.0.0.1:0"]
        .map(OsString::from)
        .to_vec();
    arguments.extend(["--peer-listen", "127.0.0.1:0", "--data-dir"].map(Into::into));
    arguments.push(data_dir.into());
    arguments
}

/// Arguments, and more of them.
pub(crate) fn with(mut arguments: Vec<OsString>, more: &[&str]) -> Vec<OsString> {
    arguments.extend(more.iter().map(Into::into));
    arguments
}

pub(crate) fn words(arguments: &[&str]) -> Vec<OsString> {
    arguments.iter().map(Into::into).collect()
}

/// What a refused start says and ends with.
#[derive(Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) exit: i32,
    /// For programs.
    pub(crate) code: &'static str,
    pub(crate) line: String,
}

/// Exit code 1, with this line.
pub(crate) fn trouble(code: &'static str, line: String) -> Refusal {
    Refusal {
        exit: 1,
        code,
        line,
    }
}

/// Exit code 2, with this line.
pub(crate) fn misuse(code: &'static str, line: &str) -> Refusal {
    Refusal {
        exit: 2,
        code,
        line: line.to_owned(),
    }
}

pub(crate) async fn ended(mut command: Command) -> Output {
    let output = timeout(PATIENCE, command.output()).await;
    output.expect("it ends by itself").unwrap()
}

/// Starts it for people and for programs: both are told the same, on one line and nowhere else.
pub(crate) async fn assert_refused(command: impl Fn(&[&str]) -> Command, expected: &Refusal) {
    let text = ended(command(&[])).await;
    let json = ended(command(&["--json"])).await;

    let Refusal { exit, code, line } = expected;
    let said = String::from_utf8(text.stderr).unwrap();
    assert_eq!(said, format!("highwater: {line}\n"));
    assert_eq!(text.status.code(), Some(*exit), "{said}");
    assert_eq!(text.stdout, b"", "{said}");
    let said = String::from_utf8(json.stderr).unwrap();
    let error: Value =
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(error["error"]["text"], *line);
    assert_eq!(error["error"]["exit"], *exit, "{said}");
    assert_eq!(error["error"]["code"], *code, "{said}");
    assert_eq!(json.status.code(), Some(*exit), "{said}");
    assert_eq!(json.stdout, b"", "{said}");
}

/// Every name below a directory, with its permissions, and every byte. A link is its name and what it leads to.
pub(crate) fn tree(path: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut open = vec![path.to_path_buf()];
    while let Some(at) = open.pop() {
        let metadata = fs::symlink_metadata(&at).unwrap();
        let content = if metadata.is_symlink() {
            fs::read_link(&at)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else if metadata.is_dir() {
            open.extend(
                fs::read_dir(&at)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            Vec::new()
        } else {
            fs::read(&at).unwrap()
        };
        found.insert(at, (metadata.permissions().mode(), content));
    }
    found
}

/// Sees that below a directory everything is as it was.
#[track_caller]
pub(crate) fn assert_unchanged(path: &Path, before: &BTreeMap<PathBuf, (u32, Vec<u8>)>) {
    let after = tree(path);
    let names: BTreeSet<&PathBuf> = before.keys().chain(after.keys()).collect();
    let differ = |name: &&PathBuf| before.get(*name) != after.get(*name);
    let changed: Vec<&PathBuf> = names.into_iter().filter(differ).collect();
    assert!(
        changed.is_empty(),
        "what was to stay as it was is changed: {changed:?}"
    );
}

/// Copies files and directories.
pub(crate) fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A node that was started. It is killed when this is dropped.
pub(crate) struct Node {
    pub(crate) child: Child,
    pub(crate) stderr: PathBuf,
}

impl Node {
    /// Starts a node whose standard error goes to a file.
    pub(crate) fn start<S: AsRef<OsStr>>(
        stderr: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let log = fs::File::create(stderr).unwrap();
        let child = started(arguments).stderr(log).spawn().unwrap();
        let stderr = stderr.to_path_buf();
        Self { child, stderr }
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    /// Waits until it has written this so many times to standard error.
    pub(crate) async fn wait_until_said(&self, text: &str, times: usize) {
        wait_until(text, async || self.said().matches(text).count() == times).await;
    }

    /// Waits until it has this file or directory open.
    pub(crate) async fn wait_until_opened(&mut self, path: &Path) {
        let files = format!("/proc/{}/fd", self.child.id().unwrap());
        wait_until("it is opened", async || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the node ended by itself, {status}: {}", self.said());
            }
            let mut files = fs::read_dir(&files).into_iter().flatten().flatten();
            files.any(|file| fs::read_link(file.path()).is_ok_and(|target| target == path))
        })
        .await;
    }

    /// Tells it to end, and how it did.
    pub(crate) async fn terminate(self) -> ExitStatus {
        self.end_by(Signal::TERM).await
    }

    /// The same, by this signal.
    pub(crate) async fn end_by(mut self, signal: Signal) -> ExitStatus {
        let pid = Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let Ok(ended) = timeout(PATIENCE, self.child.wait()).await else {
            panic!("{signal:?} does not end the node: {}", self.said());
        };
        ended.unwrap()
    }

    /// Kills it, as by kill -9.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// Waits until it holds.
pub(crate) async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(std::time::Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Where a node serves, once it does.
pub(crate) async fn wait_until_ready(data_dir: &Path) -> String {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let file = data_dir.join("ready.json");
    let mut url = String::new();
    wait_until("the node is ready", async || {
        let Ok(text) = fs::read_to_string(&file) else {
            return false;
        };
        let ready: Value = serde_json::from_str(&text).unwrap();
        url = format!("http://{}", ready["api"].as_str().unwrap());
        let answer = http.get(format!("{url}/readyz")).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    })
    .await;
    url
}

/// Grants three values of `photos`.
pub(crate) async fn lease(urls: &[String]) -> Grant {
    let client = Client::builder().nodes(urls).build().unwrap();
    let name = "photos".parse().unwrap();
    client
        .create_sequence(&name, &CreateBody::default())
        .await
        .unwrap();
    client.lease(&name, RangeCount::constant(3)).await.unwrap()
}

/// A directory that a node has served from.
pub(crate) async fn made(directory: &Path, name: &str) -> PathBuf {
    let data_dir = directory.join(name);
    let node = Node::start(&directory.join("made.log"), serve(&data_dir));
    lease(&[wait_until_ready(&data_dir).await]).await;
    assert!(node.terminate().await.success());
    data_dir
}

/// A node at the addresses of these ports.
pub(crate) fn serve_at(ports: &[ClaimedPort], log: &Path, data_dir: &Path) -> Node {
    let (api, peer) = (
        ports[0].address().to_string(),
        ports[1].address().to_string(),
    );
    let mut arguments = words(&[
        "serve",
        "--listen",
        &api,
        "--peer-listen",
        &peer,
        "--data-dir",
    ]);
    arguments.push(data_dir.into());
    Node::start(log, arguments)
}

/// A cluster file of nodes with these ids, on ports that are theirs as long as the result lives.
#[must_use]
pub(crate) fn cluster_file(path: &Path, ids: &[u64]) -> Vec<ClaimedPort> {
    let ports = ClaimedPort::claim(2 * ids.len()).unwrap();
    let mut text = "[cluster]\nname = \"local\"\n".to_owned();
    for (id, ports) in ids.iter().zip(ports.chunks(2)) {
        let (api, peer) = (ports[0].address(), ports[1].address());
        text.push_str(&format!(
            "[[node]]\nid = {id}\napi = \"{api}\"\npeer = \"{peer}\"\n"
        ));
    }
    fs::write(path, text).unwrap();
    ports
}

/// `serve` as a member of that cluster.
pub(crate) fn member(file: &Path, node: u64, data_dir: &Path) -> Vec<OsString> {
    let mut arguments = words(&["serve", "--node", &node.to_string(), "--cluster"]);
    arguments.extend([file.into(), "--data-dir".into(), data_dir.into()]);
    arguments
}
