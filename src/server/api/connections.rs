//! Who is connected, and who makes room where there are too many (I9).
//!
//! A connection costs memory and an open file for as long as its client likes. So a new one is not turned away for the
//! sake of one that does nothing: it takes the place of the one that has done nothing for longest, first of those that
//! never sent a whole request. Only where every connection waits for an answer the new one is closed, unread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::response::Response;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower_service::Service;

/// All connections of one listener. Clones are of the same listener.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: BTreeMap<u64, Open>,
    /// Those that wait for no answer, in the order in which they have to go.
    quiet: BTreeSet<Quiet>,
    /// Numbers connections, and moments at which one became quiet.
    last: u64,
}

#[derive(Debug)]
struct Open {
    quiet: Option<Quiet>,
    end: CancellationToken,
}

/// A connection that waits for no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Quiet {
    history: History,
    since: u64,
    id: u64,
}

/// What is known of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum History {
    /// It never sent a whole request.
    Silent,
    /// It was answered.
    Answered,
}

impl Connections {
    /// None yet, and at most so many.
    pub(super) fn at_most(max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                max,
                state: Mutex::default(),
            }),
        }
    }

    /// A place for one more, for which a quiet one may have to go; none where all are busy.
    pub(super) fn open(&self) -> Option<Seat> {
        let mut state = self.shared.state();
        if self.shared.max <= state.open.len() {
            let quietest = state.quiet.pop_first()?;
            if let Some(gone) = state.open.remove(&quietest.id) {
                gone.end.cancel();
            }
        }
        state.last += 1;
        let id = state.last;
        let end = CancellationToken::new();
        let open = Open {
            quiet: None,
            end: end.clone(),
        };
        state.open.insert(id, open);
        state.rest(id, History::Silent);
        drop(state);
        Some(Seat {
            id,
            end,
            shared: Arc::clone(&self.shared),
        })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn rest(&mut self, id: u64, history: History) {
        self.last += 1;
        let quiet = Quiet {
            history,
            since: self.last,
            id,
        };
        if let Some(open) = self.open.get_mut(&id) {
            open.quiet = Some(quiet);
            self.quiet.insert(quiet);
        }
    }

    fn work(&mut self, id: u64) {
        let quiet = self.open.get_mut(&id).and_then(|open| open.quiet.take());
        if let Some(quiet) = quiet {
            self.quiet.remove(&quiet);
        }
    }
}

/// A connection's place. Dropped, it is free.
#[derive(Debug)]
pub(super) struct Seat {
    id: u64,
    end: CancellationToken,
    shared: Arc<Shared>,
}

impl Seat {
    /// Resolves when the connection has to go.
    pub(super) fn ended(&self) -> WaitForCancellationFutureOwned {
        self.end.clone().cancelled_owned()
    }

    /// The connection waits for an answer as long as the guard lives.
    fn work(self: Arc<Self>) -> Working {
        self.shared.state().work(self.id);
        Working { seat: self }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.work(self.id);
        state.open.remove(&self.id);
    }
}

struct Working {
    seat: Arc<Seat>,
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut state = self.seat.shared.state();
        state.rest(self.seat.id, History::Answered);
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
        seat.end.is_cancelled()
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

        let state = connections.shared.state();
        assert!(state.open.is_empty() && state.quiet.is_empty(), "{state:?}");
    }
}
