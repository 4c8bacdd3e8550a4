//! Tests with real processes that are killed, or run for long.

#[cfg(test)]
mod cases;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod failover;
#[cfg(test)]
mod hand_over;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod large;
#[cfg(test)]
mod large_join;
#[cfg(test)]
mod member_faults;
#[cfg(test)]
mod members;
#[cfg(test)]
mod partitions;
#[cfg(test)]
mod pauses;
#[cfg(test)]
mod restore;
#[cfg(test)]
mod run;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod upgrade;
#[cfg(test)]
mod world;
