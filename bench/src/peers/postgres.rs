//! PostgreSQL as it comes: a sequence's nextval, and a counter in a row.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;

use rustix::process::Signal;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, NoTls, Socket, Statement};

use super::{Offer, Peer, Soon};
use crate::error::BenchError;
use crate::load::{Answer, Connection, Fault, Granted, Source};
use crate::process::{self, Server, User};
use crate::report::data::Subject;

/// Above the most workers that ask at once.
const CONNECTIONS: &str = "max_connections=1100";
const MAKE: &str = "CREATE SEQUENCE IF NOT EXISTS tickets; \
    CREATE TABLE IF NOT EXISTS counter (id int PRIMARY KEY, high bigint NOT NULL); \
    INSERT INTO counter VALUES (1, 0) ON CONFLICT DO NOTHING";
const NEXTVAL: &str = "SELECT nextval('tickets')";
const UPDATE: &str = "UPDATE counter SET high = high + 1 WHERE id = 1 RETURNING high";

/// Where Debian keeps the programs of the newest version that is there.
pub(super) fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let newest = versions.map(|version| version.path()).max();
    newest.map_or_else(PathBuf::new, |newest| newest.join("bin"))
}

pub(super) struct Postgres {
    /// For the log.
    directory: PathBuf,
    data: PathBuf,
    address: SocketAddr,
}

impl Postgres {
    pub(super) fn new(directory: PathBuf) -> Result<Self, BenchError> {
        let data = directory.join("data");
        process::unprivileged_directory(&data)?;
        let mut command = process::command(programs().join("initdb"), User::Unprivileged);
        command
            .args(["--username=bench", "--auth=trust", "--no-instructions"])
            .arg("-D")
            .arg(&data);
        process::run("initdb", &mut command)?;
        Ok(Self {
            address: process::free_address()?,
            directory,
            data,
        })
    }

    fn source(&self, statement: &'static str) -> PostgresSource {
        PostgresSource {
            address: self.address,
            statement,
        }
    }
}

impl Peer for Postgres {
    fn nodes(&self) -> usize {
        1
    }

    fn start(&self, _node: usize) -> Result<Server, BenchError> {
        let mut command = process::command(programs().join("postgres"), User::Unprivileged);
        command
            .arg("-D")
            .arg(&self.data)
            .args(["-p", &self.address.port().to_string()]);
        command.args([
            "-c",
            CONNECTIONS,
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "unix_socket_directories=",
        ]);
        Server::start("postgres", &self.directory, command)
    }

    fn ready<'a>(&'a mut self, servers: &'a mut [Server]) -> Soon<'a, ()> {
        Box::pin(async {
            for server in servers {
                let made = async || match Session::open(self.address, None).await {
                    Ok(mut session) => session.make().await.is_ok(),
                    Err(_not_yet) => false,
                };
                server.ready(made).await?;
            }
            Ok(())
        })
    }

    fn offers(&self, _leader: usize) -> Vec<Offer> {
        vec![
            Offer::new(
                Subject::PostgresNextval,
                "postgres sequence",
                self.source(NEXTVAL),
            ),
            Offer::new(Subject::PostgresUpdate, "postgres row", self.source(UPDATE)),
        ]
    }

    /// By any other the server would wait for its clients, or start again on its log.
    fn end_signal(&self) -> Signal {
        Signal::INT
    }
}

struct PostgresSource {
    address: SocketAddr,
    statement: &'static str,
}

impl Source for PostgresSource {
    fn connect(&self, _worker: usize, _attempt: usize) -> Answer<'_, Box<dyn Connection>> {
        Box::pin(async {
            let session = Session::open(self.address, Some(self.statement)).await?;
            Ok(Box::new(session) as Box<dyn Connection>)
        })
    }
}

type Wire = tokio_postgres::Connection<Socket, NoTlsStream>;

/// A client together with its connection, which moves only while somebody waits for an answer.
struct Session {
    client: Client,
    wire: Pin<Box<Wire>>,
    statement: Option<Statement>,
}

fn fault(error: tokio_postgres::Error) -> Fault {
    match error.code() {
        Some(code) => Fault::kept(format!("SQLSTATE {}", code.code())),
        None => Fault::lost(error.to_string()),
    }
}

/// What the connection carries, as far as it is needed for an answer.
async fn carried<T>(
    wire: &mut Pin<Box<Wire>>,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Fault> {
    tokio::select! {
        biased;
        answer = answer => answer.map_err(fault),
        ended = wire => Err(ended.map_or_else(fault, |()| Fault::lost("connection closed"))),
    }
}

impl Session {
    async fn open(address: SocketAddr, statement: Option<&str>) -> Result<Self, Fault> {
        let place = format!(
            "host={} port={} user=bench dbname=postgres",
            address.ip(),
            address.port()
        );
        let (client, wire) = tokio_postgres::connect(&place, NoTls)
            .await
            .map_err(fault)?;
        let mut wire = Box::pin(wire);
        let statement = match statement {
            Some(statement) => Some(carried(&mut wire, client.prepare(statement)).await?),
            None => None,
        };
        Ok(Self {
            client,
            wire,
            statement,
        })
    }

    async fn make(&mut self) -> Result<(), Fault> {
        carried(&mut self.wire, self.client.batch_execute(MAKE)).await
    }
}

impl Connection for Session {
    fn ask<'a>(&'a mut self, granted: &'a mut Vec<Granted>) -> Answer<'a, ()> {
        Box::pin(async {
            let statement = self
                .statement
                .as_ref()
                .ok_or_else(|| Fault::lost("no statement"))?;
            let row = carried(&mut self.wire, self.client.query_one(statement, &[])).await?;
            let value: i64 = row.try_get(0).map_err(fault)?;
            let value =
                u64::try_from(value).map_err(|_negative| Fault::lost("a negative value"))?;
            granted.push(Granted::one(value));
            Ok(())
        })
    }
}
