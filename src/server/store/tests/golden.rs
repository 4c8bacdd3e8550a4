//! The layouts of all that is stored, byte for byte: a change here is a new format version with a test that
//! reads the old bytes, not a new expectation.

use std::collections::BTreeMap;
use std::fs;

use openraft::entry::RaftEntry;
use openraft::vote::RaftLeaderId;

use super::fixture::*;
use crate::sequence::testing::{at as at_entry, batch};
use crate::sequence::{
    Answer, Answered, BatchHash, Command, EntryId, FeatureLevel, Kept, KeyedAnswer, NodeCard,
    Origin, Outcome, RangeCount, Refusal, RequestKey, Sequence, Session, SessionId, Settings,
    Table, TableHeader,
};
use crate::server::codec;
use crate::server::store::database::{Changes, MetaKey};
use crate::server::store::identity::{self, StoreState};
use crate::server::store::journal::Place;
use crate::server::store::snapshot_format::{self, State};
use crate::server::store::state_machine::cards;
use crate::server::store::superblock::{self, Owner, Promised};
use crate::server::store::{FormationRecord, Identity, record};
use crate::server::types::{
    ClusterId, Entry, Incarnation, Leadership, LogId, Member, Membership, NodeId, Payload,
    Proposal, SnapshotMeta, StoredMembership,
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn same(bytes: &[u8], golden: &str) {
    let golden = golden.replace([' ', '\n'], "");
    assert_eq!(
        hex(bytes),
        golden,
        "what older versions wrote is not what is written now"
    );
}

fn bytes_of(golden: &str) -> Vec<u8> {
    let digits = golden.replace([' ', '\n'], "");
    let starts = (0..digits.len()).step_by(2);
    starts
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

/// The id types have no constructor for a chosen value; their bytes have.
fn fixed<T: serde::de::DeserializeOwned>(number: u128) -> T {
    codec::decode::<T, 16>(&number.to_le_bytes()).unwrap()
}

fn at(term: u64, node: u64, index: u64) -> LogId {
    LogId::new(Leadership::new(term, NodeId::from(node)), index)
}

fn membership() -> Membership {
    let member = Member {
        api: "a:1".parse().unwrap(),
        peer: "p:2".parse().unwrap(),
        incarnation: fixed(9),
    };
    let nodes = BTreeMap::from([(NodeId::from(1), member)]);
    Membership::new(vec![[NodeId::from(1)].into()], nodes).unwrap()
}

const MEMBERSHIP: &str = "
    0100000000000000 0100000000000000 0100000000000000
    0100000000000000 0100000000000000
    0300000000000000 613a31 0300000000000000 703a32 09000000000000000000000000000000";

#[test]
fn a_record_keeps_its_bytes() {
    let blank = Entry::new(at(1, 2, 0), Payload::Blank);
    let proposal = Proposal {
        elapsed_ms: 5,
        batches: vec![vec![0xaa, 0xbb].into()],
    };
    let proposal = Entry::new(at(1, 2, 3), Payload::Normal(proposal));
    let joined = Entry::new(at(1, 2, 4), Payload::Membership(membership()));

    for (entry, previous, golden) in [
        (
            blank,
            None,
            "01 0bcd7810 0100000000000000 0200000000000000 0000000000000000 00 00000000".to_owned(),
        ),
        (
            proposal,
            Some(at(1, 1, 2)),
            "01 bd21272e 0100000000000000 0200000000000000 0300000000000000
             01 0100000000000000 0100000000000000 0200000000000000
             01000000 05000000 0100000000000000 0200000000000000 aabb"
                .to_owned(),
        ),
        (
            joined,
            Some(at(1, 2, 3)),
            format!(
                "01 a12001f0 0100000000000000 0200000000000000 0400000000000000
                 01 0100000000000000 0200000000000000 0300000000000000
                 02000000 {MEMBERSHIP}"
            ),
        ),
    ] {
        let bytes = record::encode(&entry, previous).unwrap();

        same(&bytes, &golden);
        let read = record::decode(&bytes).unwrap();
        assert_eq!((read.entry, read.previous), (entry, previous));
    }
}

#[test]
fn a_group_keeps_its_bytes() {
    let mut changes = Changes::default();
    changes.put_record(7, vec![0xaa, 0xbb].into());
    changes.put_meta(MetaKey::Vote, &3_u8);
    let promised = Promised {
        last: Some(at(5, 6, 7)),
        ..Promised::default()
    };

    let bytes = Place::first(8).after(4096).group(&promised, &changes);

    let golden = "485767726f757001 9f8299e3 01000000 5d000000
        0800000000000000 0100000000000000
        00 01 0500000000000000 0600000000000000 0700000000000000 00 00
        0100000000000000 0700000000000000 0200000000000000 aabb
        0100000000000000 00 0600000000000000 01 511c93f1 03";
    let (used, rest) = bytes.split_at(golden.replace([' ', '\n'], "").len() / 2);
    same(used, golden);
    assert_eq!(bytes.len(), 4096);
    assert!(rest.iter().all(|byte| *byte == 0));
}

#[test]
fn a_slot_keeps_its_bytes() {
    let owner = Owner {
        cluster: fixed(1),
        node: NodeId::from(2),
        incarnation: fixed(3),
    };
    let promised = Promised {
        vote: Some(vote(4)),
        last: Some(at(5, 6, 7)),
        purged: Some(at(1, 1, 2)),
        snapshot: Some(fixed_name()),
    };

    let bytes = superblock::slot(8, owner, &promised);

    let golden = "4857736c6f740002 b91050cf b600
        0800000000000000
        01000000000000000000000000000000 0200000000000000 03000000000000000000000000000000
        01 0400000000000000 0100000000000000 01
        01 0500000000000000 0600000000000000 0700000000000000
        01 0100000000000000 0100000000000000 0200000000000000
        01 01 0300000000000000 0400000000000000 0500000000000000 0600000000000000
        0707070707070707070707070707070707070707070707070707070707070707";
    let (used, rest) = bytes.split_at(golden.replace([' ', '\n'], "").len() / 2);
    same(used, golden);
    assert_eq!(bytes.len(), 4096);
    assert!(rest.iter().all(|byte| *byte == 0));
}

fn fixed_name() -> crate::server::store::snapshot::SnapshotName {
    let mut bytes = vec![1];
    for number in [3_u64, 4, 5, 6] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([7; 32]);
    codec::decode::<_, 128>(&bytes).unwrap()
}

#[test]
fn an_identity_keeps_its_bytes() {
    let incarnation: Incarnation = fixed(9);
    let cluster: ClusterId = fixed(8);
    let member = Member {
        api: "a:1".parse().unwrap(),
        peer: "p:2".parse().unwrap(),
        incarnation,
    };
    let alone = Identity {
        incarnation,
        formation: None,
    };
    let adopted = Identity {
        incarnation,
        formation: Some(FormationRecord {
            cluster,
            node: NodeId::from(1),
            members: BTreeMap::from([(NodeId::from(1), member)]),
        }),
    };

    same(
        &identity::encode(&alone, StoreState::Never),
        "48576964656e7401 3b38264c 09000000000000000000000000000000 00 00",
    );
    same(
        &identity::encode(&adopted, StoreState::Made),
        "48576964656e7401 6d5814a5 09000000000000000000000000000000
         01 08000000000000000000000000000000 0100000000000000
         0100000000000000 0100000000000000
         0300000000000000 613a31 0300000000000000 703a32 09000000000000000000000000000000
         01",
    );
}

#[tokio::test]
async fn a_snapshot_keeps_its_bytes() {
    let (_guard, mut store) = new_store();
    apply(&mut store, [grant(1, 0), grant(1, 1)]).await;
    let state = State {
        meta: SnapshotMeta {
            last_log_id: Some(at(1, 1, 1)),
            last_membership: StoredMembership::new(Some(at(1, 2, 0)), membership()),
        },
        table: store.tables.table(),
    };

    let mut bytes = Vec::new();
    let digest = snapshot_format::write(&state, &mut bytes).unwrap();

    let golden = |begin: &str, nodes: &str, sessions: &str| {
        format!(
            "{begin}
             01 0100000000000000 0100000000000000 0100000000000000
             01 0100000000000000 0200000000000000 0000000000000000
             {MEMBERSHIP}
             0100000000000000 0200000000000000
             {nodes}
             0100000000000000 {sessions}
             48000000
             0100000000000000
             0100000000000000 73
             0100000000000000 0100000000000000 ffffffffffff1f00 0000000000000000 40420f00
             01 0300000000000000 01 0100000000000000 00"
        )
    };
    let nothing = "0000000000000000 0000000000000000";
    let no_nodes = "0100000000000000 0000000000000000";
    same(
        &bytes,
        &golden("4857736e61700004 bc000000 01000000", no_nodes, nothing),
    );
    assert_eq!(digest.checksum, *blake3::hash(&bytes).as_bytes());
    assert_eq!(
        snapshot_format::read(&bytes[..]).unwrap(),
        (state.clone(), digest)
    );
    let without_level = bytes_of(&golden("4857736e61700003 b8000000", no_nodes, nothing));
    let (read, _) = snapshot_format::read(&without_level[..]).unwrap();
    assert_eq!(read, state);
    // Before nodes were admitted, those of the membership were all that had an id.
    let mut older = state;
    older.table.set_members(cards(&membership()));
    for (begin, sessions) in [
        ("4857736e61700002 a8000000", nothing),
        ("4857736e61700001 98000000", ""),
    ] {
        let bytes = bytes_of(&golden(begin, "", sessions));
        let (read, _) = snapshot_format::read(&bytes[..]).unwrap();
        assert_eq!(read, older);
    }
}

/// A snapshot of this table has these bytes, and is read back as it was.
fn a_snapshot_is(table: Table, golden: &str) {
    let state = State {
        meta: SnapshotMeta::default(),
        table,
    };

    let mut bytes = Vec::new();
    snapshot_format::write(&state, &mut bytes).unwrap();

    same(&bytes, golden);
    let (read, _) = snapshot_format::read(&bytes[..]).unwrap();
    assert_eq!(read, state);
    assert_eq!(read.table.state_hash(), state.table.state_hash());
}

#[test]
fn a_retired_sequence_keeps_its_bytes_in_a_snapshot() {
    let name: crate::SequenceName = "ab".parse().unwrap();
    let sequence = Sequence {
        settings: Settings::new(0, 2, u64::MAX, RangeCount::constant(7)).unwrap(),
        high: Some(4),
        last_grant_index: None,
        retired: true,
    };
    let mut table = Table::with_header(TableHeader {
        epoch: 3,
        state_time_ms: 9,
        ..TableHeader::default()
    });
    table.restore(name, sequence);
    a_snapshot_is(
        table,
        "4857736e61700004
         4e000000 01000000
         00 00 0000000000000000 0000000000000000
         0300000000000000 0900000000000000
         0100000000000000 0000000000000000
         0100000000000000 0000000000000000 0000000000000000
         41000000
         0100000000000000
         0200000000000000 6162
         0000000000000000 0200000000000000 ffffffffffffffff 0000000000000000 07000000
         01 0400000000000000 00 01",
    );
}

#[test]
fn a_session_keeps_its_bytes_in_a_snapshot() {
    let answered = Answered {
        entry: EntryId { term: 4, index: 5 },
        outcomes: vec![Outcome::Refused(Refusal::UnknownSequence)],
    };
    let hash = BatchHash([6; 16]);
    let session = Session {
        origin: Origin { node: 1, nonce: 2 },
        ack: 3,
        answers: [(7_u64, Answer { hash, answered })].into_iter().collect(),
    };
    let mut table = Table::default();
    table.restore_session(SessionId::opened_at(8), session);
    a_snapshot_is(
        table,
        "4857736e61700004
         4e000000 01000000
         00 00 0000000000000000 0000000000000000
         0100000000000000 0000000000000000
         0100000000000000 0000000000000000
         0000000000000000 0100000000000000 0000000000000000
         30000000
         0800000000000000 0100000000000000 02000000000000000000000000000000 0300000000000000
         0100000000000000
         38000000
         0700000000000000 06060606060606060606060606060606 0400000000000000 0500000000000000
         0100000000000000 03000000 00000000",
    );
}

#[test]
fn a_request_key_keeps_its_bytes_in_a_snapshot() {
    let kept = |order, answer| Kept {
        key: RequestKey {
            id: order,
            request: 2,
        },
        order: 3 + u64::try_from(order).unwrap(),
        at_ms: 4,
        entry: EntryId { term: 5, index: 6 },
        answer,
    };
    let mut table = Table::default();
    table.restore_key(kept(0, KeyedAnswer::Granted(Vec::new())));
    table.restore_key(kept(
        1,
        KeyedAnswer::Advanced {
            previous: None,
            high: Some(7),
            id_form: crate::IdForm::Number,
        },
    ));
    a_snapshot_is(
        table,
        "4857736e61700004
         4e000000 01000000
         00 00 0000000000000000 0000000000000000
         0100000000000000 0000000000000000
         0100000000000000 0000000000000000
         0000000000000000 0000000000000000 0200000000000000
         a6000000
         0200000000000000
         00000000000000000000000000000000 02000000000000000000000000000000 0300000000000000
         0400000000000000 0500000000000000 0600000000000000 00000000 0000000000000000
         01000000000000000000000000000000 02000000000000000000000000000000 0400000000000000
         0400000000000000 0500000000000000 0600000000000000 01000000
         00 01 0700000000000000 00000000",
    );
}

#[test]
fn nodes_keep_their_bytes_in_a_snapshot() {
    let card = |incarnation, api: &str| NodeCard {
        incarnation,
        api: api.to_owned(),
        peer: "p".to_owned(),
    };
    let mut table = Table::default();
    table.set_members([(1, card(5, "a"))].into());
    let node = card(6, "bc");
    table.apply(at_entry(1), &[batch(vec![Command::Admit { node }])]);
    a_snapshot_is(
        table,
        "4857736e61700004
         a5000000 01000000
         00 00 0000000000000000 0000000000000000
         0100000000000000 0000000000000000
         0300000000000000 0200000000000000
         0100000000000000 05000000000000000000000000000000
         0100000000000000 61 0100000000000000 70 01
         0200000000000000 06000000000000000000000000000000
         0200000000000000 6263 0100000000000000 70 00
         0000000000000000 0000000000000000 0000000000000000",
    );
}

#[test]
fn a_feature_level_keeps_its_bytes_in_a_snapshot() {
    let mut table = Table::default();
    let to = FeatureLevel::IMPORTS;
    table.apply(at_entry(1), &[batch(vec![Command::RaiseLevel { to }])]);
    a_snapshot_is(
        table,
        "4857736e61700004
         4e000000 02000000
         00 00 0000000000000000 0000000000000000
         0100000000000000 0000000000000000
         0100000000000000 0000000000000000
         0000000000000000 0000000000000000 0000000000000000",
    );
}

#[test]
fn windows_keep_their_bytes_at_the_end_of_a_snapshot() {
    let mut table = Table::default();
    let sequence: crate::SequenceName = "ab".parse().unwrap();
    let settings = Settings::new(0, 2, 9, RangeCount::constant(7)).unwrap();
    let settings = settings.with_cache(3);
    let to = FeatureLevel::CACHES;
    let commands = vec![
        Command::RaiseLevel { to },
        Command::Create {
            sequence: sequence.clone(),
            settings,
        },
        Command::Reserve {
            sequence,
            count: RangeCount::ONE,
        },
    ];
    table.apply(at_entry(5), &[batch(commands)]);
    a_snapshot_is(
        table,
        "4857736e61700004
         4e000000 02000000
         00 00 0000000000000000 0000000000000000
         0100000000000000 0000000000000000
         0100000000000000 0000000000000000
         0100000000000000 0000000000000000 0000000000000000
         49000000 0100000000000000
         0200000000000000 6162
         0000000000000000 0200000000000000 0900000000000000 0300000000000000 07000000
         01 0400000000000000 01 0500000000000000 00
         22000000 0100000000000000
         0200000000000000 6162 0500000000000000 0000000000000000",
    );
}

#[tokio::test]
async fn the_values_beside_the_log_keep_their_bytes() {
    let (guard, mut store) = new_store();
    use openraft::storage::RaftLogStorage;
    store.log.save_vote(&vote(4)).await.unwrap();
    store.log.purge(at(1, 1, 2)).await.unwrap();
    settle(&mut store).await;
    let database = &store.log.shared().database;

    same(
        &database.raw_meta(MetaKey::Vote).unwrap(),
        "01 c99d66ba 0400000000000000 0100000000000000 01",
    );
    same(
        &database.raw_meta(MetaKey::Purged).unwrap(),
        "01 2341bee9 0100000000000000 0100000000000000 0200000000000000",
    );
    let files: Vec<_> = fs::read_dir(guard.path().join("sled/blobs"))
        .unwrap()
        .collect();
    assert!(files.is_empty());
}
