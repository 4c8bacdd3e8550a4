//! What has to be true of every run, one file each.

mod durable;
mod history;
mod identity;
mod kept;
mod live;
mod quorum;
mod reads;
mod same_state;

use super::run::Run;

/// What is not true of it, in words.
pub(super) fn broken(run: &Run) -> Vec<String> {
    let found = [
        live::broken(run),
        history::broken(run),
        durable::broken(run),
        reads::broken(run),
        quorum::broken(run),
        same_state::broken(run),
        kept::broken(run),
        identity::broken(run),
    ];
    found.into_iter().flatten().collect()
}
