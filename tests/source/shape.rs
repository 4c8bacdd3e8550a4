//! The shape of a file: short before its tests, and tests that neither rest nor are put to rest.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::rust_files;

/// What a reader takes in at one sitting.
const LINES_MAX: usize = 400;

/// Where the tests of a file begin: nothing but tests in a `tests` folder and in a `tests.rs`.
fn split_tests<'t>(file: &str, text: &'t str) -> (&'t str, &'t str) {
    if file.starts_with("tests/") || file.contains("/tests/") || file.ends_with("tests.rs") {
        return ("", text);
    }
    let begins = text.match_indices("\n#[cfg(test)]\n").find(|(at, _)| {
        // A module in a file of its own may be declared anywhere.
        let line = text[*at..].lines().nth(2).unwrap_or_default();
        line.contains("mod ") && line.ends_with('{')
    });
    text.split_at(begins.map_or(text.len(), |(at, _)| at))
}

fn offences(file: &str, text: &str) -> Vec<String> {
    let (code, tests) = split_tests(file, text);
    let lines = code.lines().count();
    let mut found = Vec::new();
    if lines > LINES_MAX {
        found.push(format!(
            "{file} has {lines} lines before its tests: {LINES_MAX} at most"
        ));
    }
    let first_line = code.matches('\n').count();
    walk(
        tests.parse().unwrap(),
        &mut Place::default(),
        &mut |line, offence| {
            found.push(format!("{file}:{}: {offence}", first_line + line));
        },
    );
    found
}

/// The function around the tokens being read.
#[derive(Default)]
struct Place {
    function: String,
    clock: Clock,
    clock_next: Clock,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Clock {
    #[default]
    Real,
    Paused,
}

fn walk(tokens: TokenStream, place: &mut Place, found: &mut dyn FnMut(usize, String)) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        let line = token.span().start().line;
        match (token, tokens.get(index + 1)) {
            (TokenTree::Punct(sign), Some(TokenTree::Group(attribute)))
                if sign.as_char() == '#' =>
            {
                let words = attribute.stream().to_string();
                if words.starts_with("ignore") {
                    found(
                        line,
                        "an ignored test proves nothing: run it or remove it".to_owned(),
                    );
                }
                if words.contains("start_paused = true") {
                    place.clock_next = Clock::Paused;
                }
            }
            (TokenTree::Ident(word), Some(TokenTree::Ident(name))) if word == "fn" => {
                place.function = name.to_string();
                place.clock = std::mem::take(&mut place.clock_next);
            }
            (TokenTree::Ident(word), Some(TokenTree::Group(arguments)))
                if word == "sleep"
                    && arguments.delimiter() == Delimiter::Parenthesis
                    && place.clock == Clock::Real
                    && !place.function.starts_with("wait_") =>
            {
                let function = &place.function;
                let way_out = "poll in a `wait_…` with a deadline, or pause the clock";
                found(line, format!("{function} sleeps: {way_out}"));
            }
            _ => {}
        }
        if let TokenTree::Group(group) = token {
            walk(group.stream(), place, found);
        }
    }
}

#[test]
fn every_file_is_short_before_its_tests_and_no_test_sleeps_or_is_ignored() {
    let files = rust_files(&["src", "tests", "bench/src"]);
    let found: Vec<_> = files
        .iter()
        .flat_map(|(file, text)| offences(file, text))
        .collect();

    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn a_long_file_an_ignored_test_and_a_sleep_are_found() {
    let long = "\n".repeat(LINES_MAX + 1);
    assert_eq!(offences("src/a.rs", &long).len(), 1);
    assert_eq!(offences("src/a/tests.rs", &long).len(), 0);
    let declared = format!("\n#[cfg(test)]\nmod tests;\n{long}");
    assert_eq!(offences("src/a.rs", &declared).len(), 1);

    let tests = "fn f() { sleep(d) }\n#[cfg(test)]\nmod tests {\n#[ignore = \"slow\"]\nfn g() { t::sleep(d) }\n}";
    let [ignored, sleeps] = &offences("src/a.rs", tests)[..] else {
        panic!("want two offences")
    };
    assert!(
        ignored.starts_with("src/a.rs:4: an ignored test"),
        "{ignored}"
    );
    assert!(sleeps.starts_with("src/a.rs:5: g sleeps"), "{sleeps}");
}

#[test]
fn a_bounded_wait_and_a_paused_clock_may_sleep() {
    let text = "fn wait_until() { sleep(d) }\n#[tokio::test(start_paused = true)]\nasync fn g() { sleep(d).await }";

    assert_eq!(offences("tests/a.rs", text), [""; 0]);
    assert_eq!(
        offences("tests/a.rs", &text.replace("start_paused = true", "")).len(),
        1
    );
}
