//! Whether a directory and the cluster file that its node is started with belong together.
//!
//! After formation the replicated membership rules, so a file that names other addresses is no mistake. But where so many of
//! the nodes it names are in another cluster that this directory's cannot have a majority there, the operator has given the
//! node a wrong directory or a wrong file. One stranger among three refuses nobody: it may be the one that is wrong.

use std::time::Duration;

use super::Consensus;
use super::formation::{FormationError, Plan, Replies, ask_all};
use crate::server::store::FormationRecord;
use crate::server::types::Incarnation;

/// How long a start waits for the others' answers. Those that run answer at once; for those that come later, and for a
/// network that swallows the question, the question is asked again while the node runs.
const START_TIMEOUT: Duration = Duration::from_millis(200);
/// How long one node is waited for while this one runs.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two rounds of questions.
const ROUND_PAUSE: Duration = Duration::from_secs(1);

/// What the others' answers say.
#[derive(Debug)]
pub(super) enum Belonging {
    /// Somebody is in the same cluster.
    Own,
    /// Nobody is, and too few have answered.
    Unknown,
    /// This node must not run.
    Other(FormationError),
}

/// Asks once, before this node takes part.
pub(super) async fn ask(plan: &Plan, own: Incarnation, record: &FormationRecord) -> Belonging {
    if plan.members.len() < 2 {
        return Belonging::Own;
    }
    judge(plan, record, &ask_all(plan, own, START_TIMEOUT).await)
}

/// Asks until somebody answers from the same cluster, and then waits for ever. Resolves where this node must not run.
pub(crate) async fn refused(plan: &Plan, record: Option<&FormationRecord>) -> FormationError {
    let own = record.and_then(|record| Some((record, record.members.get(&record.node)?)));
    if let Some((record, member)) = own
        && 1 < plan.members.len()
    {
        loop {
            let replies = ask_all(plan, member.incarnation, TIMEOUT).await;
            match judge(plan, record, &replies) {
                Belonging::Own => break,
                Belonging::Unknown => tokio::time::sleep(ROUND_PAUSE).await,
                Belonging::Other(refused) => return refused,
            }
        }
    }
    std::future::pending().await
}

impl Consensus {
    /// Says so where the cluster file names nodes that are no members, once this node knows who is: naming them makes none of
    /// them one, and a node that was restored serves alone whatever its file says.
    pub(crate) fn compare_members(&self, plan: &Plan) {
        let membership = self.membership();
        let others = plan.members.keys().filter(|id| **id != plan.node);
        let strangers = others.filter(|id| membership.get_node(id).is_none());
        let strangers: Vec<String> = strangers.map(ToString::to_string).collect();
        if !strangers.is_empty() {
            let what = format!(
                "no member of this cluster, which serves without: {}; have each join, by serve --join on an empty directory and \
                 member add, or take it out of the file",
                strangers.join(", ")
            );
            tracing::warn!(
                error = what,
                "the cluster file names others than the members"
            );
        }
    }
}

fn judge(plan: &Plan, record: &FormationRecord, replies: &Replies) -> Belonging {
    let mut strangers = 0;
    let mut other = None;
    for shown in replies.values().filter_map(|reply| reply.record.as_ref()) {
        if shown.cluster == record.cluster {
            return Belonging::Own;
        }
        strangers += 1;
        other = Some(shown.cluster);
    }
    let nodes = plan.members.len();
    match other {
        // What is left of the nodes is no majority.
        Some(other) if nodes.div_ceil(2) <= strangers => {
            Belonging::Other(FormationError::OtherCluster {
                node: plan.node,
                own: record.cluster,
                other,
            })
        }
        _ => Belonging::Unknown,
    }
}

/// What the tests of formation share.
#[cfg(test)]
pub(super) mod testing {
    use crate::server::consensus::formation::{Plan, PlannedMember};
    use crate::server::types::NodeId;

    /// Three nodes, seen from one of them.
    pub(in crate::server::consensus) fn plan(node: u64) -> Plan {
        let member = |id: u64| {
            let address = |port: u64| format!("127.0.0.1:{port}").parse().unwrap();
            (
                NodeId::from(id),
                PlannedMember {
                    api: address(7100 + id),
                    peer: address(7200 + id),
                },
            )
        };
        Plan {
            node: node.into(),
            members: (1..=3).map(member).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::testing::plan;
    use super::*;
    use crate::server::consensus::probe::ProbeReply;
    use crate::server::types::{ClusterId, NodeId};

    fn record(cluster: ClusterId) -> FormationRecord {
        FormationRecord {
            cluster,
            node: 1.into(),
            members: BTreeMap::new(),
        }
    }

    /// What node 1 is to make of the records that nodes 2 and 3 show.
    fn judged(own: ClusterId, shown: [Option<ClusterId>; 2]) -> Belonging {
        let replies = (2..).zip(shown).map(|(id, cluster): (u64, _)| {
            let reply = ProbeReply {
                node: id.into(),
                incarnation: Incarnation::generate(),
                file: [0; 32],
                record: cluster.map(record),
            };
            (id.into(), reply)
        });
        judge(&plan(1), &record(own), &replies.collect())
    }

    #[test]
    fn a_directory_is_refused_where_its_cluster_can_have_no_majority_at_the_files_addresses() {
        let (own, other) = (ClusterId::generate(), ClusterId::generate());

        let Belonging::Other(refused) = judged(own, [Some(other); 2]) else {
            panic!("two of three are strangers")
        };

        assert_eq!(
            refused.to_string(),
            format!(
                "this directory belongs to cluster {own}, but the nodes in the cluster file to cluster {other}: give node 1 its own data directory, or its own cluster's file"
            )
        );
    }

    // They take the connection, as a stopped process does, and say nothing.
    #[tokio::test(start_paused = true)]
    async fn a_start_waits_its_own_time_for_nodes_that_do_not_answer_and_goes_on() {
        let bind = async || tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = [bind().await, bind().await];
        let mut plan = plan(1);
        for (socket, id) in silent.iter().zip([2, 3]) {
            let member = plan.members.get_mut(&NodeId::from(id)).unwrap();
            member.peer = socket.local_addr().unwrap().into();
        }
        let record = record(ClusterId::generate());
        let begun = tokio::time::Instant::now();

        let asked = ask(&plan, Incarnation::generate(), &record);
        let found = tokio::time::timeout(Duration::from_secs(60), asked).await;

        assert!(matches!(found, Ok(Belonging::Unknown)), "{found:?}");
        assert_eq!(begun.elapsed(), START_TIMEOUT);
    }

    #[test]
    fn one_stranger_refuses_nobody() {
        let (own, other) = (ClusterId::generate(), ClusterId::generate());

        for shown in [[Some(other), None], [None, None]] {
            assert!(matches!(judged(own, shown), Belonging::Unknown));
        }
        for shown in [[Some(other), Some(own)], [Some(own), None]] {
            assert!(matches!(judged(own, shown), Belonging::Own));
        }
    }
}
