//! Who gives numbers: how each is started, and how a worker asks it.

mod etcd;
mod handler;
mod highwater;
mod mariadb;
mod postgres;
mod redis;
mod tsoracle;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;

use rustix::process::Signal;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use crate::error::BenchError;
use crate::load::{Fault, Source};
use crate::plan::{Plan, Who};
use crate::process::{self, PATIENCE, POLL_INTERVAL, Server};
use crate::report::data::Subject;

pub(crate) use highwater::Highwater;

/// What will be there, or ends the run.
pub(crate) type Soon<'a, T> = Pin<Box<dyn Future<Output = Result<T, BenchError>> + 'a>>;

/// A system of one node or more on this machine. It keeps its data when its processes end.
pub(crate) trait Peer {
    /// How many nodes it has, which are numbered from 0 on.
    fn nodes(&self) -> usize;

    /// Starts one of them.
    ///
    /// # Errors
    /// Where it cannot be started.
    fn start(&self, node: usize) -> Result<Server, BenchError>;

    /// Waits until all nodes serve, and makes what will be asked for.
    fn ready<'a>(&'a mut self, servers: &'a mut [Server]) -> Soon<'a, ()>;

    /// The node that leads, if that is known at the moment.
    fn leader_now(&self) -> Pin<Box<dyn Future<Output = Option<usize>> + '_>> {
        Box::pin(async { Some(0) })
    }

    /// What it can be asked for, while this node leads.
    fn offers(&self, leader: usize) -> Vec<Offer>;

    /// Where to ask while this node ends; nothing where there is no other.
    fn without(&self, _node: usize) -> Option<Arc<dyn Source>> {
        None
    }

    /// How a node is told to end.
    fn end_signal(&self) -> Signal {
        Signal::TERM
    }

    /// What it does not offer, and why.
    fn skipped(&self) -> Option<(Subject, String)> {
        None
    }
}

/// One operation that gives numbers.
pub(crate) struct Offer {
    pub(crate) subject: Subject,
    /// What its values come from: those of one counter are unique among themselves.
    pub(crate) counter: &'static str,
    pub(crate) leases: u32,
    /// The least and the most workers that it is asked by.
    pub(crate) workers: RangeInclusive<usize>,
    pub(crate) source: Arc<dyn Source>,
}

impl Offer {
    /// One lease a request, whatever the concurrency.
    pub(crate) fn new(
        subject: Subject,
        counter: &'static str,
        source: impl Source + 'static,
    ) -> Self {
        Self {
            subject,
            counter,
            leases: 1,
            workers: 1..=usize::MAX,
            source: Arc::new(source),
        }
    }
}

/// Starts all nodes and waits until they serve.
///
/// # Errors
/// Where one does not.
pub(crate) async fn start(peer: &mut dyn Peer) -> Result<Vec<Server>, BenchError> {
    let mut servers = (0..peer.nodes())
        .map(|node| peer.start(node))
        .collect::<Result<Vec<_>, _>>()?;
    peer.ready(&mut servers).await?;
    Ok(servers)
}

/// Waits until it is known who leads.
///
/// # Errors
/// Where nobody does within [`PATIENCE`].
pub(crate) async fn leader(peer: &dyn Peer) -> Result<usize, BenchError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(leader) = peer.leader_now().await {
            return Ok(leader);
        }
        if deadline <= Instant::now() {
            return Err(BenchError::NoLeader { within: PATIENCE });
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Ends all nodes.
///
/// # Errors
/// The system's.
pub(crate) async fn end(peer: &dyn Peer, servers: Vec<Server>) -> Result<(), BenchError> {
    for server in &servers {
        server.signal(peer.end_signal())?;
    }
    for server in servers {
        server.end(peer.end_signal()).await?;
    }
    Ok(())
}

/// A peer with a directory of its own below this one, and the version of its program.
///
/// # Errors
/// Where there is no such program.
pub(crate) fn make(
    who: Who,
    plan: &Plan,
    directory: &Path,
    versions: &mut BTreeMap<String, String>,
) -> Result<Box<dyn Peer>, BenchError> {
    let directory = directory.join(format!("{who:?}").to_lowercase());
    std::fs::create_dir_all(&directory).map_err(BenchError::file(&directory, "made"))?;
    if let Some((name, program)) = program(who, plan) {
        versions.insert(name.to_owned(), version(name, &program)?);
    }
    Ok(match who {
        Who::Ours => Box::new(Highwater::new(plan.program.clone(), directory)?),
        Who::Limits => Box::new(handler::Handler::new(directory)?),
        Who::Tsoracle => Box::new(tsoracle::Tsoracle::new(plan.tsoracle.clone(), directory)?),
        Who::Etcd => Box::new(etcd::Etcd::new(directory)?),
        Who::Redis => Box::new(redis::Redis::new(directory)?),
        Who::Postgres => Box::new(postgres::Postgres::new(directory)?),
        Who::Mariadb => Box::new(mariadb::Mariadb::new(directory)?),
    })
}

/// What it is called, and the program that is it; nothing for what is a part of this one.
fn program(who: Who, plan: &Plan) -> Option<(&'static str, PathBuf)> {
    Some(match who {
        Who::Ours => ("Highwater", plan.program.clone()),
        Who::Limits => return None,
        Who::Tsoracle => ("tsoracle", plan.tsoracle.clone()),
        Who::Etcd => ("etcd", "etcd".into()),
        Who::Redis => ("Redis", "redis-server".into()),
        Who::Postgres => ("PostgreSQL", postgres::programs().join("postgres")),
        // Where only administrators look.
        Who::Mariadb => ("MariaDB", "/usr/sbin/mariadbd".into()),
    })
}

/// The first word that is a version in what a program says about itself.
fn version(name: &str, program: &Path) -> Result<String, BenchError> {
    let said = process::run(name, Command::new(program).arg("--version"))?;
    let words = said.split([' ', '=', '-', '\n']);
    let mut versions = words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let version = versions.next().unwrap_or("of unknown version");
    Ok(version.to_owned())
}

/// gRPC clients are made to be shared: so many connections carry the requests of all workers.
const SHARED: usize = 16;

/// Clients that workers share.
#[derive(Debug)]
pub(crate) struct Shared<T>([OnceCell<T>; SHARED]);

impl<T: Clone> Shared<T> {
    pub(crate) fn new() -> Self {
        Self([const { OnceCell::const_new() }; SHARED])
    }

    /// The client of a worker, made by this where it is the first to need it, of the client's number.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub(crate) async fn of(
        &self,
        worker: usize,
        make: impl AsyncFnOnce(usize) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let number = worker % SHARED;
        match self.0.get(number) {
            Some(cell) => Ok(cell.get_or_try_init(|| make(number)).await?.clone()),
            None => Err(Fault::lost("no such client")),
        }
    }
}
