//! The page on security: every claim in it names a test that exists, and every test that attacks is named in it.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text of all Rust and Python files of the workspace.
fn sources(directory: &Path, text: &mut String) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("readable").path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs" || end == "py") {
            text.push_str(&std::fs::read_to_string(&path).expect("text"));
        }
    }
}

/// The parts of a text between two marks.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close)).map(|(part, _)| part)
}

/// The files of tests that attack, below this directory.
const ATTACKS: [&str; 9] = [
    "attacks.rs",
    "browsers.rs",
    "connection_limits.rs",
    "exhaustion.rs",
    "exhaustion/without_rights.rs",
    "modes.rs",
    "reload.rs",
    "revocation.rs",
    "standby/revocation.rs",
];

fn page() -> String {
    std::fs::read_to_string(root().join("docs/operating/security.md")).expect("the page")
}

/// The page had no row for the reload that un-revoked every client, though a test repeats it.
#[test]
fn every_attack_is_listed() {
    let (page, directory) = (page(), root().join("crates/cli/tests/it/lockd"));
    for file in ATTACKS {
        let text = std::fs::read_to_string(directory.join(file)).expect(file);
        let tests: Vec<&str> = between(&text, "#[test]\nfn ", "(").collect();
        assert!(!tests.is_empty(), "{file}");
        for test in tests {
            assert!(page.contains(&format!("`{test}`")), "{file}: {test} is not listed");
        }
    }
}

/// A renamed test left a claim behind that nothing showed.
#[test]
fn every_claim_names_tests_that_exist() {
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    let page = page();
    let attacked =
        between(&page, "## What is attacked in tests", "\n## ").next().expect("the part with tests");
    let rows = attacked.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| claim "));
    let mut count = 0;
    for row in rows {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().expect("two cells");
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        let files: Vec<&str> = between(tests, "](", ")").collect();
        assert!(!names.is_empty() || !files.is_empty(), "no test: {row}");
        for name in names {
            let is_there = ["fn", "def"].iter().any(|word| code.contains(&format!("{word} {name}(")));
            assert!(is_there, "{name}: {row}");
        }
        for file in files {
            assert!(root().join("docs/operating").join(file).exists(), "{file}: {row}");
        }
        count += 1;
    }
    assert!(count > 30, "{count} claims");
}
