//! Workers that lease as fast as they are answered, one value at a time and many at once, and check every value they get.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::SequenceName;
use highwater::chaos::{Connection, RawAnswer};
use highwater::wire::{GrantBody, GrantsBody, Number, Problem, ProblemOutcome};
use tokio::time::sleep;

use super::ledger::Ledger;

/// Leases of one request of several: as many as there may be.
const LEASES: usize = 256;
/// How many grants of several at once there are for each that is leased by itself.
const SEVERAL_PER_SINGLE: u64 = 4;
/// How long a worker waits where its node has no leader, or another worker has to catch up.
const PAUSE: Duration = Duration::from_millis(5);

/// What all workers share.
#[derive(Debug)]
pub(super) struct Load {
    urls: Vec<String>,
    names: Vec<SequenceName>,
    ledgers: BTreeMap<SequenceName, Mutex<Ledger>>,
    singles: AtomicU64,
    several: AtomicU64,
    /// Values of requests of which nobody knows what became of them.
    unknown: AtomicU64,
    /// Requests that were refused and sent again.
    refused: AtomicU64,
    /// Grants that are wanted in all.
    wanted: u64,
}

/// What became of a request.
enum Asked {
    Granted(RawAnswer),
    /// It changed nothing.
    Refused,
    /// Nobody knows.
    Unknown,
}

impl Load {
    pub(super) fn new(urls: Vec<String>, names: Vec<SequenceName>, wanted: u64) -> Self {
        let ledgers = names.iter().map(|name| (name.clone(), Mutex::default()));
        Self {
            urls,
            ledgers: ledgers.collect(),
            names,
            singles: AtomicU64::new(0),
            several: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            wanted,
        }
    }

    /// Grants so far.
    pub(super) fn grants(&self) -> u64 {
        self.singles() + self.several.load(Ordering::Relaxed)
    }

    /// Grants that were leased by themselves.
    pub(super) fn singles(&self) -> u64 {
        self.singles.load(Ordering::Relaxed)
    }

    pub(super) fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn is_done(&self) -> bool {
        self.wanted <= self.grants()
    }

    /// What was granted, by sequence: the highest value, and how many below it nobody got.
    pub(super) fn granted(&self) -> BTreeMap<SequenceName, (u64, u64)> {
        let ledgers = self.ledgers.iter().map(|(name, ledger)| {
            let ledger = ledger.lock().unwrap();
            (name.clone(), (ledger.high(), ledger.missing()))
        });
        ledgers.collect()
    }

    /// One grant, checked against all others of its sequence.
    pub(super) fn check(&self, grant: &GrantBody) -> Result<u64, String> {
        let value = |number: Number| number.get().ok_or("a value that is none");
        let (first, last) = (value(grant.first)?, value(grant.last)?);
        let ledger = self.ledgers.get(&grant.sequence);
        let ledger = ledger.ok_or_else(|| format!("{} was not asked for", grant.sequence))?;
        ledger.lock().unwrap().grant(first, last)?;
        Ok(last)
    }

    /// Leases one value at a time.
    pub(super) async fn lease_singles(self: Arc<Self>, number: usize) -> Result<(), String> {
        let mut worker = Worker::new(&self, number).await?;
        let name = &self.names[number % self.names.len()];
        let path = format!("/v1/sequences/{name}/leases");
        while !self.is_done() {
            let Asked::Granted(answer) = worker.ask(&path, "", 1).await? else {
                continue;
            };
            let grant: GrantBody = parsed(&answer)?;
            worker.take(&grant)?;
            self.singles.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Leases from many sequences at once, in one commit.
    pub(super) async fn lease_several(self: Arc<Self>, number: usize) -> Result<(), String> {
        let mut worker = Worker::new(&self, number).await?;
        let part = |name| format!("{{\"sequence\":\"{name}\"}}");
        let parts = self.names.iter().cycle().take(LEASES).map(part);
        let body = format!("[{}]", parts.collect::<Vec<_>>().join(","));
        while !self.is_done() {
            self.wait_for_singles().await;
            let Asked::Granted(answer) = worker.ask("/v1/leases", &body, LEASES as u64).await?
            else {
                continue;
            };
            let grants: GrantsBody = parsed(&answer)?;
            if grants.grants.len() != LEASES {
                return Err(format!(
                    "{} grants for {LEASES} leases",
                    grants.grants.len()
                ));
            }
            for grant in &grants.grants {
                worker.take(grant)?;
            }
            self.several.fetch_add(LEASES as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until the single leases have caught up, so that both kinds go on to the end.
    async fn wait_for_singles(&self) {
        let several = || self.several.load(Ordering::Relaxed);
        while !self.is_done() && self.singles() * SEVERAL_PER_SINGLE < several() {
            sleep(PAUSE).await;
        }
    }
}

/// One connection, and what came over it.
struct Worker<'a> {
    load: &'a Load,
    url: &'a str,
    connection: Connection,
    /// The highest value of each sequence that came over this connection.
    seen: BTreeMap<SequenceName, u64>,
}

impl<'a> Worker<'a> {
    async fn new(load: &'a Load, number: usize) -> Result<Self, String> {
        let url = &load.urls[number % load.urls.len()];
        let connection = Connection::open(url).await;
        Ok(Self {
            load,
            url,
            connection: connection.map_err(|error| error.to_string())?,
            seen: BTreeMap::new(),
        })
    }

    /// Sends a request for so many values.
    async fn ask(&mut self, path: &str, body: &str, values: u64) -> Result<Asked, String> {
        let asked = match self.connection.ask("POST", path, body).await {
            Ok(answer) if answer.status == 201 => return Ok(Asked::Granted(answer)),
            Ok(answer) => not_granted(&answer)?,
            Err(_lost) => {
                self.connection = self
                    .reconnected()
                    .await
                    .map_err(|error| error.to_string())?;
                Asked::Unknown
            }
        };
        match asked {
            Asked::Unknown => self.load.unknown.fetch_add(values, Ordering::Relaxed),
            _ => self.load.refused.fetch_add(1, Ordering::Relaxed),
        };
        wait_a_moment().await;
        Ok(asked)
    }

    async fn reconnected(&self) -> io::Result<Connection> {
        Connection::open(self.url).await
    }

    /// Checks a grant, also against what this worker got before it (I2).
    fn take(&mut self, grant: &GrantBody) -> Result<(), String> {
        let last = self.load.check(grant)?;
        let before = self.seen.insert(grant.sequence.clone(), last);
        if before.is_some_and(|before| last <= before) {
            let name = &grant.sequence;
            return Err(format!("I2: {name} fell from {before:?} to {last}"));
        }
        Ok(())
    }
}

async fn wait_a_moment() {
    sleep(PAUSE).await;
}

/// A node that refuses or loses a request says so, and nothing else happens in a soak.
fn not_granted(answer: &RawAnswer) -> Result<Asked, String> {
    let problem: Problem = parsed(answer)?;
    match (answer.status, problem.outcome) {
        (503, ProblemOutcome::NotApplied) => Ok(Asked::Refused),
        (504, ProblemOutcome::Unknown) => Ok(Asked::Unknown),
        (status, _) => Err(format!("{status} {}: {}", problem.code, problem.detail)),
    }
}

fn parsed<T: serde::de::DeserializeOwned>(answer: &RawAnswer) -> Result<T, String> {
    serde_json::from_slice(&answer.body).map_err(|error| {
        let body = String::from_utf8_lossy(&answer.body);
        format!("{error}: {} {body}", answer.status)
    })
}
