//! MariaDB with InnoDB as it comes, which syncs each commit: a ticket table as Flickr had it, and a row of ranges as Leaf has it.

use std::net::SocketAddr;
use std::path::PathBuf;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, OptsBuilder, Statement};

use super::{Offer, Peer, Soon};
use crate::error::BenchError;
use crate::load::{Answer, Connection, Fault, Granted, Source};
use crate::process::{self, Server, User};
use crate::report::data::Subject;

/// Above the most workers that ask at once.
const CONNECTIONS: &str = "--max-connections=1100";
/// With more, they deadlock and next to nothing is granted.
const REPLACE_WORKERS_MAX: usize = 64;
const DATABASE: &str = "bench";
const MAKE: [&str; 4] = [
    "CREATE DATABASE IF NOT EXISTS bench",
    "CREATE TABLE IF NOT EXISTS bench.tickets (id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY, \
     stub char(1) NOT NULL, UNIQUE KEY (stub)) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS bench.leaf (tag varchar(128) PRIMARY KEY, high bigint unsigned NOT NULL) ENGINE=InnoDB",
    "INSERT IGNORE INTO bench.leaf VALUES ('order', 0)",
];
const REPLACE: &str = "REPLACE INTO tickets (stub) VALUES ('a')";
const LAST: &str = "SELECT LAST_INSERT_ID()";
/// Ids that one grant takes.
const SEGMENT: u64 = 1000;
const RAISE: &str = "UPDATE leaf SET high = high + 1000 WHERE tag = 'order'";
const READ: &str = "SELECT high FROM leaf WHERE tag = 'order'";

pub(super) struct Mariadb {
    directory: PathBuf,
    home: PathBuf,
    address: SocketAddr,
}

impl Mariadb {
    pub(super) fn new(directory: PathBuf) -> Result<Self, BenchError> {
        let home = directory.join("home");
        process::unprivileged_directory(&home)?;
        let mariadb = Self {
            address: process::free_address()?,
            directory,
            home,
        };
        let mut command = process::command("mariadb-install-db", User::Unprivileged);
        command.args([
            "--no-defaults",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ]);
        command.args(mariadb.places());
        process::run("mariadb-install-db", &mut command)?;
        Ok(mariadb)
    }

    fn places(&self) -> [String; 2] {
        let data = format!("--datadir={}", self.home.join("data").display());
        // A server that starts removes what another one has in a directory that both use.
        [data, format!("--tmpdir={}", self.home.display())]
    }

    fn source(&self, form: Form) -> MariadbSource {
        MariadbSource {
            address: self.address,
            form,
        }
    }
}

async fn connect(address: SocketAddr, database: Option<&str>) -> Result<Conn, Fault> {
    let options = OptsBuilder::default()
        .ip_or_hostname(address.ip().to_string())
        .tcp_port(address.port())
        .user(Some("root"))
        .db_name(database)
        .prefer_socket(false)
        .tcp_nodelay(true);
    Conn::new(options).await.map_err(fault)
}

fn fault(error: mysql_async::Error) -> Fault {
    match error {
        mysql_async::Error::Server(error) => Fault::kept(format!("error {}", error.code)),
        error => Fault::lost(error.to_string()),
    }
}

async fn make(address: SocketAddr) -> Result<(), Fault> {
    let mut connection = connect(address, None).await?;
    for statement in MAKE {
        connection.query_drop(statement).await.map_err(fault)?;
    }
    connection.disconnect().await.map_err(fault)
}

impl Peer for Mariadb {
    fn nodes(&self) -> usize {
        1
    }

    fn start(&self, _node: usize) -> Result<Server, BenchError> {
        let mut command = process::command("mariadbd", User::Unprivileged);
        command.arg("--no-defaults").args(self.places());
        command.arg(format!("--port={}", self.address.port()));
        command.arg(format!("--socket={}", self.home.join("socket").display()));
        command.arg(format!("--pid-file={}", self.home.join("pid").display()));
        command.args(["--bind-address=127.0.0.1", CONNECTIONS]);
        Server::start("mariadb", &self.directory, command)
    }

    fn ready<'a>(&'a mut self, servers: &'a mut [Server]) -> Soon<'a, ()> {
        Box::pin(async {
            for server in servers {
                server
                    .ready(async || make(self.address).await.is_ok())
                    .await?;
            }
            Ok(())
        })
    }

    fn offers(&self, _leader: usize) -> Vec<Offer> {
        vec![
            Offer {
                workers: 1..=REPLACE_WORKERS_MAX,
                ..Offer::new(
                    Subject::MariadbReplace,
                    "mariadb tickets",
                    self.source(Form::Replace),
                )
            },
            Offer::new(
                Subject::MariadbSegment,
                "mariadb segments",
                self.source(Form::Segment),
            ),
        ]
    }
}

#[derive(Clone, Copy)]
enum Form {
    Replace,
    Segment,
}

struct MariadbSource {
    address: SocketAddr,
    form: Form,
}

impl Source for MariadbSource {
    fn connect(&self, _worker: usize, _attempt: usize) -> Answer<'_, Box<dyn Connection>> {
        Box::pin(async {
            let mut connection = connect(self.address, Some(DATABASE)).await?;
            let (write, read) = match self.form {
                Form::Replace => (REPLACE, LAST),
                Form::Segment => (RAISE, READ),
            };
            let session = Session {
                form: self.form,
                write: connection.prep(write).await.map_err(fault)?,
                read: connection.prep(read).await.map_err(fault)?,
                connection,
            };
            Ok(Box::new(session) as Box<dyn Connection>)
        })
    }
}

struct Session {
    connection: Conn,
    form: Form,
    write: Statement,
    read: Statement,
}

impl Session {
    async fn write_and_read(&mut self) -> Result<u64, mysql_async::Error> {
        self.connection.exec_drop(&self.write, ()).await?;
        let value: Option<u64> = self.connection.exec_first(&self.read, ()).await?;
        // What was written is there.
        Ok(value.unwrap_or_default())
    }

    async fn segment(&mut self) -> Result<u64, mysql_async::Error> {
        self.connection.query_drop("START TRANSACTION").await?;
        let high = self.write_and_read().await;
        let end = if high.is_ok() { "COMMIT" } else { "ROLLBACK" };
        self.connection.query_drop(end).await?;
        high
    }
}

impl Connection for Session {
    fn ask<'a>(&'a mut self, granted: &'a mut Vec<Granted>) -> Answer<'a, ()> {
        Box::pin(async {
            let grant = match self.form {
                Form::Replace => Granted::one(self.write_and_read().await.map_err(fault)?),
                Form::Segment => {
                    let last = self.segment().await.map_err(fault)?;
                    Granted {
                        sequence: 0,
                        first: last.saturating_sub(SEGMENT - 1),
                        last,
                    }
                }
            };
            granted.push(grant);
            Ok(())
        })
    }
}
