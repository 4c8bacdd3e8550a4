//! Reads of sequences, up to date or as the asked node has them.

use std::num::NonZeroU32;

use reqwest::Method;

use super::call::{Effect, Request};
use super::{Client, ClientError};
use crate::sequence::SequenceName;
use crate::wire::{SequenceBody, SequencesBody};

/// How fresh a read is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Consistency {
    /// It shows everything that was answered before it was sent.
    #[default]
    Linearizable,
    /// It shows what the asked node has applied, which may be old. It is answered without a leader, too.
    Local,
}

/// Which sequences to list, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only names that begin so.
    pub prefix: Option<SequenceName>,
    /// Only names after this one.
    pub after: Option<SequenceName>,
    /// At most so many; the node's default is 100 and its limit 1,000.
    pub limit: Option<NonZeroU32>,
}

/// Reads of one consistency: see [`Client::reads`].
#[derive(Debug, Clone, Copy)]
pub struct Reads<'a> {
    client: &'a Client,
    consistency: Consistency,
}

impl<'a> Reads<'a> {
    pub(super) fn new(client: &'a Client, consistency: Consistency) -> Self {
        Self {
            client,
            consistency,
        }
    }

    /// A sequence's settings and how far it has come.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there is none of this name.
    pub async fn sequence(self, sequence: &SequenceName) -> Result<SequenceBody, ClientError> {
        let request = self.request(format!("/v1/sequences/{sequence}"));
        self.client.call(request).await?.understood(Some)
    }

    /// One page of sequences, retired ones too. Its `next` is the `after` of the following page.
    ///
    /// # Errors
    /// [`ClientError`] where no node answers.
    pub async fn list_sequences(self, query: &ListQuery) -> Result<SequencesBody, ClientError> {
        let mut request = self.request("/v1/sequences".to_owned());
        let ListQuery {
            prefix,
            after,
            limit,
        } = query;
        if let Some(prefix) = prefix {
            request = request.with_option("prefix", prefix.as_str());
        }
        if let Some(after) = after {
            request = request.with_option("after", after.as_str());
        }
        if let Some(limit) = limit {
            request = request.with_option("limit", limit.to_string());
        }
        self.client.call(request).await?.understood(Some)
    }

    fn request(self, path: String) -> Request {
        let request = Request::new(Method::GET, path, Effect::None);
        match self.consistency {
            Consistency::Linearizable => request,
            Consistency::Local => request.with_option("consistency", "local"),
        }
    }
}
