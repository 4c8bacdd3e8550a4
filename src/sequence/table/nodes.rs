//! The nodes that the cluster knows: its members, and those that were admitted to become members. An id is given once and
//! never again, also after its node is gone: what still runs under an id cannot be taken for somebody else.

use std::collections::BTreeMap;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use crate::sequence::Refusal;
use crate::sequence::state_hash::{Part, PartsSum};

/// The most nodes, members and admitted ones together: a membership of so many, with the longest addresses, fits one
/// record, also while it changes.
pub(crate) const NODES_MAX: usize = 16;

/// A node as it introduces itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeCard {
    /// Its data directory's.
    pub(crate) incarnation: u128,
    /// Where workers reach it.
    pub(crate) api: String,
    /// Where its peers reach it.
    pub(crate) peer: String,
}

/// A node that has an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownNode {
    /// Who it is.
    pub(crate) card: NodeCard,
    /// Whether the last committed membership names it.
    pub(crate) member: bool,
}

/// All nodes by their ids, and the next id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nodes {
    next: u64,
    by_id: OrdMap<u64, KnownNode>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            next: 1,
            by_id: OrdMap::new(),
        }
    }
}

impl Nodes {
    /// The id that the next node is given.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// All of them by rising id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&u64, &KnownNode)> {
        self.by_id.iter()
    }

    /// Those that were admitted and are no members yet.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&u64, &NodeCard)> {
        let waiting = self.by_id.iter().filter(|(_, node)| !node.member);
        waiting.map(|(id, node)| (id, &node.card))
    }

    /// Whether a node had this id, and nobody has it any more.
    pub(crate) fn has_left(&self, id: u64) -> bool {
        id < self.next && !self.by_id.contains_key(&id)
    }

    /// Puts back what a snapshot holds.
    pub(super) fn restore(
        &mut self,
        next: u64,
        nodes: impl IntoIterator<Item = (u64, KnownNode)>,
        sum: &mut PartsSum,
    ) {
        self.next = next;
        for (id, node) in nodes {
            self.put(id, node, sum);
        }
    }

    /// Gives the node an id. It may ask again: one directory is one node.
    pub(super) fn admit(&mut self, card: &NodeCard, sum: &mut PartsSum) -> Result<u64, Refusal> {
        let known = self
            .by_id
            .iter()
            .find(|(_, known)| known.card.incarnation == card.incarnation);
        let id = match known {
            // The addresses of a member are the membership's.
            Some((id, KnownNode { member: true, .. })) => return Ok(*id),
            Some((id, _)) => *id,
            None if NODES_MAX <= self.by_id.len() => {
                return Err(Refusal::TooManyNodes {
                    limit: NODES_MAX as u64,
                });
            }
            None => self.next,
        };
        self.next = self.next.max(id.saturating_add(1));
        let node = KnownNode {
            card: card.clone(),
            member: false,
        };
        self.put(id, node, sum);
        Ok(id)
    }

    /// A membership is committed: who was a member and is not named is gone.
    pub(super) fn set_members(&mut self, members: &BTreeMap<u64, NodeCard>, sum: &mut PartsSum) {
        let gone = self
            .by_id
            .iter()
            .filter(|(id, node)| node.member && !members.contains_key(id));
        let gone: Vec<u64> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(node) = self.by_id.remove(&id) {
                sum.remove(Part::Node(id, &node));
            }
        }
        for (id, card) in members {
            self.next = self.next.max(id.saturating_add(1));
            let node = KnownNode {
                card: card.clone(),
                member: true,
            };
            self.put(*id, node, sum);
        }
    }

    fn put(&mut self, id: u64, node: KnownNode, sum: &mut PartsSum) {
        sum.add(Part::Node(id, &node));
        if let Some(before) = self.by_id.insert(id, node) {
            sum.remove(Part::Node(id, &before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::testing::{at, batch, outcomes};
    use crate::sequence::{Command, Outcome, Table};

    fn card(incarnation: u128) -> NodeCard {
        NodeCard {
            incarnation,
            api: format!("127.0.0.1:{}", 7100 + incarnation),
            peer: format!("127.0.0.1:{}", 7200 + incarnation),
        }
    }

    /// The members 1 to 3 of a cluster that was just formed.
    fn three() -> Table {
        let mut table = Table::default();
        table.set_members((1..=3).map(|id| (id, card(id.into()))).collect());
        table
    }

    fn admit(table: &mut Table, index: u64, incarnation: u128) -> Outcome {
        let command = Command::Admit {
            node: card(incarnation),
        };
        let mut answers = outcomes(table.apply(at(index), &[batch(vec![command])]));
        answers.remove(0).remove(0)
    }

    fn members(table: &mut Table, ids: &[u64]) {
        table.set_members(ids.iter().map(|id| (*id, card((*id).into()))).collect());
    }

    #[test]
    fn a_node_is_given_the_next_id_and_the_same_one_as_often_as_it_asks() {
        let mut table = three();

        assert_eq!(admit(&mut table, 1, 40), Outcome::Admitted { id: 4 });
        assert_eq!(admit(&mut table, 2, 50), Outcome::Admitted { id: 5 });
        assert_eq!(admit(&mut table, 3, 40), Outcome::Admitted { id: 4 });
        assert_eq!(admit(&mut table, 4, 2), Outcome::Admitted { id: 2 });
        let waiting: Vec<u64> = table.nodes().waiting().map(|(id, _)| *id).collect();
        assert_eq!(waiting, [4, 5]);
    }

    // openraft's FAQ on reuse of node ids, databendlabs/openraft#2002: a new node under an old id makes two quorums.
    #[test]
    fn the_id_of_a_node_that_left_is_never_given_again() {
        let mut table = three();
        assert_eq!(admit(&mut table, 1, 4), Outcome::Admitted { id: 4 });
        members(&mut table, &[1, 2, 3, 4]);

        members(&mut table, &[1, 2]);

        assert!(table.nodes().has_left(3) && table.nodes().has_left(4));
        assert!(!table.nodes().has_left(2) && !table.nodes().has_left(5));
        assert_eq!(admit(&mut table, 2, 3), Outcome::Admitted { id: 5 });
    }

    #[test]
    fn who_waits_stays_while_others_come_and_go() {
        let mut table = three();
        admit(&mut table, 1, 40);

        members(&mut table, &[1, 2]);

        assert!(!table.nodes().has_left(4));
        assert_eq!(admit(&mut table, 2, 40), Outcome::Admitted { id: 4 });
    }

    #[test]
    fn there_are_so_many_nodes_and_no_more() {
        let mut table = three();
        for incarnation in 4..=NODES_MAX as u128 {
            assert!(matches!(
                admit(&mut table, 1, 100 + incarnation),
                Outcome::Admitted { .. }
            ));
        }

        let refusal = Refusal::TooManyNodes { limit: 16 };
        assert_eq!(
            refusal.to_string(),
            "the cluster knows 16 nodes, and no more fit: remove one that is not needed"
        );
        assert_eq!(admit(&mut table, 2, 99), Outcome::Refused(refusal));
        assert_eq!(admit(&mut table, 3, 104), Outcome::Admitted { id: 4 });
    }

    #[test]
    fn the_state_hash_follows_who_is_known_and_the_next_id() {
        let mut table = three();
        let before = table.state_hash();
        admit(&mut table, 1, 4);
        let waiting = table.state_hash();
        members(&mut table, &[1, 2, 3, 4]);
        let member = table.state_hash();
        members(&mut table, &[1, 2, 3]);
        let gone = table.state_hash();

        assert_ne!(before, waiting);
        assert_ne!(waiting, member);
        // The same nodes as before, and another next id.
        assert_ne!(gone, before);
        let mut rebuilt = Table::with_header(table.header());
        let nodes = table.nodes().iter().map(|(id, node)| (*id, node.clone()));
        rebuilt.restore_nodes(table.nodes().next(), nodes);
        assert_eq!(rebuilt.state_hash(), gone, "I8");
    }
}
