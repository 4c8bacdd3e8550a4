//! The worker's library: leases ranges from whichever node answers.
//!
//! It knows the cluster only by its HTTP API. What it guarantees is about outcomes: an error says whether the
//! request certainly did not happen. A lease whose answer was lost is sent again under its key, to the next node, so that
//! it is granted once; the caller hears of it only where the deadline passes. A grant that cannot follow what this client was
//! granted before is refused: [`ClientError::Fenced`].
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
mod backup;
mod builder;
mod call;
mod changes;
mod error;
mod fence;
mod grant;
mod members;
mod nodes;
mod reads;
mod transport;

#[cfg(test)]
pub(crate) use transport::{SendError, simulated};

pub use crate::wire::{IDEMPOTENCY_KEY_BYTES_MAX, IdempotencyKey, IdempotencyKeyError};
pub use backup::Download;
pub use builder::{BuildError, ClientBuilder, DEADLINE_MAX, DEADLINE_MIN, NODES_MAX, Spread};
pub use changes::{Changes, Run};
pub use error::{ClientError, Setback, SetbackReason};
pub use fence::FenceReason;
pub use grant::{Created, Grant};
pub use members::Members;
pub use nodes::NodeUrl;
pub use reads::{Consistency, ListQuery, Reads};

use std::time::Duration;

use reqwest::Method;
use serde::Serialize;

use crate::sequence::{RangeCount, SequenceName};
use crate::wire::{
    AdvancedBody, AlterBody, ClusterBody, CreateBody, GrantsBody, ImportBody, ImportedBody,
    LeaseBody, LeasePartBody, SequenceBody, SequencesBody, TransferBody, TransferredBody,
};
use call::{Effect, Request};
use fence::Fence;
use nodes::Nodes;

/// Calls a cluster's nodes. Cheap to share by reference; one is enough for a process.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    nodes: Nodes,
    deadline: Duration,
    fence: Fence,
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

    /// Leases the next `count` values of a sequence, under a key of its own: a lost answer costs time and no value. Of a cached
    /// sequence, where a key would cost time, it leases without one as soon as it knows: a lost answer costs its values.
    ///
    /// # Errors
    /// [`ClientError::Unknown`] where the deadline passed and the range may have been granted: the values are then used by
    /// nobody, and leasing again gives others. [`ClientError::Fenced`] where a restored or another cluster granted what must not
    /// be used. The other errors say that nothing was granted.
    pub async fn lease(
        &self,
        sequence: &SequenceName,
        count: RangeCount,
    ) -> Result<Grant, ClientError> {
        let key = IdempotencyKey::random();
        self.send_lease(sequence, count, key, Effect::Keyed).await
    }

    /// Leases under a key of the caller's, who can then ask for the same range again, also from another process.
    ///
    /// # Errors
    /// As for [`Client::lease`], but that leasing again with the same key gives the range that may have been granted.
    /// Refused with `key_reused` where the key was used for another count.
    pub async fn lease_keyed(
        &self,
        sequence: &SequenceName,
        count: RangeCount,
        key: &IdempotencyKey,
    ) -> Result<Grant, ClientError> {
        let key = key.clone();
        self.send_lease(sequence, count, key, Effect::Idempotent)
            .await
    }

    async fn send_lease(
        &self,
        sequence: &SequenceName,
        count: RangeCount,
        key: IdempotencyKey,
        effect: Effect,
    ) -> Result<Grant, ClientError> {
        let body = LeaseBody {
            count: Some(u64::from(count.get()).into()),
        };
        let path = format!("/v1/sequences/{sequence}/leases");
        let known = self.fence.known(sequence);
        let request = match effect {
            // Nothing of it is in the log, so there is nothing to be found again under a key.
            Effect::Keyed if known.cached => Request::new(Method::POST, path, Effect::Cached),
            _ => Request::new(Method::POST, path, effect).with_key(key),
        };
        let request = request.with_body(&body);
        let before = known.highest;
        let answer = self.call(request).await?;
        let node = answer.node_id();
        // Under a key of the caller's the same range is given again, however long ago it was granted first.
        let again = effect == Effect::Idempotent && answer.was_given_before();
        let before = before.filter(|_| !again);
        let grant = answer.understood(|body| Grant::from_answer(body, node, sequence, count))?;
        self.fence.pass(grant, before)
    }

    /// Leases from several sequences in one commit: all of it or nothing. A sequence may be named more than once.
    ///
    /// # Errors
    /// As for [`Client::lease`]. A refusal tells which of the leases was refused: [`ClientError::position`].
    pub async fn lease_all(
        &self,
        leases: &[(SequenceName, RangeCount)],
    ) -> Result<Vec<Grant>, ClientError> {
        let part = |(sequence, count): &(SequenceName, RangeCount)| LeasePartBody {
            sequence: sequence.to_string(),
            count: Some(u64::from(count.get()).into()),
        };
        let body: Vec<LeasePartBody> = leases.iter().map(part).collect();
        let path = "/v1/leases".to_owned();
        let request = Request::new(Method::POST, path, Effect::Keyed)
            .with_key(IdempotencyKey::random())
            .with_body(&body);
        let before = leases
            .iter()
            .map(|(sequence, _)| self.fence.known(sequence).highest);
        let before: Vec<Option<u64>> = before.collect();
        let answer = self.call(request).await?;
        let node = answer.node_id();
        let grants: Vec<Grant> = answer.understood(|body: GrantsBody| {
            if body.grants.len() != leases.len() {
                return None;
            }
            let pairs = body.grants.into_iter().zip(leases);
            pairs
                .map(|(grant, (sequence, count))| Grant::from_answer(grant, node, sequence, *count))
                .collect()
        })?;
        let grants = grants.into_iter().zip(before);
        grants
            .map(|(grant, before)| self.fence.pass(grant, before))
            .collect()
    }

    /// Changes of sequences, for real or to see what they would do.
    #[must_use]
    pub fn changes(&self, run: Run) -> Changes<'_> {
        Changes::new(self, run)
    }

    /// Reads of sequences, up to date or as the asked node has them.
    #[must_use]
    pub fn reads(&self, consistency: Consistency) -> Reads<'_> {
        Reads::new(self, consistency)
    }

    /// [`Changes::create_sequence`], for real.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened. To repeat it is safe.
    pub async fn create_sequence(
        &self,
        sequence: &SequenceName,
        settings: &CreateBody,
    ) -> Result<Created, ClientError> {
        self.changes(Run::Real)
            .create_sequence(sequence, settings)
            .await
    }

    /// [`Changes::alter_sequence`], for real.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened. To repeat it is safe.
    pub async fn alter_sequence(
        &self,
        sequence: &SequenceName,
        changes: &AlterBody,
    ) -> Result<SequenceBody, ClientError> {
        self.changes(Run::Real)
            .alter_sequence(sequence, changes)
            .await
    }

    /// [`Changes::retire_sequence`], for real.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened. To repeat it is safe.
    pub async fn retire_sequence(
        &self,
        sequence: &SequenceName,
    ) -> Result<SequenceBody, ClientError> {
        self.changes(Run::Real).retire_sequence(sequence).await
    }

    /// [`Changes::advance`], for real.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened. To repeat it is safe.
    pub async fn advance(
        &self,
        sequence: &SequenceName,
        to: u64,
    ) -> Result<AdvancedBody, ClientError> {
        self.changes(Run::Real).advance(sequence, to).await
    }

    /// [`Changes::import`], for real.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened. To repeat it is safe.
    pub async fn import(&self, sequences: &[ImportBody]) -> Result<Vec<ImportedBody>, ClientError> {
        self.changes(Run::Real).import(sequences).await
    }

    /// [`Reads::sequence`], up to date.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there is none of this name.
    pub async fn sequence(&self, sequence: &SequenceName) -> Result<SequenceBody, ClientError> {
        self.reads(Consistency::Linearizable)
            .sequence(sequence)
            .await
    }

    /// [`Reads::list_sequences`], up to date.
    ///
    /// # Errors
    /// [`ClientError`] where no node answers.
    pub async fn list_sequences(&self, query: &ListQuery) -> Result<SequencesBody, ClientError> {
        self.reads(Consistency::Linearizable)
            .list_sequences(query)
            .await
    }

    /// Has whoever leads hand over to this voter, or to whichever is fit where none is named. Tells who leads then.
    ///
    /// # Errors
    /// [`ClientError`], which says whether another may lead later. To repeat it is safe.
    pub async fn transfer_leader(&self, to: Option<u64>) -> Result<TransferredBody, ClientError> {
        let path = "/v1/cluster/transfer-leader".to_owned();
        let request = Request::new(Method::POST, path, Effect::Idempotent);
        let answer = self.call(request.with_body(&TransferBody { to })).await?;
        answer.understood(Some)
    }

    /// The cluster's members, and changes of them.
    #[must_use]
    pub fn members(&self) -> Members<'_> {
        Members::new(self)
    }

    /// What the cluster knows of itself.
    ///
    /// # Errors
    /// [`ClientError::Unavailable`] where no node answers.
    pub async fn cluster(&self) -> Result<ClusterBody, ClientError> {
        let path = "/v1/cluster".to_owned();
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
