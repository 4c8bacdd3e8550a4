//! What workers saw, and whether a sequencer may have answered so.
//!
//! A history is a list of lines, one a lease: what was asked, when it was sent, when the answer came, and what it
//! said. The checker decides from them alone whether the invariants held; it trusts no node. It is shared by
//! the demo, `highwater verify` and the chaos runs, and knows nothing of any of them. No I/O but the readers it
//! is given.
//!
//! ```
//! use highwater::history::{Checker, GapRule, Verdict, read_history};
//!
//! let text = br#"{"v":1,"worker":"w1","node":2,"sequence":"photos","count":3,"key":null,"sent_ns":1,"received_ns":2,"outcome":"granted","first":1,"last":3,"increment":1}
//! {"v":1,"worker":"w2","node":1,"sequence":"photos","count":1,"key":null,"sent_ns":3,"received_ns":4,"outcome":"granted","first":3,"last":3,"increment":1}
//! "#;
//! let mut checker = Checker::new(GapRule::MustBeExplained);
//! let source = checker.add_source("history.ndjson");
//! read_history(&text[..], |number, line| checker.add(source, number, line))?;
//!
//! let report = checker.check();
//!
//! assert_eq!(report.verdict(), Verdict::Violated);
//! assert_eq!((report.overlaps, report.order_violations), (1, 1));
//! # Ok::<(), highwater::history::ReadError>(())
//! ```

mod checker;
mod cover;
mod gaps;
mod line;
mod order;
mod overlap;
mod read;
mod report;
mod requests;

pub use checker::{Checker, GapRule, SourceId};
pub use line::{LeaseOutcome, Line, LineError};
pub use read::{LINE_BYTES_MAX, ReadError, read_history};
pub use report::{Report, Verdict, Violation, ViolationKind, Witness};

#[cfg(test)]
mod tests;
