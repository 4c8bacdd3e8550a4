//! The way of a command to the batcher. One that came with a later feature level than the one in use has that raised first: not at
//! a start, so that the way back to an older program stays open until something new is really used.

use tokio::time::Instant;

use super::Service;
use super::error::ApiError;
use super::leases::mismatched;
use crate::sequence::{Command, FeatureLevel, Outcome};
use crate::server::batcher::Committed;

impl Service {
    /// Has a command committed and applied, or says why not, by the deadline.
    ///
    /// # Errors
    /// [`ApiError`], which says whether the command may have been applied.
    pub(super) async fn submit(
        &self,
        command: Command,
        deadline: Instant,
    ) -> Result<Committed, ApiError> {
        let needed = command.needs();
        // What every program knows, leases among it, goes on without a look.
        if FeatureLevel::FIRST < needed {
            Box::pin(self.raise_level(needed, deadline)).await?;
        }
        Ok(self.batcher.submit(command, deadline).await?)
    }

    /// Has the log say first that it holds this level. Once that is applied, only nodes that know it go on; so a command of the
    /// level comes in a later entry, which no other node reads.
    async fn raise_level(&self, to: FeatureLevel, deadline: Instant) -> Result<(), ApiError> {
        if to <= self.consensus.level() {
            return Ok(());
        }
        self.consensus.all_know(to, deadline).await?;
        let raise = Command::RaiseLevel { to };
        let raised = self.batcher.submit(raise, deadline).await?;
        match raised.outcome {
            Outcome::LevelRaised { level } => {
                tracing::info!(%level, "feature level raised");
                Ok(())
            }
            _ => Err(mismatched()),
        }
    }
}
