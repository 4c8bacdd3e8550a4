//! One of each refusal, for the page that explains them.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use openraft::vote::RaftLeaderId;

use crate::sequence::{FeatureLevel, LaterLevel};
use crate::server::store::StoreError;
use crate::server::store::error::or_nothing;
use crate::server::store::frame::FrameError;
use crate::server::store::snapshot_format::SnapshotError;
use crate::server::types::{Leadership, LogId, NodeId};

/// The variants, each with its samples. A new variant does not compile before it has one.
macro_rules! samples {
    ($($variant:pat => [$($sample:expr),+]),+ $(,)?) => {
        pub(crate) fn samples() -> Vec<StoreError> {
            // Only so that every variant is named.
            fn has_samples(error: &StoreError) -> bool {
                match error { $($variant)|+ => true }
            }
            let samples = vec![$($($sample),+),+];
            assert!(samples.iter().all(has_samples));
            samples
        }
    };
}

fn path(text: &str) -> PathBuf {
    text.into()
}

fn log_id(index: u64) -> LogId {
    LogId::new(Leadership::new(2, NodeId::from(1)), index)
}

fn io(action: &'static str, at: &str, number: i32) -> StoreError {
    StoreError::io(action, at)(io::Error::from_raw_os_error(number))
}

samples! {
    StoreError::Io { .. } => [
        io("write", "DIR", 13),
        io("create the data directory", "DIR", 30),
        io("open", "DIR/sled", 28),
        io("read", "DIR/identity", 5)
    ],
    StoreError::NotDirectory { .. } => [StoreError::NotDirectory { path: path("DIR") }],
    StoreError::Dangling { .. } => [StoreError::Dangling {
        path: path("DIR"),
        target: path("/mnt/disk"),
    }],
    StoreError::Locked { .. } => [StoreError::Locked { path: path("DIR") }],
    StoreError::IdentityMissing { .. } => [StoreError::IdentityMissing {
        path: path("DIR/identity"),
    }],
    StoreError::IdentityDamaged { .. } => [StoreError::IdentityDamaged {
        path: path("DIR/identity"),
        source: FrameError::Checksum,
    }],
    StoreError::AdoptedOther { .. } => [StoreError::AdoptedOther {
        node: NodeId::from(1),
        cluster: "CLUSTER".to_owned(),
    }],
    StoreError::RecordOfOther { .. } => [StoreError::RecordOfOther {
        node: NodeId::from(1),
        path: path("DIR"),
    }],
    StoreError::NotAdopted { .. } => [StoreError::NotAdopted { path: path("DIR") }],
    StoreError::SuperblockMissing { .. } => [StoreError::SuperblockMissing {
        path: path("DIR/superblock"),
    }],
    StoreError::SuperblockDamaged { .. } => [StoreError::SuperblockDamaged {
        path: path("DIR/superblock"),
    }],
    StoreError::Later { .. } => [StoreError::Later {
        path: path("DIR/superblock"),
    }],
    StoreError::Level(_) => [StoreError::Level(LaterLevel {
        found: FeatureLevel::from_number(2).unwrap(),
        known: FeatureLevel::FIRST,
    })],
    StoreError::Foreign { .. } => [StoreError::Foreign {
        path: path("DIR/superblock"),
        what: "cluster",
        found: "CLUSTER".to_owned(),
        expected: "OTHER CLUSTER".to_owned(),
    }],
    StoreError::DatabaseMissing { .. } => [StoreError::DatabaseMissing {
        path: path("DIR/sled"),
    }],
    StoreError::DatabaseOrphaned { .. } => [StoreError::DatabaseOrphaned {
        path: path("DIR/sled"),
    }],
    StoreError::DatabaseDamaged { .. } => [StoreError::DatabaseDamaged {
        path: path("DIR/sled"),
        reason: "WHAT SLED SAYS".to_owned(),
    }],
    StoreError::DatabaseHangs { .. } => [StoreError::DatabaseHangs {
        path: path("DIR/sled"),
        limit: Duration::from_secs(5),
    }],
    StoreError::Blobs { .. } => [StoreError::Blobs {
        path: path("DIR/sled/blobs"),
    }],
    StoreError::ValueDamaged { .. } => [StoreError::ValueDamaged {
        what: "vote",
        source: FrameError::Checksum,
    }],
    StoreError::RecordDamaged { .. } => [StoreError::RecordDamaged {
        index: 90,
        source: FrameError::Checksum,
    }],
    StoreError::ChainBroken { .. } => [StoreError::ChainBroken {
        index: 90,
        before: or_nothing(Some(log_id(70))),
    }],
    StoreError::LogBehind { .. } => [StoreError::LogBehind {
        found: or_nothing(Some(log_id(70))),
        promised: log_id(90),
    }],
    StoreError::PurgedBehind { .. } => [StoreError::PurgedBehind {
        found: or_nothing(None),
        promised: log_id(90),
    }],
    StoreError::SnapshotMissing { .. } => [StoreError::SnapshotMissing {
        path: path("DIR/snapshots/FILE"),
    }],
    StoreError::SnapshotDamaged { .. } => [StoreError::SnapshotDamaged {
        path: path("DIR/snapshots/FILE"),
        source: SnapshotError::Checksum,
    }],
    StoreError::SnapshotBehind { .. } => [StoreError::SnapshotBehind {
        purged: log_id(90),
        snapshot: or_nothing(Some(log_id(70))),
    }],
}
