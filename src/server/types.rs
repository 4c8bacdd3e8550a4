//! The words that the layers of a node share: who a node is, what a proposal is, openraft's types bound to ours.
//!
//! Stored and sent layouts are in `formats`; this file has no I/O.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::sequence::{Applied, NodeCard};

/// The most commands in one batch.
pub(crate) const BATCH_COMMANDS_MAX: usize = 1_024;
/// The most bytes of one encoded batch.
pub(crate) const BATCH_BYTES_MAX: usize = 48 * 1024;
/// The most bytes of one stored record, so that sled never moves a value to a blob file (segment size / 80).
pub(crate) const RECORD_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of all batches of one proposal: a record less its header and lengths.
pub(crate) const PROPOSAL_BYTES_MAX: usize = RECORD_BYTES_MAX - 4 * 1024;

openraft::declare_raft_types!(
    /// openraft's types, bound to Highwater's.
    pub(crate) TypeConfig:
        D = Proposal,
        R = Applied,
        NodeId = NodeId,
        Node = Member,
);

/// openraft's log id: leadership and index.
pub(crate) type LogId = openraft::LogId<Leadership>;
/// A leadership: (term, node), always compared whole.
pub(crate) type Leadership = openraft::impls::leader_id_adv::LeaderId<u64, NodeId>;
/// openraft's vote.
pub(crate) type Vote = openraft::impls::Vote<Leadership>;
/// openraft's log entry.
pub(crate) type Entry = openraft::impls::Entry<Leadership, Payload>;
/// What an entry carries.
pub(crate) type Payload = openraft::EntryPayload<Proposal, NodeId, Member>;
/// openraft's membership.
pub(crate) type Membership = openraft::Membership<NodeId, Member>;
/// openraft's membership with the log id that holds it.
pub(crate) type StoredMembership = openraft::StoredMembership<Leadership, NodeId, Member>;
/// What openraft knows of a snapshot.
pub(crate) type SnapshotMeta = openraft::storage::SnapshotMeta<Leadership, NodeId, Member>;

/// A node's number in its cluster. Never used twice.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub(crate) struct NodeId(u64);

impl NodeId {
    /// The id as a number.
    #[must_use]
    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for NodeId {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for NodeId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// 128 random bits, written as 32 hexadecimal digits.
macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub(crate) struct $name(u128);

        impl $name {
            /// A new one, never seen before.
            pub(crate) fn generate() -> Self {
                Self(rand::random())
            }
        }

        impl FromStr for $name {
            type Err = RandomIdError;

            fn from_str(text: &str) -> Result<Self, RandomIdError> {
                let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                let bits = u128::from_str_radix(text, 16).ok().filter(|_| digits);
                bits.map(Self).ok_or_else(|| RandomIdError {
                    text: text.to_owned(),
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

/// A text that is no such id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not 32 hexadecimal digits")]
pub(crate) struct RandomIdError {
    text: String,
}

random_id! {
    /// A cluster's identity, made once at formation.
    ClusterId
}

random_id! {
    /// A data directory's identity, made once with it: the same node id with other disks is another node.
    Incarnation
}

impl Incarnation {
    /// The one with these bits.
    pub(crate) const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Its bits, for the table, which knows no node types.
    pub(crate) const fn bits(self) -> u128 {
        self.0
    }
}

/// The longest address: a host name has at most 253 bytes (RFC 1035), a port five digits.
pub(crate) const ADDRESS_BYTES_MAX: usize = 260;

/// Where a listener is reached: `host:port`, resolved at each connection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Address(String);

impl Address {
    /// The address as `host:port`.
    #[must_use]
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before the port: a name or an IP address.
    #[must_use]
    pub(crate) fn host(&self) -> &str {
        self.0.rsplit_once(':').map_or("", |(host, _)| host)
    }

    /// The port; 0 lets the system choose one.
    #[must_use]
    pub(crate) fn port(&self) -> u16 {
        let port = self.0.rsplit_once(':').map(|(_, port)| port.parse());
        port.and_then(Result::ok).unwrap_or_default()
    }
}

impl Default for Address {
    /// Nowhere, and still an address: what is stored must be read back.
    fn default() -> Self {
        Self("0.0.0.0:0".to_owned())
    }
}

impl From<std::net::SocketAddr> for Address {
    fn from(address: std::net::SocketAddr) -> Self {
        Self(address.to_string())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let parts = text.rsplit_once(':');
        let fits = parts.is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok()
        });
        if fits && text.len() <= ADDRESS_BYTES_MAX {
            Ok(Self(text.to_owned()))
        } else {
            Err(AddressError {
                text: text.to_owned(),
            })
        }
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A text that is not `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address: write host:port, for example 127.0.0.1:7101")]
pub(crate) struct AddressError {
    text: String,
}

/// What the replicated membership says of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Where workers reach it.
    pub(crate) api: Address,
    /// Where its peers reach it.
    pub(crate) peer: Address,
    /// Whose disks its votes are on.
    pub(crate) incarnation: Incarnation,
}

impl From<&Member> for NodeCard {
    fn from(member: &Member) -> Self {
        Self {
            incarnation: member.incarnation.bits(),
            api: member.api.to_string(),
            peer: member.peer.to_string(),
        }
    }
}

impl TryFrom<&NodeCard> for Member {
    type Error = AddressError;

    fn try_from(card: &NodeCard) -> Result<Self, AddressError> {
        Ok(Self {
            api: card.api.parse()?,
            peer: card.peer.parse()?,
            incarnation: Incarnation::from_bits(card.incarnation),
        })
    }
}

/// What the leader asks Raft to replicate as one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proposal {
    /// Milliseconds since this leader's previous proposal, 0 for its first.
    pub(crate) elapsed_ms: u32,
    /// Encoded batches, frozen byte for byte by their origins: they are copied, never written anew, on the way.
    pub(crate) batches: Vec<Bytes>,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proposal of {} batches", self.batches.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for text in [
            "127.0.0.1:7101",
            "[::1]:7101",
            "node-1.example:7101",
            "localhost:0",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.as_str(), text);
            assert_eq!(format!("{}:{}", address.host(), address.port()), text);
        }
        for text in [
            "",
            "localhost",
            ":7101",
            "a b:1",
            "localhost:70000",
            "localhost:",
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{text:?} is not an address: write host:port, for example 127.0.0.1:7101")
            );
        }
    }

    #[test]
    fn random_ids_are_written_as_32_digits() {
        assert_eq!(
            ClusterId(10).to_string(),
            "0000000000000000000000000000000a"
        );
        assert_ne!(Incarnation::generate(), Incarnation::generate());
    }
}
