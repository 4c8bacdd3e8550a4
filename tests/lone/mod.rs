//! A cluster of one node for tests that start many: the built binary on one directory, on free ports of its own.

mod owed;

pub(crate) use owed::Owed;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than any start takes on a busy machine. A node that has neither served nor ended by then hangs.
const START_TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A node process. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct LoneNode {
    child: Child,
    data_dir: PathBuf,
    log: PathBuf,
    /// Where it serves, once it does.
    pub(crate) api: String,
    /// The pipe whose end ends the node.
    _lifeline: Option<ChildStdin>,
}

/// What became of a start.
#[derive(Debug)]
pub(crate) enum Started {
    Serving(LoneNode),
    /// It ended by itself with exit code 1 and this one line.
    Refused(String),
    /// It ended in another way, which no node may: what it said.
    Broke(String),
    /// It did neither.
    Hung(String),
}

impl LoneNode {
    /// Starts the built binary; `log` is where it logs to, not in the data directory.
    pub(crate) fn spawn(data_dir: &Path, log: &Path, environment: &[(&str, &Path)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HIGHWATER_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .arg("serve")
            .args(["--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"])
            // A lone node waits for its first election alone.
            .args(["--heartbeat-ms", "10", "--end-with-stdin", "--data-dir"])
            .arg(data_dir)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(log).unwrap())
            .spawn()
            .unwrap();
        Self {
            _lifeline: child.stdin.take(),
            child,
            data_dir: data_dir.to_owned(),
            log: log.to_owned(),
            api: String::new(),
        }
    }

    /// Waits until it serves, which it must.
    pub(crate) async fn wait_until_serving(self) -> Self {
        match self.wait_until_started().await {
            Started::Serving(node) => node,
            other => panic!("the node does not serve: {other:?}"),
        }
    }

    /// Waits until it serves or has ended.
    pub(crate) async fn wait_until_started(mut self) -> Started {
        let http = http();
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return self.ended(status);
            }
            if let Some(api) = self.address() {
                let answer = http.get(format!("http://{api}/readyz")).send().await;
                if answer.is_ok_and(|answer| answer.status().is_success()) {
                    self.api = format!("http://{api}");
                    return Started::Serving(self);
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Started::Hung(self.said())
    }

    /// Where it listens, by `ready.json`, which may still be that of an earlier process.
    fn address(&self) -> Option<String> {
        let text = fs::read(self.data_dir.join("ready.json")).ok()?;
        let ready: Value = serde_json::from_slice(&text).ok()?;
        (ready["pid"] == self.child.id()).then(|| ready["api"].as_str().unwrap().to_owned())
    }

    fn ended(&self, status: ExitStatus) -> Started {
        let said = self.said();
        match refusal(status.code(), &said) {
            Some(line) => Started::Refused(line.to_owned()),
            None => Started::Broke(format!("{status}: {said}")),
        }
    }

    /// What it logged so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end after a signal that ends it.
    pub(crate) async fn wait_until_ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the node does not end");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

impl Drop for LoneNode {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The one line of a refusal, beside what is logged, with exit code 1.
fn refusal(code: Option<i32>, said: &str) -> Option<&str> {
    // Lines of the log begin with the time.
    let is_logged = |line: &str| line.starts_with(|first: char| first.is_ascii_digit());
    let mut lines = said.lines().filter(|line| !is_logged(line));
    let line = lines.next()?;
    let is_one = code == Some(1) && lines.next().is_none();
    let is_refusal = line.starts_with("highwater: ") && !line.contains("internal error");
    (is_one && is_refusal).then_some(line)
}

/// A client that asks no proxy.
pub(crate) fn http() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .timeout(START_TIMEOUT)
        .build()
        .unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_line_with_exit_code_1_is_a_refusal() {
        let logged = "2026-01-01T00:00:00.000000Z  INFO highwater::server: stopping\n";
        let line = "highwater: DIR/sled is missing: put it back";
        let panicked = "highwater: internal error, the process ends: page 7; please report this";

        let refused = format!("{logged}{line}\n");
        assert_eq!(refusal(Some(1), &refused), Some(line));
        assert_eq!(refusal(Some(2), &refused), None);
        assert_eq!(refusal(None, &refused), None);
        for broke in [
            logged.to_owned(),
            format!("{logged}{panicked}\n"),
            format!("thread 'x' panicked at src/y.rs:1:1:\n{line}\n"),
            format!("{line}\nstack backtrace:\n"),
            "memory allocation of 99999999999 bytes failed\n".to_owned(),
        ] {
            assert_eq!(refusal(Some(1), &broke), None, "{broke}");
        }
    }
}
