//! One exchange with one node, and what it means for the request.

use std::error::Error;
use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use serde::de::DeserializeOwned;

use super::call::{Effect, Length};
use super::error::{ClientError, Setback, SetbackReason};
use super::nodes::NodeUrl;
use super::transport::SendError;
use crate::wire::{Problem, ProblemOutcome, REPLAYED_HEADER};

/// The longest answer that is read. The largest is a cluster's list of members.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// The longest time a node may ask to be left alone.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
const NODE_HEADER: &str = "highwater-node";

/// What one exchange means.
pub(super) enum Exchange {
    /// The node did what was asked.
    Done(Answer),
    /// The cluster says no.
    Refused(Box<Problem>),
    /// It certainly did not happen: it may be sent again.
    NotApplied {
        reason: SetbackReason,
        retry_after: Option<Duration>,
    },
    /// It may have happened.
    Unknown {
        reason: SetbackReason,
        retry_after: Option<Duration>,
    },
}

/// A success, not yet understood.
pub(super) struct Answer {
    node: NodeUrl,
    effect: Effect,
    node_id: Option<u64>,
    given_before: bool,
    status: StatusCode,
    content: Content,
}

/// What there is of an answer's body.
enum Content {
    Whole(Vec<u8>),
    /// It is read by whoever asked.
    Coming(Response),
}

impl Answer {
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// The node's id, as its header says.
    pub(super) fn node_id(&self) -> Option<u64> {
        self.node_id
    }

    /// Whether the request was carried out when it was sent before, under the same key.
    pub(super) fn was_given_before(&self) -> bool {
        self.given_before
    }

    /// The body, parsed. A success that is not understood may have changed anything.
    pub(super) fn understood<B: DeserializeOwned, T>(
        self,
        parse: impl FnOnce(B) -> Option<T>,
    ) -> Result<T, ClientError> {
        let parsed = match &self.content {
            Content::Whole(body) => serde_json::from_slice(body).ok().and_then(parse),
            Content::Coming(_) => None,
        };
        parsed.ok_or_else(|| self.not_understood())
    }

    /// The answer itself, whose body is still to be read, and the node that gives it.
    pub(super) fn begun(self) -> Result<(NodeUrl, Response), ClientError> {
        match self.content {
            Content::Coming(response) => Ok((self.node, response)),
            Content::Whole(_) => Err(self.not_understood()),
        }
    }

    fn not_understood(&self) -> ClientError {
        ClientError::Unknown {
            last: Box::new(Setback {
                node: self.node.clone(),
                reason: SetbackReason::Foreign {
                    status: self.status.as_u16(),
                },
            }),
            way_out: self.effect.way_out(),
        }
    }
}

/// What an answer means.
pub(super) async fn receive(
    response: Result<Response, SendError>,
    node: &NodeUrl,
    (effect, length): (Effect, Length),
) -> Exchange {
    let mut response = match response {
        Ok(response) => response,
        Err(error) => return sending_failed(error),
    };
    let status = response.status();
    let headers = response.headers().clone();
    let done = |content| {
        Exchange::Done(Answer {
            node: node.clone(),
            effect,
            node_id: node_id(&headers),
            given_before: headers.contains_key(REPLAYED_HEADER),
            status,
            content,
        })
    };
    if length == Length::Long && status.is_success() {
        return done(Content::Coming(response));
    }
    let body = match read_body(&mut response).await {
        Ok(body) => body,
        // A refusal cut short may be an `unknown` cut short.
        Err(reason) => {
            return Exchange::Unknown {
                reason,
                retry_after: None,
            };
        }
    };
    if status.is_success() {
        return done(Content::Whole(body));
    }
    let retry_after = retry_after(&headers);
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => judge(status, Box::new(problem), retry_after),
        Err(_) => {
            let reason = SetbackReason::Foreign {
                status: status.as_u16(),
            };
            // Whatever stands between may have passed the request on, unless it says that it is the caller's fault.
            if status.is_server_error() {
                Exchange::Unknown {
                    reason,
                    retry_after,
                }
            } else {
                Exchange::NotApplied {
                    reason,
                    retry_after,
                }
            }
        }
    }
}

fn judge(status: StatusCode, problem: Box<Problem>, retry_after: Option<Duration>) -> Exchange {
    match problem.outcome {
        ProblemOutcome::NotApplied if problem.retryable => Exchange::NotApplied {
            reason: SetbackReason::Problem(problem),
            retry_after,
        },
        ProblemOutcome::NotApplied if status.is_server_error() => Exchange::NotApplied {
            reason: SetbackReason::Problem(problem),
            retry_after,
        },
        ProblemOutcome::NotApplied => Exchange::Refused(problem),
        ProblemOutcome::Unknown => Exchange::Unknown {
            reason: SetbackReason::Problem(problem),
            retry_after,
        },
    }
}

fn sending_failed(error: SendError) -> Exchange {
    match error {
        SendError::NotConnected { cause } => Exchange::NotApplied {
            reason: SetbackReason::NotConnected { cause },
            retry_after: None,
        },
        SendError::Lost { cause } => Exchange::Unknown {
            reason: SetbackReason::Lost { cause },
            retry_after: None,
        },
    }
}

async fn read_body(response: &mut Response) -> Result<Vec<u8>, SetbackReason> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(body),
            Ok(Some(chunk)) if body.len() + chunk.len() <= ANSWER_BYTES_MAX => {
                body.extend_from_slice(&chunk);
            }
            Ok(Some(_)) => {
                return Err(SetbackReason::Foreign {
                    status: response.status().as_u16(),
                });
            }
            Err(error) => {
                return Err(SetbackReason::Lost {
                    cause: root_cause(&error),
                });
            }
        }
    }
}

fn node_id(headers: &HeaderMap) -> Option<u64> {
    headers.get(NODE_HEADER)?.to_str().ok()?.parse().ok()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// The innermost cause: the outer ones repeat the address.
pub(super) fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_ask_to_be_left_alone_for_a_minute_at_most() {
        let asked = |text: &'static str| {
            let value = reqwest::header::HeaderValue::from_static(text);
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, value)]))
        };

        assert_eq!(asked("5"), Some(Duration::from_secs(5)));
        assert_eq!(asked("100000"), Some(RETRY_AFTER_MAX));
        assert_eq!(asked("Mon, 30 Nov 2026 00:00:00 GMT"), None);
    }
}
