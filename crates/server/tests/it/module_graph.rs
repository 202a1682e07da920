//! No import cycle between the modules of this crate, read from the paths in its sources.
//!
//! A module and its submodules count as one where they refer to each other: the parent declares its children, and they
//! share its items. An item that a parent re-exports counts as an import of the child that defines it. Unit tests may
//! import anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Module paths such as `backend::store`, each with its source.
type Sources = BTreeMap<String, String>;

#[test]
fn modules_have_no_import_cycle() {
    let mut sources = Sources::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut sources);
    assert!(sources.len() > 50, "the sources are not where they were: {}", sources.len());
    assert_eq!(cycle(&graph(&sources)), None);
}

#[test]
fn a_cycle_is_found_through_siblings_parents_and_re_exports() {
    let found = |files: &[(&str, &str)]| {
        let owned = |(name, text): &(&str, &str)| (name.to_string(), text.to_string());
        cycle(&graph(&files.iter().map(owned).collect()))
    };
    assert_eq!(found(&[("a", "use crate::b::B;"), ("b", "use std::a;")]), None);
    assert!(found(&[("a", "use crate::b::B;"), ("b", "fn f() { crate::a::g() }")]).is_some());
    assert!(found(&[("a", "use crate::{b, c};"), ("b", "use crate::c;"), ("c", "use crate::a;")]).is_some());
    let parent = ("p", "pub use p::b::B; pub struct Own;");
    assert_eq!(found(&[parent, ("p::a", "use super::Own;"), ("p::b", "use crate::p::Own;")]), None);
    let child = ("p::b", "use super::a::A; pub struct B;");
    assert!(found(&[parent, ("p::a", "use crate::p::{Own, B};"), child]).is_some());
}

fn read(dir: &Path, prefix: &str, sources: &mut Sources) {
    for entry in std::fs::read_dir(dir).expect("a directory of sources") {
        let path = entry.expect("readable").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("UTF-8").to_string();
        if path.is_dir() {
            read(&path, &format!("{prefix}{name}::"), sources);
        } else if name != "tests" && name != "lib" {
            let text = std::fs::read_to_string(&path).expect("UTF-8");
            let code = text.split("#[cfg(test)]\nmod tests {").next().expect("one part at least");
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            sources.insert(format!("{prefix}{name}"), lines.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// Each module with the modules that it imports from.
fn graph(sources: &Sources) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut graph = BTreeMap::new();
    for (module, text) in sources {
        let targets = imports(module, text).into_iter().filter_map(|path| resolve(&path, sources));
        let related = |target: &&str| is_within(target, module) || is_within(module, target);
        graph.insert(module.as_str(), targets.filter(|target| !related(target)).collect());
    }
    graph
}

fn is_within(module: &str, ancestor: &str) -> bool {
    module == ancestor || module.strip_prefix(ancestor).is_some_and(|rest| rest.starts_with("::"))
}

/// The module that defines what a path names, also if a parent re-exports it.
fn resolve<'a>(path: &[String], sources: &'a Sources) -> Option<&'a str> {
    let prefixes = (1..=path.len()).rev().map(|length| (length, path[..length].join("::")));
    let (length, module) =
        prefixes.into_iter().find_map(|(length, name)| Some((length, sources.get_key_value(&name)?.0)))?;
    let Some(item) = path.get(length) else { return Some(module) };
    let defines = |text: &str| {
        let keywords = ["struct", "enum", "trait", "type", "fn", "const", "static"];
        keywords.iter().any(|keyword| has_word_after(text, keyword, item))
    };
    if defines(&sources[module]) {
        return Some(module);
    }
    let below = sources.iter().filter(|(name, _)| is_within(name, module));
    let child = below.into_iter().find(|(_, text)| defines(text));
    Some(child.map_or(module.as_str(), |(name, _)| name))
}

fn has_word_after(text: &str, keyword: &str, item: &str) -> bool {
    let definition = format!("{keyword} {item}");
    text.match_indices(&definition).any(|(at, _)| {
        !text[at + definition.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
    })
}

/// Every path that starts with `crate::` or `super::`, from the root of the crate.
fn imports(module: &str, text: &str) -> Vec<Vec<String>> {
    let parts: Vec<String> = module.split("::").map(str::to_string).collect();
    let mut found = Vec::new();
    for (start, base) in [("crate::", Vec::new()), ("super::", parts[..parts.len() - 1].to_vec())] {
        for (at, _) in text.match_indices(start) {
            let is_path_start =
                !text[..at].ends_with(|last: char| last.is_alphanumeric() || "_$:".contains(last));
            if is_path_start {
                expand(&text[at + start.len()..], &base, &mut found);
            }
        }
    }
    found
}

/// Reads `a::b`, `a::{b, c::D}` or `*`, adds the paths to `found`, and returns the text after it.
fn expand<'a>(text: &'a str, base: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let mut text = text.trim_start();
    if let Some(inside) = text.strip_prefix('{') {
        text = inside;
        loop {
            text = text.trim_start().trim_start_matches(',').trim_start();
            match text.strip_prefix('}') {
                Some(rest) => return rest,
                None if text.is_empty() => return text,
                None => text = expand(text, base, found),
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let path = [base, &[text[..end].to_string()]].concat();
    if let Some(rest) = text[end..].strip_prefix("::") {
        return expand(rest, &path, found);
    }
    found.push(path);
    // Also past `*` and `as other`.
    let rest = &text[end..];
    &rest[rest.find([',', '}', ';', '\n', '(']).unwrap_or(rest.len())..]
}

/// A cycle, as the modules along it.
fn cycle(graph: &BTreeMap<&str, BTreeSet<&str>>) -> Option<String> {
    fn visit<'a>(
        module: &'a str,
        graph: &BTreeMap<&'a str, BTreeSet<&'a str>>,
        path: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> Option<String> {
        if let Some(first) = path.iter().position(|on_path| *on_path == module) {
            return Some(format!("{} -> {module}", path[first..].join(" -> ")));
        }
        if !done.insert(module) {
            return None;
        }
        path.push(module);
        let next = graph.get(module).into_iter().flatten();
        let found = next.into_iter().find_map(|next| visit(next, graph, path, done));
        path.pop();
        found
    }
    let (mut path, mut done) = (Vec::new(), BTreeSet::new());
    graph.keys().find_map(|module| visit(module, graph, &mut path, &mut done))
}
