//! The tables and the plot of the page, made of a run's data and of nothing else.
//!
//! A test of the main package reads this module as well, and compares what it makes of the data that is checked in with the
//! page and the plot beside it. So nothing here may need more than serde.

pub(crate) mod data;
mod figures;
mod plot;
mod tables;
mod targets;

pub(crate) use plot::plot;
pub(crate) use tables::tables;
