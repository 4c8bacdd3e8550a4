//! Who the cluster's members are, and changes of them.

use reqwest::Method;

use super::call::{Effect, Request};
use super::{Client, ClientError};
use crate::wire::{
    AdmitBody, AdmittedBody, MemberBody, MemberChangedBody, MembersBody, ReplaceBody,
};

/// Reads and changes the members: see [`Client::members`]. Each change names a state to reach, so to repeat it is safe.
#[derive(Debug, Clone, Copy)]
pub struct Members<'a> {
    client: &'a Client,
}

impl<'a> Members<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        Self { client }
    }

    /// All nodes of the membership, by id.
    ///
    /// # Errors
    /// [`ClientError::Unavailable`] where no node answers.
    pub async fn list(self) -> Result<Vec<MemberBody>, ClientError> {
        let request = Request::new(Method::GET, PATH.to_owned(), Effect::None);
        let answer = self.client.call(request).await?;
        answer.understood(|body: MembersBody| Some(body.members))
    }

    /// Asks for an id for a data directory, which gets the same one however often it asks.
    ///
    /// # Errors
    /// [`ClientError`]. Refused where the cluster has as many nodes as it may.
    pub async fn admit(self, node: &AdmitBody) -> Result<AdmittedBody, ClientError> {
        let request = Request::new(Method::POST, PATH.to_owned(), Effect::Idempotent);
        let answer = self.client.call(request.with_body(node)).await?;
        answer.understood(Some)
    }

    /// Has a learner vote. True where it did not.
    ///
    /// # Errors
    /// [`ClientError`]. Unavailable as long as it lacks entries.
    pub async fn promote(self, node: u64) -> Result<bool, ClientError> {
        self.change(Method::POST, format!("{PATH}/{node}/promote"))
            .await
    }

    /// Makes a voter a learner. True where it was none.
    ///
    /// # Errors
    /// [`ClientError`]. Refused where too few voters would answer then.
    pub async fn demote(self, node: u64) -> Result<bool, ClientError> {
        self.change(Method::POST, format!("{PATH}/{node}/demote"))
            .await
    }

    /// Removes a node for good: its id is never used again. True where it was there.
    ///
    /// # Errors
    /// [`ClientError`]. Refused where too few voters would answer then.
    pub async fn remove(self, node: u64) -> Result<bool, ClientError> {
        self.change(Method::DELETE, format!("{PATH}/{node}")).await
    }

    /// Has a learner vote instead of a node that is removed for good, which may be dead. True where it was not so.
    ///
    /// # Errors
    /// [`ClientError`]. Refused where too few voters would answer then, unavailable as long as the learner lacks entries.
    pub async fn replace(self, node: u64, with: u64) -> Result<bool, ClientError> {
        let path = format!("{PATH}/{node}/replace");
        let request = Request::new(Method::POST, path, Effect::Idempotent);
        self.send(request.with_body(&ReplaceBody { with })).await
    }

    async fn change(self, method: Method, path: String) -> Result<bool, ClientError> {
        self.send(Request::new(method, path, Effect::Idempotent))
            .await
    }

    async fn send(self, request: Request) -> Result<bool, ClientError> {
        let answer = self.client.call(request).await?;
        answer.understood(|body: MemberChangedBody| Some(body.changed))
    }
}

const PATH: &str = "/v1/cluster/members";
