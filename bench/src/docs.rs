//! The files that a run leaves: data, and the pages and the plot that are made of it.

use std::path::Path;

use crate::error::BenchError;
use crate::report::data::Run;
use crate::report::{plot, scale, tables};

/// The lines of a page between which all is made from the data.
const BEGIN: &str = "<!-- made from benchmarks.json: begin -->\n";
const END: &str = "<!-- made from benchmarks.json: end -->\n";

/// Writes all of them.
///
/// # Errors
/// The system's, and where a page has no place for tables.
pub(crate) fn write(docs: &Path, run: &Run) -> Result<(), BenchError> {
    let path = docs.join("benchmarks.json");
    let text = data(run).map_err(BenchError::data(&path))?;
    std::fs::write(&path, text).map_err(BenchError::file(path, "written"))?;
    make(docs)
}

/// A line for each sample, so that a change shows what has changed.
fn data(run: &Run) -> serde_json::Result<String> {
    let about = serde_json::to_string(&run.about)?;
    let samples = run.samples.iter().map(serde_json::to_string);
    let samples = samples.collect::<serde_json::Result<Vec<_>>>()?.join(",\n");
    let verified = run.verified;
    Ok(format!(
        "{{\"about\":{about},\n\"verified\":{verified},\n\"samples\":[\n{samples}\n]}}\n"
    ))
}

/// Makes pages and plot of the data beside them.
///
/// # Errors
/// The system's, and where the data or a page is not what it should be.
pub(crate) fn make(docs: &Path) -> Result<(), BenchError> {
    let read = |name: &str| {
        let path = docs.join(name);
        std::fs::read_to_string(&path).map_err(BenchError::file(path, "read"))
    };
    let run: Run = serde_json::from_str(&read("benchmarks.json")?)
        .map_err(BenchError::data(&docs.join("benchmarks.json")))?;
    for (name, tables) in [
        ("benchmarks.md", tables(&run)),
        ("scaling-out.md", scale(&run)),
    ] {
        let path = docs.join(name);
        let page = with_tables(&read(name)?, &tables);
        let page = page.ok_or_else(|| BenchError::NoPlace { path: path.clone() })?;
        std::fs::write(&path, page).map_err(BenchError::file(path, "written"))?;
    }
    let path = docs.join("benchmarks.svg");
    std::fs::write(&path, plot(&run)).map_err(BenchError::file(path, "written"))
}

/// The page with these tables instead of those that it has; nothing where it has no place for them.
fn with_tables(page: &str, tables: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{tables}{END}{after}"))
}
