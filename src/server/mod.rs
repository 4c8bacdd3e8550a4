//! A node: assembly, start and shutdown order.

pub(crate) mod codec;
pub(crate) mod config;
pub(crate) mod formats;
pub(crate) mod tasks;
pub(crate) mod types;
