//! One call: node after node until one serves it, within one deadline.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde::Serialize;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::answer::{Answer, Exchange, receive};
use super::error::{ClientError, Setback, SetbackReason};
use super::nodes::{Others, Stop};
use super::{Client, IdempotencyKey, to_json, transport};
use crate::wire::KEY_HEADER;

/// The shortest time that a node accepts as a request's deadline.
const NODE_TIMEOUT_MIN: Duration = Duration::from_millis(10);
/// The most time that an answer is given to come back after the node's deadline.
const MARGIN_MAX: Duration = Duration::from_millis(250);

/// What the first node of several is given: an election takes half of it, so one that has not answered by then may be cut
/// off. The next is given twice as much, because all may be busy, and each at most half of what is left.
const FIRST_SHARE: Duration = Duration::from_secs(1);

/// What sending a request twice would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// It only reads.
    None,
    /// The second changes nothing that the first has not.
    Idempotent,
    /// The second is answered like the first, as long as both have one key. A later call has another.
    Keyed,
    /// The second gives other values, and nobody gets those of the first.
    Cached,
}

impl Effect {
    pub(super) fn way_out(self) -> &'static str {
        match self {
            Self::Keyed | Self::Cached => {
                "lease again, which gives other values and leaves at the worst a gap"
            }
            Self::None | Self::Idempotent => "send it again, which is safe",
        }
    }
}

/// How much an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// So much that it is collected.
    Short,
    /// So much that it is read piece by piece.
    Long,
}

/// What is asked, of whichever node.
#[derive(Debug)]
pub(super) struct Request {
    method: Method,
    path: String,
    options: Vec<(&'static str, String)>,
    body: Option<Vec<u8>>,
    key: Option<IdempotencyKey>,
    effect: Effect,
    length: Length,
}

impl Request {
    pub(super) fn new(method: Method, path: String, effect: Effect) -> Self {
        Self {
            method,
            path,
            options: Vec::new(),
            body: None,
            key: None,
            effect,
            length: Length::Short,
        }
    }

    /// One more field of the query.
    pub(super) fn with_option(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.options.push((name, value.into()));
        self
    }

    /// Under this key it is one request, however often it is sent.
    pub(super) fn with_key(mut self, key: IdempotencyKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Its answer is not collected.
    pub(super) fn with_long_answer(mut self) -> Self {
        self.length = Length::Long;
        self
    }

    pub(super) fn with_body(mut self, body: &impl Serialize) -> Self {
        self.body = Some(to_json(body));
        self
    }
}

/// What a call has been through so far.
#[derive(Debug, Default)]
struct Trail {
    attempts: u32,
    last: Option<Box<Setback>>,
    /// The last setback after which the request may have happened.
    unknown: Option<Box<Setback>>,
}

impl Client {
    pub(super) async fn call(&self, request: Request) -> Result<Answer, ClientError> {
        let deadline = Instant::now() + self.deadline;
        let mut tour = self.nodes.tour();
        let mut trail = Trail::default();
        loop {
            let stop = tour.next();
            let latest = deadline - NODE_TIMEOUT_MIN * 2;
            if latest <= stop.not_before.max(Instant::now()) {
                return Err(self.give_up(trail, stop, request.effect));
            }
            sleep_until(stop.not_before).await;
            trail.attempts += 1;
            let share = share(tour.others(), trail.attempts, deadline);
            let exchange = self.attempt(&request, share, stop, deadline).await;
            let retry_after = match exchange {
                Exchange::Done(answer) => {
                    tour.arrived(stop);
                    return Ok(answer);
                }
                Exchange::Refused(problem) => {
                    tour.arrived(stop);
                    let may_be_done = request.key.is_some() || request.effect == Effect::Cached;
                    if trail.unknown.is_some() && may_be_done {
                        // What was sent before may still be on its way, and find another state.
                        trail.unknown = Some(stop.setback(SetbackReason::Problem(problem)));
                        return Err(self.give_up(trail, stop, request.effect));
                    }
                    return Err(ClientError::Refused { problem });
                }
                Exchange::NotApplied {
                    reason,
                    retry_after,
                } => {
                    trail.last = Some(stop.setback(reason));
                    retry_after
                }
                Exchange::Unknown {
                    reason,
                    retry_after,
                } => {
                    trail.last = Some(stop.setback(reason));
                    trail.unknown.clone_from(&trail.last);
                    retry_after
                }
            };
            tour.leave(stop, retry_after);
        }
    }

    /// Asks one node. Its deadline lies inside ours, so that its own answer comes first.
    async fn attempt(
        &self,
        request: &Request,
        share: Duration,
        stop: Stop<'_>,
        deadline: Instant,
    ) -> Exchange {
        let margin = MARGIN_MAX.min(share / 5);
        let node_timeout = share.saturating_sub(margin).max(NODE_TIMEOUT_MIN);
        let until = deadline.min(Instant::now() + node_timeout + margin);
        let mut url = stop.url.join(&request.path);
        url.query_pairs_mut()
            .extend_pairs(&request.options)
            .append_pair("timeout", &format!("{}ms", node_timeout.as_millis()));
        let mut builder = self.http.request(request.method.clone(), url);
        if let Some(key) = &request.key {
            builder = builder.header(KEY_HEADER, key.as_str());
        }
        if let Some(body) = &request.body {
            builder = builder
                .header(CONTENT_TYPE, "application/json")
                .body(body.clone());
        }
        let exchange = async {
            receive(
                transport::send(builder).await,
                stop.url,
                (request.effect, request.length),
            )
            .await
        };
        timeout_at(until, exchange)
            .await
            .unwrap_or(Exchange::Unknown {
                reason: SetbackReason::Elapsed,
                retry_after: None,
            })
    }

    fn give_up(&self, trail: Trail, stop: Stop<'_>, effect: Effect) -> ClientError {
        match (trail.unknown, effect) {
            (Some(last), Effect::Keyed | Effect::Cached | Effect::Idempotent) => {
                ClientError::Unknown {
                    last,
                    way_out: effect.way_out(),
                }
            }
            (_, Effect::None) | (None, _) => ClientError::Unavailable {
                deadline: self.deadline,
                attempts: trail.attempts,
                last: trail
                    .last
                    .unwrap_or_else(|| stop.setback(SetbackReason::Elapsed)),
            },
        }
    }
}

/// How much of the time this attempt may take.
fn share(others: Others, attempt: u32, deadline: Instant) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    match others {
        Others::None => left,
        Others::Waiting => {
            let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
            FIRST_SHARE.saturating_mul(doubled).min(left / 2)
        }
    }
}
