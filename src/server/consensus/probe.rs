//! The question that a node without a cluster asks the nodes in its cluster file: who are you, what do you know?
//!
//! It changes nothing at either side. What is made of the answers is formation's part.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::handshake::{self, Answer, HandshakeError, Hello};
use crate::server::store::FormationRecord;
use crate::server::types::{Address, Incarnation, NodeId};

/// Who asks whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// The asking node.
    pub(crate) from: NodeId,
    /// The node that shall answer.
    pub(crate) to: NodeId,
    /// The asking node's.
    pub(crate) incarnation: Incarnation,
    /// Hash of the member list in the asking node's cluster file.
    pub(crate) file: [u8; 32],
}

/// What the asked node is and knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProbeReply {
    /// The answering node.
    pub(crate) node: NodeId,
    /// Its incarnation.
    pub(crate) incarnation: Incarnation,
    /// Hash of the member list in its cluster file.
    pub(crate) file: [u8; 32],
    /// The formation record it has adopted.
    pub(crate) record: Option<FormationRecord>,
}

/// Why a probe has no reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// Nothing came in time.
    #[error("no answer from {peer} within {within:?}")]
    TimedOut {
        /// Who was asked.
        peer: Address,
        /// How long it was waited for.
        within: Duration,
    },
    /// Something else than a reply came.
    #[error("{peer}: {reason}")]
    Refused {
        /// Who was asked.
        peer: Address,
        /// In words.
        reason: String,
    },
}

/// Asks the node at this address.
///
/// # Errors
/// [`ProbeError`] where it does not answer within the time, or refuses.
pub(crate) async fn probe(
    peer: &Address,
    probe: Probe,
    within: Duration,
) -> Result<ProbeReply, ProbeError> {
    let hello = Hello::Probe(probe);
    let Ok(answered) = timeout(within, handshake::ask(peer, &hello)).await else {
        return Err(ProbeError::TimedOut {
            peer: peer.clone(),
            within,
        });
    };
    let refused = |error: HandshakeError| ProbeError::Refused {
        peer: peer.clone(),
        reason: error.to_string(),
    };
    match answered {
        Ok((_, Answer::Probed(reply))) => Ok(reply),
        Ok((_, Answer::Refused(refusal))) => Err(refused(refusal.into())),
        Ok((_, Answer::Welcome(_))) => Err(refused(HandshakeError::Unexpected)),
        Err(error) => Err(refused(error)),
    }
}
