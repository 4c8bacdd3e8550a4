//! Those who lease one value after another, each from one node, and take nothing but grants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use highwater::chaos::Connection;
use highwater::wire::GrantBody;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Longer than anything takes on a busy machine: what is late for it does not come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is looked at again.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What one lease got.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// Its value.
    pub(crate) value: u64,
    /// When it came.
    pub(crate) at: Instant,
    /// How long that took.
    pub(crate) after: Duration,
}

/// The values alone.
pub(crate) fn values(taken: &[Taken]) -> Vec<u64> {
    taken.iter().map(|taken| taken.value).collect()
}

/// Every value was given once (I1), and is above those that had come before it was asked for (I2).
pub(crate) fn check_order(mut taken: Vec<Taken>) {
    let mut by_answer: Vec<(Instant, u64)> = taken.iter().map(|one| (one.at, one.value)).collect();
    by_answer.sort_unstable();
    let mut answered = by_answer.into_iter().peekable();
    let mut highest = 0;
    taken.sort_unstable_by_key(|one| one.at - one.after);
    for one in &taken {
        while let Some((_, value)) = answered.next_if(|(at, _)| *at < one.at - one.after) {
            highest = highest.max(value);
        }
        assert!(highest < one.value, "I2: {one:?} comes after {highest}");
    }
    let mut values = values(&taken);
    values.sort_unstable();
    assert!(values.is_sorted_by(|one, next| one < next), "I1");
}

/// A running crowd. It leases from one sequence.
pub(crate) struct Crowd {
    stop: CancellationToken,
    granted: Arc<AtomicU64>,
    leasing: JoinSet<Vec<Taken>>,
}

impl Crowd {
    /// So many of them at each of these nodes, for values of the sequence `p`.
    pub(crate) fn at(urls: &[String], each: usize) -> Self {
        Self::of("p", urls, each)
    }

    /// The same, for values of the cached sequence of [`World::with_cached`](crate::world::World::with_cached).
    pub(crate) fn of_cached(urls: &[String], each: usize) -> Self {
        Self::of("cached", urls, each)
    }

    fn of(sequence: &'static str, urls: &[String], each: usize) -> Self {
        let mut crowd = Self {
            stop: CancellationToken::new(),
            granted: Arc::default(),
            leasing: JoinSet::new(),
        };
        for url in urls.iter().flat_map(|url| vec![url; each]) {
            let (stop, granted) = (crowd.stop.clone(), Arc::clone(&crowd.granted));
            crowd
                .leasing
                .spawn(lease_until(stop, (sequence, url.clone()), granted));
        }
        crowd
    }

    /// What they got so far.
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    pub(crate) async fn wait_until_granted(&self, more: u64) {
        let enough = self.granted() + more;
        let grown = async {
            while self.granted() < enough {
                sleep(POLL_INTERVAL).await;
            }
        };
        timeout(PATIENCE, grown).await.expect("grants go on");
    }

    /// All that they got.
    pub(crate) async fn leave(self) -> Vec<Taken> {
        self.stop.cancel();
        self.leasing.join_all().await.concat()
    }
}

async fn lease_until(
    stop: CancellationToken,
    (sequence, url): (&str, String),
    granted: Arc<AtomicU64>,
) -> Vec<Taken> {
    let mut connection = Connection::open(&url).await.unwrap();
    let mut taken: Vec<Taken> = Vec::new();
    while !stop.is_cancelled() {
        // Longer than any of this takes.
        let path = format!("/v1/sequences/{sequence}/leases?timeout=60s");
        let asked = Instant::now();
        let answer = connection.ask("POST", &path, "").await.unwrap();
        let said = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 201, "{url}: {said}");
        let grant: GrantBody = serde_json::from_slice(&answer.body).unwrap();
        let value = grant.first.get().unwrap();
        assert!(taken.last().is_none_or(|last| last.value < value), "I2");
        taken.push(Taken {
            value,
            at: Instant::now(),
            after: asked.elapsed(),
        });
        granted.fetch_add(1, Ordering::Relaxed);
    }
    taken
}
