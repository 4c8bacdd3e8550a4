//! Tests of the store as a whole, on real files.

mod damage;
mod fixture;
mod golden;
pub(crate) mod refusals;
mod restart;
mod snapshots;
mod suite;
mod writing;
