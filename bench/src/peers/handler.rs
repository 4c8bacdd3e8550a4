//! The limit of any HTTP server of this kind: a handler in a process of its own that adds to a counter in memory.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Offer, Peer, Soon};
use crate::error::BenchError;
use crate::leases::{Form, HttpSource};
use crate::process::{self, Server, User};
use crate::report::data::Subject;

pub(super) struct Handler {
    directory: PathBuf,
    program: PathBuf,
    address: SocketAddr,
}

impl Handler {
    pub(super) fn new(directory: PathBuf) -> Result<Self, BenchError> {
        let program =
            std::env::current_exe().map_err(BenchError::file("the benchmark", "found"))?;
        let address = process::free_address()?;
        Ok(Self {
            directory,
            program,
            address,
        })
    }
}

impl Peer for Handler {
    fn nodes(&self) -> usize {
        1
    }

    fn start(&self, _node: usize) -> Result<Server, BenchError> {
        let mut command = process::command(&self.program, User::Own);
        command.args(["handler", &self.address.to_string()]);
        Server::start("handler", &self.directory, command)
    }

    fn ready<'a>(&'a mut self, servers: &'a mut [Server]) -> Soon<'a, ()> {
        Box::pin(async {
            for server in servers {
                server
                    .ready(async || tokio::net::TcpStream::connect(self.address).await.is_ok())
                    .await?;
            }
            Ok(())
        })
    }

    fn offers(&self, _leader: usize) -> Vec<Offer> {
        let source = HttpSource::new(vec![self.address], Form::Count);
        vec![Offer::new(Subject::Handler, "handler", source)]
    }
}
