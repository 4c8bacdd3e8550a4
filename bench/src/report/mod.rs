//! The tables and the plot of the pages, made of a run's data and of nothing else.
//!
//! A test of the main package reads this module as well, and compares what it makes of the data that is checked in with the
//! pages and the plot beside it. So nothing here may need more than serde.

pub(crate) mod data;
mod figures;
mod plot;
mod scale;
mod tables;
mod targets;

pub(crate) use plot::plot;
pub(crate) use scale::scale;
pub(crate) use tables::tables;
