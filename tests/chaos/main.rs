//! Tests with real processes that are killed, or run for long.

#[cfg(test)]
#[path = "../crowd/mod.rs"]
mod crowd;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod failover;
#[cfg(test)]
mod partitions;
#[cfg(test)]
mod pauses;
#[cfg(test)]
mod schedule;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod world;
