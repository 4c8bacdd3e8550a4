//! Three nodes of Highwater, with the settings that they have by themselves.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::{Offer, Peer, Soon};
use crate::error::BenchError;
use crate::http::{HttpConnection, request};
use crate::leases::{Form, HttpSource};
use crate::load::{Fault, Source};
use crate::process::{self, Server, User};
use crate::report::data::Subject;

const NODES: usize = 3;
/// How long one question may take.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(500);
/// The sequence that all ask for.
const SEQUENCE: &str = "photos";
const CACHED_SEQUENCE: &str = "cached";
const CACHED_SETTINGS: &str = r#"{"cache":10000}"#;
/// Leases in one request, and by how many workers they are asked for.
const SEVERAL: u32 = 100;
const SEVERAL_WORKERS: RangeInclusive<usize> = 16..=64;

/// A cluster in a directory of its own.
pub(crate) struct Highwater {
    program: PathBuf,
    directory: PathBuf,
    file: PathBuf,
    apis: Vec<SocketAddr>,
    /// Whether it has a cached sequence.
    cached: Created,
}

enum Created {
    NotYet,
    Yes,
    /// In the node's words.
    Unsupported(String),
}

/// The part of a refusal that is read.
#[derive(Deserialize)]
struct Problem {
    code: String,
    detail: String,
}

/// A node's word on who leads.
#[derive(Deserialize)]
struct ClusterBody {
    leader: Option<u64>,
}

impl Highwater {
    /// One that does not run yet.
    ///
    /// # Errors
    /// Where its file cannot be written.
    pub(crate) fn new(program: PathBuf, directory: PathBuf) -> Result<Self, BenchError> {
        let mut text = "[cluster]\nname = \"local\"\n".to_owned();
        let mut apis = Vec::new();
        for id in 1..=NODES {
            let (api, peer) = (process::free_address()?, process::free_address()?);
            text.push_str(&format!(
                "\n[[node]]\nid = {id}\napi = \"{api}\"\npeer = \"{peer}\"\n"
            ));
            apis.push(api);
        }
        let file = directory.join("cluster.toml");
        std::fs::write(&file, text).map_err(BenchError::file(&file, "written"))?;
        Ok(Self {
            program,
            directory,
            file,
            apis,
            cached: Created::NotYet,
        })
    }

    /// Waits until every node says that it is ready.
    ///
    /// # Errors
    /// Where one is not.
    pub(crate) async fn serving(&self, servers: &mut [Server]) -> Result<(), BenchError> {
        for (server, api) in servers.iter_mut().zip(&self.apis) {
            server
                .ready(async || matches!(ask(*api, "GET", "/readyz", "").await, Ok((200, _))))
                .await?;
        }
        Ok(())
    }

    /// The addresses of all nodes, from this one on.
    pub(crate) fn from(&self, node: usize) -> Vec<SocketAddr> {
        let mut addresses = self.apis.clone();
        addresses.rotate_left(node % NODES);
        addresses
    }

    /// Makes a sequence where it is not there.
    async fn create(&self, name: &str, settings: &str) -> Result<Created, BenchError> {
        let failed = |fault| BenchError::Worker {
            subject: Subject::Highwater,
            fault,
        };
        let path = format!("/v1/sequences/{name}");
        let api = self.from(0).swap_remove(0);
        let (status, body) = ask(api, "PUT", &path, settings).await.map_err(failed)?;
        if let 200 | 201 = status {
            return Ok(Created::Yes);
        }
        match serde_json::from_str::<Problem>(&body) {
            Ok(problem) if problem.code == "unsupported_setting" => {
                Ok(Created::Unsupported(problem.detail))
            }
            _ => Err(failed(Fault::lost(body))),
        }
    }
}

/// Asks one node, on a connection of its own.
pub(crate) async fn ask(
    api: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> Result<(u16, String), Fault> {
    let asked = tokio::time::timeout(QUESTION_TIMEOUT, async {
        let mut http = HttpConnection::open(api).await?;
        let (status, body) = http.exchange(&request(method, path, body)).await?;
        Ok((status, String::from_utf8_lossy(body).into_owned()))
    });
    asked
        .await
        .unwrap_or_else(|_elapsed| Err(Fault::lost("no answer")))
}

impl Peer for Highwater {
    fn nodes(&self) -> usize {
        NODES
    }

    fn start(&self, node: usize) -> Result<Server, BenchError> {
        let id = node + 1;
        let mut command = process::command(&self.program, User::Own);
        command.arg("serve").arg("--cluster").arg(&self.file);
        command.args(["--node", &id.to_string(), "--data-dir"]);
        command.arg(self.directory.join(format!("node-{id}")));
        Server::start(&format!("node-{id}"), &self.directory, command)
    }

    fn ready<'a>(&'a mut self, servers: &'a mut [Server]) -> Soon<'a, ()> {
        Box::pin(async {
            self.serving(servers).await?;
            self.create(SEQUENCE, "").await?;
            self.cached = self.create(CACHED_SEQUENCE, CACHED_SETTINGS).await?;
            Ok(())
        })
    }

    fn leader_now(&self) -> Pin<Box<dyn Future<Output = Option<usize>> + '_>> {
        Box::pin(async {
            for (node, api) in self.apis.iter().enumerate() {
                let Ok((200, body)) = ask(*api, "GET", "/v1/cluster", "").await else {
                    continue;
                };
                let says: Option<ClusterBody> = serde_json::from_str(&body).ok();
                // Ids begin with 1. What others say of a leader may be old.
                let leader = says.and_then(|says| usize::try_from(says.leader?).ok());
                if leader == Some(node + 1) {
                    return Some(node);
                }
            }
            None
        })
    }

    fn offers(&self, leader: usize) -> Vec<Offer> {
        let from = |node, form| HttpSource::new(self.from(node), form);
        let one = Form::One(SEQUENCE);
        let mut offers = vec![
            Offer::new(Subject::Highwater, SEQUENCE, from(leader, one)),
            Offer {
                workers: 1..=1,
                ..Offer::new(Subject::HighwaterFollower, SEQUENCE, from(leader + 1, one))
            },
            Offer {
                leases: SEVERAL,
                workers: SEVERAL_WORKERS,
                ..Offer::new(
                    Subject::Highwater,
                    SEQUENCE,
                    from(leader, Form::Several(SEQUENCE, SEVERAL)),
                )
            },
        ];
        if let Created::Yes = self.cached {
            let source = from(leader, Form::One(CACHED_SEQUENCE));
            offers.push(Offer::new(
                Subject::HighwaterCached,
                CACHED_SEQUENCE,
                source,
            ));
        }
        offers
    }

    fn without(&self, node: usize) -> Option<Arc<dyn Source>> {
        let mut addresses = self.apis.clone();
        addresses.remove(node);
        Some(Arc::new(HttpSource::new(addresses, Form::One(SEQUENCE))))
    }

    fn skipped(&self) -> Option<(Subject, String)> {
        match &self.cached {
            Created::Unsupported(why) => Some((Subject::HighwaterCached, why.clone())),
            Created::NotYet | Created::Yes => None,
        }
    }
}
