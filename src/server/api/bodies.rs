//! How much of request bodies a node holds at once (I9).
//!
//! Eight thousand connections with a body of 64 KiB each would be half a gigabyte. Small bodies are bounded by the number
//! of connections; larger ones share a budget, and are refused before they are read where it is used up.

use std::sync::Arc;

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::extract::BODY_BYTES_MAX;

/// Bodies up to this size are not counted: a lease or a create has some hundred bytes.
const SMALL_BODY_BYTES_MAX: usize = 4 * 1024;
/// The most bytes of larger bodies at once.
pub(super) const BODIES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The budget for larger bodies. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Bodies {
    room: Arc<Semaphore>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(BODIES_BYTES_MAX)),
        }
    }
}

/// Lets a request with a large body in while there is room for it, and holds the room until it is answered.
pub(super) async fn admit(State(bodies): State<Bodies>, request: Request, next: Next) -> Response {
    let Some(bytes) = counted(&request) else {
        return next.run(request).await;
    };
    match bodies.room.try_acquire_many(bytes) {
        Ok(_room) => next.run(request).await,
        Err(_full) => ApiError::BodiesFull.into_response(),
    }
}

/// How many bytes to count for a request's body: those announced, or the most there may be.
fn counted(request: &Request) -> Option<u32> {
    let size = request.body().size_hint();
    // What is announced as larger is refused unread.
    let bytes = size.exact().unwrap_or(u64::MAX);
    let bytes = usize::try_from(bytes)
        .unwrap_or(usize::MAX)
        .min(BODY_BYTES_MAX);
    u32::try_from(bytes)
        .ok()
        .filter(|_| SMALL_BODY_BYTES_MAX < bytes)
}
