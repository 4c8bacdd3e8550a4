//! What is read of a client.
#![expect(
    clippy::panic,
    reason = "that is how a target says that something is wrong"
)]

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::json::{List, Object, parse};
use crate::wire::{
    AdmitBody, AdvanceBody, AlterBody, CreateBody, ImportBody, LeaseBody, LeasePartBody,
    ReplaceBody, TransferBody,
};

/// Bodies of requests, of every kind.
pub fn bodies(bytes: &[u8]) {
    stays::<CreateBody>(bytes);
    stays::<AlterBody>(bytes);
    stays::<LeaseBody>(bytes);
    stays::<AdvanceBody>(bytes);
    stays::<TransferBody>(bytes);
    stays::<AdmitBody>(bytes);
    stays::<ReplaceBody>(bytes);
    stay::<LeasePartBody>(bytes);
    stay::<ImportBody>(bytes);
}

/// An object that is understood is written so that the same is understood.
fn stays<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(Object(body)) = parse::<Object<T>>(bytes) else {
        return;
    };
    let written = serde_json::to_vec(&body).unwrap_or_default();
    match parse::<Object<T>>(&written) {
        Ok(Object(again)) => assert_eq!(again, body),
        Err(error) => panic!("{error:?}: {body:?}"),
    }
}

/// So is a list.
fn stay<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(List(bodies)) = parse::<List<Object<T>>>(bytes) else {
        return;
    };
    for Object(body) in bodies {
        let written = serde_json::to_vec(&body).unwrap_or_default();
        stays::<T>(&written);
    }
}
