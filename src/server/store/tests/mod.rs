//! Tests of the store as a whole, on real files.

mod damage;
mod fixture;
mod golden;
mod restart;
mod snapshots;
mod suite;
mod torn;
mod writing;
