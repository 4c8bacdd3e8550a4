//! Bugs that are planted on purpose: each has to be found.

/// Names the bug that is planted.
pub(super) const PLANTED: &str = "HIGHWATER_TEST_PLANTED";
