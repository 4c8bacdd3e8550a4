//! The worker's library: leases ranges from whichever node answers.
//!
//! It knows the cluster only by its HTTP API. What it guarantees is about outcomes: an error says whether the
//! request certainly did not happen, and what may have happened is never sent a second time behind the caller's
//! back. Until request keys exist, that holds for every lease whose answer was lost.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use highwater::RangeCount;
//! use highwater::client::Client;
//!
//! let client = Client::builder()
//!     .nodes(["http://127.0.0.1:7101", "http://127.0.0.1:7102", "http://127.0.0.1:7103"])
//!     .build()?;
//! let grant = client.lease(&"photos".parse()?, RangeCount::constant(1000)).await?;
//! println!("{} {}", grant.first(), grant.last());
//! # Ok(())
//! # }
//! ```

mod answer;
mod builder;
mod call;
mod error;
mod grant;
mod nodes;

pub use builder::{BuildError, ClientBuilder, DEADLINE_MAX, DEADLINE_MIN, NODES_MAX, Spread};
pub use error::{ClientError, Setback, SetbackReason};
pub use grant::{Created, Grant};
pub use nodes::NodeUrl;

use std::time::Duration;

use reqwest::Method;
use serde::Serialize;

use crate::sequence::{RangeCount, SequenceName};
use crate::wire::{
    AdvanceBody, AdvancedBody, ClusterBody, CreateBody, LeaseBody, Number, SequenceBody,
};
use call::{Effect, Request};
use nodes::Nodes;

/// Calls a cluster's nodes. Cheap to share by reference; one is enough for a process.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    nodes: Nodes,
    deadline: Duration,
}

impl Client {
    /// Starts to describe a client.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The addresses it calls, in the order given.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeUrl> {
        self.nodes.iter()
    }

    /// Leases the next `count` values of a sequence.
    ///
    /// # Errors
    /// [`ClientError::Unknown`] where the range may have been granted: the values are then used by nobody, and leasing
    /// again gives others. The other errors say that nothing was granted.
    pub async fn lease(
        &self,
        sequence: &SequenceName,
        count: RangeCount,
    ) -> Result<Grant, ClientError> {
        let body = LeaseBody {
            count: Some(u64::from(count.get()).into()),
        };
        let path = format!("/v1/sequences/{sequence}/leases");
        let request = Request::new(Method::POST, path, Effect::Once).with_body(&body);
        let answer = self.call(request).await?;
        let node = answer.node_id();
        answer.understood(|body| Grant::from_answer(body, node, sequence, count))
    }

    /// Makes a sequence, or finds it there with the same settings.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened. To repeat it is safe.
    pub async fn create_sequence(
        &self,
        sequence: &SequenceName,
        settings: &CreateBody,
    ) -> Result<Created, ClientError> {
        let path = format!("/v1/sequences/{sequence}");
        let request = Request::new(Method::PUT, path, Effect::Idempotent).with_body(settings);
        let answer = self.call(request).await?;
        let fresh = answer.status() == reqwest::StatusCode::CREATED;
        answer.understood(|body| {
            Some(Created {
                fresh,
                sequence: body,
            })
        })
    }

    /// A sequence's settings and how far it has come.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there is none of this name.
    pub async fn sequence(&self, sequence: &SequenceName) -> Result<SequenceBody, ClientError> {
        self.read(format!("/v1/sequences/{sequence}")).await
    }

    /// Raises a sequence's mark to at least `to`; it never falls.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened. To repeat it is safe.
    pub async fn advance(
        &self,
        sequence: &SequenceName,
        to: u64,
    ) -> Result<AdvancedBody, ClientError> {
        let body = AdvanceBody {
            to: Number::from(to),
        };
        let path = format!("/v1/sequences/{sequence}/advance");
        let request = Request::new(Method::POST, path, Effect::Idempotent).with_body(&body);
        self.call(request).await?.understood(Some)
    }

    /// What the cluster knows of itself.
    ///
    /// # Errors
    /// [`ClientError::Unavailable`] where no node answers.
    pub async fn cluster(&self) -> Result<ClusterBody, ClientError> {
        self.read("/v1/cluster".to_owned()).await
    }

    async fn read<T: serde::de::DeserializeOwned>(&self, path: String) -> Result<T, ClientError> {
        let request = Request::new(Method::GET, path, Effect::None);
        self.call(request).await?.understood(Some)
    }
}

/// JSON of a body of ours.
fn to_json(body: &impl Serialize) -> Vec<u8> {
    // Our bodies hold strings and integers only, which always have a JSON form.
    serde_json::to_vec(body).unwrap_or_default()
}

#[cfg(test)]
mod tests;
