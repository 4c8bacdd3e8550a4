//! The gate before the log changes: a level is told to be known only where every node says so itself.

use super::stored::{Cluster, StoredNode, cluster, stored_leader};
use super::*;
use crate::sequence::{Command, NodeCard};
use crate::server::consensus::level::LevelRefusal;
use crate::server::consensus::{LevelError, Retention};

fn level(number: u32) -> FeatureLevel {
    FeatureLevel::from_number(number).unwrap()
}

/// Nodes that know level 2, but for those that know level 1.
async fn knowing_2_but_for(nodes: u64, held_back: &[u64]) -> Cluster {
    let mut cluster = cluster(nodes).await;
    for place in &mut cluster.places {
        let held_back = held_back.contains(&place.node.get());
        place.level_max = level(if held_back { 1 } else { 2 });
    }
    cluster
}

/// What this node is told of level 2.
async fn asked(node: &StoredNode) -> Result<(), LevelError> {
    node.consensus.all_know(level(2), deadline()).await
}

fn refused(
    lacking: impl IntoIterator<Item = (u64, Option<FeatureLevel>)>,
) -> Result<(), LevelError> {
    let lacking = lacking.into_iter().map(|(node, known)| (id(node), known));
    Err(LevelError::Refused(LevelRefusal {
        level: level(2),
        lacking: lacking.collect(),
    }))
}

fn card(peer: SocketAddr) -> NodeCard {
    NodeCard {
        incarnation: 9,
        api: "127.0.0.1:1".to_owned(),
        peer: peer.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_level_is_known_to_all_once_every_node_says_so() {
    let mut cluster = knowing_2_but_for(3, &[2]).await;
    let mut nodes = cluster.start(Retention::default()).await;
    stored_leader(&nodes).await;

    for node in &nodes {
        assert_eq!(asked(node).await, refused([(2, Some(level(1)))]));
    }
    nodes.remove(1).stop().await;
    for node in &nodes {
        let silent = asked(node).await;
        assert_eq!(silent, refused([(2, None)]));
        assert_eq!(
            silent.unwrap_err().to_string(),
            "feature level 2 is needed, and node 2 does not answer"
        );
    }
    cluster.places[1].level_max = level(2);
    let again = cluster.places[1].start(Retention::default()).await;
    nodes.push(again);
    for node in &nodes {
        wait_until_async(async || asked(node).await == Ok(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_learns_or_waits_for_that_is_asked_as_well() {
    let cluster = knowing_2_but_for(2, &[2]).await;
    let nodes = cluster.start_with_learners().await;
    let leader = stored_leader(&nodes).await;

    assert_eq!(asked(leader).await, refused([(2, Some(level(1)))]));

    let (silent, at) = free_socket().await;
    let node = card(at);
    assert!(leader.propose(vec![Command::Admit { node }]).await);
    let told = asked(leader).await;
    assert_eq!(told, refused([(2, Some(level(1))), (3, None)]));
    assert_eq!(
        told.unwrap_err().to_string(),
        "feature level 2 is needed, and node 2 knows levels up to 1, node 3 does not answer"
    );
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_lost_with_the_question_changes_nothing_and_the_next_one_is_asked() {
    let cluster = knowing_2_but_for(3, &[]).await;
    let mut nodes = cluster.start(Retention::default()).await;
    let (silent, at) = free_socket().await;
    let node = card(at);
    let admit = vec![Command::Admit { node }];
    while !stored_leader(&nodes).await.propose(admit.clone()).await {}
    let leader = nodes.iter().position(StoredNode::leads).unwrap();
    let leader = nodes.remove(leader);
    let mut asking = Box::pin(asked(&nodes[0]));

    // The leader asks the new node, which never answers.
    tokio::select! {
        told = &mut asking => panic!("{told:?}"),
        dialed = silent.accept() => drop(dialed.unwrap()),
    }
    leader.stop().await;

    // The lost leader is a member that does not answer, too.
    let lost = cluster.places.iter().map(|place| place.node);
    let lost = lost
        .filter(|lost| nodes.iter().all(|node| node.consensus.node() != *lost))
        .map(|lost| (lost.get(), None));
    assert_eq!(asking.await, refused(lost.chain([(4, None)])));
}
