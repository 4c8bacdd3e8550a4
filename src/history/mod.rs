//! What workers saw, and whether a sequencer may have answered so.
//!
//! A history is a list of lines, one a request: what was asked, when it was sent, when the answer came, and what it
//! said. The checker decides from them alone whether the invariants held; it trusts no node. It is shared by
//! the demo, `highwater verify` and the chaos runs, and knows nothing of any of them. No I/O but the sources it
//! is given, and temporary files for what memory does not hold.
//!
//! ```
//! use highwater::history::{Checker, GapRule, Source, Verdict};
//!
//! let text = br#"{"v":1,"worker":"w1","node":2,"sequence":"photos","count":3,"key":null,"sent_ns":1,"received_ns":2,"outcome":"granted","first":1,"last":3,"increment":1}
//! {"v":1,"worker":"w2","node":1,"sequence":"photos","count":1,"key":null,"sent_ns":3,"received_ns":4,"outcome":"granted","first":3,"last":3,"increment":1}
//! {"v":2,"op":"read","worker":"w2","node":1,"sequence":"photos","sent_ns":5,"received_ns":6,"high":3}
//! "#;
//! let report = Checker::new(GapRule::MustBeExplained)
//!     .source(Source::text("history.ndjson", text))
//!     .check()?;
//!
//! assert_eq!(report.verdict(), Verdict::Violated);
//! assert_eq!((report.overlaps, report.order_violations, report.read_violations), (1, 1, 0));
//! # Ok::<(), highwater::history::CheckError>(())
//! ```

mod checker;
mod cover;
mod findings;
mod format;
mod intake;
mod judge;
mod keys;
mod lattice;
mod line;
mod op;
mod order;
mod read;
mod report;
mod sorter;
mod source;
mod values;

pub use checker::{CheckError, Checker};
pub use judge::GapRule;
pub use line::{AdvanceOutcome, LeaseOutcome, Line, LineError, Mark, Operation};
pub use read::{LINE_BYTES_MAX, ReadError, read_history};
pub use report::{Report, Verdict, Violation, ViolationKind, Witness};
pub use source::Source;

#[cfg(test)]
mod tests;
