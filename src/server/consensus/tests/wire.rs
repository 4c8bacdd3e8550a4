//! Every message of the peer protocol, byte for byte: a change here is a new protocol version, not a new expectation.

use std::collections::BTreeSet;
use std::fmt::Debug;

use bytes::Bytes;
use openraft::entry::RaftEntry;
use openraft::raft::TransferLeaderError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::sequence::{
    Answered, Batch, BatchHash, Changes, Command, EntryId, FeatureLevel, Grant, GrantPart, IdForm,
    Imported, KeyedAnswer, Origin, Outcome, Range, RangeCount, Refusal as TableRefusal, Reserved,
    SessionId, Settings, Table, testing,
};
use crate::server::codec;
use crate::server::consensus::append::{Append, Appended};
use crate::server::consensus::cached::{CachedLease, CachedReply, TakenFor};
use crate::server::consensus::handshake::{Answer, Hello, Party, PeerHello, Purpose, Refusal};
use crate::server::consensus::level::{LevelRefusal, LevelReply};
use crate::server::consensus::membership::MemberReply;
use crate::server::consensus::probe::{Probe, ProbeReply};
use crate::server::consensus::promises::Promise;
use crate::server::consensus::protocol::{
    Call, ForwardReply, HandOverRefusal, PROTOCOL_VERSION, Reply,
};
use crate::server::consensus::snapshot::{SnapshotHeader, SnapshotReply};
use crate::server::consensus::transfer::HandOverReply;
use crate::server::consensus::{ClusterView, MemberChange, MemberDone, MemberRefusal, MemberView};
use crate::server::types::{Entry, Membership, Payload, Proposal, StoredMembership};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Its bytes are these, and they are it. Blanks are for the reader.
#[track_caller]
fn keeps<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, bytes: &str) {
    let encoded = codec::encode(message);

    assert_eq!(hex(&encoded), bytes.replace([' ', '\n'], ""), "{message:?}");
    assert_eq!(codec::decode::<T, 4096>(&encoded).unwrap(), *message);
}

fn two_members() -> Membership {
    let members = [1, 2].map(|n| {
        let address = SocketAddr::from(([10, 0, 0, 1], 72));
        (id(n), member(n, address))
    });
    let members = BTreeMap::from(members);
    let voters = vec![BTreeSet::from([id(1), id(2)])];
    Membership::new(voters, members).unwrap()
}

#[test]
fn the_protocol_version_is_6() {
    assert_eq!(PROTOCOL_VERSION, 6);
}

#[test]
fn handshakes_keep_their_bytes() {
    let party = |node| Party {
        node: id(node),
        incarnation: incarnation(node),
    };
    let hello = |purpose| {
        Hello::Peer(PeerHello {
            purpose,
            cluster: cluster_id(),
            from: party(1),
            to: party(2),
            beginning: Beginning {
                process: 0xb1,
                holds: Promise::new(Some(vote(3, 2)), Some(log_id(2, 1, 90))),
            },
        })
    };
    keeps(
        &hello(Purpose::Calls),
        "\
        00000000 00000000c1000000 0000000000000000 0000000001000000 00000000a1000000 \
        0000000000000000 0000000002000000 00000000a2000000 0000000000000000 00000000b1000000 \
        0000000001030000 0000000000020000 0000000000010200 0000000000000100 000000000000\
        5a000000 00000000",
    );
    keeps(
        &hello(Purpose::Append),
        "\
        00000000 01000000c1000000 0000000000000000 0000000001000000 00000000a1000000 \
        0000000000000000 0000000002000000 00000000a2000000 0000000000000000 00000000b1000000 \
        0000000001030000 0000000000020000 0000000000010200 0000000000000100 000000000000\
        5a000000 00000000",
    );
    keeps(
        &hello(Purpose::Snapshot),
        "\
        00000000 02000000c1000000 0000000000000000 0000000001000000 00000000a1000000 \
        0000000000000000 0000000002000000 00000000a2000000 0000000000000000 00000000b1000000 \
        0000000001030000 0000000000020000 0000000000010200 0000000000000100 000000000000\
        5a000000 00000000",
    );
    keeps(
        &Answer::Welcome(Beginning::default()),
        "00000000 0000000000000000 0000",
    );
}

#[test]
fn probes_keep_their_bytes() {
    let probe = Probe {
        from: id(1),
        to: id(2),
        incarnation: incarnation(1),
        file: [7; 32],
    };
    keeps(
        &Hello::Probe(probe),
        "\
        01000000 0100000000000000 0200000000000000 a100000000000000 0000000000000000 \
        0707070707070707 0707070707070707 0707070707070707 0707070707070707",
    );
    let record = FormationRecord {
        cluster: cluster_id(),
        node: id(2),
        members: BTreeMap::from([(id(1), member(1, SocketAddr::from(([10, 0, 0, 1], 72))))]),
    };
    let reply = ProbeReply {
        node: id(2),
        incarnation: incarnation(2),
        file: [7; 32],
        record: Some(record),
    };
    keeps(
        &Answer::Probed(reply),
        "\
        02000000 0200000000000000 a200000000000000 0000000000000000 0707070707070707 \
        0707070707070707 0707070707070707 0707070707070707 01c1000000000000 0000000000000000 \
        0002000000000000 0001000000000000 0001000000000000 000b000000000000 0031302e302e302e \
        313a37320b000000 0000000031302e30 2e302e313a3732a1 0000000000000000 00000000000000",
    );
}

#[test]
fn refusals_keep_their_bytes() {
    let refused = |refusal, bytes| keeps(&Answer::Refused(refusal), bytes);
    refused(
        Refusal::OtherVersion {
            theirs: 1,
            yours: 2,
        },
        "01000000 0000000001000200",
    );
    refused(Refusal::NotFormed, "01000000 01000000");
    refused(Refusal::Starting, "01000000 02000000");
    refused(
        Refusal::OtherCluster {
            theirs: fixed(0xc1),
            yours: fixed(0xc2),
        },
        "01000000 03000000c1000000 0000000000000000 00000000c2000000 0000000000000000 00000000",
    );
    refused(
        Refusal::OtherNode {
            theirs: id(1),
            asked: id(2),
        },
        "01000000 0400000001000000 0000000002000000 00000000",
    );
    refused(
        Refusal::SameNode { node: id(1) },
        "01000000 0500000001000000 00000000",
    );
    refused(
        Refusal::OtherIncarnation {
            node: id(1),
            known: fixed(0xa1),
            given: fixed(0xb1),
        },
        "\
        01000000 0600000001000000 00000000a1000000 0000000000000000 00000000b1000000 \
        0000000000000000 00000000",
    );
    let promised = Promise::new(Some(vote(3, 2)), None);
    refused(
        Refusal::RolledBack {
            node: id(1),
            promised,
        },
        "01000000 0800000001000000 0000000001030000 0000000000020000 000000000000",
    );
    refused(Refusal::TooManyConnections, "01000000 07000000");
    refused(
        Refusal::Removed { node: id(4) },
        "01000000 09000000 0400000000000000",
    );
    refused(
        Refusal::Twice {
            node: id(1),
            running: SocketAddr::from(([127, 0, 0, 1], 0x0102)),
            given: SocketAddr::from(([127, 0, 0, 2], 0x0304)),
        },
        "01000000 0a00000001000000 00000000000000007f000001 0201 000000007f000002 0403",
    );
}

#[test]
fn calls_keep_their_bytes() {
    let request = VoteRequest {
        vote: vote(4, 1),
        last_log_id: Some(log_id(3, 2, 8)),
        leadership_transfer: true,
    };
    keeps(
        &Call::Vote(request.clone().into()),
        "\
        00000000 0400000000000000 0100000000000000 0001030000000000 0000020000000000 \
        0000080000000000 000001",
    );
    keeps(
        &Call::PreVote(request.into()),
        "\
        01000000 0400000000000000 0100000000000000 0001030000000000 0000020000000000 \
        0000080000000000 000001",
    );
    let transfer = TransferLeaderRequest::new(vote(4, 1), id(2), None);
    keeps(
        &Call::TransferLeader(transfer.into()),
        "02000000 0400000000000000 0100000000000000 0002000000000000 0000",
    );
    let batch = Bytes::from_static(b"abc");
    keeps(
        &Call::Forward {
            batch,
            left_ms: 500,
        },
        "03000000 0300000000000000 616263f4010000",
    );
    keeps(&Call::ReadIndex { left_ms: 500 }, "04000000 f4010000");
    keeps(&Call::Status, "05000000");
}

#[test]
fn replies_keep_their_bytes() {
    let response = VoteResponse::new(vote(4, 1), None, true);
    keeps(
        &Reply::Vote(response.clone().into()),
        "00000000 0400000000000000 0100000000000000 000001",
    );
    keeps(
        &Reply::PreVote(response.into()),
        "01000000 0400000000000000 0100000000000000 000001",
    );
    let transfer = |response: TransferLeaderResponse<TypeConfig>, bytes| {
        keeps(&Reply::TransferLeader(response.into()), bytes);
    };
    transfer(Ok(()), "02000000 00000000");
    transfer(
        Err(TransferLeaderError::VoteChanged {
            expected: vote(1, 1),
            actual: vote(2, 3),
        }),
        "\
        02000000 0100000001000000 0000000001000000 0000000000020000 0000000000030000 \
        000000000000",
    );
    transfer(
        Err(TransferLeaderError::LogNotFlushed {
            expected: Some(log_id(1, 1, 8)),
            actual: None,
        }),
        "02000000 0200000001010000 0000000000010000 0000000000080000 000000000000",
    );
    let read = LogIdFormat::from(log_id(1, 2, 3));
    keeps(
        &Reply::ReadIndex(ReadIndexReply::Leads { read }),
        "04000000 0000000001000000 0000000002000000 0000000003000000 00000000",
    );
    keeps(
        &Reply::ReadIndex(ReadIndexReply::NotLeader { leader: None }),
        "04000000 0100000000",
    );
    keeps(
        &Reply::ReadIndex(ReadIndexReply::Unproved),
        "04000000 02000000",
    );
    let status = NodeStatus {
        version: "1.2.3".to_owned(),
        applied: Some(read),
        last_log_index: None,
        state_hash: fixed(12),
        checkpoints: vec![(64, fixed(13))],
        disk: DiskState::Stuck,
        log: LogStatus {
            entries: 1,
            bytes: 2,
            appended_bytes: 3,
            snapshot_index: Some(4),
        },
        level_max: FeatureLevel::from_number(5).unwrap(),
    };
    keeps(
        &Reply::Status(status),
        "\
        05000000 0500000000000000 312e322e33010100 0000000000000200 0000000000000300 \
        000000000000000c 0000000000000000 00000000000000 0100000000000000 \
        4000000000000000 0d00000000000000 0000000000000000 02000000 \
        0100000000000000 0200000000000000 0300000000000000 010400000000000000 05000000",
    );
    let reason = "no".to_owned();
    keeps(&Reply::Failed { reason }, "07000000 0200000000000000 6e6f");
}

#[test]
fn wishes_for_another_leader_keep_their_bytes() {
    keeps(&Call::HandOver { to: None }, "07000000 00");
    let to = Some(id(3));
    keeps(&Call::HandOver { to }, "07000000 01 0300000000000000");
    let reason = || "r".to_owned();
    for (reply, bytes) in [
        (
            HandOverReply::Done(id(3)),
            "08000000 00000000 0300000000000000",
        ),
        (HandOverReply::NotLeader, "08000000 01000000"),
        (
            HandOverReply::Refused(HandOverRefusal::NoVoter { to: id(9) }),
            "08000000 02000000 00000000 0900000000000000",
        ),
        (
            HandOverReply::Refused(HandOverRefusal::NobodyFit { reason: reason() }),
            "08000000 02000000 01000000 0100000000000000 72",
        ),
        (
            HandOverReply::Unknown { reason: reason() },
            "08000000 03000000 0100000000000000 72",
        ),
    ] {
        keeps(&Reply::HandOver(reply), bytes);
    }
}

#[test]
fn changes_of_members_keep_their_bytes() {
    let call = |change| Call::ChangeMember { change, left_ms: 5 };
    let member = two_members().get_node(&id(1)).unwrap().clone();
    let node = id(4);
    let announce = Call::Announce {
        node,
        member: member.clone(),
        left_ms: 5,
    };
    let bytes = "09000000 0400000000000000 0b00000000000000 31302e302e302e313a3732 \
                 0b00000000000000 31302e302e302e313a3732 a1000000000000000000000000000000 05000000";
    keeps(&announce, bytes);
    keeps(&Reply::Announce { done: true }, "0a000000 01");
    for (change, bytes) in [
        (MemberChange::Promote { node }, "00000000 0400000000000000"),
        (MemberChange::Demote { node }, "01000000 0400000000000000"),
        (MemberChange::Remove { node }, "02000000 0400000000000000"),
        (
            MemberChange::Replace {
                old: id(3),
                new: node,
            },
            "03000000 0300000000000000 0400000000000000",
        ),
        (
            MemberChange::Move { node, member },
            "04000000 0400000000000000 0b00000000000000 31302e302e302e313a3732 \
             0b00000000000000 31302e302e302e313a3732 a1000000000000000000000000000000",
        ),
    ] {
        keeps(&call(change), &format!("08000000 {bytes} 05000000"));
    }
}

#[test]
fn answers_to_changes_of_members_keep_their_bytes() {
    let node = id(4);
    let refused = MemberReply::Refused;
    for (reply, bytes) in [
        (
            MemberReply::Done(MemberDone::Unchanged),
            "00000000 00000000",
        ),
        (MemberReply::Done(MemberDone::Changed), "00000000 01000000"),
        (MemberReply::NotLeader, "01000000"),
        (
            refused(MemberRefusal::NoMember { node }),
            "02000000 00000000 0400000000000000",
        ),
        (
            refused(MemberRefusal::HasLeft { node }),
            "02000000 01000000 0400000000000000",
        ),
        (
            refused(MemberRefusal::OtherIncarnation { node }),
            "02000000 02000000 0400000000000000",
        ),
        (
            refused(MemberRefusal::NotCaughtUp { node, lag: Some(9) }),
            "02000000 03000000 0400000000000000 01 0900000000000000",
        ),
        (
            refused(MemberRefusal::LosesQuorum {
                voters: vec![id(1)],
                answering: 2,
                needed: 3,
                silent: vec![id(4)],
            }),
            "02000000 04000000 0100000000000000 0100000000000000 0200000000000000 \
             0300000000000000 0100000000000000 0400000000000000",
        ),
        (
            refused(MemberRefusal::Leads {
                node,
                reason: "r".to_owned(),
            }),
            "02000000 05000000 0400000000000000 0100000000000000 72",
        ),
        (refused(MemberRefusal::Busy), "02000000 06000000"),
        (
            MemberReply::Unknown {
                reason: "r".to_owned(),
            },
            "03000000 0100000000000000 72",
        ),
        (MemberReply::Begun, "04000000"),
    ] {
        keeps(&Reply::ChangeMember(reply), &format!("09000000 {bytes}"));
    }
}

#[test]
fn questions_for_a_feature_level_keep_their_bytes() {
    let level = FeatureLevel::from_number(2).unwrap();
    let call = Call::AllKnow { level, left_ms: 5 };
    keeps(&call, "0a000000 02000000 05000000");
    let lacking = [(id(2), Some(FeatureLevel::FIRST)), (id(3), None)].into();
    for (reply, bytes) in [
        (LevelReply::Done(()), "00000000"),
        (LevelReply::NotLeader, "01000000"),
        (
            LevelReply::Refused(LevelRefusal { level, lacking }),
            "02000000 02000000 0200000000000000 0200000000000000 01 01000000 0300000000000000 00",
        ),
    ] {
        keeps(&Reply::AllKnow(reply), &format!("0b000000 {bytes}"));
    }
}

#[test]
fn leases_of_cached_sequences_keep_their_bytes() {
    let leases = [TakenFor::Answer, TakenFor::Command].map(|taken_for| CachedLease {
        part: GrantPart {
            sequence: "ab".parse().unwrap(),
            count: RangeCount::constant(3),
        },
        taken_for,
    });
    keeps(
        &Call::LeaseCached {
            leases: leases.into(),
            left_ms: 5,
        },
        "0b000000 0200000000000000 0200000000000000 6162 03000000 00000000 \
         0200000000000000 6162 03000000 01000000 05000000",
    );
    let range = Range::from_bounds(4, 6, 1.try_into().unwrap()).unwrap();
    let id_form = IdForm::Number;
    let entry = EntryId { term: 1, index: 2 };
    let replies = vec![
        CachedReply::Given(Grant { range, id_form }, entry),
        CachedReply::NotCached,
        CachedReply::Refused(TableRefusal::WindowClosed),
        CachedReply::NotTaken,
        CachedReply::DiskFull,
        CachedReply::Unproved,
    ];
    keeps(
        &Reply::LeaseCached(replies),
        "0c000000 0600000000000000 \
         00000000 0400000000000000 0600000000000000 0100000000000000 00000000 0100000000000000 0200000000000000 \
         01000000 02000000 0e000000 03000000 04000000 05000000",
    );
    let max_lease = RangeCount::constant(7);
    let reserved = Reserved {
        range,
        id_form,
        max_lease,
    };
    keeps(
        &Outcome::Reserved(reserved),
        "0d000000 0400000000000000 0600000000000000 0100000000000000 00000000 07000000",
    );
}

#[test]
fn surveys_keep_their_bytes() {
    keeps(&Call::Cluster { left_ms: 5 }, "06000000 05000000");
    let member = MemberView {
        member: Member::default(),
        votes: true,
        reachable: Some(true),
        matched: Some(3),
        leader_last: Some(4),
        status: None,
    };
    let view = ClusterView {
        leader: Some(id(1)),
        term: 2,
        members: BTreeMap::from([(id(1), member)]),
    };
    keeps(
        &Reply::Cluster(view),
        "\
        06000000 0101000000000000 0002000000000000 0001000000000000 0001000000000000 \
        0009000000000000 00302e302e302e30 3a30090000000000 0000302e302e302e 303a300000000000 \
        0000000000000000 0000000101010103 0000000000000001 0400000000000000 00",
    );
}

#[test]
fn replies_to_forwarded_batches_keep_their_bytes() {
    let forward = |reply, bytes| keeps(&Reply::Forward(reply), bytes);
    forward(
        ForwardReply::Applied(Answered {
            entry: EntryId { term: 1, index: 3 },
            outcomes: vec![Outcome::Refused(TableRefusal::UnknownSequence)],
        }),
        "\
        03000000 0000000001000000 0000000003000000 0000000001000000 0000000003000000 \
        00000000",
    );
    let leader = Some(id(3));
    forward(
        ForwardReply::NotLeader { leader },
        "03000000 0100000001030000 0000000000",
    );
    forward(ForwardReply::Overloaded, "03000000 02000000");
    forward(ForwardReply::Expired, "03000000 03000000");
    forward(ForwardReply::Unknown, "03000000 04000000");
    forward(ForwardReply::DiskFull, "03000000 05000000");
    forward(ForwardReply::Stale, "03000000 06000000");
}

#[test]
fn outcomes_keep_their_bytes() {
    let sequence: crate::SequenceName = "ab".parse().unwrap();
    let settings = Settings::new(1, 1, 100, RangeCount::constant(50)).unwrap();
    let create = |settings: &Settings| Command::Create {
        sequence: sequence.clone(),
        settings: *settings,
    };
    let grant = |count| Command::Grant {
        sequence: sequence.clone(),
        count: RangeCount::constant(count),
    };
    let advance = |to| Command::Advance {
        sequence: sequence.clone(),
        to,
    };
    let batch = Batch {
        session: SessionId::NONE,
        number: 1,
        ack: 0,
        hash: BatchHash([0; 16]),
        commands: vec![
            create(&settings),
            create(&Settings::default()),
            grant(3),
            grant(51),
            advance(70),
            advance(101),
            grant(40),
        ],
    };
    let applied = Table::default().apply(testing::at(9), &[batch]);

    let golden = [
        "01000000 0101000000000000 0001000000000000 0064000000000000 0000000000000000 \
         0032000000000000",
        "03000000 01000000",
        "00000000 0100000000000000 0300000000000000 0100000000000000 00000000",
        "03000000 0200000033000000 32000000",
        "02000000 0103000000000000 0001460000000000 000000000000",
        "03000000 0400000065000000 0000000064000000 00000000",
        "03000000 0300000028000000 1e000000",
    ];
    let outcomes = testing::outcomes(applied).concat();
    assert_eq!(outcomes.len(), golden.len());
    for (outcome, bytes) in outcomes.into_iter().zip(golden) {
        keeps(&outcome, bytes);
    }
}

fn later_commands() -> Vec<Command> {
    let name = |text: &str| text.parse::<crate::SequenceName>().unwrap();
    let create = |text, start, max_value| Command::Create {
        sequence: name(text),
        settings: Settings::new(start, 1, max_value, RangeCount::constant(50)).unwrap(),
    };
    let alter = |text, changes| Command::Alter {
        sequence: name(text),
        changes,
    };
    let bound = |max_value| Changes {
        max_value: Some(max_value),
        ..Changes::default()
    };
    let grant_all = |parts: &[(&str, u32)]| {
        let part = |(text, count): &(&str, u32)| GrantPart {
            sequence: name(text),
            count: RangeCount::constant(*count),
        };
        let parts: Vec<GrantPart> = parts.iter().map(part).collect();
        Command::GrantAll {
            parts: parts.try_into().unwrap(),
            create: None,
        }
    };
    let smaller = Changes {
        max_lease: Some(RangeCount::constant(40)),
        ..bound(80)
    };
    let other_start = Changes {
        start: Some(2),
        ..Changes::default()
    };
    vec![
        create("ab", 1, 100),
        create("cd", 10, 20),
        alter("ab", smaller),
        grant_all(&[("ab", 3), ("ab", 2)]),
        grant_all(&[("ab", 1), ("none", 1)]),
        alter("ab", other_start),
        alter("ab", bound(1 << 53)),
        alter("ab", bound(4)),
        alter("cd", bound(9)),
        Command::Retire {
            sequence: name("ab"),
        },
        alter("ab", bound(90)),
    ]
}

#[test]
fn outcomes_of_later_commands_keep_their_bytes() {
    let applied = Table::default().apply(testing::at(9), &[testing::batch(later_commands())]);

    let golden = [
        "04000000 0100000000000000 0100000000000000 5000000000000000 0000000000000000 28000000 \
         00 00 00",
        "06000000 0200000000000000 \
         0100000000000000 0300000000000000 0100000000000000 00000000 \
         0400000000000000 0500000000000000 0100000000000000 00000000",
        "07000000 01000000 00000000",
        "03000000 06000000 00000000 0100000000000000 0200000000000000",
        "03000000 07000000 0000000000002000 00000000",
        "03000000 08000000 0400000000000000 0500000000000000",
        "03000000 09000000 0900000000000000 0a00000000000000",
        "05000000 0100000000000000 0100000000000000 5000000000000000 0000000000000000 28000000 \
         01 0500000000000000 01 0900000000000000 01",
        "03000000 05000000",
    ];
    let outcomes = testing::outcomes(applied).concat();
    assert_eq!(outcomes.len(), 2 + golden.len());
    for (outcome, bytes) in outcomes.into_iter().skip(2).zip(golden) {
        keeps(&outcome, bytes);
    }
    let full = TableRefusal::TooManySequences { limit: 1_000_000 };
    keeps(
        &Outcome::Refused(full),
        "03000000 0a000000 40420f0000000000",
    );
    let opened = Command::OpenSession {
        origin: Origin { node: 1, nonce: 2 },
    };
    let applied = Table::default().apply(testing::at(9), &[testing::batch(vec![opened; 2])]);
    for outcome in testing::outcomes(applied).concat() {
        keeps(&outcome, "09000000 01 0900000000000000");
    }
    let other = Outcome::Opened { session: None };
    keeps(&other, "09000000 00");
    let replayed = |answer| Outcome::Replayed {
        entry: EntryId { term: 1, index: 3 },
        answer,
    };
    keeps(
        &replayed(KeyedAnswer::Granted(Vec::new())),
        "08000000 0100000000000000 0300000000000000 00000000 0000000000000000",
    );
    let advanced = KeyedAnswer::Advanced {
        previous: None,
        high: Some(7),
        id_form: IdForm::Text,
    };
    keeps(
        &replayed(advanced),
        "08000000 0100000000000000 0300000000000000 01000000 00 01 0700000000000000 01000000",
    );
    keeps(
        &Outcome::Refused(TableRefusal::KeyReused),
        "03000000 0b000000",
    );
    let keys = TableRefusal::TooManyKeys {
        limit: 1,
        seconds: 2,
    };
    keeps(
        &Outcome::Refused(keys),
        "03000000 0c000000 0100000000000000 0200000000000000",
    );
    keeps(
        &Outcome::Refused(TableRefusal::TooManyNodes { limit: 16 }),
        "03000000 0d000000 1000000000000000",
    );
    keeps(&Outcome::Admitted { id: 4 }, "0a000000 0400000000000000");
}

#[test]
fn the_outcome_of_an_import_keeps_its_bytes() {
    let done = Imported::Done {
        fresh: true,
        previous: None,
        high: Some(7),
        id_form: IdForm::Text,
    };
    keeps(
        &Outcome::Imported {
            parts: vec![done, Imported::Refused(TableRefusal::Retired)],
        },
        "0b000000 0200000000000000 00000000 01 00 01 0700000000000000 01000000 01000000 05000000",
    );
}

#[test]
fn what_raises_the_feature_level_keeps_its_bytes() {
    let level = FeatureLevel::from_number(2).unwrap();
    keeps(&Command::RaiseLevel { to: level }, "0b000000 02000000");
    keeps(&Outcome::LevelRaised { level }, "0c000000 02000000");
}

#[test]
fn appends_keep_their_bytes() {
    let proposal = Proposal {
        elapsed_ms: 5,
        batches: vec![Bytes::from_static(b"abc"), Bytes::from_static(b"de")],
    };
    let request = AppendEntriesRequest {
        vote: Vote::from_leader_id(Leadership::new(4, id(1)), true),
        prev_log_id: Some(log_id(3, 2, 8)),
        entries: vec![
            Entry::new(log_id(4, 1, 9), Payload::Blank),
            Entry::new(log_id(4, 1, 10), Payload::Normal(proposal)),
            Entry::new(log_id(4, 1, 11), Payload::Membership(two_members())),
        ],
        leader_commit: None,
    };
    keeps(
        &Append::new(6, &request),
        "\
        06000000 0000000004000000 0000000001000000 0000000001010300 0000000000000200 \
        0000000000000800 0000000000000003 0000000000000004 0000000000000001 0000000000000009 \
        0000000000000000 0000000400000000 0000000100000000 0000000a00000000 0000000100000005 \
        0000000200000000 0000000300000000 0000006162630200 0000000000006465 0400000000000000 \
        0100000000000000 0b00000000000000 0200000001000000 0000000002000000 0000000001000000 \
        0000000002000000 0000000002000000 0000000001000000 000000000b000000 0000000031302e30 \
        2e302e313a37320b 0000000000000031 302e302e302e313a 3732a10000000000 0000000000000000 \
        0000020000000000 00000b0000000000 000031302e302e30 2e313a37320b0000 000000000031302e \
        302e302e313a3732 a200000000000000 0000000000000000",
    );
    keeps(
        &Appended::Matching(Some(log_id(4, 1, 11).into())),
        "00000000 0104000000000000 0001000000000000 000b000000000000 00",
    );
    keeps(
        &Appended::Conflict(log_id(3, 2, 8).into()),
        "01000000 0300000000000000 0200000000000000 0800000000000000",
    );
    keeps(
        &Appended::HigherVote(vote(5, 3).into()),
        "02000000 0500000000000000 0300000000000000 00",
    );
    keeps(&Appended::Stopped, "03000000");
}

#[test]
fn snapshots_keep_their_bytes() {
    let membership = StoredMembership::new(Some(log_id(4, 1, 2)), two_members());
    keeps(
        &SnapshotHeader {
            vote: vote(5, 1).into(),
            last_log_id: Some(log_id(4, 1, 11).into()),
            membership: (&membership).into(),
            length: 3,
            checksum: [9; 32],
        },
        "\
        05000000 0000000001000000 0000000000010400 0000000000000100 0000000000000b00 \
        0000000000000104 0000000000000001 0000000000000002 0000000000000001 0000000000000002 \
        0000000000000001 0000000000000002 0000000000000002 0000000000000001 000000000000000b \
        0000000000000031 302e302e302e313a 37320b0000000000 000031302e302e30 2e313a3732a10000 \
        0000000000000000 0000000000020000 00000000000b0000 000000000031302e 302e302e313a3732 \
        0b00000000000000 31302e302e302e31 3a3732a200000000 0000000000000000 0000000300000000 \
        0000000909090909 0909090909090909 0909090909090909 0909090909090909 090909",
    );
    let vote = vote(5, 1).into();
    keeps(
        &SnapshotReply::Installed { vote },
        "00000000 0500000000000000 0100000000000000 00",
    );
    let reason = "no".to_owned();
    keeps(
        &SnapshotReply::Refused { reason },
        "01000000 0200000000000000 6e6f",
    );
}
