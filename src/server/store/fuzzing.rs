//! What is read of a disk, and of a file that an operator brings. Checksums are put right first: behind them everything is
//! to be read, because what writes them may be another version, or somebody who means harm.
#![expect(
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "that is how a target says that something is wrong"
)]

use super::backup::{Backup, CHECKSUM_BYTES};
use super::{record, snapshot_format};

/// Records of the log.
pub fn records(bytes: &[u8]) {
    let Ok(read) = record::decode(&record::resealed(bytes)) else {
        return;
    };
    // The bound counts the checksum, too.
    let Ok(written) = record::encode(&read.entry, read.previous) else {
        return;
    };
    match record::decode(&written) {
        Ok(again) => assert_eq!(again, read),
        Err(error) => panic!("{error}: {read:?}"),
    }
}

/// Snapshots.
pub fn snapshots(bytes: &[u8]) {
    let Ok((state, _)) = snapshot_format::read(bytes) else {
        return;
    };
    let mut written = Vec::new();
    let digest = snapshot_format::write(&state, &mut written);
    match (snapshot_format::read(written.as_slice()), digest) {
        (Ok((again, read)), Ok(written)) => {
            assert_eq!(again, state);
            assert_eq!(read.checksum, written.checksum);
        }
        (read, written) => panic!("{read:?} {written:?}"),
    }
}

/// Backups, without the checksum at their end.
pub fn backups(bytes: &[u8]) {
    let Ok(backup) = Backup::read_body(&mut &*bytes) else {
        return;
    };
    let mut written = Vec::new();
    let result = backup.write(&mut written);
    let body = written.split_last_chunk::<CHECKSUM_BYTES>();
    let mut body = body.map(|(body, _)| body).unwrap_or_default();
    match (Backup::read_body(&mut body), result) {
        (Ok(again), Ok(())) => assert_eq!(again, backup),
        (read, written) => panic!("{read:?} {written:?}"),
    }
}
