//! The two addresses that a node listens on, bound before anything is made.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use super::ServerError;
use super::config::Config;
use super::consensus::PlannedMember;
use super::error::Listening;
use super::types::{Address, NodeId};

/// What a node listens with.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) api: Socket,
    pub(super) peers: Socket,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Socket {
    listening: Listening,
    told: Address,
    listener: TcpListener,
}

impl Sockets {
    /// Binds where the node is told to.
    pub(super) fn bind(config: &Config) -> Result<Self, ServerError> {
        // Both are looked at before one is bound.
        let peers_at = config.bind_address(&config.peer_listen)?;
        let api_at = config.bind_address(&config.api_listen)?;
        Ok(Self {
            peers: Socket::bind(Listening::Peers, &config.peer_listen, peers_at)?,
            api: Socket::bind(Listening::Api, &config.api_listen, api_at)?,
        })
    }

    /// Where others reach this node: as it was told, or at the port that the system chose.
    pub(super) fn reached_at(&self) -> PlannedMember {
        PlannedMember {
            api: self.api.reached_at(),
            peer: self.peers.reached_at(),
        }
    }

    /// `ready.json` tells scripts and tests where a node listens that was given port 0.
    pub(super) fn write_ready_file(&self, dir: &Path, node: NodeId) -> Result<(), ServerError> {
        let path = dir.join("ready.json");
        let failed = |source| ServerError::Ready {
            path: path.clone(),
            source,
        };
        let address = |socket: &Socket| {
            let bound = socket.listener.local_addr();
            bound.map(|at| at.to_string())
        };
        let ready = serde_json::json!({
            "node": node.get(),
            "api": address(&self.api).map_err(failed)?,
            "peer": address(&self.peers).map_err(failed)?,
            "pid": std::process::id(),
        });
        let temporary = path.with_extension("json.new");
        std::fs::File::create(&temporary)
            .and_then(|mut file| writeln!(file, "{ready}"))
            .and_then(|()| std::fs::rename(&temporary, &path))
            .map_err(failed)
    }
}

impl Socket {
    fn bind(listening: Listening, told: &Address, at: SocketAddr) -> Result<Self, ServerError> {
        let told = told.clone();
        match TcpListener::bind(at) {
            Ok(listener) => Ok(Self {
                listening,
                told,
                listener,
            }),
            Err(source) => Err(ServerError::Bind {
                listening,
                address: told,
                source,
            }),
        }
    }

    /// The same socket, for whoever serves it.
    pub(super) fn listener(&self) -> Result<TcpListener, ServerError> {
        let listener = self.listener.try_clone();
        let set = listener.and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        set.map_err(|source| self.unusable(source))
    }

    /// It is bound, and cannot be listened on.
    pub(super) fn unusable(&self, source: io::Error) -> ServerError {
        ServerError::Bind {
            listening: self.listening,
            address: self.told.clone(),
            source,
        }
    }

    fn reached_at(&self) -> Address {
        match self.listener.local_addr() {
            Ok(address) if self.told.port() == 0 => Address::from(address),
            _ => self.told.clone(),
        }
    }
}
