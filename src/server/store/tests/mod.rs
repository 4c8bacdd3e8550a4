//! Tests of the store as a whole, on real files.

mod damage;
mod fixture;
mod golden;
#[cfg(feature = "cli")]
mod inspecting;
pub(crate) mod refusals;
mod restart;
mod snapshots;
mod suite;
mod torn;
mod writing;
