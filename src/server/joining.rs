//! How a node with an empty directory becomes part of a cluster that is there: it asks any of its nodes for an id, as often as
//! it takes. Its directory is one node however often it asks, so a lost answer costs nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::config::Entry;
use super::consensus::Told;
use super::store::FormationRecord;
use super::types::{ClusterId, Member, NodeId};
use crate::client::{BuildError, Client, ClientError};
use crate::sequence::FeatureLevel;
use crate::wire::{AdmitBody, AdmittedBody, AdmittedMemberBody};

/// How long the nodes are asked before it is said that none answers.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between two rounds of questions.
const ROUND_PAUSE: Duration = Duration::from_secs(1);

/// Why a node cannot join.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// The nodes to ask are described wrongly.
    #[error(transparent)]
    Urls(#[from] BuildError),
    /// The cluster does not take it.
    #[error("the cluster does not admit this node: {reason}")]
    Refused {
        /// In its words.
        reason: String,
    },
    /// It is a member of another one.
    #[error(
        "this directory belongs to cluster {own}, but the nodes given by --join to cluster {other}: give the node its own data \
         directory, or name nodes of its own cluster"
    )]
    OtherCluster {
        /// The directory's.
        own: ClusterId,
        /// The one that it is told to join.
        other: String,
    },
    /// The answer makes no sense.
    #[error(
        "the cluster's answer is not understood, because {reason}: run the same version of highwater on all nodes"
    )]
    NotUnderstood {
        /// In words.
        reason: String,
    },
}

/// Resolves where a member is told to join another cluster than its own. What it is told makes no difference to it any more, and it
/// starts also where nobody answers; but whoever told it means something else than what it does.
pub(super) async fn refused(entry: &Entry, record: Option<&FormationRecord>) -> JoinError {
    if let (Entry::Join { urls }, Some(record)) = (entry, record) {
        let client = match client(urls) {
            Ok(client) => client,
            Err(error) => return error.into(),
        };
        let own = record.cluster;
        loop {
            match client.cluster().await {
                Ok(there) if there.cluster == own.to_string() => break,
                Ok(there) => {
                    let other = there.cluster;
                    return JoinError::OtherCluster { own, other };
                }
                Err(_) => tokio::time::sleep(ROUND_PAUSE).await,
            }
        }
    }
    std::future::pending().await
}

fn client(urls: &[String]) -> Result<Client, BuildError> {
    Client::builder().nodes(urls).deadline(ASK_TIMEOUT).build()
}

/// Asks these nodes until one has admitted this one. What comes back is to be kept before anything else is done.
///
/// # Errors
/// [`JoinError`] where asking again would not help.
pub(super) async fn admitted(
    urls: &[String],
    own: Member,
    level_max: FeatureLevel,
) -> Result<FormationRecord, JoinError> {
    let client = client(urls)?;
    let body = AdmitBody {
        incarnation: own.incarnation.to_string(),
        api: own.api.to_string(),
        peer: own.peer.to_string(),
        feature_level_max: Some(level_max.get()),
    };
    let mut told = Told::default();
    loop {
        let error = match client.members().admit(&body).await {
            Ok(admitted) => return record(admitted, own),
            Err(ClientError::Refused { problem }) => {
                return Err(JoinError::Refused {
                    reason: problem.detail,
                });
            }
            // That it may have been admitted makes no difference: it asks again.
            Err(ClientError::Unavailable { last, .. } | ClientError::Unknown { last, .. }) => {
                last.to_string()
            }
            Err(error) => error.to_string(),
        };
        if told.is_due(&error, Instant::now()) {
            tracing::info!(error, "waiting for the cluster to admit this node");
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
}

fn record(admitted: AdmittedBody, own: Member) -> Result<FormationRecord, JoinError> {
    let not_understood = |reason: String| JoinError::NotUnderstood { reason };
    let node = NodeId::from(admitted.id);
    let members = admitted.members.into_iter().map(member_of);
    let mut members = members
        .collect::<Result<BTreeMap<_, _>, _>>()
        .map_err(not_understood)?;
    members.insert(node, own);
    let cluster = admitted.cluster.parse();
    let cluster = cluster.map_err(|error| not_understood(format!("{error}")))?;
    tracing::info!(%node, %cluster, "admitted");
    Ok(FormationRecord {
        cluster,
        node,
        members,
    })
}

fn member_of(body: AdmittedMemberBody) -> Result<(NodeId, Member), String> {
    let incarnation = body.incarnation.parse();
    let member = Member {
        api: body.api.parse().map_err(|error| format!("{error}"))?,
        peer: body.peer.parse().map_err(|error| format!("{error}"))?,
        incarnation: incarnation.map_err(|error| format!("{error}"))?,
    };
    Ok((body.id.into(), member))
}
