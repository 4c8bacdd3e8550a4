//! Redis with an append-only file that is synced before each answer: INCRBY.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Offer, Peer, Soon};
use crate::error::BenchError;
use crate::load::{Answer, Connection, Fault, Granted, Source};
use crate::process::{self, Server, User};
use crate::report::data::Subject;

const INCREASE: &[u8] = b"*3\r\n$6\r\nINCRBY\r\n$7\r\ncounter\r\n$1\r\n1\r\n";

pub(super) struct Redis {
    directory: PathBuf,
    address: SocketAddr,
}

impl Redis {
    pub(super) fn new(directory: PathBuf) -> Result<Self, BenchError> {
        let address = process::free_address()?;
        Ok(Self { directory, address })
    }
}

impl Peer for Redis {
    fn nodes(&self) -> usize {
        1
    }

    fn start(&self, _node: usize) -> Result<Server, BenchError> {
        let mut command = process::command("redis-server", User::Own);
        command.args([
            "--port",
            &self.address.port().to_string(),
            "--bind",
            "127.0.0.1",
        ]);
        command.args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
        ]);
        command.arg("--dir").arg(&self.directory);
        Server::start("redis", &self.directory, command)
    }

    fn ready<'a>(&'a mut self, servers: &'a mut [Server]) -> Soon<'a, ()> {
        Box::pin(async {
            let counts = async || {
                let Ok(mut counter) = Counter::open(self.address).await else {
                    return false;
                };
                counter.ask(&mut Vec::new()).await.is_ok()
            };
            for server in servers {
                server.ready(counts).await?;
            }
            Ok(())
        })
    }

    fn offers(&self, _leader: usize) -> Vec<Offer> {
        vec![Offer::new(
            Subject::Redis,
            "redis",
            RedisSource(self.address),
        )]
    }
}

struct RedisSource(SocketAddr);

impl Source for RedisSource {
    fn connect(&self, _worker: usize, _attempt: usize) -> Answer<'_, Box<dyn Connection>> {
        Box::pin(async {
            let counter = Counter::open(self.0).await?;
            Ok(Box::new(counter) as Box<dyn Connection>)
        })
    }
}

struct Counter {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Counter {
    async fn open(address: SocketAddr) -> Result<Self, Fault> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let answer = Vec::new();
        Ok(Self { stream, answer })
    }
}

impl Connection for Counter {
    fn ask<'a>(&'a mut self, granted: &'a mut Vec<Granted>) -> Answer<'a, ()> {
        Box::pin(async {
            self.stream.write_all(INCREASE).await?;
            self.answer.clear();
            while !self.answer.ends_with(b"\r\n") {
                if self.stream.read_buf(&mut self.answer).await? == 0 {
                    return Err(Fault::lost("connection closed"));
                }
            }
            let text = std::str::from_utf8(&self.answer)
                .unwrap_or_default()
                .trim_end();
            let value = text
                .strip_prefix(':')
                .and_then(|number| number.parse().ok());
            granted.push(Granted::one(value.ok_or_else(|| Fault::lost(text))?));
            Ok(())
        })
    }
}
