//! Workers on machines of their own: they lease, ask again under the same key, and read.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use reqwest::Method;
use tokio::time::timeout;

use super::machine;
use super::watch::{Board, now_ns, wait_ms};
use crate::client::{Client, ClientError, Grant, SendError, Spread, simulated};
use crate::history::{AdvanceOutcome, LeaseOutcome, Line, Mark, Operation};
use crate::sequence::{RangeCount, SequenceName};
use crate::wire::{AlterBody, GrantBody, IdempotencyKey, Number, Problem, ProblemOutcome};

const SEQUENCES: [&str; 3] = ["photos", "videos", CACHED];
/// Its cache is altered all the time; the others have none. So gaps in it are no fault, and its mark is ahead of grants.
const CACHED: &str = "orders";
const CACHES: [u64; 4] = [10, 30, 100, 0];
/// How far from the mark advances go: often they end within a window.
const ADVANCE_MAX: u64 = 40;
const DEADLINE: Duration = Duration::from_secs(2);
const COUNT_MAX: u64 = 20;
/// How often a request under a key is sent again where nobody knows what became of it.
const TRIES: usize = 3;
/// How long after its grant a key is used again at most. Keys are kept for longer.
const AGAIN_AFTER_MAX_MS: u64 = 4_000;

/// A worker, and when it is to stop.
#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) name: String,
    pub(super) nodes: u64,
    pub(super) seed: u64,
    pub(super) board: Board,
    pub(super) stop: Rc<Cell<bool>>,
    /// How many workers have not stopped yet.
    pub(super) at_work: Rc<Cell<u64>>,
}

/// All sequences that workers lease from.
pub(super) fn sequences() -> impl Iterator<Item = SequenceName> {
    SEQUENCES.iter().map(|name| name.parse().unwrap())
}

impl Worker {
    /// Leases and reads until told to stop.
    pub(super) async fn run(self) -> turmoil::Result {
        let mut chance = StdRng::seed_from_u64(self.seed);
        let client = client(1..=self.nodes);
        // A cluster takes about so long to form.
        wait_ms(chance.random_range(100..200)).await;
        let mut used: Vec<(SequenceName, RangeCount, IdempotencyKey)> = Vec::new();
        while !self.stop.get() {
            let name = SEQUENCES.choose(&mut chance).unwrap();
            let sequence: SequenceName = name.parse().unwrap();
            let count = RangeCount::try_from(chance.random_range(1..=COUNT_MAX)).unwrap();
            match chance.random_range(0..10) {
                0 if *name == CACHED => self.advance(&mut chance, &client, &sequence).await,
                1 if *name == CACHED => alter_cache(&mut chance, &client, &sequence).await,
                0 => self.read(&client, &sequence).await,
                1 if !used.is_empty() => {
                    let pause = chance.random_range(0..AGAIN_AFTER_MAX_MS);
                    let (sequence, count, key) = used.swap_remove(0);
                    wait_ms(pause).await;
                    self.lease(&client, &sequence, count, Some(&key)).await;
                }
                2 | 3 => self.lease_bare(&mut chance, &sequence, count).await,
                4..7 => {
                    let key: IdempotencyKey =
                        format!("{}-{}", self.name, now_ns()).parse().unwrap();
                    for _ in 0..TRIES {
                        if self.lease(&client, &sequence, count, Some(&key)).await {
                            used.push((sequence, count, key));
                            break;
                        }
                    }
                }
                _ => {
                    self.lease(&client, &sequence, count, None).await;
                }
            }
            wait_ms(chance.random_range(0..20)).await;
        }
        self.at_work.set(self.at_work.get() - 1);
        Ok(())
    }

    /// One lease, written down whatever becomes of it. Whether it was granted.
    pub(super) async fn lease(
        &self,
        client: &Client,
        sequence: &SequenceName,
        count: RangeCount,
        key: Option<&IdempotencyKey>,
    ) -> bool {
        let sent_ns = now_ns();
        let result = match key {
            Some(key) => client.lease_keyed(sequence, count, key).await,
            None => client.lease(sequence, count).await,
        };
        let (node, outcome) = match &result {
            Ok(grant) => (grant.node(), granted(grant)),
            Err(ClientError::Fenced { grant, .. }) => (grant.node(), granted(grant)),
            Err(error) => (
                None,
                match error.outcome() {
                    ProblemOutcome::NotApplied => LeaseOutcome::NotApplied,
                    ProblemOutcome::Unknown => LeaseOutcome::Unknown,
                },
            ),
        };
        let operation = Operation::Lease {
            count,
            key: key.map(ToString::to_string),
            outcome,
        };
        self.record(node, sequence, sent_ns, operation);
        result.is_ok()
    }

    /// One lease as anybody may ask for it: without a key, and of one node.
    async fn lease_bare(&self, chance: &mut StdRng, sequence: &SequenceName, count: RangeCount) {
        let sent_ns = now_ns();
        let node = chance.random_range(1..=self.nodes);
        let url = format!(
            "{}/v1/sequences/{sequence}/leases?count={count}&timeout={}ms",
            machine::url(node),
            DEADLINE.as_millis()
        );
        let request = reqwest::Request::new(Method::POST, url.parse().unwrap());
        let outcome = match timeout(DEADLINE * 2, simulated::send(request)).await {
            Ok(Ok(answer)) => understood(answer).await,
            Ok(Err(SendError::NotConnected { .. })) => LeaseOutcome::NotApplied,
            Ok(Err(SendError::Lost { .. })) | Err(_) => LeaseOutcome::Unknown,
        };
        let operation = Operation::Lease {
            count,
            key: None,
            outcome,
        };
        self.record(Some(node), sequence, sent_ns, operation);
    }

    /// One read, written down where it has an answer.
    async fn read(&self, client: &Client, sequence: &SequenceName) {
        self.read_as(client, sequence, Operation::Read).await;
    }

    /// One read when everybody else has stopped, written down where it has an answer. Whether it has.
    pub(super) async fn read_last(&self, client: &Client, sequence: &SequenceName) -> bool {
        self.read_as(client, sequence, Operation::FinalRead).await
    }

    async fn read_as(
        &self,
        client: &Client,
        sequence: &SequenceName,
        to: fn(Mark) -> Operation,
    ) -> bool {
        let sent_ns = now_ns();
        let Ok(body) = client.sequence(sequence).await else {
            return false;
        };
        let mark = Mark {
            high: body.high.and_then(Number::get),
            start: body.start.get(),
            cached: sequence.as_str() == CACHED,
        };
        self.record(None, sequence, sent_ns, to(mark));
        true
    }

    /// One advance to somewhere about the mark, written down whatever becomes of it.
    async fn advance(&self, chance: &mut StdRng, client: &Client, sequence: &SequenceName) {
        let Ok(body) = client.sequence(sequence).await else {
            return;
        };
        let mark = body.high.and_then(Number::get).unwrap_or_default();
        let to = (mark + chance.random_range(0..ADVANCE_MAX)).saturating_sub(ADVANCE_MAX / 2);
        let sent_ns = now_ns();
        let number = |number: Number| number.get().unwrap();
        let outcome = match client.advance(sequence, to).await {
            Ok(advanced) => AdvanceOutcome::Advanced {
                previous: advanced.previous.map(number),
                high: advanced.high.map(number).unwrap(),
            },
            Err(error) if error.outcome() == ProblemOutcome::NotApplied => {
                AdvanceOutcome::NotApplied
            }
            Err(_) => AdvanceOutcome::Unknown,
        };
        self.record(None, sequence, sent_ns, Operation::Advance { to, outcome });
    }

    fn record(
        &self,
        node: Option<u64>,
        sequence: &SequenceName,
        sent_ns: u64,
        operation: Operation,
    ) {
        self.board.line(Line {
            worker: self.name.clone(),
            node,
            sequence: sequence.clone(),
            sent_ns,
            received_ns: now_ns(),
            operation,
        });
    }
}

/// Whether it is done is nobody's concern.
async fn alter_cache(chance: &mut StdRng, client: &Client, sequence: &SequenceName) {
    let cache = *CACHES.choose(chance).unwrap();
    let body = AlterBody {
        cache: Some(Number::from(cache)),
        ..AlterBody::default()
    };
    drop(client.alter_sequence(sequence, &body).await);
}

/// A client of these nodes.
pub(super) fn client(nodes: impl Iterator<Item = u64>) -> Client {
    let client = Client::builder()
        .nodes(nodes.map(machine::url))
        .deadline(DEADLINE)
        .spread(Spread::RoundRobin);
    client.build().unwrap()
}

/// What a node's answer to a lease says.
async fn understood(answer: reqwest::Response) -> LeaseOutcome {
    let body = answer.bytes().await.unwrap();
    if let Ok(grant) = serde_json::from_slice::<GrantBody>(&body) {
        let number = |number: Number| number.get().unwrap();
        return LeaseOutcome::Granted {
            first: number(grant.first),
            last: number(grant.last),
            increment: number(grant.increment),
        };
    }
    let problem: Problem = serde_json::from_slice(&body).unwrap();
    match problem.outcome {
        ProblemOutcome::NotApplied => LeaseOutcome::NotApplied,
        ProblemOutcome::Unknown => LeaseOutcome::Unknown,
    }
}

fn granted(grant: &Grant) -> LeaseOutcome {
    LeaseOutcome::Granted {
        first: grant.first(),
        last: grant.last(),
        increment: grant.increment(),
    }
}
