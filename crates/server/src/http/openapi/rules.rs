//! Adds what derived schemas cannot express: mutually exclusive fields, and the limits of this server.

use kernel::Limits;
use serde_json::{Value, json};

use crate::backend::shards::RequestLimits;

/// Adds the rules to the document.
pub(crate) fn add(document: &mut Value, settings: &RequestLimits) {
    fix_unsigned_formats(document);
    parameters(document).for_each(remove_null);
    let max_ttl_ms = settings.max_ttl.0;
    for name in ["Acquire", "Keepalive"] {
        field(document, name, "ttl_ms")["maximum"] = max_ttl_ms.into();
        field(document, name, "ttl_seconds")["maximum"] = (max_ttl_ms / 1000).into();
        schema(document, name)["anyOf"] = json!([absent("ttl_ms"), absent("ttl_seconds")]);
    }
    field(document, "Manifest", "ttl_ms")["maximum"] = max_ttl_ms.into();
    schema(document, "Acquire")["oneOf"] = either("key", "resources");
    for name in ["Party", "Pause"] {
        schema(document, name)["oneOf"] = either("identity", "agent_id");
    }
    let hold = hold(document);
    hold["additionalProperties"] = false.into();
    hold["properties"]["hold_ms"]["maximum"] = Limits::default().hold_max.0.into();
}

/// The derive gives unsigned types (minimum 0) the format `int64`, whose range is half of what the server accepts.
fn fix_unsigned_formats(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let from_zero = fields.get("minimum").is_some_and(|least| least == 0);
            if let Some(Value::String(format)) = fields.get_mut("format").filter(|_| from_zero) {
                format.insert(0, 'u');
            }
            fields.values_mut().for_each(fix_unsigned_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(fix_unsigned_formats),
        _ => {}
    }
}

/// The parameters of all calls.
fn parameters(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = document["paths"].as_object_mut().expect("the document has paths").values_mut();
    let calls = paths.flat_map(|path| path.as_object_mut().expect("a path item maps methods").values_mut());
    calls.flat_map(|call| call["parameters"].as_array_mut().expect("every call has parameters"))
}

/// A query parameter may be missing but never null; the derive declares both.
fn remove_null(parameter: &mut Value) {
    let schema = &mut parameter["schema"];
    for keyword in ["oneOf", "type"] {
        let Some(several) = schema.get_mut(keyword).and_then(Value::as_array_mut) else { continue };
        several.retain(|one| one["type"] != "null" && one != "null");
        assert_eq!(several.len(), 1, "null and one other type");
        let only = several.remove(0);
        match keyword {
            "type" => schema["type"] = only,
            _ => *schema = only,
        }
    }
}

fn schema<'a>(document: &'a mut Value, name: &str) -> &'a mut Value {
    let found = document.pointer_mut(&format!("/components/schemas/{name}"));
    found.expect("the schema is the body of a call")
}

fn field<'a>(document: &'a mut Value, name: &str, field: &str) -> &'a mut Value {
    schema(document, name).pointer_mut(&format!("/properties/{field}")).expect("the schema has this field")
}

/// The `{"hold_ms": n}` variant of `OnExpiry`.
fn hold(document: &mut Value) -> &mut Value {
    let variants = schema(document, "OnExpiry")["oneOf"].as_array_mut().expect("it has several variants");
    let hold = variants.iter_mut().find(|one| one.pointer("/properties/hold_ms").is_some());
    hold.expect("one variant is a hold")
}

/// The field is missing or null.
fn absent(field: &str) -> Value {
    json!({"properties": {field: {"type": "null"}}})
}

/// Exactly one of the two fields is present.
fn either(one: &str, other: &str) -> Value {
    let only = |present: &str, absent: &str| {
        json!({
            "required": [present],
            "properties": {present: {"not": {"type": "null"}}, absent: {"type": "null"}},
        })
    };
    json!([only(one, other), only(other, one)])
}
