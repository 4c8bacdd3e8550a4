//! The import rules of the crate, checked against its source: each layer names only the layers its row allows.
//!
//! What counts is every path that starts at `crate`, `self`, `super` or at a name which a `use` or `mod` of the same
//! file brought in. The file is read as tokens, so comments and strings say nothing. `lib.rs` is exempt, being the
//! map; a name it re-exports counts as the place it comes from.
#![expect(clippy::unwrap_used, reason = "a broken checkout should stop the test")]

mod source;

use std::collections::BTreeMap;

use source::reading::Reading;

/// A row: the layer, the modules it is made of, the layers they may name, all of them above in this table. A module
/// holds what lies below it, except where that has rows of its own (`server`, `server::store`).
const LAYERS: &str = "
guard     | panic_guard        |
planted   | planted            |
sequence  | sequence           | planted
wire      | wire               | sequence
history   | history            | sequence
client    | client             | sequence wire
node      | server::types server::formats server::codec server::host server::tasks server::config server::telemetry server::metrics | sequence
store     | server::store     | guard planted sequence node
consensus | server::consensus | planted sequence node store
batcher   | server::batcher   | planted sequence node store consensus
api       | server::api       | sequence wire node store consensus batcher
server    | server server::engine server::error server::joining server::offline server::open_files server::sockets | sequence wire client node store consensus batcher api
fuzzing   | fuzzing           | sequence wire history store consensus api
chaos     | chaos             | sequence wire history client
cli       | cli               | guard sequence wire history client node server chaos
main      | main               | cli
";

struct Layers {
    /// The layer of each module.
    modules: BTreeMap<String, String>,
    imports: BTreeMap<String, Vec<String>>,
}

impl Layers {
    fn parse(table: &str) -> Self {
        let mut layers = Self {
            modules: BTreeMap::new(),
            imports: BTreeMap::new(),
        };
        for row in table.lines().filter(|row| !row.is_empty()) {
            let [layer, modules, imports] = row.split('|').collect::<Vec<_>>().try_into().unwrap();
            let imports: Vec<_> = imports.split_whitespace().map(str::to_owned).collect();
            for import in &imports {
                assert!(
                    layers.imports.contains_key(import),
                    "{import} is not above: {row}"
                );
            }
            let layer = layer.trim().to_owned();
            assert!(
                layers.imports.insert(layer.clone(), imports).is_none(),
                "twice: {row}"
            );
            for word in modules.split_whitespace() {
                let twice = layers.modules.insert(word.to_owned(), layer.clone());
                assert!(twice.is_none(), "{word} has two layers");
            }
        }
        layers
    }

    fn may_name(&self, layer: &str, other: &str) -> bool {
        layer == other
            || self
                .imports
                .get(layer)
                .unwrap()
                .iter()
                .any(|import| import == other)
    }

    /// The listed module that holds this path: the longest, so `server::store` wins over `server`.
    fn holder(&self, path: &str) -> Option<(&String, &String)> {
        self.modules
            .iter()
            .rev()
            .find(|(module, _)| is_within(path, module))
    }

    /// The layer of a source file. `server`, whose parts have rows of their own, holds nothing but its `mod.rs`.
    fn layer_of_file(&self, path: &str) -> Option<&str> {
        let (holder, layer) = self.holder(path)?;
        let is_split = self
            .modules
            .keys()
            .any(|other| other != holder && is_within(other, holder));
        (path == holder || !is_split).then_some(layer)
    }
}

/// Whether a path lies in a module: `server::store` in `server`, but `server_name` not.
fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Everything wrong with a tree of source files, one line each.
fn offences(layers: &Layers, tree: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    for module in layers.modules.keys() {
        let stem = format!("src/{}", module.replace("::", "/"));
        let files = [format!("{stem}.rs"), format!("{stem}/mod.rs")];
        if !files.iter().any(|file| tree.contains_key(file)) {
            found.push(format!(
                "{stem} is missing: {module} has a row without a file"
            ));
        }
    }
    let mut roots: BTreeMap<_, _> = layers
        .modules
        .keys()
        .map(|module| (module.clone(), module.clone()))
        .collect();
    roots.extend(Reading::of(tree.get("src/lib.rs").unwrap(), "").names);
    for (file, text) in tree.iter().filter(|(file, _)| *file != "src/lib.rs") {
        let module = file
            .trim_start_matches("src/")
            .trim_end_matches(".rs")
            .trim_end_matches("/mod");
        let module = module.replace('/', "::");
        let Some(layer) = layers.layer_of_file(&module) else {
            found.push(format!(
                "{file} belongs to no layer: give {module} its place in the table"
            ));
            continue;
        };
        for (line, path) in Reading::of(text, &module).paths {
            let (head, tail) = path.split_at(path.find("::").unwrap_or(path.len()));
            let target = roots.get(head).map(|root| format!("{root}{tail}"));
            let holder = target.as_deref().and_then(|target| layers.holder(target));
            match holder.map(|(_, layer)| layer) {
                None => found.push(format!("{file}:{line}: `{path}` is in no layer")),
                Some(other) if layers.may_name(layer, other) => {}
                Some(other) => found.push(format!(
                    "{file}:{line}: {layer} may not name {other}: `{path}`"
                )),
            }
        }
    }
    found
}

#[test]
fn every_source_file_names_only_what_its_layer_may() {
    let found = offences(&Layers::parse(LAYERS), &source::rust_files(&["src"]));

    assert!(found.is_empty(), "\n{}", found.join("\n"));
}
