//! Sessions make a batch safe to send again: it is applied once, and its outcomes are kept until its origin has them
//! (Raft dissertation §6.3).
//!
//! An origin numbers its batches from 1 on, and with each says up to which number it waits for nothing any more.

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use crate::sequence::state_hash::{Part, PartsSum};
use crate::sequence::{Answered, Batch, BatchHash, Origin, SessionId};

/// Batches of one session whose outcomes are kept; an origin has fewer in flight. What comes beyond is stale.
pub(crate) const ANSWERS_MAX: usize = 64;
/// Sessions of one node: of its present life, and of the one before, whose batches may still be on their way.
pub(crate) const SESSIONS_PER_NODE_MAX: usize = 2;

/// All sessions, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sessions {
    by_id: OrdMap<SessionId, Session>,
}

/// An origin's batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    /// Whose they are.
    pub(crate) origin: Origin,
    /// The origin waits for no batch up to this number. Never falls.
    pub(crate) ack: u64,
    /// What became of those above it that are applied.
    pub(crate) answers: OrdMap<u64, Answer>,
}

/// What became of a batch, and which one it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The batch's.
    pub(crate) hash: BatchHash,
    /// What its origin is told, however often it asks.
    pub(crate) answered: Answered,
}

/// What to do with a batch of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is new: apply it, and [`Sessions::keep`] what it was answered.
    Apply,
    /// It was applied before.
    Again(Answered),
    /// Nothing.
    Stale,
}

impl Sessions {
    /// All of them in the order of their opening.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.by_id.iter()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Puts back one session of a snapshot.
    pub(super) fn restore(&mut self, id: SessionId, session: Session, sum: &mut PartsSum) {
        self.drop_session(id, sum);
        add(id, &session, sum);
        self.by_id.insert(id, session);
    }

    /// The origin's session: the one it has, or a new one under this id; `None` where that is another origin's. Of the
    /// node's older ones only the newest stay.
    pub(super) fn open(
        &mut self,
        origin: Origin,
        id: SessionId,
        sum: &mut PartsSum,
    ) -> Option<SessionId> {
        let known = self.by_id.iter().find(|(_, known)| known.origin == origin);
        if let Some((known, _)) = known {
            return Some(*known);
        }
        if self.by_id.contains_key(&id) {
            return None;
        }
        let session = Session {
            origin,
            ack: 0,
            answers: OrdMap::new(),
        };
        add(id, &session, sum);
        self.by_id.insert(id, session);
        let of_node = self
            .by_id
            .iter()
            .filter(|(_, of)| of.origin.node == origin.node);
        let of_node: Vec<SessionId> = of_node.map(|(id, _)| *id).collect();
        for oldest in of_node.iter().rev().skip(SESSIONS_PER_NODE_MAX) {
            self.drop_session(*oldest, sum);
        }
        Some(id)
    }

    /// What is to be done with this batch. Forgets what its origin waits for no more.
    pub(super) fn take(&mut self, batch: &Batch, sum: &mut PartsSum) -> Turn {
        let Some(session) = self.by_id.get_mut(&batch.session) else {
            return Turn::Stale;
        };
        session.acknowledge(batch.session, batch.ack, sum);
        if batch.number <= session.ack {
            return Turn::Stale;
        }
        match session.answers.get(&batch.number) {
            Some(known) if known.hash == batch.hash => Turn::Again(known.answered.clone()),
            // Another batch under the same number is a fault of its origin. To stop over it would stop every node that
            // has it in its log, for ever.
            Some(_) => Turn::Stale,
            None if session.answers.len() < ANSWERS_MAX => Turn::Apply,
            None => Turn::Stale,
        }
    }

    /// Keeps what a new batch was answered.
    pub(super) fn keep(&mut self, batch: &Batch, answered: Answered, sum: &mut PartsSum) {
        if let Some(session) = self.by_id.get_mut(&batch.session) {
            let hash = batch.hash;
            sum.add(Part::Answer(batch.session, batch.number, &hash, &answered));
            let answer = Answer { hash, answered };
            session.answers.insert(batch.number, answer);
        }
    }

    /// Drops the sessions of all nodes but these.
    pub(super) fn retain_nodes(&mut self, stays: impl Fn(u64) -> bool, sum: &mut PartsSum) {
        let gone = self.by_id.iter().filter(|(_, of)| !stays(of.origin.node));
        let gone: Vec<SessionId> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            self.drop_session(id, sum);
        }
    }

    fn drop_session(&mut self, id: SessionId, sum: &mut PartsSum) {
        if let Some(gone) = self.by_id.remove(&id) {
            sum.remove(Part::Session(id, &gone));
            for (number, Answer { hash, answered }) in &gone.answers {
                sum.remove(Part::Answer(id, *number, hash, answered));
            }
        }
    }
}

impl Session {
    fn acknowledge(&mut self, id: SessionId, ack: u64, sum: &mut PartsSum) {
        if ack <= self.ack {
            return;
        }
        sum.remove(Part::Session(id, self));
        self.ack = ack;
        sum.add(Part::Session(id, self));
        while let Some((number, _)) = self.answers.get_min().filter(|(number, _)| *number <= ack) {
            let number = *number;
            if let Some(Answer { hash, answered }) = self.answers.remove(&number) {
                sum.remove(Part::Answer(id, number, &hash, &answered));
            }
        }
    }
}

fn add(id: SessionId, session: &Session, sum: &mut PartsSum) {
    sum.add(Part::Session(id, session));
    for (number, Answer { hash, answered }) in &session.answers {
        sum.add(Part::Answer(id, *number, hash, answered));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::sequence::testing::{at, batch};
    use crate::sequence::{BatchOutcome, Command, NodeCard, Outcome, RangeCount, Settings, Table};

    const ORIGIN: Origin = Origin { node: 1, nonce: 5 };

    fn grant() -> Command {
        Command::Grant {
            sequence: "p".parse().unwrap(),
            count: RangeCount::ONE,
        }
    }

    /// Opens a session by the entry at this index.
    fn open(table: &mut Table, origin: Origin, index: u64) -> Option<SessionId> {
        let open = batch(vec![Command::OpenSession { origin }]);
        match &apply(table, index, &open) {
            BatchOutcome::Applied(Answered { outcomes, .. }) => match outcomes[..] {
                [Outcome::Opened { session }] => session,
                _ => panic!("{outcomes:?}"),
            },
            BatchOutcome::Stale => panic!("it is in no session"),
        }
    }

    fn apply(table: &mut Table, index: u64, batch: &Batch) -> BatchOutcome {
        table
            .apply(at(index), std::slice::from_ref(batch))
            .batches
            .remove(0)
    }

    /// A table with a sequence `p` and a session.
    fn with_session() -> (Table, SessionId) {
        let mut table = Table::default();
        let create = Command::Create {
            sequence: "p".parse().unwrap(),
            settings: Settings::default(),
        };
        apply(&mut table, 1, &batch(vec![create]));
        let session = open(&mut table, ORIGIN, 2).unwrap();
        (table, session)
    }

    fn high(table: &Table) -> Option<u64> {
        table.get(&"p".parse().unwrap()).unwrap().high
    }

    /// A batch of one lease, that differs from others of its number by its hash.
    fn lease(session: SessionId, number: u64, ack: u64) -> Batch {
        Batch {
            session,
            number,
            ack,
            hash: BatchHash([u8::try_from(number % 251).unwrap(); 16]),
            commands: vec![grant()],
        }
    }

    #[test]
    fn a_batch_that_is_sent_again_is_applied_once_and_answered_the_same() {
        let (mut table, session) = with_session();
        let sent = lease(session, 1, 0);

        let first = apply(&mut table, 3, &sent);
        apply(&mut table, 4, &lease(session, 2, 0));
        let again = apply(&mut table, 5, &sent);
        let twice_in_one = table.apply(at(6), &[sent.clone(), sent]).batches;

        let BatchOutcome::Applied(answered) = &first else {
            panic!("{first:?}");
        };
        assert_eq!(answered.entry.index, 3);
        assert_eq!(again, first);
        assert_eq!(twice_in_one, [first.clone(), first]);
        assert_eq!(high(&table), Some(2));
    }

    #[test]
    fn a_batch_that_nobody_waits_for_changes_nothing() {
        let (mut table, session) = with_session();
        apply(&mut table, 3, &lease(session, 4, 3));
        let before = table.clone();

        let late = lease(session, 3, 0);
        let unknown = lease(SessionId::opened_at(99), 1, 0);
        let other = Batch {
            hash: BatchHash([0; 16]),
            ..lease(session, 4, 0)
        };

        for batch in [late, unknown, other] {
            assert_eq!(apply(&mut table, 4, &batch), BatchOutcome::Stale);
            assert_eq!(table, before);
        }
    }

    #[test]
    fn outcomes_are_kept_until_the_origin_has_them_and_only_so_many() {
        let (mut table, session) = with_session();
        let kept = |table: &Table| table.sessions().by_id[&session].answers.len();
        for number in (1..).take(ANSWERS_MAX) {
            apply(&mut table, 3, &lease(session, number, 0));
        }
        assert_eq!(kept(&table), ANSWERS_MAX);

        let beyond = lease(session, 65, 0);
        assert_eq!(apply(&mut table, 4, &beyond), BatchOutcome::Stale);
        assert_eq!(high(&table), Some(64));

        let with_ack = lease(session, 66, 60);
        assert_ne!(apply(&mut table, 5, &with_ack), BatchOutcome::Stale);
        assert_eq!(kept(&table), 5);
    }

    #[test]
    fn an_origin_has_one_session_however_often_it_asks() {
        let (mut table, session) = with_session();
        apply(&mut table, 3, &lease(session, 1, 0));
        let before = table.clone();

        assert_eq!(open(&mut table, ORIGIN, 4), Some(session));
        assert_eq!(table, before);
    }

    #[test]
    fn an_entry_opens_one_session_and_the_other_origin_asks_again() {
        let mut table = Table::default();
        let other = Origin { node: 2, nonce: 6 };
        let asked = [ORIGIN, other].map(|origin| batch(vec![Command::OpenSession { origin }]));

        let answers = crate::sequence::testing::outcomes(table.apply(at(7), &asked)).concat();

        let session = Some(SessionId::opened_at(7));
        assert_eq!(
            answers,
            [
                Outcome::Opened { session },
                Outcome::Opened { session: None }
            ]
        );
        assert_eq!(open(&mut table, other, 8), Some(SessionId::opened_at(8)));
    }

    #[test]
    fn a_node_has_the_sessions_of_two_lives() {
        let (mut table, first) = with_session();
        let life = |nonce| Origin { node: 1, nonce };
        let second = open(&mut table, life(6), 3).unwrap();
        open(&mut table, Origin { node: 2, nonce: 7 }, 4).unwrap();
        assert_ne!(
            apply(&mut table, 5, &lease(first, 1, 0)),
            BatchOutcome::Stale
        );

        let third = open(&mut table, life(8), 6).unwrap();

        assert_eq!(
            apply(&mut table, 7, &lease(first, 1, 0)),
            BatchOutcome::Stale
        );
        for session in [second, third] {
            assert_ne!(
                apply(&mut table, 8, &lease(session, 1, 0)),
                BatchOutcome::Stale
            );
        }
        assert_eq!(table.sessions().len(), 3);
    }

    fn card() -> NodeCard {
        NodeCard {
            incarnation: 1,
            api: String::new(),
            peer: String::new(),
        }
    }

    #[test]
    fn a_node_that_leaves_takes_its_sessions_with_it() {
        let (mut table, _) = with_session();
        let empty_hash = {
            let mut without = table.clone();
            without.sessions.retain_nodes(|_| false, &mut without.sum);
            without.state_hash()
        };
        let session = open(&mut table, Origin { node: 2, nonce: 7 }, 4).unwrap();
        apply(&mut table, 5, &lease(session, 1, 0));

        table.set_members([(2, card())].into());
        assert_eq!(
            table
                .sessions()
                .iter()
                .map(|(id, _)| *id)
                .collect::<Vec<_>>(),
            [session]
        );
        assert_ne!(
            apply(&mut table, 6, &lease(session, 2, 1)),
            BatchOutcome::Stale
        );
        table.set_members(BTreeMap::new());
        assert_eq!(table.sessions().len(), 0);
        assert_ne!(table.state_hash(), empty_hash, "the grants are there still");
    }

    /// What is sent: which of some batches, each frozen once, in any order and as often as it likes.
    fn sends() -> impl Strategy<Value = (Vec<(u64, u64)>, Vec<prop::sample::Index>)> {
        let batches = prop::collection::vec(0..4_u64, 1..30);
        let acks = batches.prop_map(|lags| {
            let place = |(number, lag): (u64, u64)| (number, (number - 1).saturating_sub(lag));
            (1..).zip(lags).map(place).collect::<Vec<_>>()
        });
        (
            acks,
            prop::collection::vec(any::<prop::sample::Index>(), 0..120),
        )
    }

    proptest! {
        // I1, I4: an origin sends a batch to whoever leads until it is answered; networks and old leaders keep copies.
        #[test]
        fn however_batches_arrive_each_is_applied_at_most_once((places, order) in sends()) {
            let (mut table, session) = with_session();
            let mut answered: BTreeMap<u64, Answered> = BTreeMap::new();
            let mut acked = 0;
            let mut entries = 3..;

            for sent in order {
                let (number, ack) = places[sent.index(places.len())];
                let index = entries.next().unwrap();
                let outcome = apply(&mut table, index, &lease(session, number, ack));

                acked = acked.max(ack);
                match outcome {
                    BatchOutcome::Applied(now) => {
                        prop_assert!(acked < number);
                        let first = answered.entry(number).or_insert_with(|| now.clone());
                        prop_assert_eq!(&*first, &now);
                    }
                    BatchOutcome::Stale => prop_assert!(number <= acked),
                }
                // One value each, in the order in which they were applied first.
                prop_assert_eq!(high(&table).unwrap_or(0), answered.len() as u64);
                let hash = table.state_hash();
                let mut rebuilt = Table::with_header(table.header());
                for (name, sequence) in table.iter() {
                    rebuilt.restore(name.clone(), sequence.clone());
                }
                for (id, session) in table.sessions().iter() {
                    rebuilt.restore_session(*id, session.clone());
                }
                prop_assert_eq!(rebuilt.state_hash(), hash, "I8");
            }
        }
    }
}
