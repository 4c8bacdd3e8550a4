//! Requests that are refused, as rows of a table: what is sent, and the status, code and text of the answer.

use std::path::{Path, PathBuf};

use highwater::chaos::LocalCluster;
use serde_json::Value;

use crate::raw::{Then, exchange};
use crate::world::{follower, send, three_nodes, wait_for_one_state};

/// A request, byte for byte.
#[derive(Debug)]
pub(crate) struct Request {
    head: String,
    body: Vec<u8>,
}

impl Request {
    /// A request without a body, on a connection that the node shall close.
    pub(crate) fn new(method: &str, path: &str) -> Self {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n");
        Self {
            head,
            body: Vec::new(),
        }
    }

    /// With one more header, `Name: value`.
    pub(crate) fn header(mut self, line: &str) -> Self {
        self.head.push_str(line);
        self.head.push_str("\r\n");
        self
    }

    /// With a body of its length.
    pub(crate) fn body(self, body: impl AsRef<[u8]>) -> Self {
        let length = format!("Content-Length: {}", body.as_ref().len());
        self.header(&length).raw_body(body)
    }

    /// With bytes after the head, whatever the head says of them.
    pub(crate) fn raw_body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body.extend_from_slice(body.as_ref());
        self
    }

    /// The row of the table.
    pub(crate) fn is(self, status: u16, code: &'static str, detail: impl Into<String>) -> Refusal {
        Refusal {
            request: self,
            status,
            code,
            detail: detail.into(),
            position: None,
            then: Then::Wait,
        }
    }

    /// As it goes over the socket.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), b"\r\n", &self.body].concat()
    }
}

/// A request and how it is refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    request: Request,
    status: u16,
    code: &'static str,
    detail: String,
    position: Option<u32>,
    then: Then,
}

impl Refusal {
    /// It is about this lease of a list; the detail says so first.
    pub(crate) fn at(self, position: u32) -> Self {
        Self {
            position: Some(position),
            detail: format!("at position {position}: {}", self.detail),
            ..self
        }
    }

    /// The client closes after its last byte.
    pub(crate) fn cut_off(self) -> Self {
        Self {
            then: Then::Close,
            ..self
        }
    }

    /// Sends it, and sees that the answer is this refusal, as a problem document that says that nothing happened.
    pub(crate) async fn check(&self, url: &str) {
        let answers = exchange(url, &self.request.bytes(), self.then).await;
        let shown = String::from_utf8_lossy(&self.request.body);
        let row = format!("{}{shown:.80}", self.request.head);
        let [answer] = &answers[..] else {
            panic!("{row}: {} answers", answers.len());
        };
        assert_eq!(answer.status, self.status, "{row}: {}", answer.text);
        let kind = &answer.headers["content-type"];
        assert_eq!(kind, "application/problem+json", "{row}");
        let problem = answer.json();
        assert_eq!(problem["code"], self.code, "{row}: {problem}");
        assert_eq!(problem["detail"], self.detail, "{row}");
        assert_eq!(
            problem["position"],
            serde_json::json!(self.position),
            "{row}"
        );
        assert_eq!(problem["outcome"], "not_applied", "{row}");
        assert_eq!(problem["retryable"], false, "{row}");
        assert_eq!(problem["status"], self.status, "{row}");
    }
}

/// A cluster that is asked for what it must refuse, by way of a follower: what holds there holds at the leader too.
#[derive(Debug)]
pub(crate) struct Subject {
    _cluster: LocalCluster,
    pub(crate) url: String,
    directory: tempfile::TempDir,
}

impl Subject {
    /// Three nodes with three sequences: `small` of ten values, of which two are granted, at most four at once; `big`,
    /// which begins above the exact doubles; and `gone`, which is retired with five values granted.
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = three_nodes(directory.path()).await;
        let url = follower(&mut cluster).await;
        for (method, path, body) in [
            ("PUT", "gone", ""),
            ("POST", "gone/leases", r#"{"count":5}"#),
            ("DELETE", "gone", ""),
            ("PUT", "small", r#"{"max_value":10,"max_lease":4}"#),
            ("POST", "small/leases", r#"{"count":2}"#),
            (
                "PUT",
                "big",
                r#"{"start":9007199254740993,"max_value":18446744073709551615,"max_lease":4294967295}"#,
            ),
        ] {
            let answer = send(method, &format!("{url}/v1/sequences/{path}"), body, &[]).await;
            assert!(matches!(answer.status, 200 | 201), "{}", answer.text);
        }
        Self {
            _cluster: cluster,
            url,
            directory,
        }
    }

    /// Sees that each is refused before it reaches the log: nothing at all is different on any node.
    pub(crate) async fn refuses(&self, rows: &[Refusal]) {
        let before = self.state().await;
        let files = self.files();

        for row in rows {
            row.check(&self.url).await;
        }

        assert_eq!(self.state().await, before, "I5: the state hash");
        assert_eq!(self.files(), files);
    }

    /// Sees that each is refused by the table: no sequence is different, and no node from the others.
    pub(crate) async fn refuses_in_log_order(&self, rows: &[Refusal]) {
        let before = self.sequences().await;

        for row in rows {
            row.check(&self.url).await;
        }

        assert_eq!(self.sequences().await, before, "I5: the sequences");
        self.state().await;
    }

    /// The state hash that all nodes have.
    pub(crate) async fn state(&self) -> String {
        wait_for_one_state(&self.url).await
    }

    /// All sequences, as a read shows them.
    pub(crate) async fn sequences(&self) -> Value {
        let url = format!("{}/v1/sequences", self.url);
        send("GET", &url, "", &[]).await.json()
    }

    /// The name of every file of every node, and of what lies beside them.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        list(self.directory.path(), &mut found);
        found.sort_unstable();
        found
    }
}

fn list(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, found);
        }
        found.push(path);
    }
}
