//! Tests with real processes that are killed, or run for long.

#[cfg(test)]
mod demo;
#[cfg(test)]
mod soak;
