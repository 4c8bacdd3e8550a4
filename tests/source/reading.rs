//! What one source file names: its paths, read from its tokens and resolved from the root of the crate.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The names a file brings in and the paths it writes, both from the root of the crate (which is empty).
pub(crate) struct Reading {
    pub(crate) names: BTreeMap<String, String>,
    /// With the line each stands in.
    pub(crate) paths: Vec<(usize, String)>,
}

/// One path as it is written; a `use` of a group has several.
struct Written {
    line: usize,
    path: Vec<String>,
    alias: String,
}

impl Reading {
    /// Reads the text of one module. `main` is a crate of its own, which knows this one as `highwater`.
    pub(crate) fn of(text: &str, module: &str) -> Self {
        let mut reading = Self {
            names: BTreeMap::new(),
            paths: Vec::new(),
        };
        if module == "main" {
            reading.names.insert("highwater".to_owned(), String::new());
        }
        // Twice: a name may be used above the line that brings it in.
        for _ in 0..2 {
            reading.paths.clear();
            reading.walk(text.parse().unwrap(), module);
        }
        reading
    }

    fn walk(&mut self, tokens: TokenStream, module: &str) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut rest = tokens.as_slice();
        while let Some((token, after)) = rest.split_first() {
            rest = match (token, after) {
                (TokenTree::Ident(word), [TokenTree::Group(group), after @ ..])
                    if word == "pub" && is_visibility(group.stream()) =>
                {
                    after
                }
                (TokenTree::Ident(word), [TokenTree::Ident(name), body, after @ ..])
                    if word == "mod" =>
                {
                    let inner = join(module, &name.to_string());
                    self.names.insert(name.to_string(), inner.clone());
                    if let TokenTree::Group(body) = body {
                        self.walk(body.stream(), &inner);
                    }
                    after
                }
                (TokenTree::Ident(word), _) if word == "use" => {
                    let (tree, after) = read_path(after, &[]);
                    for written in tree {
                        if let Some(target) = self.name(&written, module) {
                            self.names.insert(written.alias, target);
                        }
                    }
                    after
                }
                (TokenTree::Ident(_), _) => {
                    let (tree, after) = read_path(rest, &[]);
                    for written in tree {
                        self.name(&written, module);
                    }
                    after
                }
                // The rest of a path whose head was read, or one from the root of all crates.
                (colon, [second, TokenTree::Ident(_), after @ ..])
                    if is_punct(colon, ':') && is_punct(second, ':') =>
                {
                    after
                }
                (TokenTree::Group(group), _) => {
                    self.walk(group.stream(), module);
                    after
                }
                _ => after,
            };
        }
    }

    /// Notes where a path leads, if that is in this crate.
    fn name(&mut self, written: &Written, module: &str) -> Option<String> {
        let (head, mut rest) = written.path.split_first()?;
        let mut target = match head.as_str() {
            "crate" if module == "main" || module.starts_with("main::") => "main".to_owned(),
            "crate" => String::new(),
            "self" => module.to_owned(),
            "super" => parent(module),
            name => self.names.get(name)?.clone(),
        };
        while let Some((_, after)) = rest.split_first().filter(|(next, _)| *next == "super") {
            target = parent(&target);
            rest = after;
        }
        let target = rest.iter().fold(target, |target, name| join(&target, name));
        self.paths.push((written.line, target.clone()));
        Some(target)
    }
}

/// Reads one path, or a tree of them as in `a::{b, c::d as e}`, and returns what follows it.
fn read_path<'t>(tokens: &'t [TokenTree], prefix: &[String]) -> (Vec<Written>, &'t [TokenTree]) {
    let line = tokens.first().map_or(0, |token| token.span().start().line);
    let mut path = prefix.to_vec();
    let mut rest = tokens;
    loop {
        match rest {
            [TokenTree::Ident(name), after @ ..] => {
                path.push(name.to_string());
                rest = after;
            }
            [TokenTree::Group(group), after @ ..] if group.delimiter() == Delimiter::Brace => {
                let parts: Vec<_> = group.stream().into_iter().collect();
                let parts = parts.split(|token| is_punct(token, ','));
                return (
                    parts.flat_map(|part| read_path(part, &path).0).collect(),
                    after,
                );
            }
            _ => break,
        }
        match rest {
            [one, two, after @ ..] if is_punct(one, ':') && is_punct(two, ':') => rest = after,
            _ => break,
        }
    }
    if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
        path.pop(); // `use a::{self, b}`
    }
    let mut alias = path.last().cloned();
    if let [TokenTree::Ident(word), TokenTree::Ident(other), after @ ..] = rest
        && word == "as"
    {
        alias = Some(other.to_string());
        rest = after;
    }
    let written = alias.map(|alias| Written { line, path, alias });
    (written.into_iter().collect(), rest)
}

fn is_punct(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// `(crate)`, `(super)`, `(in a::path)`: who may see an item is not whom it names.
fn is_visibility(tokens: TokenStream) -> bool {
    let words: Vec<_> = tokens.into_iter().map(|token| token.to_string()).collect();
    words.first().is_some_and(|word| word == "in")
        || matches!(&words[..], [word] if ["crate", "super", "self"].contains(&word.as_str()))
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() {
        name.to_owned()
    } else {
        format!("{module}::{name}")
    }
}

fn parent(module: &str) -> String {
    module
        .rsplit_once("::")
        .map_or("", |(parent, _)| parent)
        .to_owned()
}
