//! Who is connected, and who makes room where there are too many (I9).
//!
//! A connection costs memory and an open file for as long as its client likes. So a new one is not turned away for the
//! sake of one that does nothing: it takes the place of the one that has done nothing for longest, first of those that
//! never sent a whole request. Only where every connection waits for an answer the new one is closed, unread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::response::Response;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use tower_service::Service;

/// All connections of one listener. Clones are of the same listener.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    max: usize,
    /// Asked for when a connection comes and when it goes, never by a request.
    open: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Numbers connections, and moments at which one became quiet.
    last: AtomicU64,
}

/// What is known of the client at the other end.
#[derive(Debug)]
struct Client {
    /// The moment since which it waits for no answer, which is later for any that was answered than for those that never
    /// sent a whole request; or one of the two below.
    quiet: AtomicU64,
    /// Wakes whoever reads from it.
    reader: AtomicWaker,
}

/// Added to the moment of a client that was answered.
const ANSWERED: u64 = 1 << 63;
/// It waits for an answer.
const WORKS: u64 = u64::MAX;
/// Another has its place.
const ENDED: u64 = u64::MAX - 1;

impl Connections {
    /// None yet, and at most so many.
    pub(super) fn at_most(max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                max,
                open: Mutex::default(),
                last: AtomicU64::new(0),
            }),
        }
    }

    /// A place for one more, for which a quiet one may have to go; none where all are busy.
    pub(super) fn open(&self) -> Option<Seat> {
        let mut open = self.shared.open();
        if self.shared.max <= open.len() {
            let gone = end_quietest(&open)?;
            open.remove(&gone);
        }
        let id = self.shared.next();
        let client = Arc::new(Client {
            quiet: AtomicU64::new(id),
            reader: AtomicWaker::new(),
        });
        open.insert(id, Arc::clone(&client));
        drop(open);
        Some(Seat {
            id,
            client,
            shared: Arc::clone(&self.shared),
        })
    }
}

/// Ends the connection that has to go first.
fn end_quietest(open: &BTreeMap<u64, Arc<Client>>) -> Option<u64> {
    loop {
        let quiet = open.iter().map(|(id, client)| (client.since(), id, client));
        let quiet = quiet.filter(|(since, _, _)| *since < ENDED);
        let (since, id, client) = quiet.min_by_key(|(since, _, _)| *since)?;
        // It may have begun to work meanwhile: then it stays.
        if client.turn(since, ENDED) {
            client.reader.wake();
            return Some(*id);
        }
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        // Nothing panics while it is changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Client {
    fn since(&self) -> u64 {
        self.quiet.load(Ordering::Acquire)
    }

    fn turn(&self, from: u64, to: u64) -> bool {
        self.quiet
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// A connection's place. Dropped, it is free.
#[derive(Debug)]
pub(super) struct Seat {
    id: u64,
    client: Arc<Client>,
    shared: Arc<Shared>,
}

impl Seat {
    /// Ready when the connection has to go.
    pub(super) fn poll_ended(&self, context: &Context<'_>) -> Poll<()> {
        self.client.reader.register(context.waker());
        if self.client.since() == ENDED {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// The connection waits for an answer as long as the guard lives.
    fn work(self: Arc<Self>) -> Working {
        // Only this connection's own task makes it work and rest: where the turn fails, it was ended.
        let since = self.client.since();
        if since != ENDED {
            self.client.turn(since, WORKS);
        }
        Working { seat: self }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.open().remove(&self.id);
    }
}

struct Working {
    seat: Arc<Seat>,
}

impl Drop for Working {
    fn drop(&mut self) {
        let since = ANSWERED | self.seat.shared.next();
        self.seat.client.turn(WORKS, since);
    }
}

/// A connection's service, which says when it works.
#[derive(Debug, Clone)]
pub(super) struct Seated<S> {
    pub(super) service: S,
    pub(super) seat: Arc<Seat>,
}

impl<S, R> Service<R> for Seated<S>
where
    S: Service<R, Response = Response>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let working = Arc::clone(&self.seat).work();
        let answer = self.service.call(request);
        answer.inspect(move |_| drop(working)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ended(seat: &Seat) -> bool {
        seat.client.since() == ENDED
    }

    #[test]
    fn a_new_connection_takes_the_place_of_the_one_that_is_quiet_for_longest() {
        let connections = Connections::at_most(3);
        let [first, second, third] = [(); 3].map(|()| Arc::new(connections.open().unwrap()));
        drop(Arc::clone(&first).work());
        let working = Arc::clone(&second).work();

        let fourth = connections.open().unwrap();
        assert!(is_ended(&third), "it never asked anything");
        let fifth = connections.open().unwrap();
        assert!(is_ended(&fourth), "nor did this one");
        assert!(!is_ended(&first) && !is_ended(&second));

        let fifth = Arc::new(fifth);
        let also_working = Arc::clone(&fifth).work();
        let sixth = Arc::new(connections.open().unwrap());
        assert!(is_ended(&first), "it was answered, and asked nothing since");

        let all_working = Arc::clone(&sixth).work();
        assert!(
            connections.open().is_none(),
            "all of them wait for an answer"
        );
        drop((working, also_working, all_working));
        connections.open().unwrap();
        assert!(is_ended(&second));
    }

    #[test]
    fn a_connection_that_ends_leaves_its_place() {
        let connections = Connections::at_most(1);
        for _ in 0..3 {
            let seat = Arc::new(connections.open().unwrap());
            let working = Arc::clone(&seat).work();
            assert!(connections.open().is_none());
            drop((working, seat));
        }

        assert!(connections.shared.open().is_empty());
    }
}
