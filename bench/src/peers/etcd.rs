//! Three members of etcd: the revision of a put is a number that nobody else gets, and a counter can be compared and swapped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp, TxnOpResponse};

use super::{Offer, Peer, Shared, Soon};
use crate::error::BenchError;
use crate::load::{Answer, Connection, Fault, Granted, Source};
use crate::process::{self, Server, User};
use crate::report::data::Subject;

const NODES: usize = 3;
/// With more, hardly any of them succeeds.
const SWAP_WORKERS_MAX: usize = 64;

pub(super) struct Etcd {
    directory: PathBuf,
    /// Where clients, and where members reach each of them.
    members: Vec<(SocketAddr, SocketAddr)>,
}

impl Etcd {
    pub(super) fn new(directory: PathBuf) -> Result<Self, BenchError> {
        let members = (0..NODES).map(|_| Ok((process::free_address()?, process::free_address()?)));
        Ok(Self {
            directory,
            members: members.collect::<Result<_, BenchError>>()?,
        })
    }

    fn from(&self, node: usize) -> Vec<SocketAddr> {
        let mut clients: Vec<_> = self.members.iter().map(|(client, _)| *client).collect();
        clients.rotate_left(node % NODES);
        clients
    }
}

async fn client_of(address: SocketAddr) -> Result<Client, Fault> {
    Client::connect([format!("http://{address}")], None)
        .await
        .map_err(fault)
}

fn fault(error: etcd_client::Error) -> Fault {
    match error {
        etcd_client::Error::GRpcStatus(status) => Fault::lost(status.code().to_string()),
        error => Fault::lost(error.to_string()),
    }
}

impl Peer for Etcd {
    fn nodes(&self) -> usize {
        NODES
    }

    fn start(&self, node: usize) -> Result<Server, BenchError> {
        let name = |node: usize| format!("m{node}");
        let initial = self.members.iter().enumerate();
        let initial = initial.map(|(node, (_, peer))| format!("{}=http://{peer}", name(node)));
        let initial: Vec<String> = initial.collect();
        let mut command = process::command("etcd", User::Own);
        if let Some((client, peer)) = self.members.get(node) {
            let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
            command.args(["--name", &name(node)]);
            command
                .arg("--data-dir")
                .arg(self.directory.join(name(node)));
            command.args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ]);
            command.args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ]);
            command.args([
                "--initial-cluster",
                &initial.join(","),
                "--initial-cluster-state",
                "new",
            ]);
            command.args(["--log-level", "warn"]);
        }
        Server::start(&name(node), &self.directory, command)
    }

    fn ready<'a>(&'a mut self, servers: &'a mut [Server]) -> Soon<'a, ()> {
        Box::pin(async {
            for (server, (client, _)) in servers.iter_mut().zip(&self.members) {
                let puts = async || match client_of(*client).await {
                    Ok(mut client) => client.put("ready", "", None).await.is_ok(),
                    Err(_not_yet) => false,
                };
                server.ready(puts).await?;
            }
            Ok(())
        })
    }

    fn leader_now(&self) -> Pin<Box<dyn Future<Output = Option<usize>> + '_>> {
        Box::pin(async {
            for (node, (client, _)) in self.members.iter().enumerate() {
                let Ok(mut client) = client_of(*client).await else {
                    continue;
                };
                let Ok(status) = client.status().await else {
                    continue;
                };
                let own = status.header().map(etcd_client::ResponseHeader::member_id);
                if own == Some(status.leader()) {
                    return Some(node);
                }
            }
            None
        })
    }

    fn offers(&self, leader: usize) -> Vec<Offer> {
        let from = |form| EtcdSource::new(self.from(leader), form);
        vec![
            Offer::new(Subject::EtcdPut, "etcd revision", from(Form::Put)),
            Offer {
                workers: 1..=SWAP_WORKERS_MAX,
                ..Offer::new(Subject::EtcdSwap, "etcd counter", from(Form::Swap))
            },
        ]
    }

    fn without(&self, node: usize) -> Option<Arc<dyn Source>> {
        let mut clients = self.from(0);
        clients.remove(node);
        Some(Arc::new(EtcdSource::new(clients, Form::Put)))
    }
}

#[derive(Clone, Copy)]
enum Form {
    Put,
    Swap,
}

struct EtcdSource {
    members: Vec<SocketAddr>,
    form: Form,
    clients: Shared<Client>,
}

impl EtcdSource {
    fn new(members: Vec<SocketAddr>, form: Form) -> Self {
        let clients = Shared::new();
        Self {
            members,
            form,
            clients,
        }
    }
}

impl Source for EtcdSource {
    fn connect(&self, worker: usize, _attempt: usize) -> Answer<'_, Box<dyn Connection>> {
        Box::pin(async move {
            let client = self.clients.of(worker, async |number| {
                let turn = number.checked_rem(self.members.len());
                let member = turn.and_then(|turn| self.members.get(turn));
                client_of(*member.ok_or_else(|| Fault::lost("nobody to ask"))?).await
            });
            let client = client.await?;
            let connection: Box<dyn Connection> = match self.form {
                Form::Put => Box::new(Put(client)),
                Form::Swap => Box::new(Swap {
                    client,
                    value: 0,
                    revision: 0,
                }),
            };
            Ok(connection)
        })
    }
}

fn positive(value: i64) -> Result<u64, Fault> {
    u64::try_from(value).map_err(|_negative| Fault::lost("a negative revision"))
}

struct Put(Client);

impl Connection for Put {
    fn ask<'a>(&'a mut self, granted: &'a mut Vec<Granted>) -> Answer<'a, ()> {
        Box::pin(async {
            let put = self.0.put("ticket", "", None).await.map_err(fault)?;
            let header = put
                .header()
                .ok_or_else(|| Fault::lost("a put without a header"))?;
            granted.push(Granted::one(positive(header.revision())?));
            Ok(())
        })
    }
}

/// Compares and swaps until it succeeds.
struct Swap {
    client: Client,
    /// What this worker saw of the counter last.
    value: u64,
    revision: i64,
}

impl Connection for Swap {
    fn ask<'a>(&'a mut self, granted: &'a mut Vec<Granted>) -> Answer<'a, ()> {
        const KEY: &str = "counter";
        Box::pin(async {
            loop {
                let next = self.value + 1;
                let swap = Txn::new()
                    .when([Compare::mod_revision(KEY, CompareOp::Equal, self.revision)])
                    .and_then([TxnOp::put(KEY, next.to_string(), None)])
                    .or_else([TxnOp::get(KEY, None::<GetOptions>)]);
                let answer = self.client.txn(swap).await.map_err(fault)?;
                if answer.succeeded() {
                    let header = answer.header().ok_or_else(|| Fault::lost("no header"))?;
                    (self.value, self.revision) = (next, header.revision());
                    granted.push(Granted::one(next));
                    return Ok(());
                }
                for response in answer.op_responses() {
                    let TxnOpResponse::Get(found) = response else {
                        continue;
                    };
                    if let Some(pair) = found.kvs().first() {
                        let value = pair.value_str().ok().and_then(|text| text.parse().ok());
                        self.value = value.ok_or_else(|| Fault::lost("no number"))?;
                        self.revision = pair.mod_revision();
                    }
                }
            }
        })
    }
}
