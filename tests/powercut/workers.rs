//! Load: workers that lease, advance and read, each on a sequence of its own, and note what they asked and were told. One of the
//! sequences has a cache.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::history::{Answer, History, Step, now_ns};
use crate::lone;

const WORKERS: u64 = 3;
/// Which worker's sequence has a cache.
const CACHED: u64 = 2;
/// So many values, which a few leases use up.
const CACHE: u64 = 200;
/// More windows than one request can have reserved: one for itself and the next, by each leader that it is sent to.
const WINDOWS_PER_REQUEST: u64 = 8;
/// No more windows are above a value that was granted: its own, the next, and one on its way to the log.
const WINDOWS_ABOVE: u64 = 3;
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Workers at work.
#[derive(Debug)]
pub(crate) struct Workers {
    log: Arc<LogGrowth>,
    history: Arc<Mutex<History>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Workers {
    /// Lets them work on the nodes at these URLs, with a history that they go on from. Whatever was asked before must
    /// have happened by now, or never will.
    pub(crate) fn start(urls: &[String], history: History, seed: u64) -> Self {
        let mut workers = Self {
            log: Arc::default(),
            history: Arc::new(Mutex::new(history)),
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
        };
        for number in 0..WORKERS {
            let worker = Worker {
                http: lone::http(),
                urls: urls.to_vec(),
                turn: usize::try_from(number).unwrap(),
                sequence: format!("s{number}"),
                cache: if number == CACHED { CACHE } else { 0 },
                random: StdRng::seed_from_u64(seed * WORKERS + number),
                high_told: 0,
                high_asked: 0,
                unanswered: 0,
                log: Arc::clone(&workers.log),
                history: Arc::clone(&workers.history),
            };
            let stop = workers.stop.clone();
            workers.tasks.spawn(async move {
                stop.run_until_cancelled(worker.run()).await;
            });
        }
        workers
    }

    /// Waits until they have made the log so much longer than when this is called.
    pub(crate) async fn wait_until_grown(&self, entries: u64) {
        let before = self.log.grown();
        let deadline = Instant::now() + PATIENCE;
        while self.log.grown() < before + entries {
            assert!(Instant::now() < deadline, "nothing is granted any more");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Ends them; who waits for an answer gets none.
    pub(crate) async fn stop(self) -> History {
        self.stop.cancel();
        self.tasks.join_all().await;
        Arc::into_inner(self.history).unwrap().into_inner().unwrap()
    }
}

/// How long the log has become.
#[derive(Debug)]
struct LogGrowth {
    first: AtomicU64,
    last: AtomicU64,
}

impl Default for LogGrowth {
    fn default() -> Self {
        Self {
            first: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
        }
    }
}

impl LogGrowth {
    fn see(&self, index: u64) {
        self.first.fetch_min(index, Ordering::Relaxed);
        self.last.fetch_max(index, Ordering::Relaxed);
    }

    fn grown(&self) -> u64 {
        let first = self.first.load(Ordering::Relaxed);
        self.last.load(Ordering::Relaxed).saturating_sub(first)
    }
}

struct Worker {
    http: reqwest::Client,
    urls: Vec<String>,
    /// Which node is asked next.
    turn: usize,
    sequence: String,
    cache: u64,
    random: StdRng,
    /// The highest value or mark that an answer told of.
    high_told: u64,
    /// What the mark is at most.
    high_asked: u64,
    /// By how much those requests may have raised it, or raise it yet, that were not answered.
    unanswered: u64,
    log: Arc<LogGrowth>,
    history: Arc<Mutex<History>>,
}

impl Worker {
    async fn run(mut self) {
        while self.ask(0, self.create()).await.is_none() {
            self.wait_for_the_next_node().await;
        }
        loop {
            let count = self.random.random_range(1..=50);
            let (raise, request) = match self.random.random_range(0..10) {
                0 => (count, self.advance(self.high_told + count)),
                1 => (0, self.show()),
                2 => {
                    let key = self.random.random::<u64>().to_string();
                    let lease = self.lease(count).header("Idempotency-Key", key);
                    (count, lease)
                }
                _ => (count, self.lease(count)),
            };
            let answer = self.ask(raise, request).await;
            match answer.map(|body| body["index"].as_u64()) {
                Some(Some(index)) => self.log.see(index),
                Some(None) => {}
                None => self.wait_for_the_next_node().await,
            }
        }
    }

    fn url(&self, verb: &str) -> String {
        let node = &self.urls[self.turn % self.urls.len()];
        format!("{node}/v1/sequences/{}{verb}", self.sequence)
    }

    fn create(&self) -> reqwest::RequestBuilder {
        let settings = json!({ "cache": self.cache });
        self.http.put(self.url("")).json(&settings)
    }

    fn show(&self) -> reqwest::RequestBuilder {
        self.http.get(self.url(""))
    }

    fn lease(&self, count: u64) -> reqwest::RequestBuilder {
        let url = self.url("/leases");
        self.http.post(url).json(&json!({ "count": count }))
    }

    fn advance(&self, to: u64) -> reqwest::RequestBuilder {
        let url = self.url("/advance");
        self.http.post(url).json(&json!({ "to": to }))
    }

    async fn wait_for_the_next_node(&mut self) {
        self.turn += 1;
        tokio::time::sleep(POLL_INTERVAL).await;
    }

    /// Sends a request that raises the mark by so much at most, beside what is reserved for it, and notes it, with its answer where
    /// it was acknowledged.
    async fn ask(&mut self, raise: u64, request: reqwest::RequestBuilder) -> Option<Value> {
        let raise = raise + WINDOWS_PER_REQUEST * self.cache;
        self.high_asked += raise;
        self.unanswered += raise;
        let step = self.note(Step {
            sent_ns: now_ns(),
            high_asked: self.high_asked,
            answer: None,
        });
        let answer = request.send().await;
        if answer.as_ref().is_err_and(reqwest::Error::is_connect) {
            // Nobody was asked.
            self.high_asked -= raise;
            self.unanswered -= raise;
        }
        let answer = answer.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        let body: Value = answer.json().await.ok()?;
        let high = body.get("last").unwrap_or(&body["high"]);
        let high = high.as_u64().unwrap_or_default();
        self.high_told = self.high_told.max(high);
        self.unanswered -= raise;
        // Only this worker's requests raise the mark.
        self.high_asked = high + WINDOWS_ABOVE * self.cache + self.unanswered;
        let mut history = self.history.lock().unwrap();
        history.steps.get_mut(&self.sequence).unwrap()[step].answer = Some(Answer {
            received_ns: now_ns(),
            high,
            term: body["term"].as_u64(),
            index: body["index"].as_u64(),
        });
        drop(history);
        Some(body)
    }

    fn note(&self, step: Step) -> usize {
        let mut history = self.history.lock().unwrap();
        let steps = history.steps.entry(self.sequence.clone()).or_default();
        steps.push(step);
        steps.len() - 1
    }
}
