//! Where a run keeps what it writes, and whether that is left for a look.

use std::path::{Path, PathBuf};

use super::recording::{Played, Recorded};
use super::summary::verdict;
use crate::chaos::HarnessError;
use crate::chaos::summary::RunVerdict;

/// What was asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    /// Where the history is; in the directory, where nothing is named.
    pub(crate) history: Option<PathBuf>,
    /// What is made for the run and left; a temporary one, removed after a run that holds, where nothing is named.
    pub(crate) directory: Option<PathBuf>,
}

impl Place {
    /// Where the history is.
    pub(super) fn history(&self, directory: &Path) -> PathBuf {
        let in_directory = || directory.join("history.ndjson");
        self.history.clone().unwrap_or_else(in_directory)
    }
}

/// Runs in a directory, and tells where that is left: of a run that went wrong it is all there is to look at.
pub(super) async fn run_at(
    place: &Place,
    run: impl AsyncFnOnce(&Path) -> Recorded,
) -> (Recorded, Option<PathBuf>) {
    let failed = |error| ((None, Played::failed(error)), None);
    if let Some(path) = &place.directory {
        return match std::fs::create_dir(path) {
            Ok(()) => (run(path).await, Some(path.clone())),
            Err(error) => failed(HarnessError::file(path, "made")(error)),
        };
    }
    let made = tempfile::Builder::new()
        .prefix("highwater-chaos-")
        .tempdir();
    let directory = match made {
        Ok(directory) => directory,
        Err(error) => return failed(HarnessError::file(&std::env::temp_dir(), "written")(error)),
    };
    let recorded = run(directory.path()).await;
    let held = verdict(&recorded) == RunVerdict::Holds;
    let kept = (!held).then(|| directory.keep());
    (recorded, kept)
}
