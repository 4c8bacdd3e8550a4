//! A backup on its way from a node: bytes that are passed on as they come.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, Response};
use tokio::time::timeout;

use super::answer::root_cause;
use super::call::{Effect, Request};
use super::{Client, ClientError, NodeUrl, Setback, SetbackReason};

/// How long a node may take to the next piece, while others may wait for its table too.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);

/// A backup that is being received. Its end has a checksum, so one that ends too early is found out by whoever reads it.
#[derive(Debug)]
pub struct Download {
    node: NodeUrl,
    response: Response,
}

impl Client {
    /// Asks for the sequences as they are now: see `highwater backup`. Nothing is changed.
    ///
    /// # Errors
    /// [`ClientError::Unavailable`] where no node begins to answer within the deadline.
    pub async fn backup(&self) -> Result<Download, ClientError> {
        let request = Request::new(Method::GET, "/v1/backup".to_owned(), Effect::None);
        let (node, response) = self.call(request.with_long_answer()).await?.begun()?;
        Ok(Download { node, response })
    }
}

impl Download {
    /// The node that sends it.
    #[must_use]
    pub fn node(&self) -> &NodeUrl {
        &self.node
    }

    /// The next bytes, or `None` at the end.
    ///
    /// # Errors
    /// [`ClientError::Unavailable`] where they do not come.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        let reason = match timeout(PIECE_TIMEOUT, self.response.chunk()).await {
            Ok(Ok(piece)) => return Ok(piece),
            Ok(Err(error)) => SetbackReason::Lost {
                cause: root_cause(&error),
            },
            Err(_elapsed) => SetbackReason::Elapsed,
        };
        Err(ClientError::Unavailable {
            deadline: PIECE_TIMEOUT,
            attempts: 1,
            last: Box::new(Setback {
                node: self.node.clone(),
                reason,
            }),
        })
    }
}
