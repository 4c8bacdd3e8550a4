//! What is read of a peer.
#![expect(
    clippy::panic,
    reason = "that is how a target says that something is wrong"
)]

use std::fmt::Debug;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::append::{Append, Appended};
use super::frame::{FRAME_BYTES_MAX, untag};
use super::handshake::{ANSWER_BYTES_MAX, Answer, HELLO_BYTES_MAX, Hello};
use super::protocol::{Call, Reply};
use crate::sequence::Batch;
use crate::server::codec;
use crate::server::types::BATCH_BYTES_MAX;

/// Frames of a peer that was let in, and the batches in them.
pub fn frames(bytes: &[u8]) {
    let Ok((_, message)) = untag(Bytes::copy_from_slice(bytes)) else {
        return;
    };
    stays::<Call, FRAME_BYTES_MAX>(&message);
    stays::<Reply, FRAME_BYTES_MAX>(&message);
    stays::<Append, FRAME_BYTES_MAX>(&message);
    stays::<Appended, FRAME_BYTES_MAX>(&message);
    stays::<Batch, BATCH_BYTES_MAX>(&message);
}

/// The first frames between two nodes, behind mark and version.
pub fn handshakes(bytes: &[u8]) {
    stays::<Hello, HELLO_BYTES_MAX>(bytes);
    stays::<Answer, ANSWER_BYTES_MAX>(bytes);
}

/// What is understood is written so that the same is understood.
fn stays<T, const LIMIT: usize>(bytes: &[u8])
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let Ok(message) = codec::decode::<T, LIMIT>(bytes) else {
        return;
    };
    let written = codec::encode(&message);
    // Nothing is understood that takes more than it is.
    assert!(written.len() <= bytes.len(), "{message:?}");
    match codec::decode::<T, LIMIT>(&written) {
        Ok(again) => assert_eq!(again, message),
        Err(error) => panic!("{error}: {message:?}"),
    }
}
