//! Whether a node comes back from an image with everything that it owes.

use std::path::Path;

use crate::lone::{LoneNode, Owed, Started};
use crate::omission::DATA;
use crate::replay::Verdict;

/// Starts the node on an image and asks it for what it owes.
pub(crate) async fn judge(root: &Path, owed: &Owed) -> Verdict {
    let log = root.with_extension("log");
    let node = LoneNode::spawn(&root.join(DATA), &log, &[]);
    match node.wait_until_started().await {
        Started::Serving(node) => match owed.check(&node.api).await {
            Ok(()) => Verdict::Right,
            Err(wrong) => Verdict::Wrong(wrong),
        },
        Started::Refused(line) => Verdict::Refused(line),
        Started::Broke(said) => Verdict::Broke(said),
        Started::Hung(said) => Verdict::Hung(said),
    }
}
