//! What fails where the cluster itself is to change: who leads, and who its members are.

use axum::http::StatusCode;

use super::{Kind, lost, refused, unavailable};
use crate::server::consensus::{
    HandOverError, HandOverRefusal, LevelError, MemberError, MemberRefusal,
};

pub(super) fn hand_over_kind(error: &HandOverError) -> Kind {
    match error {
        HandOverError::NoLeader => unavailable(
            "no_leader",
            "send it again; if it lasts, look for a quorum of nodes",
        ),
        HandOverError::Refused(HandOverRefusal::NoVoter { .. }) => refused(
            StatusCode::NOT_FOUND,
            "unknown_voter",
            "GET /v1/cluster to see the members",
        ),
        HandOverError::Refused(HandOverRefusal::NobodyFit { .. }) => unavailable(
            "no_successor",
            "the leader leads on: send it again once another voter is well",
        ),
        HandOverError::Unknown { .. } => lost("timed_out", "GET /v1/cluster to see who leads"),
    }
}

pub(super) fn members_kind(error: &MemberError) -> Kind {
    const SEE: &str = "GET /v1/cluster/members to see the members";
    let refusal = match error {
        MemberError::NoLeader => {
            return unavailable(
                "no_leader",
                "send it again; if it lasts, look for a quorum of nodes",
            );
        }
        MemberError::Unknown { .. } => {
            return lost(
                "timed_out",
                "send it again, which is safe: what is done already stays done",
            );
        }
        MemberError::Refused(refusal) => refusal,
    };
    match refusal {
        MemberRefusal::NoMember { .. } => refused(StatusCode::NOT_FOUND, "unknown_member", SEE),
        MemberRefusal::HasLeft { .. } => refused(
            StatusCode::GONE,
            "member_left",
            "start the node with an empty data directory and --join: it is given a new id",
        ),
        MemberRefusal::OtherIncarnation { .. } => {
            refused(StatusCode::CONFLICT, "other_incarnation", SEE)
        }
        MemberRefusal::LosesQuorum { .. } => refused(
            StatusCode::CONFLICT,
            "quorum_at_risk",
            "grants would stop: make the named nodes answer first",
        ),
        MemberRefusal::NotCaughtUp { .. } => unavailable(
            "not_caught_up",
            "send it again; a node that is new or was away needs a moment",
        ),
        MemberRefusal::Leads { .. } => unavailable(
            "no_successor",
            "send it again once another voter is fit to lead",
        ),
        MemberRefusal::Busy => unavailable("change_in_progress", "send it again after a pause"),
    }
}

pub(super) fn level_kind(error: &LevelError) -> Kind {
    match error {
        // To ask changes nothing, so that one without an answer did not either.
        LevelError::NoLeader | LevelError::Unknown { .. } => unavailable(
            "no_leader",
            "send it again; if it lasts, look for a quorum of nodes",
        ),
        LevelError::Refused(_) => unavailable(
            "upgrade_unfinished",
            "send it again once every node runs this version; highwater cluster status shows who does not",
        ),
    }
}

pub(super) fn older_node_kind() -> Kind {
    refused(
        StatusCode::CONFLICT,
        "older_node",
        "GET /v1/cluster to see which version the members run",
    )
}

/// What the test of all errors says of these.
#[cfg(test)]
pub(super) mod cases {
    use super::*;
    use crate::sequence::{FeatureLevel, LaterLevel};
    use crate::server::api::error::ApiError;
    use crate::server::api::error::tests::Case;
    use crate::server::consensus::LevelRefusal;
    use crate::server::types::NodeId;

    /// Of another leader.
    pub(in crate::server::api::error) fn not_handed_over() -> Vec<Case> {
        let reason = || "node 2 does not answer".to_owned();
        let refused = |refusal| ApiError::HandOver(HandOverError::Refused(refusal));
        vec![
            (
                ApiError::HandOver(HandOverError::NoLeader),
                503,
                "no_leader",
                "no leader was found before the deadline",
            ),
            (
                refused(HandOverRefusal::NoVoter { to: 9.into() }),
                404,
                "unknown_voter",
                "node 9 is no voter of this cluster",
            ),
            (
                refused(HandOverRefusal::NobodyFit { reason: reason() }),
                503,
                "no_successor",
                "node 2 does not answer",
            ),
            (
                ApiError::HandOver(HandOverError::Unknown { reason: reason() }),
                504,
                "timed_out",
                "node 2 does not answer",
            ),
        ]
    }

    /// Of other members, which no leader was asked for.
    pub(in crate::server::api::error) fn members_not_asked_for() -> Vec<Case> {
        let reason = || "no other voter is fit to lead: node 2 does not answer".to_owned();
        vec![
            (
                ApiError::InvalidNodeId {
                    text: "x".to_owned(),
                },
                400,
                "invalid_node_id",
                "\"x\" is no node id: it is a whole number",
            ),
            (
                ApiError::Members(MemberError::NoLeader),
                503,
                "no_leader",
                "no leader was found before the deadline",
            ),
            (
                ApiError::Members(MemberError::Unknown { reason: reason() }),
                504,
                "timed_out",
                "no other voter is fit to lead: node 2 does not answer",
            ),
        ]
    }

    /// Of other members, which the leader refuses.
    pub(in crate::server::api::error) fn members_not_changed() -> Vec<Case> {
        let refused = |refusal| ApiError::Members(MemberError::Refused(refusal));
        let node = NodeId::from(4);
        vec![
            (
                refused(MemberRefusal::NoMember { node }),
                404,
                "unknown_member",
                "node 4 is no member of this cluster",
            ),
            (
                refused(MemberRefusal::HasLeft { node }),
                410,
                "member_left",
                "node 4 has left this cluster, and its id is never used again",
            ),
            (
                refused(MemberRefusal::OtherIncarnation { node }),
                409,
                "other_incarnation",
                "node 4 has another data directory than the one the cluster knows",
            ),
            (
                refused(MemberRefusal::NotCaughtUp { node, lag: None }),
                503,
                "not_caught_up",
                "node 4 is to vote, and does not answer yet",
            ),
            (
                refused(MemberRefusal::NotCaughtUp {
                    node,
                    lag: Some(17),
                }),
                503,
                "not_caught_up",
                "node 4 is to vote, and lacks 17 entries yet",
            ),
        ]
    }

    /// Of a feature level that somebody does not know.
    pub(in crate::server::api::error) fn level_not_known() -> Vec<Case> {
        let [first, second] = [1, 2].map(|number| FeatureLevel::from_number(number).unwrap());
        let lacking = [(2.into(), Some(first)), (3.into(), None)].into();
        let refusal = LevelRefusal {
            level: second,
            lacking,
        };
        vec![
            (
                ApiError::Level(LevelError::NoLeader),
                503,
                "no_leader",
                "no leader was found before the deadline",
            ),
            (
                ApiError::Level(LevelError::Unknown {
                    reason: "the leader answered another question".to_owned(),
                }),
                503,
                "no_leader",
                "the leader answered another question",
            ),
            (
                ApiError::Level(LevelError::Refused(refusal)),
                503,
                "upgrade_unfinished",
                "feature level 2 is needed, and node 2 knows levels up to 1, node 3 does not answer",
            ),
            (
                ApiError::OlderNode(LaterLevel {
                    found: second,
                    known: first,
                }),
                409,
                "older_node",
                "the cluster is at feature level 2, and this node knows levels up to 1: start the version that the other nodes run, \
                 without --feature-level-max",
            ),
        ]
    }

    /// Of other members, which would leave too few, or come at a bad moment.
    pub(in crate::server::api::error) fn members_at_risk() -> Vec<Case> {
        let refused = |refusal| ApiError::Members(MemberError::Refused(refusal));
        vec![
            (
                refused(MemberRefusal::LosesQuorum {
                    voters: vec![1.into(), 3.into()],
                    answering: 1,
                    needed: 2,
                    silent: vec![3.into()],
                }),
                409,
                "quorum_at_risk",
                "that would leave voters 1, 3, of which 1 answer now, and 2 must: start 3, or replace it",
            ),
            (
                refused(MemberRefusal::LosesQuorum {
                    voters: Vec::new(),
                    answering: 0,
                    needed: 1,
                    silent: Vec::new(),
                }),
                409,
                "quorum_at_risk",
                "that would leave no voter, and a cluster has at least one",
            ),
            (
                refused(MemberRefusal::Leads {
                    node: 4.into(),
                    reason: "no other voter is fit".to_owned(),
                }),
                503,
                "no_successor",
                "node 4 leads, and does not hand over: no other voter is fit",
            ),
            (
                refused(MemberRefusal::Busy),
                503,
                "change_in_progress",
                "another change of the members is under way",
            ),
        ]
    }
}
