//! Workers in a closed loop: each has one connection, and one request on its way.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::checker::Received;

/// What will be answered.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'a>>;

/// How many connections are made at once: databases start a process for each.
const CONNECTING: usize = 16;
/// After a fault, so that a server that refuses at once is not asked all the time.
const FAULT_PAUSE: Duration = Duration::from_millis(2);

/// Where numbers come from.
pub(crate) trait Source: Send + Sync {
    /// A connection for a worker; `attempt` rises by one with each that it lost.
    fn connect(&self, worker: usize, attempt: usize) -> Answer<'_, Box<dyn Connection>>;
}

/// One worker's way to ask.
pub(crate) trait Connection: Send {
    /// Sends one request, and adds what it is granted.
    fn ask<'a>(&'a mut self, granted: &'a mut Vec<Granted>) -> Answer<'a, ()>;
}

/// A grant as the peer says it: an inclusive range of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) sequence: u32,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Granted {
    /// One value of the only sequence.
    pub(crate) const fn one(value: u64) -> Self {
        Self {
            sequence: 0,
            first: value,
            last: value,
        }
    }
}

/// Why a request was not answered by a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What the peer or the system said, short enough to count by it.
    pub(crate) said: String,
    pub(crate) connection: After,
}

/// What a fault leaves of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// It can be asked again.
    Kept,
    /// The worker needs another one.
    Lost,
}

impl Fault {
    pub(crate) fn kept(said: impl Into<String>) -> Self {
        let (said, connection) = (said.into(), After::Kept);
        Self { said, connection }
    }

    pub(crate) fn lost(said: impl Into<String>) -> Self {
        let (said, connection) = (said.into(), After::Lost);
        Self { said, connection }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::lost(error.kind().to_string())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

/// What workers saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) received: Vec<Received>,
    /// How often each fault was met.
    pub(crate) faults: BTreeMap<String, u64>,
}

/// Workers that ask until they are told to stop.
pub(crate) struct Workers {
    begun: Instant,
    latest_sent_ns: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<Seen>,
}

impl Workers {
    /// Connects so many and has them begin together.
    ///
    /// # Errors
    /// The first connection that cannot be had.
    pub(crate) async fn begin(source: Arc<dyn Source>, workers: usize) -> Result<Self, Fault> {
        let mut connections = Vec::with_capacity(workers);
        let mut next = 0..workers;
        loop {
            let mut connecting = JoinSet::new();
            for worker in next.by_ref().take(CONNECTING) {
                let source = Arc::clone(&source);
                connecting.spawn(async move { (worker, source.connect(worker, 0).await) });
            }
            if connecting.is_empty() {
                break;
            }
            for (worker, connection) in connecting.join_all().await {
                connections.push((worker, connection?));
            }
        }
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let begun = Instant::now();
        let latest_sent_ns = Arc::new(AtomicU64::new(0));
        for (number, connection) in connections {
            let worker = Worker {
                number,
                source: Arc::clone(&source),
                begun,
                latest_sent_ns: Arc::clone(&latest_sent_ns),
                seen: Seen::default(),
            };
            tasks.spawn(worker.run(connection, stopped.clone()));
        }
        Ok(Self {
            begun,
            latest_sent_ns,
            stop,
            tasks,
        })
    }

    /// Nanoseconds since all began, as in what they receive.
    pub(crate) fn now_ns(&self) -> u64 {
        nanoseconds_since(self.begun)
    }

    /// When the request was sent that was sent last of those that are answered by a grant.
    pub(crate) fn latest_sent_ns(&self) -> u64 {
        self.latest_sent_ns.load(Ordering::Relaxed)
    }

    /// Lets them ask for so long.
    pub(crate) async fn go_on(&self, time: Duration) {
        sleep_until(Instant::now() + time).await;
    }

    /// Stops them where they are: what is on its way then is not waited for.
    pub(crate) async fn stop(self) -> Seen {
        // There is nobody to tell where all have ended.
        let _told = self.stop.send(true);
        let mut all = Seen::default();
        for mut seen in self.tasks.join_all().await {
            all.received.append(&mut seen.received);
            for (said, times) in seen.faults {
                *all.faults.entry(said).or_default() += times;
            }
        }
        all
    }
}

fn nanoseconds_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

struct Worker {
    number: usize,
    source: Arc<dyn Source>,
    begun: Instant,
    latest_sent_ns: Arc<AtomicU64>,
    seen: Seen,
}

impl Worker {
    async fn run(mut self, first: Box<dyn Connection>, mut stopped: watch::Receiver<bool>) -> Seen {
        {
            let stop = pin!(stopped.wait_for(|stop| *stop));
            let ask = pin!(self.ask_for_ever(first));
            tokio::select! {
                // The sender lives until all have ended: that it is gone is a stop as well.
                _stop = stop => {}
                () = ask => {}
            }
        }
        self.seen
    }

    async fn ask_for_ever(&mut self, first: Box<dyn Connection>) {
        let mut connection = first;
        let mut granted = Vec::new();
        let mut attempt = 0;
        loop {
            self.ask_until_lost(&mut *connection, &mut granted).await;
            connection = loop {
                attempt += 1;
                match self.source.connect(self.number, attempt).await {
                    Ok(connection) => break connection,
                    Err(fault) => self.met(fault).await,
                }
            };
        }
    }

    async fn ask_until_lost(
        &mut self,
        connection: &mut dyn Connection,
        granted: &mut Vec<Granted>,
    ) {
        loop {
            granted.clear();
            let sent_ns = nanoseconds_since(self.begun);
            match connection.ask(granted).await {
                Ok(()) => {
                    let received_ns = nanoseconds_since(self.begun);
                    self.latest_sent_ns.fetch_max(sent_ns, Ordering::Relaxed);
                    self.seen
                        .received
                        .extend(granted.iter().map(|grant| Received {
                            sequence: grant.sequence,
                            first: grant.first,
                            last: grant.last,
                            sent_ns,
                            received_ns,
                        }));
                }
                Err(fault) => {
                    let after = fault.connection;
                    self.met(fault).await;
                    if after == After::Lost {
                        return;
                    }
                }
            }
        }
    }

    async fn met(&mut self, fault: Fault) {
        *self.seen.faults.entry(fault.said).or_default() += 1;
        sleep(FAULT_PAUSE).await;
    }
}
