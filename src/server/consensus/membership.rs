//! Who the members are, and how that changes while the cluster serves (Raft dissertation §4).
//!
//! A change is asked for by id, at any node, and served by the leader, one at a time. Each looks first whether things are
//! as they are to be, so that it can be asked for again after a lost answer; whatever would leave too few that answer is
//! refused with the arithmetic. openraft goes through a joint membership; one that its leader did not live to finish is
//! finished by the next.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::raft::Precondition;
use tokio::time::{Instant, timeout_at};

use super::at_leader::{LeaderError, LeaderReply};
use super::member_change::{MemberChange, MemberDone, MemberRefusal};
use super::status::{ClusterView, MemberView};
use super::transfer::TransferError;
use super::{Call, Consensus, ReadIndexReply, Reply};
use crate::server::types::{Member, NodeId, StoredMembership};

/// A learner that lacks more entries than this does not vote yet: a majority that counts on it would wait for it.
const LAG_MAX: u64 = 16;
/// How long the members are asked whether they are there.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(1);

/// What a leader answers to a [`MemberChange`].
pub(crate) type MemberReply = LeaderReply<MemberDone, MemberRefusal>;
/// Why the members are not as they were to be.
pub(crate) type MemberError = LeaderError<MemberRefusal>;

impl Consensus {
    /// Has whoever leads change the members. What it needs is waited for until the deadline.
    ///
    /// # Errors
    /// [`MemberError`], which says whether it may have happened. To ask again is safe.
    pub(crate) async fn change_member(
        &self,
        change: MemberChange,
        deadline: Instant,
    ) -> Result<MemberDone, MemberError> {
        let call = |left_ms| Call::ChangeMember {
            change: change.clone(),
            left_ms,
        };
        let reply_of = |reply| match reply {
            Reply::ChangeMember(reply) => Some(reply),
            _ => None,
        };
        self.at_leader(deadline, call, reply_of).await
    }

    /// Changes the members, if this node leads.
    pub(super) async fn change_member_own(
        &self,
        change: MemberChange,
        left_ms: u32,
    ) -> MemberReply {
        // Its answer has to come before the one who waits for it gives up.
        let deadline = Instant::now() + Duration::from_millis(left_ms.into()).mul_f32(0.9);
        let Ok(Ok(_turn)) = timeout_at(deadline, self.changing.acquire()).await else {
            return LeaderReply::Refused(MemberRefusal::Busy);
        };
        loop {
            // It may be this that is waited for, and while the turn is held nobody else does it.
            self.tend_once().await;
            let reply = match self.step(&change, deadline).await {
                Ok(done) => return LeaderReply::Done(done),
                // Who else is needed comes with time.
                Err(LeaderReply::Refused(
                    refusal @ (MemberRefusal::NotCaughtUp { .. } | MemberRefusal::Busy),
                )) => LeaderReply::Refused(refusal),
                Err(reply) => return reply,
            };
            if deadline <= Instant::now() + self.timing().heartbeat() {
                return reply;
            }
            tokio::time::sleep(self.timing().heartbeat()).await;
        }
    }

    /// Looks at the members, and does what is next.
    async fn step(
        &self,
        change: &MemberChange,
        deadline: Instant,
    ) -> Result<MemberDone, MemberReply> {
        let membership = self.proved_membership(deadline).await?;
        // Who is silent takes all of it, and what is done then needs time as well.
        let now = Instant::now();
        let half = deadline.saturating_duration_since(now) / 2;
        let view = self.survey(now + half.min(SURVEY_TIMEOUT)).await;
        let seen = Seen { membership, view };
        let plan = match change {
            MemberChange::Promote { node } => self.promote(*node, &seen)?,
            MemberChange::Demote { node } => self.demote(*node, &seen)?,
            MemberChange::Remove { node } => self.remove(*node, &seen)?,
            MemberChange::Replace { old, new } => self.replace((*old, *new), &seen)?,
            MemberChange::Move { node, member } => relocate(*node, member, &seen)?,
        };
        match plan {
            Plan::Nothing => Ok(MemberDone::Unchanged),
            Plan::HandOver => Err(self.hand_over_first(LeaderReply::NotLeader).await),
            Plan::Change { changes, leavers } => {
                self.write_membership((changes, leavers), &seen.membership, deadline)
                    .await?;
                Ok(MemberDone::Changed)
            }
            Plan::ChangeThenHandOver { changes } => {
                let written =
                    self.write_membership((changes, Leavers::Stay), &seen.membership, deadline);
                written.await?;
                Err(match self.hand_over_first(LeaderReply::Begun).await {
                    LeaderReply::Refused(refusal) => LeaderReply::Unknown {
                        reason: format!("the new node votes, but {refusal}"),
                    },
                    reply => reply,
                })
            }
        }
    }

    fn promote(&self, node: NodeId, seen: &Seen) -> Result<Plan, MemberReply> {
        if seen.votes(node) {
            return Ok(Plan::Nothing);
        }
        self.check_caught_up(node, seen)?;
        let mut voters = seen.voters();
        voters.insert(node);
        seen.check_quorum(&voters)?;
        Ok(Plan::change(
            ChangeMembers::AddVoterIds([node].into()),
            Leavers::Stay,
        ))
    }

    fn demote(&self, node: NodeId, seen: &Seen) -> Result<Plan, MemberReply> {
        self.check_member(node, seen)?;
        if !seen.votes(node) {
            return Ok(Plan::Nothing);
        }
        self.without_voter(node, seen, Leavers::Stay)
    }

    fn remove(&self, node: NodeId, seen: &Seen) -> Result<Plan, MemberReply> {
        match self.check_member(node, seen) {
            Err(LeaderReply::Refused(MemberRefusal::HasLeft { .. })) => return Ok(Plan::Nothing),
            checked => checked?,
        }
        if !seen.votes(node) {
            return Ok(Plan::change(
                ChangeMembers::RemoveNodes([node].into()),
                Leavers::Go,
            ));
        }
        self.without_voter(node, seen, Leavers::Go)
    }

    fn replace(&self, (old, new): (NodeId, NodeId), seen: &Seen) -> Result<Plan, MemberReply> {
        self.check_member(new, seen)?;
        let comes = !seen.votes(new);
        match self.check_member(old, seen) {
            Err(LeaderReply::Refused(MemberRefusal::HasLeft { .. })) if !comes => {
                return Ok(Plan::Nothing);
            }
            checked => checked?,
        }
        if !comes {
            return self.remove(old, seen);
        }
        self.check_caught_up(new, seen)?;
        let mut voters = seen.voters();
        voters.insert(new);
        if old == self.node() {
            // Who takes over may be nobody but the new one.
            seen.check_quorum(&voters)?;
            let changes = ChangeMembers::AddVoterIds([new].into());
            return Ok(Plan::ChangeThenHandOver { changes });
        }
        voters.remove(&old);
        seen.check_quorum(&voters)?;
        let changes = if seen.votes(old) {
            ChangeMembers::ReplaceAllVoters(voters)
        } else {
            ChangeMembers::Batch(vec![
                ChangeMembers::RemoveNodes([old].into()),
                ChangeMembers::ReplaceAllVoters(voters),
            ])
        };
        Ok(Plan::change(changes, Leavers::Go))
    }

    fn without_voter(
        &self,
        node: NodeId,
        seen: &Seen,
        leavers: Leavers,
    ) -> Result<Plan, MemberReply> {
        let mut voters = seen.voters();
        voters.remove(&node);
        seen.check_quorum(&voters)?;
        if node == self.node() {
            return Ok(Plan::HandOver);
        }
        Ok(Plan::change(
            ChangeMembers::RemoveVoters([node].into()),
            leavers,
        ))
    }

    fn check_member(&self, node: NodeId, seen: &Seen) -> Result<(), MemberReply> {
        if seen.membership.get_node(&node).is_some() {
            return Ok(());
        }
        let table = self.tables().table();
        let nodes = table.nodes();
        let waits = nodes.waiting().any(|(id, _)| *id == node.get());
        Err(LeaderReply::Refused(if nodes.has_left(node.get()) {
            MemberRefusal::HasLeft { node }
        } else if waits {
            MemberRefusal::NotCaughtUp { node, lag: None }
        } else {
            MemberRefusal::NoMember { node }
        }))
    }

    fn check_caught_up(&self, node: NodeId, seen: &Seen) -> Result<(), MemberReply> {
        self.check_member(node, seen)?;
        let view = seen.view.members.get(&node);
        // One that is gone may have been the quickest.
        let answering = view.filter(|view| view.reachable == Some(true));
        let lag = answering.and_then(MemberView::lag);
        if lag.is_some_and(|lag| lag <= LAG_MAX) {
            return Ok(());
        }
        Err(LeaderReply::Refused(MemberRefusal::NotCaughtUp {
            node,
            lag,
        }))
    }

    /// The node that is to go leads: another has to, and goes on.
    async fn hand_over_first(&self, handed_over: MemberReply) -> MemberReply {
        match self.transfer_leader(None).await {
            Ok(_) | Err(TransferError::NotLeader) => handed_over,
            Err(error) => LeaderReply::Refused(MemberRefusal::Leads {
                node: self.node(),
                reason: error.to_string(),
            }),
        }
    }

    pub(super) async fn write_membership(
        &self,
        (changes, leavers): (ChangeMembers<NodeId, Member>, Leavers),
        seen: &StoredMembership,
        deadline: Instant,
    ) -> Result<(), MemberReply> {
        let stays = leavers == Leavers::Stay;
        let as_seen = Precondition::LastMembershipLogId {
            last_membership_log_id: *seen.log_id(),
        };
        let written = self.raft().change_membership_if(changes, stays, [as_seen]);
        match timeout_at(deadline, written).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                // Of the second step, too: the joint membership is finished by whoever leads.
                let begun = self.membership().log_id() != seen.log_id();
                Err(if begun {
                    LeaderReply::Begun
                } else {
                    LeaderReply::NotLeader
                })
            }
            // The one before is not committed yet, or somebody was quicker.
            Ok(Err(RaftError::APIError(
                ClientWriteError::ChangeMembershipError(_)
                | ClientWriteError::PreconditionFailed(_),
            ))) => Err(LeaderReply::Refused(MemberRefusal::Busy)),
            Ok(Err(error)) => Err(LeaderReply::Unknown {
                reason: error.to_string(),
            }),
            Err(_elapsed) => Err(LeaderReply::Unknown {
                reason: "the new membership was not committed in time".to_owned(),
            }),
        }
    }

    /// The membership, where this node leads and has applied it: what is told of it now stays so.
    async fn proved_membership(&self, deadline: Instant) -> Result<StoredMembership, MemberReply> {
        let ReadIndexReply::Leads { .. } = self.read_index(deadline).await else {
            return Err(LeaderReply::NotLeader);
        };
        let applied = self.applied_membership();
        applied.ok_or(LeaderReply::Refused(MemberRefusal::Busy))
    }

    /// The membership, where it is committed and the table knows it too.
    pub(super) fn applied_membership(&self) -> Option<StoredMembership> {
        let membership = self.membership();
        let (_, applied) = self.tables().table_at();
        (*membership.log_id() <= applied).then_some(membership)
    }

    /// The membership that counts for this node, committed or not.
    pub(super) fn membership(&self) -> StoredMembership {
        let metrics = self.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        (*metrics.membership_config).clone()
    }
}

/// The members as they were when a step began.
struct Seen {
    membership: StoredMembership,
    view: ClusterView,
}

impl Seen {
    fn voters(&self) -> BTreeSet<NodeId> {
        self.membership.voter_ids().collect()
    }

    fn votes(&self, node: NodeId) -> bool {
        self.membership.voter_ids().any(|voter| voter == node)
    }

    /// Refuses what leaves fewer answering voters than a majority.
    fn check_quorum(&self, voters: &BTreeSet<NodeId>) -> Result<(), MemberReply> {
        let answers = |id: &&NodeId| {
            let member = self.view.members.get(id);
            member.is_some_and(|member| member.reachable == Some(true))
        };
        let (answering, silent): (Vec<NodeId>, Vec<NodeId>) =
            voters.iter().partition(|id| answers(id));
        let needed = voters.len() / 2 + 1;
        if needed <= answering.len() {
            return Ok(());
        }
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Err(LeaderReply::Refused(MemberRefusal::LosesQuorum {
            voters: voters.iter().copied().collect(),
            answering: count(answering.len()),
            needed: count(needed),
            silent,
        }))
    }
}

/// Whether those who vote no more stay as learners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leavers {
    Stay,
    Go,
}

/// What is next on the way to what is wanted.
enum Plan {
    Nothing,
    HandOver,
    Change {
        changes: ChangeMembers<NodeId, Member>,
        leavers: Leavers,
    },
    ChangeThenHandOver {
        changes: ChangeMembers<NodeId, Member>,
    },
}

impl Plan {
    fn change(changes: ChangeMembers<NodeId, Member>, leavers: Leavers) -> Self {
        Self::Change { changes, leavers }
    }
}

fn relocate(node: NodeId, member: &Member, seen: &Seen) -> Result<Plan, MemberReply> {
    let refused = |refusal| Err(LeaderReply::Refused(refusal));
    match seen.membership.get_node(&node) {
        None => refused(MemberRefusal::NoMember { node }),
        Some(known) if known == member => Ok(Plan::Nothing),
        Some(known) if known.incarnation != member.incarnation => {
            refused(MemberRefusal::OtherIncarnation { node })
        }
        Some(_) => Ok(Plan::change(
            ChangeMembers::SetNodes([(node, member.clone())].into()),
            Leavers::Stay,
        )),
    }
}
