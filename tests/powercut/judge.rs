//! Whether a node comes back from an image with everything that it owes.

use std::path::Path;

use serde_json::{Value, json};

use crate::history::Owed;
use crate::lone::{self, LoneNode, Started};
use crate::omission::DATA;
use crate::replay::Verdict;

/// Starts the node on an image and asks it for what it owes.
pub(crate) async fn judge(root: &Path, owed: &Owed) -> Verdict {
    let log = root.with_extension("log");
    let node = LoneNode::spawn(&root.join(DATA), &log, &[]);
    let node = match node.wait_until_started().await {
        Started::Serving(node) => node,
        Started::Refused(line) => return Verdict::Refused(line),
        Started::Broke(said) => return Verdict::Broke(said),
        Started::Hung(said) => return Verdict::Hung(said),
    };
    match ask(&node, owed).await {
        Ok(()) => Verdict::Right,
        Err(wrong) => Verdict::Wrong(wrong),
    }
}

async fn ask(node: &LoneNode, owed: &Owed) -> Result<(), String> {
    let http = lone::http();
    let cluster = read(http.get(format!("{}/v1/cluster", node.api))).await?;
    let term = cluster["term"].as_u64().unwrap_or_default();
    // Every start is an election, and the vote of the last one was promised.
    if term <= owed.term {
        return Err(format!(
            "it leads in term {term}, and granted in term {}",
            owed.term
        ));
    }
    for (sequence, expected) in &owed.marks {
        let url = format!("{}/v1/sequences/{sequence}", node.api);
        let shown = read(http.get(&url)).await?;
        let high = shown["high"].as_u64().unwrap_or_default();
        if !expected.contains(&high) {
            return Err(format!(
                "the mark of {sequence} is {high}, not within {expected:?}"
            ));
        }
        let lease = http.post(format!("{url}/leases")).json(&json!({}));
        let first = read(lease).await?["first"].as_u64();
        if first != Some(high + 1) {
            return Err(format!(
                "{sequence} grants {first:?} where its mark is {high}"
            ));
        }
    }
    Ok(())
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
