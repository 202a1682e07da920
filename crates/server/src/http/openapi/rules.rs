//! What no derived schema can say: fields that exclude each other, and the limits of this server.

use kernel::Limits;
use serde_json::{Value, json};

use crate::backend::shards::Settings;

/// Adds them to the document.
pub(crate) fn add(document: &mut Value, settings: &Settings) {
    call_unsigned_unsigned(document);
    parameters(document).for_each(never_null);
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

/// A number that begins with 0 comes from an unsigned type, and the derive calls it `int64` all the same: half of what is
/// taken would be out of its range.
fn call_unsigned_unsigned(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let from_zero = fields.get("minimum").is_some_and(|least| least == 0);
            if let Some(Value::String(format)) = fields.get_mut("format").filter(|_| from_zero) {
                format.insert(0, 'u');
            }
            fields.values_mut().for_each(call_unsigned_unsigned);
        }
        Value::Array(items) => items.iter_mut().for_each(call_unsigned_unsigned),
        _ => {}
    }
}

/// The parameters of all calls.
fn parameters(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = document["paths"].as_object_mut().expect("there are paths").values_mut();
    let calls = paths.flat_map(|path| path.as_object_mut().expect("by method").values_mut());
    calls.flat_map(|call| call["parameters"].as_array_mut().expect("each has some"))
}

/// What is missing from a query is not there: it has no way to say null, as the derive would have it.
fn never_null(parameter: &mut Value) {
    let schema = &mut parameter["schema"];
    for keyword in ["oneOf", "type"] {
        let Some(several) = schema.get_mut(keyword).and_then(Value::as_array_mut) else { continue };
        several.retain(|one| one["type"] != "null" && one != "null");
        assert_eq!(several.len(), 1, "null or one other");
        let only = several.remove(0);
        match keyword {
            "type" => schema["type"] = only,
            _ => *schema = only,
        }
    }
}

fn schema<'a>(document: &'a mut Value, name: &str) -> &'a mut Value {
    let found = document.pointer_mut(&format!("/components/schemas/{name}"));
    found.expect("it is in the body of a call")
}

fn field<'a>(document: &'a mut Value, name: &str, field: &str) -> &'a mut Value {
    schema(document, name).pointer_mut(&format!("/properties/{field}")).expect("it has this field")
}

/// `{"hold_ms": n}`, one of several spellings.
fn hold(document: &mut Value) -> &mut Value {
    let spellings = schema(document, "OnExpiry")["oneOf"].as_array_mut().expect("it is one of several");
    let hold = spellings.iter_mut().find(|one| one.pointer("/properties/hold_ms").is_some());
    hold.expect("one of them is a hold")
}

/// Missing, or null.
fn absent(field: &str) -> Value {
    json!({"properties": {field: {"type": "null"}}})
}

/// One of the two, and not the other.
fn either(one: &str, other: &str) -> Value {
    let only = |present: &str, absent: &str| {
        json!({
            "required": [present],
            "properties": {present: {"not": {"type": "null"}}, absent: {"type": "null"}},
        })
    };
    json!([only(one, other), only(other, one)])
}
