//! How nodes that hold the same cluster file become one cluster, started in any order and killed at any step.
//!
//! Each node has made its incarnation durable before it says a word. All ask all others, again and again, who they
//! are and which formation record they hold. The lowest id makes the one record (cluster id, members,
//! incarnations) once everyone has answered without one; every other node adopts the record that it is shown, if
//! that names its own incarnation, and makes it durable before it shows it to anyone. Raft is initialized by the
//! lowest id, and only when all hold the record.
//!
//! A node that lost its disk has a new incarnation. Whoever holds the record names the old one, so the
//! wiped node is refused wherever it asks, and can neither vote nor form anew (I7, I12). An empty
//! log is never taken as a sign of anything.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use openraft::errors::{InitializeError, RaftError};
use tokio::sync::watch;

use super::Consensus;
use super::belonging::{self, Belonging};
use super::probe::{Probe, ProbeReply, probe};
use crate::server::config::MemberConfig;
use crate::server::store::{DataDir, FormationRecord, Identity, StoreError};
use crate::server::types::{Address, ClusterId, Incarnation, Member, NodeId};

/// How long one node is waited for before it is asked again.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two rounds of questions.
const ROUND_PAUSE: Duration = Duration::from_millis(50);

// What is said of a member that is waited for.
const SILENT: &str = "does not answer";
const OTHER_FILE: &str = "has another cluster file: give all nodes the same";
/// A member that lost its directory after all had met cannot come back, and without it the cluster never starts.
const SILENT_BEFORE_FIRST: &str = "does not answer: start it; if it lost its directory and the cluster never served, \
    empty the directories of all members and start them again";
const NOT_ADOPTED: &str = "has not adopted the formation record";
const OF_OTHER_CLUSTER: &str = "belongs to another cluster: give it its own data directory";

/// What the cluster file says: who the members are to be, and which of them this node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// This node.
    pub(crate) node: NodeId,
    /// Every member's addresses, this node's among them.
    pub(crate) members: BTreeMap<NodeId, PlannedMember>,
}

impl Plan {
    /// This node, with its disks, as the membership is to know it.
    pub(crate) fn own(&self, incarnation: Incarnation) -> Option<Member> {
        let PlannedMember { api, peer } = self.members.get(&self.node)?.clone();
        Some(Member {
            api,
            peer,
            incarnation,
        })
    }

    /// A hash of who the members are to be: nodes with different cluster files form nothing together.
    pub(crate) fn file_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for (id, member) in &self.members {
            hasher.update(format!("{id} {} {}\n", member.api, member.peer).as_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

/// A member as it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedMember {
    /// Where workers reach it.
    pub(crate) api: Address,
    /// Where its peers reach it.
    pub(crate) peer: Address,
}

impl From<&MemberConfig> for PlannedMember {
    fn from(MemberConfig { api, peer }: &MemberConfig) -> Self {
        Self {
            api: api.clone(),
            peer: peer.clone(),
        }
    }
}

/// Why this node cannot be part of the cluster.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormationError {
    /// The directory was formed as another node than it is started as.
    #[error(
        "this directory belongs to node {found}, not to node {asked}: start it as before, with --node {found} or --join, or give node {asked} its own directory"
    )]
    OtherNode {
        /// The id it is started with.
        asked: NodeId,
        /// The id it was formed with.
        found: NodeId,
    },
    /// The cluster knows this id with other disks.
    #[error(
        "node {node} has lost its data: cluster {cluster}, as node {shown_by} shows it, knows it as incarnation {known}, this directory is incarnation {own}; bring back its directory, or replace the node by a new one"
    )]
    Wiped {
        /// This node.
        node: NodeId,
        /// The node that was asked.
        shown_by: NodeId,
        /// The cluster that was asked.
        cluster: ClusterId,
        /// The incarnation in its formation record.
        known: Incarnation,
        /// The incarnation of this directory.
        own: Incarnation,
    },
    /// The cluster was formed without this id.
    #[error("cluster {cluster} was formed without node {node}: join it as a new node")]
    NotNamed {
        /// This node.
        node: NodeId,
        /// The cluster that was asked.
        cluster: ClusterId,
    },
    /// Two members show different records.
    #[error("cluster files name members of two clusters, {one} and {other}: separate them")]
    TwoClusters {
        /// The cluster shown first.
        one: ClusterId,
        /// The cluster shown later.
        other: ClusterId,
    },
    /// Too many members that the cluster file names are in another cluster than the directory.
    #[error(
        "this directory belongs to cluster {own}, but the nodes in the cluster file to cluster {other}: give node {node} its own data directory, or its own cluster's file"
    )]
    OtherCluster {
        /// This node.
        node: NodeId,
        /// The cluster of the directory.
        own: ClusterId,
        /// The cluster of those that answered.
        other: ClusterId,
    },
    /// The record could not be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Raft refused the first membership.
    #[error("raft refuses the first membership: {reason}")]
    Initialize {
        /// What openraft says.
        reason: String,
    },
}

/// Makes sure that the directory holds a formation record, waiting for the other members as long as it takes.
///
/// `identity` is what probes are answered from; it is updated once the record is durable.
///
/// # Errors
/// [`FormationError`] where this node must not start.
pub(crate) async fn form(
    dir: &mut DataDir,
    plan: &Plan,
    identity: &watch::Sender<Identity>,
) -> Result<FormationRecord, FormationError> {
    if let Some(record) = &dir.identity().formation {
        let record = own(record, plan.node)?;
        return match belonging::ask(plan, dir.identity().incarnation, &record).await {
            Belonging::Other(refused) => Err(refused),
            Belonging::Own | Belonging::Unknown => Ok(record),
        };
    }
    let mut told = Told::default();
    loop {
        let replies = ask_all(plan, dir.identity().incarnation, PROBE_TIMEOUT).await;
        let own_incarnation = dir.identity().incarnation;
        let shown = shown_record(plan, own_incarnation, &replies)?;
        let record = match shown {
            Some(record) => record,
            None if may_form(plan, &replies) => first_record(plan, own_incarnation, &replies),
            None => {
                told.about(&missing(plan, &replies));
                tokio::time::sleep(ROUND_PAUSE).await;
                continue;
            }
        };
        dir.adopt(record.clone())?;
        identity.send_replace(dir.identity().clone());
        tracing::info!(cluster = %record.cluster, node = %plan.node, "cluster formed");
        warn_if_even(record.members.len());
        return Ok(record);
    }
}

/// Gives Raft its first membership, once every member holds the record. Only the lowest id does; repeating it
/// is harmless.
///
/// # Errors
/// [`FormationError`] where another cluster's member answers, or Raft refuses.
pub(crate) async fn initialize(
    consensus: &Consensus,
    plan: &Plan,
    record: Option<&FormationRecord>,
) -> Result<(), FormationError> {
    let Some(record) = record else {
        return Ok(());
    };
    let lowest = record.members.keys().next() == Some(&record.node);
    let initialized = consensus.raft().is_initialized().await.unwrap_or(true);
    if !lowest || initialized {
        return Ok(());
    }
    let mut told = Told::default();
    let Some(own) = record.members.get(&record.node) else {
        return Ok(());
    };
    while !everyone_holds(record, plan, own.incarnation, &mut told).await {
        tokio::time::sleep(ROUND_PAUSE).await;
    }
    match consensus.raft().initialize(record.members.clone()).await {
        // Not allowed: another life of this node, or a leader's first append, was quicker.
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
        Err(error) => Err(FormationError::Initialize {
            reason: error.to_string(),
        }),
    }
}

fn own(record: &FormationRecord, asked: NodeId) -> Result<FormationRecord, FormationError> {
    if record.node != asked {
        return Err(FormationError::OtherNode {
            asked,
            found: record.node,
        });
    }
    Ok(record.clone())
}

pub(super) type Replies = BTreeMap<NodeId, ProbeReply>;

/// Every other member's answer; who did not answer within the time is missing.
pub(super) async fn ask_all(plan: &Plan, incarnation: Incarnation, within: Duration) -> Replies {
    let file = plan.file_hash();
    let others = plan.members.iter().filter(|(id, _)| **id != plan.node);
    let asked = others.map(|(id, member)| async move {
        let question = Probe {
            from: plan.node,
            to: *id,
            incarnation,
            file,
        };
        Some((*id, probe(&member.peer, question, within).await.ok()?))
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// The record that a member shows, as this node adopts it.
fn shown_record(
    plan: &Plan,
    own: Incarnation,
    replies: &Replies,
) -> Result<Option<FormationRecord>, FormationError> {
    let mut shown: Option<(NodeId, &FormationRecord)> = None;
    let records = replies
        .iter()
        .filter_map(|(id, reply)| Some((*id, reply.record.as_ref()?)));
    for (id, record) in records {
        match shown {
            Some((_, first)) if first.cluster != record.cluster => {
                return Err(FormationError::TwoClusters {
                    one: first.cluster,
                    other: record.cluster,
                });
            }
            _ => shown = Some((id, record)),
        }
    }
    let Some((shown_by, record)) = shown else {
        return Ok(None);
    };
    let node = plan.node;
    let Some(known) = record.members.get(&node) else {
        return Err(FormationError::NotNamed {
            node,
            cluster: record.cluster,
        });
    };
    if known.incarnation != own {
        let known = known.incarnation;
        return Err(FormationError::Wiped {
            node,
            shown_by,
            cluster: record.cluster,
            known,
            own,
        });
    }
    Ok(Some(FormationRecord {
        node,
        ..record.clone()
    }))
}

/// Whether this node makes the record: it has the lowest id, and everyone answered from the same file.
fn may_form(plan: &Plan, replies: &Replies) -> bool {
    plan.members.keys().next() == Some(&plan.node) && missing(plan, replies).is_empty()
}

fn first_record(plan: &Plan, own: Incarnation, replies: &Replies) -> FormationRecord {
    let members = plan.members.iter().map(|(id, member)| {
        let incarnation = replies.get(id).map_or(own, |reply| reply.incarnation);
        let (api, peer) = (member.api.clone(), member.peer.clone());
        (
            *id,
            Member {
                api,
                peer,
                incarnation,
            },
        )
    });
    FormationRecord {
        cluster: ClusterId::generate(),
        node: plan.node,
        members: members.collect(),
    }
}

/// The members that this node still waits for, and why.
fn missing(plan: &Plan, replies: &Replies) -> BTreeMap<NodeId, &'static str> {
    let file = plan.file_hash();
    let others = plan.members.keys().filter(|id| **id != plan.node);
    let why = |id: &NodeId| match replies.get(id) {
        None => Some((*id, SILENT)),
        Some(reply) if reply.file != file => Some((*id, OTHER_FILE)),
        Some(_) => None,
    };
    others.filter_map(why).collect()
}

async fn everyone_holds(
    record: &FormationRecord,
    plan: &Plan,
    own: Incarnation,
    told: &mut Told,
) -> bool {
    let replies = ask_all(plan, own, PROBE_TIMEOUT).await;
    let others = record.members.keys().filter(|id| **id != record.node);
    let lacking = others.filter_map(|id| match replies.get(id) {
        None => Some((*id, SILENT_BEFORE_FIRST)),
        Some(reply) => match &reply.record {
            Some(held) if held.cluster == record.cluster => None,
            Some(_) => Some((*id, OF_OTHER_CLUSTER)),
            None => Some((*id, NOT_ADOPTED)),
        },
    });
    let lacking: BTreeMap<NodeId, &'static str> = lacking.collect();
    told.about(&lacking);
    lacking.is_empty()
}

/// An even number of nodes needs a larger majority than the odd one below, and survives no more losses.
fn warn_if_even(nodes: usize) {
    if !nodes.is_multiple_of(2) {
        return;
    }
    let fewer = nodes.saturating_sub(1);
    let tolerated = match fewer / 2 {
        0 => "none".to_owned(),
        losses => losses.to_string(),
    };
    let what = format!(
        "{nodes} nodes tolerate the loss of {tolerated}, no more than {fewer} would: use an odd number"
    );
    tracing::warn!(count = nodes, error = what, "even number of nodes");
}

/// What was last said of whom is waited for, so that it is said once and not every round.
#[derive(Debug, Default)]
struct Told {
    last: BTreeMap<NodeId, &'static str>,
}

impl Told {
    fn about(&mut self, waiting: &BTreeMap<NodeId, &'static str>) {
        if self.last == *waiting {
            return;
        }
        for (node, reason) in waiting {
            tracing::info!(%node, error = reason, "waiting for a member to form the cluster");
        }
        self.last.clone_from(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::consensus::belonging::testing::plan;

    fn reply(node: u64, incarnation: Incarnation, record: Option<FormationRecord>) -> ProbeReply {
        ProbeReply {
            node: node.into(),
            incarnation,
            file: plan(node).file_hash(),
            record,
        }
    }

    fn record_with(incarnations: [Incarnation; 3]) -> FormationRecord {
        let replies = [(2, 1), (3, 2)]
            .map(|(id, at)| (NodeId::from(id), reply(id, incarnations[at], None)))
            .into();
        first_record(&plan(1), incarnations[0], &replies)
    }

    fn three() -> [Incarnation; 3] {
        [(); 3].map(|()| Incarnation::generate())
    }

    #[test]
    fn only_the_lowest_id_makes_the_record_and_only_when_everyone_answers() {
        let [_, two, three] = three();
        let all: Replies = [
            (2.into(), reply(2, two, None)),
            (3.into(), reply(3, three, None)),
        ]
        .into();
        let some: Replies = [(2.into(), reply(2, two, None))].into();

        assert!(may_form(&plan(1), &all));
        assert!(!may_form(&plan(1), &some));
        let from_two: Replies = [
            (1.into(), reply(1, two, None)),
            (3.into(), reply(3, three, None)),
        ]
        .into();
        assert!(!may_form(&plan(2), &from_two));
    }

    #[test]
    fn a_member_with_another_cluster_file_is_waited_for() {
        let [_, two, three] = three();
        let mut other = reply(2, two, None);
        other.file = [0; 32];
        let replies: Replies = [(2.into(), other), (3.into(), reply(3, three, None))].into();

        assert!(!may_form(&plan(1), &replies));
        assert_eq!(missing(&plan(1), &replies), [(2.into(), OTHER_FILE)].into());
    }

    #[test]
    fn a_member_adopts_the_record_that_names_its_incarnation() {
        let incarnations = three();
        let record = record_with(incarnations);
        let replies: Replies = [(1.into(), reply(1, incarnations[0], Some(record.clone())))].into();

        let shown = shown_record(&plan(2), incarnations[1], &replies)
            .unwrap()
            .unwrap();

        assert_eq!(
            shown,
            FormationRecord {
                node: 2.into(),
                ..record
            }
        );
    }

    // lni/dragonboat#256, databendlabs/openraft#2002: judged by incarnation, also where the lowest id is the one that lost its disk.
    #[test]
    fn a_wiped_member_is_refused_by_whoever_holds_the_record() {
        let incarnations = three();
        let record = record_with(incarnations);
        let own = Incarnation::generate();
        for (node, known) in [(1, incarnations[0]), (3, incarnations[2])] {
            let shown = FormationRecord {
                node: 2.into(),
                ..record.clone()
            };
            let replies: Replies = [(2.into(), reply(2, incarnations[1], Some(shown)))].into();

            let error = shown_record(&plan(node), own, &replies).unwrap_err();

            let cluster = record.cluster;
            assert_eq!(
                error.to_string(),
                format!(
                    "node {node} has lost its data: cluster {cluster}, as node 2 shows it, knows it as incarnation {known}, this directory is incarnation {own}; bring back its directory, or replace the node by a new one"
                )
            );
        }
    }

    #[test]
    fn two_clusters_and_a_cluster_without_this_node_are_refused() {
        let incarnations = three();
        let (one, other) = (record_with(incarnations), record_with(incarnations));
        let replies: Replies = [
            (2.into(), reply(2, incarnations[1], Some(one.clone()))),
            (3.into(), reply(3, incarnations[2], Some(other.clone()))),
        ]
        .into();

        let error = shown_record(&plan(1), incarnations[0], &replies).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cluster files name members of two clusters, {} and {}: separate them",
                one.cluster, other.cluster
            )
        );

        let mut without = one;
        without.members.remove(&NodeId::from(3));
        let replies: Replies =
            [(2.into(), reply(2, incarnations[1], Some(without.clone())))].into();
        let error = shown_record(&plan(3), incarnations[2], &replies).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cluster {} was formed without node 3: join it as a new node",
                without.cluster
            )
        );
    }

    #[test]
    fn a_directory_of_another_node_is_refused() {
        let record = record_with(three());

        let error = own(&record, 2.into()).unwrap_err();

        assert_eq!(
            error.to_string(),
            "this directory belongs to node 1, not to node 2: start it as before, with --node 1 or --join, or give node 2 its own directory"
        );
    }
}
