//! What a node owes after what it acknowledged, and whether it still has it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::{Value, json};

use super::http;

/// What was acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    /// For each sequence: the mark acknowledged last, up to the one that was asked for last.
    pub(crate) marks: BTreeMap<String, RangeInclusive<u64>>,
    /// The greatest term in which something was granted.
    pub(crate) term: u64,
    /// The greatest log index of a grant.
    pub(crate) index: u64,
}

impl Owed {
    /// Asks the node at this URL for all of it, and for one more value of each sequence.
    ///
    /// # Errors
    /// What is missing, or there although nobody asked for it.
    pub(crate) async fn check(&self, api: &str) -> Result<(), String> {
        let http = http();
        let cluster = read(http.get(format!("{api}/v1/cluster"))).await?;
        let term = cluster["term"].as_u64().unwrap_or_default();
        // Every start is an election, and the vote of the last one was promised.
        if term <= self.term {
            let before = self.term;
            return Err(format!(
                "it leads in term {term}, and granted in term {before}"
            ));
        }
        for (sequence, expected) in &self.marks {
            let url = format!("{api}/v1/sequences/{sequence}");
            let shown = read(http.get(&url)).await?;
            let high = shown["high"].as_u64().unwrap_or_default();
            if !expected.contains(&high) {
                return Err(format!(
                    "the mark of {sequence} is {high}, not within {expected:?}"
                ));
            }
            let lease = http.post(format!("{url}/leases")).json(&json!({}));
            let grant = read(lease).await?;
            let (first, index) = (grant["first"].as_u64(), grant["index"].as_u64());
            if first != Some(high + 1) {
                return Err(format!(
                    "{sequence} grants {first:?} where its mark is {high}"
                ));
            }
            if index <= Some(self.index) {
                let before = self.index;
                return Err(format!(
                    "it grants at index {index:?}, and granted at {before}"
                ));
            }
        }
        Ok(())
    }
}

/// The body of an answer, which must be a success.
async fn read(request: reqwest::RequestBuilder) -> Result<Value, String> {
    let answer = request.send().await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let text = answer.text().await.map_err(|error| error.to_string())?;
    if !status.is_success() {
        return Err(format!("{status}: {text}"));
    }
    serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
}
