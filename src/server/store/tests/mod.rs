//! Tests of the store as a whole, on real files.

mod damage;
mod fixture;
mod golden;
#[cfg(feature = "cli")]
mod inspecting;
mod journaling;
mod levels;
mod pacing;
pub(crate) mod refusals;
mod restart;
#[cfg(feature = "cli")]
mod restoring;
mod snapshots;
mod suite;
mod torn;
mod writing;
