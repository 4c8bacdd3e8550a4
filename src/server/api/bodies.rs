//! How much of request bodies and of large answers a node holds at once (I9).
//!
//! Eight thousand connections with a body of 64 KiB each would be half a gigabyte, and with a page of a list each eight
//! times that. Small ones are bounded by the number of connections; larger ones share a budget, and are refused where
//! it is used up: bodies before they are read, answers to reads before they are sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use super::extract::BODY_BYTES_MAX;

/// Bodies up to this size are not counted: a lease or a create has some hundred bytes.
const SMALL_BODY_BYTES_MAX: usize = 4 * 1024;
/// The most bytes of larger bodies at once.
pub(super) const BODIES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Answers up to this size are not counted: those to changes never are, because they have happened.
pub(super) const SMALL_ANSWER_BYTES_MAX: usize = 32 * 1024;
/// The most bytes of larger answers at once, of which a page of a list has half a megabyte.
pub(super) const ANSWERS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The budgets.
#[derive(Debug)]
pub(super) struct Bodies {
    requests: Arc<Semaphore>,
    answers: Arc<Semaphore>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self {
            requests: Arc::new(Semaphore::new(BODIES_BYTES_MAX)),
            answers: Arc::new(Semaphore::new(ANSWERS_BYTES_MAX)),
        }
    }
}

impl Bodies {
    /// Lets a request with a large body in while there is room for it. The room is held until the request is answered.
    pub(super) fn admit(
        &self,
        body: &impl HttpBody,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let Some(bytes) = counted(body) else {
            return Ok(None);
        };
        let room = Arc::clone(&self.requests).try_acquire_many_owned(bytes);
        room.map(Some).map_err(|_full| ApiError::BodiesFull)
    }

    /// Lets a large answer to a read out while there is room for it, and holds the room until it is sent.
    pub(super) fn hold(&self, answer: Response) -> Response {
        let bytes = answer.body().size_hint().lower();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes <= SMALL_ANSWER_BYTES_MAX {
            return answer;
        }
        let bytes = u32::try_from(bytes.min(ANSWERS_BYTES_MAX)).unwrap_or(u32::MAX);
        match Arc::clone(&self.answers).try_acquire_many_owned(bytes) {
            Ok(room) => answer.map(|body| Body::new(Held { body, _room: room })),
            Err(_full) => ApiError::AnswersFull.into_response(),
        }
    }
}

/// An answer's body with its room, which is given back when the body is sent or given up.
struct Held {
    body: Body,
    _room: OwnedSemaphorePermit,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// How many bytes to count for a request's body: those announced, or the most there may be.
fn counted(body: &impl HttpBody) -> Option<u32> {
    let size = body.size_hint();
    // What is announced as larger is refused unread.
    let bytes = size.exact().unwrap_or(u64::MAX);
    let bytes = usize::try_from(bytes)
        .unwrap_or(usize::MAX)
        .min(BODY_BYTES_MAX);
    u32::try_from(bytes)
        .ok()
        .filter(|_| SMALL_BODY_BYTES_MAX < bytes)
}
