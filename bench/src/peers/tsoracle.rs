//! Three nodes of tsoracle with its Raft driver, asked for dense numbers of one key (GetSeq).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tsoracle_client::{Client, ClientError};

use super::{Offer, Peer, Shared, Soon};
use crate::error::BenchError;
use crate::load::{Answer, Connection, Fault, Granted, Source};
use crate::process::{self, Server, User};
use crate::report::data::Subject;

const NODES: usize = 3;
/// From this format on it has dense numbers, once it is told that all nodes know it.
const FORMAT: &str = "5";
const KEY: &str = "photos";

#[derive(Debug, Clone, Copy)]
struct Node {
    service: SocketAddr,
    raft: SocketAddr,
    admin: SocketAddr,
}

pub(super) struct Tsoracle {
    program: PathBuf,
    directory: PathBuf,
    nodes: Vec<Node>,
}

impl Tsoracle {
    pub(super) fn new(program: PathBuf, directory: PathBuf) -> Result<Self, BenchError> {
        let nodes = (0..NODES).map(|_| {
            Ok(Node {
                service: process::free_address()?,
                raft: process::free_address()?,
                admin: process::free_address()?,
            })
        });
        Ok(Self {
            program,
            directory,
            nodes: nodes.collect::<Result<_, BenchError>>()?,
        })
    }

    fn data(&self, id: usize) -> PathBuf {
        self.directory.join(format!("node-{id}"))
    }

    /// Whether a node was told to use the format. Only the leader takes it.
    fn format_is_used(&self) -> bool {
        self.nodes.iter().any(|node| {
            let mut command = process::command(&self.program, User::Own);
            command.args(["admin", "activate-format", "--target", FORMAT, "--endpoint"]);
            command.arg(format!("http://{}", node.admin));
            process::run("tsoracle", &mut command).is_ok()
        })
    }

    fn source(&self) -> TsoracleSource {
        TsoracleSource {
            endpoints: self
                .nodes
                .iter()
                .map(|node| format!("http://{}", node.service))
                .collect(),
            clients: Shared::new(),
        }
    }
}

impl Peer for Tsoracle {
    fn nodes(&self) -> usize {
        NODES
    }

    fn start(&self, node: usize) -> Result<Server, BenchError> {
        let id = node + 1;
        let name = format!("tsoracle-{id}");
        let mut command = process::command(&self.program, User::Own);
        if let Some(own) = self.nodes.get(node) {
            command.args(["serve", "openraft", "--no-metrics", "--id", &id.to_string()]);
            command.args(["--listen", &own.service.to_string()]);
            command.args(["--raft-addr", &own.raft.to_string()]);
            command.args(["--admin-listen", &own.admin.to_string()]);
            command.args(["--log", "warn"]);
            command.arg("--raft-dir").arg(self.data(id));
        }
        if node == 0 && !self.data(id).exists() {
            let members = self.nodes.iter().zip(1..);
            let members = members
                .map(|(node, id)| format!("{id}={}/{}/{}", node.raft, node.service, node.admin));
            let members: Vec<String> = members.collect();
            command.args(["--bootstrap", "--members", &members.join(",")]);
        }
        Server::start(&name, &self.directory, command)
    }

    fn ready<'a>(&'a mut self, servers: &'a mut [Server]) -> Soon<'a, ()> {
        Box::pin(async {
            let Some(first) = servers.first_mut() else {
                return Ok(());
            };
            first
                .ready(async || self.leader_now().await.is_some() || self.format_is_used())
                .await?;
            first
                .ready(async || self.leader_now().await.is_some())
                .await
        })
    }

    fn leader_now(&self) -> Pin<Box<dyn Future<Output = Option<usize>> + '_>> {
        Box::pin(async {
            let source = self.source();
            let client = Client::connect(source.endpoints).await.ok()?;
            client.get_seq(KEY, 1).await.ok()?;
            let leader = client.cached_leader()?;
            self.nodes
                .iter()
                .position(|node| leader.contains(&node.service.to_string()))
        })
    }

    fn offers(&self, _leader: usize) -> Vec<Offer> {
        vec![Offer::new(Subject::Tsoracle, "tsoracle", self.source())]
    }

    /// Its client asks whoever leads, and has to know all nodes for that.
    fn without(&self, _node: usize) -> Option<Arc<dyn Source>> {
        Some(Arc::new(self.source()))
    }
}

struct TsoracleSource {
    endpoints: Vec<String>,
    clients: Shared<Arc<Client>>,
}

impl Source for TsoracleSource {
    fn connect(&self, worker: usize, _attempt: usize) -> Answer<'_, Box<dyn Connection>> {
        Box::pin(async move {
            let client = self.clients.of(worker, async |_number| {
                let client = Client::connect(self.endpoints.clone())
                    .await
                    .map_err(fault)?;
                Ok(Arc::new(client))
            });
            Ok(Box::new(Dense(client.await?)) as Box<dyn Connection>)
        })
    }
}

fn fault(error: ClientError) -> Fault {
    match error {
        ClientError::Rpc(status) => Fault::kept(status.code().to_string()),
        error => Fault::kept(error.to_string()),
    }
}

struct Dense(Arc<Client>);

impl Connection for Dense {
    fn ask<'a>(&'a mut self, granted: &'a mut Vec<Granted>) -> Answer<'a, ()> {
        Box::pin(async {
            let range = self.0.get_seq(KEY, 1).await.map_err(fault)?;
            granted.push(Granted {
                sequence: 0,
                first: range.start,
                last: range.start + u64::from(range.count) - 1,
            });
            Ok(())
        })
    }
}
