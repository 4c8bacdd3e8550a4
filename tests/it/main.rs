//! Tests of the whole from outside: the built binary, over HTTP and its command line.

#[cfg(test)]
mod api;
#[cfg(test)]
mod backup;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod bad_requests;
#[cfg(test)]
mod cached;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod cli_sequences;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod databases;
#[cfg(test)]
mod disk_full;
#[cfg(test)]
mod edges;
#[cfg(test)]
mod formation;
#[cfg(test)]
mod import;
#[cfg(test)]
mod inspect;
#[cfg(test)]
mod joining;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod large_history;
#[cfg(test)]
mod load;
#[cfg(test)]
#[path = "../lone/mod.rs"]
mod lone;
#[cfg(test)]
mod members;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod migrating;
#[cfg(test)]
mod mounts;
#[cfg(test)]
mod node;
#[cfg(test)]
mod overload;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod preload;
#[cfg(test)]
mod raw;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod restarts;
#[cfg(test)]
mod restore;
#[cfg(test)]
mod scaling;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod surroundings;
#[cfg(test)]
mod sync_errors;
#[cfg(test)]
mod syncs;
#[cfg(test)]
mod upgrading;
#[cfg(test)]
mod verbs;
#[cfg(test)]
mod world;
