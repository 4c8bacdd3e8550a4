//! Tests of the whole from outside: the built binary, over HTTP and its command line.

#[cfg(test)]
mod api;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod formation;
#[cfg(test)]
mod inspect;
#[cfg(test)]
mod node;
#[cfg(test)]
mod readme;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod surroundings;
#[cfg(test)]
mod syncs;
#[cfg(test)]
mod world;
