//! Schemas of `/openapi.json` as Markdown: a type in words, and tables of fields.

use std::fmt::Write as _;

use serde_json::Value;

/// Integers above this limit are not worth a range: it is the range of the Rust type.
const RANGE_MAX: f64 = 4e9;

/// One field of an object.
struct Field {
    name: String,
    type_text: String,
    required: bool,
    meaning: String,
}

/// The text of a table cell.
pub(super) fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn is_null(schema: &Value) -> bool {
    schema["type"] == "null"
}

/// The name of a schema that is referred to.
pub(super) fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

pub(super) fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    reference(schema).map_or(schema, |name| &document["components"]["schemas"][name])
}

/// Whether it is a string or a number with a name: these share one table.
pub(super) fn is_scalar(schema: &Value) -> bool {
    schema["enum"].is_null() && matches!(text(schema, "type"), "string" | "integer")
}

/// The type in words, with links to the named ones.
pub(super) fn type_text(document: &Value, schema: &Value) -> String {
    if let Some(name) = reference(schema) {
        return match name {
            "String" => "string".to_string(),
            "Code" => "[error code](#error-codes)".to_string(),
            name if is_scalar(resolve(document, schema)) => format!("[{name}](#texts-and-numbers)"),
            name => format!("[{name}](#{})", name.to_lowercase()),
        };
    }
    if let Some(variants) = schema["oneOf"].as_array() {
        let variants: Vec<String> =
            variants.iter().filter(|one| !is_null(one)).map(|one| type_text(document, one)).collect();
        return variants.join(" or ");
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    match type_name(schema) {
        "array" => {
            let range = range(&schema["minItems"], &schema["maxItems"], "");
            format!("array{} of {}", range, type_text(document, &schema["items"]))
        }
        "object" if schema["properties"].is_object() => {
            let fields = fields(document, schema);
            let fields: Vec<String> =
                fields.iter().map(|field| format!("{}: {}", field.name, field.type_text)).collect();
            format!("object with {}", fields.join(", "))
        }
        "" => "any JSON value".to_string(),
        "integer" => format!("integer{}", range(&schema["minimum"], &schema["maximum"], "")),
        name => format!("{name}{}", range(&schema["minLength"], &schema["maxLength"], " characters")),
    }
}

/// `type`, of which a nullable field has two.
fn type_name(schema: &Value) -> &str {
    match &schema["type"] {
        Value::Array(several) => {
            several.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default()
        }
        one => one.as_str().unwrap_or_default(),
    }
}

fn range(least: &Value, most: &Value, unit: &str) -> String {
    let most = most.as_f64().filter(|most| *most < RANGE_MAX);
    match (least.as_f64().unwrap_or(0.0), most) {
        (0.0, None) => String::new(),
        (least, None) => format!(" (at least {least}{unit})"),
        (least, Some(most)) => format!(" ({least} to {most}{unit})"),
    }
}

/// All fields of an object, the required ones first.
fn fields(document: &Value, schema: &Value) -> Vec<Field> {
    let schema = resolve(document, schema);
    let mut found: Vec<Field> =
        schema["allOf"].as_array().into_iter().flatten().flat_map(|part| fields(document, part)).collect();
    let empty = Vec::new();
    let required = schema["required"].as_array().unwrap_or(&empty);
    let place = |name: &str| required.iter().position(|one| one == name);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let lone = schema["properties"].as_object().is_some_and(|all| all.len() == 1);
        let meaning = meaning(document, property);
        // A part with one property is described as a whole.
        let meaning = if meaning.is_empty() && lone { text(schema, "description") } else { meaning };
        found.push(Field {
            name: format!("`{name}`"),
            type_text: type_text(document, property),
            required: place(name).is_some(),
            meaning: cell(meaning),
        });
    }
    found.sort_by_key(|field| place(field.name.trim_matches('`')).unwrap_or(usize::MAX));
    found.sort_by_key(|field| !field.required);
    found
}

/// The description of a property, or of the type that it or its items refer to.
fn meaning<'a>(document: &'a Value, property: &'a Value) -> &'a str {
    let own = text(property, "description");
    if !own.is_empty() {
        return own;
    }
    let mut variants = property["oneOf"].as_array().into_iter().flatten().filter(|one| !is_null(one));
    match variants.next() {
        Some(variant) => meaning(document, variant),
        None if property["items"].is_object() => meaning(document, &property["items"]),
        None => text(resolve(document, property), "description"),
    }
}

/// The table of a request's fields.
pub(super) fn request_table(document: &Value, schema: &Value) -> String {
    let mut table = String::from("| field | type | required | meaning |\n|---|---|---|---|\n");
    for Field { name, type_text, required, meaning } in fields(document, schema) {
        let required = if required { "yes" } else { "no" };
        writeln!(table, "| {name} | {type_text} | {required} | {meaning} |").expect("writing to a string");
    }
    table
}

/// The table of a response's fields.
pub(super) fn response_table(document: &Value, schema: &Value) -> String {
    let mut table = String::from("| field | type | meaning |\n|---|---|---|\n");
    for Field { name, type_text, required, meaning } in fields(document, schema) {
        let optional = if required { "" } else { ", optional" };
        writeln!(table, "| {name} | {type_text}{optional} | {meaning} |").expect("writing to a string");
    }
    table
}

/// A named type other than a scalar: a table of its fields, or its values.
pub(super) fn type_section(document: &Value, name: &str, schema: &Value) -> String {
    let about = cell(text(schema, "description"));
    let body = if schema["properties"].is_object() || schema["allOf"].is_array() {
        response_table(document, schema)
    } else {
        let variants = schema["oneOf"].as_array();
        let variants = variants.into_iter().flatten().filter(|one| !is_null(one));
        let mut list = String::new();
        for variant in variants {
            let (kind, about) = (type_text(document, variant), cell(text(variant, "description")));
            writeln!(list, "- {kind}: {about}").expect("writing to a string");
        }
        if list.is_empty() { format!("One of {}.\n", type_text(document, schema)) } else { list }
    };
    format!("### {name}\n\n{about}\n\n{body}")
}

/// The row of a scalar type.
pub(super) fn scalar_row(document: &Value, name: &str, schema: &Value) -> String {
    let pattern = text(schema, "pattern");
    let pattern = if pattern.is_empty() { String::new() } else { format!("`{pattern}`") };
    let about = cell(text(schema, "description"));
    format!("| {name} | {} | {} | {about} |\n", type_text(document, schema), pattern.replace('|', "\\|"))
}
