//! The document as a contract: its texts can be read, and rewording them changes nothing else.

use serde_json::Value;

use crate::backend::shards::RequestLimits;
use crate::http::calls;

/// The document without its texts and its version. Regenerate it with `UPDATE_GOLDEN=1` when a schema is meant to change.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/openapi.json");

/// Parts of a Rust value or path, which a client's developer cannot read.
const RUST: [&str; 6] = ["::", "Some(", "Ok(", "Err(", "{ ", " ..}"];

fn document() -> Value {
    let bytes = super::document(&calls::all(), &RequestLimits::default());
    serde_json::from_slice(&bytes).expect("the document is JSON")
}

/// Every summary and description, with its JSON pointer.
fn texts(value: &Value, at: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let at = format!("{at}/{}", name.replace('/', "~1"));
                match field {
                    Value::String(text) if is_text(name) => found.push((at, text.clone())),
                    _ => texts(field, &at, found),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                texts(item, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

fn is_text(name: &str) -> bool {
    matches!(name, "summary" | "description")
}

fn without_texts(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, field| !(is_text(name) && field.is_string()));
            fields.values_mut().for_each(without_texts);
        }
        Value::Array(items) => items.iter_mut().for_each(without_texts),
        _ => {}
    }
}

/// Responses were described by "They.", "It." and "It is so now."
#[test]
fn every_text_has_three_words_and_no_rust_value() {
    let mut found = Vec::new();
    texts(&document(), "", &mut found);
    assert!(found.len() > 300, "only {} texts", found.len());
    let is_bad =
        |text: &str| text.split_whitespace().count() < 3 || RUST.iter().any(|part| text.contains(part));
    let bad: Vec<String> =
        found.iter().filter(|(_, text)| is_bad(text)).map(|(at, text)| format!("{at}: {text:?}")).collect();
    assert!(bad.is_empty(), "{}\n{} texts", bad.join("\n"), bad.len());
}

#[test]
fn every_call_has_a_summary_and_every_response_a_description() {
    let document = document();
    let paths = document["paths"].as_object().expect("by path").values();
    for call in paths.flat_map(|path| path.as_object().expect("by method").values()) {
        let name = &call["operationId"];
        assert!(call["summary"].is_string(), "{name}");
        for (status, response) in call["responses"].as_object().expect("by status") {
            assert!(response["description"].is_string(), "{name} {status}");
        }
    }
}

/// Clients are generated from the document: paths, names, types and limits change only on purpose.
#[test]
fn the_document_without_its_texts_is_the_golden_one() {
    let mut document = document();
    without_texts(&mut document);
    document["info"]["version"] = Value::Null;
    let text = serde_json::to_string_pretty(&document).expect("it was JSON before") + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &text).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(GOLDEN).expect("there is a golden file");
    let differs = text.lines().zip(golden.lines()).enumerate().find(|(_, (new, old))| new != old);
    assert!(differs.is_none(), "line {differs:?}; if this is meant, UPDATE_GOLDEN=1 writes {GOLDEN}");
    assert_eq!(text.lines().count(), golden.lines().count(), "lines were added or removed at the end");
}
