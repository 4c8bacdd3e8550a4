//! The table of bounds in ARCHITECTURE.md against the source: every bound stands in it, with its value and a test.

use std::collections::BTreeMap;
use std::path::Path;

use super::rust_files;

/// Where constants are bounds of a node or of its clients.
const FOLDERS: &[&str] = &[
    "src/server",
    "src/client",
    "src/sequence",
    "src/history",
    "src/wire",
];
/// How a bound is called.
const MARKS: &[&str] = &["_MAX", "_TIMEOUT"];
/// How a cell begins whose bound no test reaches, followed by the reason.
const NOT_REACHED: &str = "not reached: ";

/// A constant by its place, `batcher::QUEUE_MAX`, and what stands behind its `=`.
type Constants = BTreeMap<String, String>;

/// A file's module below the crate, without `server`: the table is about the server.
fn module(file: &str) -> &str {
    let stem = file.trim_start_matches("src/").trim_end_matches(".rs");
    let stem = stem.trim_end_matches("/mod");
    let stem = stem.strip_prefix("server").unwrap_or(stem);
    stem.trim_start_matches('/')
}

/// All constants of a file, outside its tests, that have a number or a time.
fn constants(file: &str, text: &str) -> Constants {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next();
    let code = code.unwrap_or_default();
    let mut found = Constants::new();
    for part in code.split("const ").skip(1) {
        let Some((declaration, rest)) = part.split_once(" = ") else {
            continue;
        };
        let Some((name, _)) = declaration.split_once(": ") else {
            continue;
        };
        let value = rest.split(';').next().unwrap_or_default();
        let place = module(file).replace('/', "::");
        let place = if place.is_empty() {
            name.to_owned()
        } else {
            format!("{place}::{name}")
        };
        found.insert(place, value.to_owned());
    }
    found
}

fn is_bound(place: &str) -> bool {
    let name = place.rsplit("::").next().unwrap_or(place);
    MARKS.iter().any(|mark| name.contains(mark)) && !name.ends_with("_MIN")
}

/// The value of an expression of numbers, times and other constants, in bytes, pieces or milliseconds.
struct Evaluator<'a> {
    constants: &'a Constants,
    /// Where names are looked up first.
    module: &'a str,
}

impl Evaluator<'_> {
    /// The operators, loosest first; of equals the last is applied last.
    const OPERATORS: [&'static [&'static str]; 3] = [&[" << "], &[" + ", " - "], &[" * ", " / "]];

    fn value(&self, text: &str) -> Option<u128> {
        let text = text.trim();
        for operators in Self::OPERATORS {
            let found = operators
                .iter()
                .filter_map(|operator| Some((outside_brackets(text, operator)?, *operator)));
            if let Some((at, operator)) = found.max() {
                let left = self.value(&text[..at])?;
                let right = self.value(&text[at + operator.len()..])?;
                return match operator.trim() {
                    "<<" => left.checked_shl(u32::try_from(right).ok()?),
                    "+" => left.checked_add(right),
                    "-" => left.checked_sub(right),
                    "*" => left.checked_mul(right),
                    _ => left.checked_div(right),
                };
            }
        }
        if let Some(inner) = text.strip_prefix('(') {
            return self.value(inner.strip_suffix(')')?);
        }
        if let Some(seconds) = text.strip_prefix("Duration::from_secs(") {
            return Some(self.value(seconds.strip_suffix(')')?)? * 1_000);
        }
        if let Some(millis) = text.strip_prefix("Duration::from_millis(") {
            return self.value(millis.strip_suffix(')')?);
        }
        if let Ok(number) = text.replace('_', "").parse() {
            return Some(number);
        }
        self.named(text)
    }

    fn named(&self, name: &str) -> Option<u128> {
        let here = format!("{}::{name}", self.module);
        let is_it = |(place, _): &(&String, &String)| place.ends_with(&format!("::{name}"));
        let (place, value) = match self.constants.get_key_value(&here) {
            Some(found) => found,
            None => self.constants.iter().find(is_it)?,
        };
        let module = place.rsplit_once("::")?.0;
        Evaluator { module, ..*self }.value(value)
    }
}

/// The last place of an operator that no bracket holds.
fn outside_brackets(text: &str, operator: &str) -> Option<usize> {
    let mut depth = 0;
    let mut found = None;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && text[at..].starts_with(operator) => found = Some(at),
            _ => {}
        }
    }
    found
}

/// What a cell such as `4,096`, `64 KiB` or `10 s` says.
fn written(cell: &str) -> Option<u128> {
    let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let number: u128 = number.replace(',', "").parse().ok()?;
    let unit = match unit {
        "" | "ms" => 1,
        "s" => 1_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    Some(number * unit)
}

/// Everything wrong with the page, one line each.
fn offences(page: &str, constants: &Constants, tests: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut listed = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [place, value, _, reached] = cells[..] else {
            continue;
        };
        let place = place.trim_matches('`');
        let Some(expression) = constants.get(place) else {
            if is_bound(place) {
                found.push(format!("{place} is in the table and not in the source"));
            }
            continue;
        };
        listed.push(place);
        let module = place.rsplit_once("::").map_or("", |(module, _)| module);
        let actual = Evaluator { constants, module }.value(expression);
        if actual.is_none() || actual != written(value) {
            found.push(format!("{place} is {expression}, not {value}"));
        }
        let names: Vec<_> = reached.split('`').skip(1).step_by(2).collect();
        if names.is_empty() && !reached.starts_with(NOT_REACHED) {
            found.push(format!("{place} names no test that reaches it"));
        }
        for name in names {
            if !tests.contains(&format!("fn {name}(")) {
                found.push(format!("{place}: there is no test {name}"));
            }
        }
    }
    for place in constants.keys().filter(|place| is_bound(place)) {
        if !listed.contains(&place.as_str()) {
            found.push(format!("{place} is missing in the table of bounds"));
        }
    }
    found
}

#[test]
fn every_bound_stands_in_the_table_with_its_value_and_a_test_that_reaches_it() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md");
    let page = std::fs::read_to_string(page).unwrap();
    let files = rust_files(FOLDERS);
    let constants = files
        .iter()
        .filter(|(file, _)| !file.contains("/tests"))
        .flat_map(|(file, text)| constants(file, text))
        .collect();
    let tests: String = rust_files(&["src", "tests"]).into_values().collect();

    let found = offences(&page, &constants, &tests);

    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

const SOURCE: &str = "
const QUEUE_MAX: usize = OTHER_MAX / 2 + 4 * 1024;
pub(super) const OTHER_MAX: usize = (1 << 11) - 1_000;
const WAIT_TIMEOUT: Duration = Duration::from_secs(2);
const WAIT_MIN: u8 = 1;
#[cfg(test)]
mod tests { const TEST_MAX: u8 = 1; }
";

const PAGE: &str = "
| constant | value | beyond it | reached by |
|---|---|---|---|
| `a::QUEUE_MAX` | 4,620 | 503 | `it_is_full` |
| `a::OTHER_MAX` | 1,048 | 503 | not reached: why |
| `a::WAIT_TIMEOUT` | 2 s | 503 | `it_is_full`, `it_waits` |
| `PUT /v1` | creates |
";

fn planted(from: &str, to: &str) -> Vec<String> {
    let constants = constants("src/server/a.rs", SOURCE);
    let tests = "fn it_is_full() {} async fn it_waits() {}";
    assert!(PAGE.contains(from));
    offences(&PAGE.replace(from, to), &constants, tests)
}

#[test]
fn a_bound_that_is_missing_changed_or_without_a_test_is_found() {
    assert_eq!(planted("4,620", "4,620"), [""; 0]);

    let cases = [
        (
            "| `a::OTHER_MAX`",
            "x",
            "a::OTHER_MAX is missing in the table of bounds",
        ),
        (
            "4,620",
            "4,621",
            "a::QUEUE_MAX is OTHER_MAX / 2 + 4 * 1024, not 4,621",
        ),
        (
            "2 s",
            "2 ms",
            "a::WAIT_TIMEOUT is Duration::from_secs(2), not 2 ms",
        ),
        (
            "`it_waits`",
            "`it_hurries`",
            "a::WAIT_TIMEOUT: there is no test it_hurries",
        ),
        (
            "not reached: why",
            "",
            "a::OTHER_MAX names no test that reaches it",
        ),
        (
            "| `PUT /v1` | creates |",
            "| `b::GONE_MAX` | 1 | 503 | `it_waits` |",
            "b::GONE_MAX is in the table and not in the source",
        ),
    ];
    for (from, to, offence) in cases {
        assert_eq!(planted(from, to), [offence]);
    }
}
