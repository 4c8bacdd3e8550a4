//! The page about guarantees against the source: every test that it names is there.

use super::rust_files;

/// What looks like a test's name: a sentence between backticks, perhaps with its modules before it.
fn tests_named(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let names = quoted.map(|quoted| quoted.rsplit("::").next().unwrap_or(quoted));
    let is_sentence = |name: &&str| {
        3 < name.matches('_').count() && name.chars().all(|c| c == '_' || c.is_alphanumeric())
    };
    names
        .filter(is_sentence)
        .filter(|name| name.to_lowercase() == **name)
        .collect()
}

#[test]
fn the_page_about_guarantees_names_tests_that_are_there() {
    let page = include_str!("../../docs/guarantees.md");
    let files = rust_files(&["src", "tests"]);

    let named = tests_named(page);

    assert!(5 < named.len(), "{named:?}");
    for name in named {
        let function = format!("fn {name}(");
        assert!(
            files.values().any(|text| text.contains(&function)),
            "there is no test {name}"
        );
    }
}
