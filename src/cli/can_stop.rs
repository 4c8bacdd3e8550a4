//! Whether a node may be stopped now: `highwater cluster status --can-stop N`.

use serde::Serialize;

use super::error::Exit;
use crate::wire::{ClusterBody, MemberBody, MemberRole};

/// A voter that lacks more entries than this is still catching up: were another one stopped, grants would wait for it.
const LAG_MAX: u64 = 16;

/// The answer, with its arithmetic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct CanStop {
    node: u64,
    can_stop: bool,
    reason: String,
}

impl CanStop {
    /// About this node of the cluster; none where it is no member.
    pub(super) fn of(node: u64, cluster: &ClusterBody) -> Option<Self> {
        cluster.members.iter().find(|member| member.id == node)?;
        let (can_stop, reason) = judge(node, cluster);
        Some(Self {
            node,
            can_stop,
            reason,
        })
    }

    pub(super) fn text(&self) -> String {
        let Self { node, reason, .. } = self;
        let can = if self.can_stop { "can" } else { "cannot" };
        format!("node {node} {can} be stopped: {reason}")
    }

    pub(super) fn exit(&self) -> Exit {
        if self.can_stop {
            Exit::Ok
        } else {
            Exit::Unavailable
        }
    }
}

fn judge(node: u64, cluster: &ClusterBody) -> (bool, String) {
    if cluster.leader.is_none() {
        return (false, "there is no leader, so nobody knows".to_owned());
    }
    let voters = || (cluster.members.iter()).filter(|member| member.role != MemberRole::Learner);
    let (count, needed) = (voters().count(), voters().count() / 2 + 1);
    let others = voters().filter(|member| member.id != node);
    let (fit, unfit): (Vec<&MemberBody>, Vec<&MemberBody>) =
        others.partition(|member| is_fit(member));
    let left = fit.len();
    let mut reason = format!("of {count} voters {left} would serve on, and {needed} must");
    for member in unfit {
        let why = if member.reachable == Some(true) {
            "lags behind"
        } else {
            "does not answer"
        };
        reason.push_str(&format!("; node {} {why}", member.id));
    }
    (needed <= left, reason)
}

fn is_fit(member: &MemberBody) -> bool {
    member.reachable == Some(true) && member.lag.is_some_and(|lag| lag <= LAG_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member that lags so far behind, or does not answer.
    fn member(id: u64, role: MemberRole, lag: Option<u64>) -> MemberBody {
        MemberBody {
            reachable: Some(lag.is_some()),
            lag,
            ..MemberBody::unknown(id, role)
        }
    }

    /// A cluster of these that node 1 leads, or nobody.
    fn cluster(leader: Option<u64>, members: Vec<MemberBody>) -> ClusterBody {
        ClusterBody {
            cluster: "c".to_owned(),
            epoch: 1,
            node: 1,
            leader,
            term: 3,
            members,
            tolerates_loss_of: None,
            feature_level: 1,
        }
    }

    fn asked(node: u64, members: Vec<MemberBody>) -> (bool, String) {
        let answer = CanStop::of(node, &cluster(Some(1), members)).unwrap();
        (answer.can_stop, answer.text())
    }

    fn three(lags: [Option<u64>; 3]) -> Vec<MemberBody> {
        let roles = [
            MemberRole::Leader,
            MemberRole::Follower,
            MemberRole::Follower,
        ];
        (1..)
            .zip(roles)
            .zip(lags)
            .map(|((id, role), lag)| member(id, role, lag))
            .collect()
    }

    #[test]
    fn a_node_can_be_stopped_while_a_majority_of_the_others_is_well() {
        let well = || three([Some(0), Some(0), Some(16)]);

        let (can, text) = asked(1, well());
        assert!(can, "the leader hands over");
        assert_eq!(
            text,
            "node 1 can be stopped: of 3 voters 2 would serve on, and 2 must"
        );
        assert!(asked(2, well()).0);
    }

    #[test]
    fn who_is_needed_cannot_be_stopped_and_who_is_dead_already_can() {
        let one_dead = || three([Some(0), Some(0), None]);

        let (can, text) = asked(2, one_dead());
        assert!(!can);
        assert_eq!(
            text,
            "node 2 cannot be stopped: of 3 voters 1 would serve on, and 2 must; node 3 does not answer"
        );
        assert!(asked(3, one_dead()).0);
    }

    #[test]
    fn who_lags_does_not_count() {
        let (can, text) = asked(2, three([Some(0), Some(0), Some(17)]));

        assert!(!can);
        assert!(text.ends_with("; node 3 lags behind"), "{text}");
    }

    #[test]
    fn a_learner_is_nobodys_majority() {
        let mut members = three([Some(0), Some(0), None]);
        members.push(member(4, MemberRole::Learner, Some(0)));

        assert!(!asked(2, members.clone()).0);
        assert!(asked(4, members).0);
    }

    #[test]
    fn the_only_node_cannot_be_stopped() {
        let (can, text) = asked(1, vec![member(1, MemberRole::Leader, Some(0))]);

        assert!(!can);
        assert_eq!(
            text,
            "node 1 cannot be stopped: of 1 voters 0 would serve on, and 1 must"
        );
    }

    #[test]
    fn without_a_leader_nobody_knows() {
        let cluster = cluster(None, three([Some(0); 3]));

        let answer = CanStop::of(2, &cluster).unwrap();

        assert_eq!(answer.exit(), Exit::Unavailable);
        assert_eq!(CanStop::of(9, &cluster), None);
    }
}
