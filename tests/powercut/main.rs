//! Power cuts: what a real node did to its disk is recorded, and replayed to the disks that a power cut at any moment
//! could leave. From each of them the node has to come back with everything that it acknowledged (I3, I7).
//!
//! Read in this order: `trace` (what was recorded), `node` with `history` (how, and what was acknowledged), `disk`
//! (what is durable when), `image` (what one power cut leaves), `judge` (whether that is enough).

#[cfg(test)]
mod cluster;
#[cfg(test)]
mod content;
#[cfg(test)]
mod cuts;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod history;
#[cfg(test)]
mod image;
#[cfg(test)]
mod judge;
#[cfg(test)]
#[path = "../lone/mod.rs"]
mod lone;
#[cfg(test)]
mod node;
#[cfg(test)]
mod omission;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod sled_only;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trace;
#[cfg(test)]
mod workers;
