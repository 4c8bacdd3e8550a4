//! Changes of sequences other than leases, for real or to see what they would do.

use reqwest::{Method, StatusCode};

use super::call::{Effect, Request};
use super::{Client, ClientError, Created};
use crate::sequence::SequenceName;
use crate::wire::{
    AdvanceBody, AdvancedBody, AlterBody, CreateBody, ImportBody, ImportedBody, ImportsBody,
    Number, SequenceBody,
};

/// Whether a change is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// It is.
    Real,
    /// It is not: the answer is what it would have been, had it been made at that moment.
    Dry,
}

/// Changes of sequences, made for real or not: see [`Client::changes`]. To repeat any of them is safe.
#[derive(Debug, Clone, Copy)]
pub struct Changes<'a> {
    client: &'a Client,
    run: Run,
}

impl<'a> Changes<'a> {
    pub(super) fn new(client: &'a Client, run: Run) -> Self {
        Self { client, run }
    }

    /// Makes a sequence, or finds it there with the same settings.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened.
    pub async fn create_sequence(
        self,
        sequence: &SequenceName,
        settings: &CreateBody,
    ) -> Result<Created, ClientError> {
        let request = self.request(Method::PUT, format!("/v1/sequences/{sequence}"));
        let answer = self.client.call(request.with_body(settings)).await?;
        let fresh = answer.status() == StatusCode::CREATED;
        answer.understood(|sequence| Some(Created { fresh, sequence }))
    }

    /// Changes settings; what the body leaves out stays.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened.
    pub async fn alter_sequence(
        self,
        sequence: &SequenceName,
        changes: &AlterBody,
    ) -> Result<SequenceBody, ClientError> {
        let request = self.request(Method::PATCH, format!("/v1/sequences/{sequence}"));
        let answer = self.client.call(request.with_body(changes)).await?;
        answer.understood(Some)
    }

    /// Ends a sequence. Its name keeps its mark for ever: created again, it continues above.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened.
    pub async fn retire_sequence(
        self,
        sequence: &SequenceName,
    ) -> Result<SequenceBody, ClientError> {
        let request = self.request(Method::DELETE, format!("/v1/sequences/{sequence}"));
        self.client.call(request).await?.understood(Some)
    }

    /// Raises a sequence's mark to at least `to`; it never falls.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened.
    pub async fn advance(
        self,
        sequence: &SequenceName,
        to: u64,
    ) -> Result<AdvancedBody, ClientError> {
        let body = AdvanceBody {
            to: Number::from(to),
        };
        let request = self.request(Method::POST, format!("/v1/sequences/{sequence}/advance"));
        let answer = self.client.call(request.with_body(&body)).await?;
        answer.understood(Some)
    }

    /// Makes sequences that are not there, and raises the marks of all, each by itself: 1 to [`crate::IMPORT_PARTS_MAX`] in one
    /// commit. The answers have the order of the list; what is refused is among them. A dry run tells whether the sequences
    /// cover these marks: each that does is unchanged.
    ///
    /// # Errors
    /// [`ClientError`], which says whether it may have happened, of all of them. A refusal is of the list as a whole, and
    /// tells which of it is wrong: [`ClientError::position`].
    pub async fn import(self, sequences: &[ImportBody]) -> Result<Vec<ImportedBody>, ClientError> {
        let request = self.request(Method::POST, "/v1/sequences".to_owned());
        let answer = self.client.call(request.with_body(&sequences)).await?;
        answer.understood(|body: ImportsBody| {
            (body.sequences.len() == sequences.len()).then_some(body.sequences)
        })
    }

    fn request(self, method: Method, path: String) -> Request {
        match self.run {
            Run::Real => Request::new(method, path, Effect::Idempotent),
            Run::Dry => Request::new(method, path, Effect::None).with_option("dry_run", "true"),
        }
    }
}
