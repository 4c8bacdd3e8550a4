//! The gate before the log changes: whether every node knows a feature level, as each says itself just now.
//!
//! The leader asks, because it alone has a proved membership. Nothing is changed here: whoever is told that all know the level has it
//! raised through the log, by a command like any other. A node that comes later, or goes back to an older program between the two, is
//! stopped by that command when it applies it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::at_leader::{LeaderError, LeaderReply};
use super::{Call, Consensus, ReadIndexReply, Reply};
use crate::sequence::FeatureLevel;
use crate::server::types::{Member, NodeId};

/// How long the nodes are asked what they know.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the level stays where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("feature level {level} is needed, and {}", told(lacking))]
pub(crate) struct LevelRefusal {
    /// The level that is needed.
    pub(crate) level: FeatureLevel,
    /// Who does not know it, and up to which level they know; `None`: they do not answer.
    pub(crate) lacking: BTreeMap<NodeId, Option<FeatureLevel>>,
}

fn told(lacking: &BTreeMap<NodeId, Option<FeatureLevel>>) -> String {
    let lacking = lacking.iter().map(|(node, known)| match known {
        Some(known) => format!("node {node} knows levels up to {known}"),
        None => format!("node {node} does not answer"),
    });
    lacking.collect::<Vec<_>>().join(", ")
}

/// What a leader answers to whether all know a level.
pub(crate) type LevelReply = LeaderReply<(), LevelRefusal>;
/// Why a level cannot be raised.
pub(crate) type LevelError = LeaderError<LevelRefusal>;

impl Consensus {
    /// The feature level in use, as far as this node has applied the log.
    pub(crate) fn level(&self) -> FeatureLevel {
        self.tables().level()
    }

    /// Sees that all nodes know this feature level, those that were admitted and are no members yet among them.
    ///
    /// # Errors
    /// [`LevelError`]. Nothing is changed, whichever it is.
    pub(crate) async fn all_know(
        &self,
        level: FeatureLevel,
        deadline: Instant,
    ) -> Result<(), LevelError> {
        let call = |left_ms| Call::AllKnow { level, left_ms };
        let reply_of = |reply| match reply {
            Reply::AllKnow(reply) => Some(reply),
            _ => None,
        };
        let mut changes = self.changes();
        loop {
            match self.at_leader(deadline, call, reply_of).await {
                // A leader that was lost with the question changed nothing, so the next one is asked.
                Err(LevelError::Unknown { .. }) => self.settle(&mut changes).await,
                answered => return answered,
            }
        }
    }

    /// The same, if this node leads.
    pub(super) async fn all_know_own(&self, level: FeatureLevel, left_ms: u32) -> LevelReply {
        let left = Duration::from_millis(left_ms.into());
        // Who is silent takes all of it, and what is to be done with the answer needs time as well.
        let until = Instant::now() + (left / 2).min(SURVEY_TIMEOUT);
        let ReadIndexReply::Leads { .. } = self.read_index(until).await else {
            return LeaderReply::NotLeader;
        };
        // One that is being changed is waited for.
        let Some(membership) = self.applied_membership() else {
            return LeaderReply::NotLeader;
        };
        // Where a node is in both, the membership says where it is reached.
        let mut nodes = self.admitted();
        nodes.extend(membership.nodes().map(|(id, member)| (*id, member.clone())));
        let asked = nodes.iter().map(async |(id, member)| {
            let known = self.level_max_of(*id, member, until).await;
            (*id, known)
        });
        let known = join_all(asked).await.into_iter();
        let lacking: BTreeMap<_, _> = known.filter(|(_, known)| *known < Some(level)).collect();
        if lacking.is_empty() {
            return LeaderReply::Done(());
        }
        LeaderReply::Refused(LevelRefusal { level, lacking })
    }

    async fn level_max_of(
        &self,
        id: NodeId,
        member: &Member,
        deadline: Instant,
    ) -> Option<FeatureLevel> {
        if id == self.node() {
            return Some(self.level_max);
        }
        // One that was restarted a moment ago is connected again in a moment.
        while Instant::now() < deadline {
            if let Ok(Reply::Status(status)) = self.call(id, member, Call::Status, deadline).await {
                return Some(status.level_max);
            }
            sleep(self.timing().heartbeat()).await;
        }
        None
    }
}
