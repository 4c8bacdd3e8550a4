//! The file that all nodes of a new cluster share, read once and checked whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::{ConfigError, MemberConfig};
use crate::server::types::{Address, NodeId};

/// The most nodes in a cluster file: each more costs every grant a sync on another disk, and none makes it faster.
pub(super) const NODES_MAX: usize = 9;

/// The file that all nodes of a new cluster share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterFile {
    /// What people call the cluster.
    pub(crate) name: String,
    /// Its members.
    pub(crate) members: BTreeMap<NodeId, MemberConfig>,
}

impl ClusterFile {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`ConfigError`] where it cannot be read, is not understood, or contradicts itself.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|source| ConfigError::File {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    pub(super) fn parse(text: &str) -> Result<Self, ConfigError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            cluster: Cluster,
            #[serde(default)]
            node: Vec<Node>,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Cluster {
            name: String,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Node {
            id: NodeId,
            api: Address,
            peer: Address,
        }

        let file: File = toml::from_str(text).map_err(|error| ConfigError::NotUnderstood {
            reason: toml_reason(text, &error),
        })?;
        if file.node.is_empty() || NODES_MAX < file.node.len() {
            return Err(ConfigError::NodeCount {
                found: file.node.len(),
            });
        }
        let mut members = BTreeMap::new();
        let mut addresses = BTreeSet::new();
        for Node { id, api, peer } in file.node {
            for address in [&api, &peer] {
                if address.port() == 0 {
                    return Err(ConfigError::NoPort {
                        address: address.clone(),
                    });
                }
                let place = (address.host().to_lowercase(), address.port());
                if !addresses.insert(place) {
                    return Err(ConfigError::DuplicateAddress {
                        address: address.clone(),
                    });
                }
            }
            if id.get() == 0 {
                return Err(ConfigError::ZeroId);
            }
            if members.insert(id, MemberConfig { api, peer }).is_some() {
                return Err(ConfigError::DuplicateId { id });
            }
        }
        Ok(Self {
            name: file.cluster.name,
            members,
        })
    }
}

/// What the parser of a TOML file says, on one line, and where.
pub(crate) fn toml_reason(text: &str, error: &toml::de::Error) -> String {
    let said = error.message().replace('\n', " ");
    let before = error.span().and_then(|span| text.get(..span.start));
    match before {
        Some(before) => format!("line {}: {said}", before.matches('\n').count() + 1),
        None => said,
    }
}
