//! What only the leader can do, asked for at any node: once more at the next leader where the asked one does not lead.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Call, CallError, Consensus, Leader, Reply, left_ms};

/// What a node that is asked to do something as the leader answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LeaderReply<D, R> {
    /// It is as was asked for.
    Done(D),
    /// The asked one does not lead, and changed nothing.
    NotLeader,
    /// Nothing changed.
    Refused(R),
    /// It may still come to be.
    Unknown {
        /// In words.
        reason: String,
    },
    /// The asked one began and does not lead any more: the next leader goes on.
    Begun,
}

/// Why something was not done by the leader.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LeaderError<R: std::error::Error> {
    /// Nobody led before the deadline.
    #[error("no leader was found before the deadline")]
    NoLeader,
    /// Nothing changed.
    #[error(transparent)]
    Refused(R),
    /// It may still come to be.
    #[error("{reason}")]
    Unknown {
        /// In words.
        reason: String,
    },
}

impl Consensus {
    /// Has whoever leads serve a call, which is made with the milliseconds that are left. `reply_of` reads the reply.
    ///
    /// # Errors
    /// [`LeaderError`], which says whether it may have happened.
    pub(super) async fn at_leader<D, R: std::error::Error>(
        &self,
        deadline: Instant,
        call: impl Fn(u32) -> Call,
        reply_of: impl Fn(Reply) -> Option<LeaderReply<D, R>>,
    ) -> Result<D, LeaderError<R>> {
        let mut changes = self.changes();
        let mut begun = false;
        while Instant::now() < deadline {
            let call = call(left_ms(deadline));
            let reply = match self.leader() {
                Leader::Here(_) => Ok(self.serve_as_leader(call).await),
                Leader::There(id, member) => self.call(id, &member, call, deadline).await,
                Leader::Unknown => {
                    self.settle(&mut changes).await;
                    continue;
                }
            };
            let reply = match reply {
                Ok(reply) => reply_of(reply).unwrap_or_else(|| LeaderReply::Unknown {
                    reason: "the leader answered another question".to_owned(),
                }),
                Err(CallError::NotSent { .. }) => LeaderReply::NotLeader,
                Err(error) => LeaderReply::Unknown {
                    reason: error.to_string(),
                },
            };
            match reply {
                LeaderReply::Done(done) => return Ok(done),
                // Refused means unchanged (I5), also by an earlier leader.
                LeaderReply::Refused(refusal) if begun => {
                    return Err(unfinished(refusal));
                }
                LeaderReply::Refused(refusal) => return Err(LeaderError::Refused(refusal)),
                LeaderReply::Unknown { reason } => return Err(LeaderError::Unknown { reason }),
                LeaderReply::NotLeader => self.settle(&mut changes).await,
                LeaderReply::Begun => {
                    begun = true;
                    self.settle(&mut changes).await;
                }
            }
        }
        Err(if begun {
            unfinished(LeaderError::<R>::NoLeader)
        } else {
            LeaderError::NoLeader
        })
    }

    /// Serves a call that is for the leader at this node.
    pub(super) async fn serve_as_leader(&self, call: Call) -> Reply {
        match call {
            Call::HandOver { to } => Reply::HandOver(self.hand_over_own(to).await),
            Call::ChangeMember { change, left_ms } => {
                Reply::ChangeMember(self.change_member_own(change, left_ms).await)
            }
            Call::AllKnow { level, left_ms } => {
                Reply::AllKnow(self.all_know_own(level, left_ms).await)
            }
            Call::LeaseCached { leases, left_ms } => {
                let deadline = Instant::now() + Duration::from_millis(left_ms.into());
                Reply::LeaseCached(self.lease_cached(&leases, deadline).await)
            }
            _ => Reply::Failed {
                reason: "this is no call for the leader".to_owned(),
            },
        }
    }
}

fn unfinished<R: std::error::Error>(why: impl std::error::Error) -> LeaderError<R> {
    LeaderError::Unknown {
        reason: format!("it was begun and is not finished: {why}"),
    }
}
