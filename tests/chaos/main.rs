//! Tests with real processes that are killed.

#[cfg(test)]
mod demo;
