//! Checks every response against `/openapi.json`.
//!
//! A small validator of the schema keywords that the document uses. It panics on an unknown keyword.

use serde_json::Value;

pub(crate) struct OpenApiDocument(Value);

/// Keywords without a constraint.
const SAID: [&str; 6] = ["description", "examples", "example", "title", "deprecated", "format"];

impl OpenApiDocument {
    pub(crate) fn read(bytes: &[u8]) -> OpenApiDocument {
        OpenApiDocument(serde_json::from_slice(bytes).expect("the document is JSON"))
    }

    pub(crate) fn whole(&self) -> &Value {
        &self.0
    }

    /// Every path with its methods.
    pub(crate) fn paths(&self) -> Vec<(String, Vec<String>)> {
        let paths = self.0["paths"].as_object().expect("it has paths");
        let methods = |item: &Value| item.as_object().expect("an object").keys().cloned().collect();
        paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect()
    }

    /// The operation of a call; `None` if there is no such path or method.
    fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let paths = self.0["paths"].as_object().expect("it has paths");
        let exact = paths.get(path);
        let item =
            exact.or_else(|| paths.iter().find(|(template, _)| fits(template, path)).map(|found| found.1))?;
        item.get(method.to_lowercase())
    }

    /// Checks a response; the error says how it differs from its declaration.
    pub(crate) fn check(
        &self,
        method: &str,
        path: &str,
        status: u16,
        content_type: &str,
        body: &[u8],
    ) -> Result<(), String> {
        let path = path.split('?').next().expect("there is always a first");
        let Some(operation) = self.operation(method, path) else {
            let known = matches!(status, 404 | 405);
            return if known { Ok(()) } else { Err(format!("{method} {path} is not declared")) };
        };
        let answer = &operation["responses"][status.to_string()];
        if answer.is_null() {
            return Err(format!("status {status} is not declared"));
        }
        let Some(contents) = answer["content"].as_object() else {
            return if body.is_empty() { Ok(()) } else { Err("a body is not declared".to_string()) };
        };
        let kind = content_type.split(';').next().expect("there is always a first");
        let content = contents.get(kind).ok_or(format!("content type {content_type:?} is not declared"))?;
        // A range of a JSON document is not JSON.
        if status == 206 {
            return Ok(());
        }
        let value = match kind {
            "application/json" => {
                serde_json::from_slice(body).map_err(|error| format!("not JSON: {error}"))?
            }
            _ => Value::String(String::from_utf8_lossy(body).into_owned()),
        };
        self.valid(&content["schema"], &value).map_err(|why| format!("{why}: {value}"))
    }

    fn valid(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let Some(schema) = schema.as_object() else { return Err(format!("no schema: {schema}")) };
        for (keyword, rule) in schema {
            self.obeys(schema, keyword, rule, value).map_err(|why| format!("{keyword}: {why}"))?;
        }
        Ok(())
    }

    fn obeys(
        &self,
        schema: &serde_json::Map<String, Value>,
        keyword: &str,
        rule: &Value,
        value: &Value,
    ) -> Result<(), String> {
        let list = || rule.as_array().expect("a list of schemas");
        let valid = |schema: &&Value| self.valid(schema, value).is_ok();
        let holds = match keyword {
            "$ref" => {
                let pointer =
                    rule.as_str().and_then(|text| text.strip_prefix('#')).expect("within the document");
                return self.valid(self.0.pointer(pointer).ok_or(format!("nothing at {pointer}"))?, value);
            }
            "allOf" => return list().iter().try_for_each(|one| self.valid(one, value)),
            "anyOf" => list().iter().any(|one| valid(&one)),
            "oneOf" => list().iter().filter(valid).count() == 1,
            "not" => !valid(&rule),
            "type" => one_or_several(rule).any(|kind| is_a(kind, value)),
            "enum" => list().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().expect("a number")),
            "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().expect("a number")),
            "minLength" => length(value).is_none_or(|length| length >= rule.as_u64().expect("a number")),
            "maxLength" => length(value).is_none_or(|length| length <= rule.as_u64().expect("a number")),
            "pattern" => value.as_str().is_none_or(|text| matches(rule.as_str().expect("a pattern"), text)),
            "required" => {
                let missing = |object: &serde_json::Map<String, Value>| {
                    list().iter().any(|name| !object.contains_key(name.as_str().expect("a name")))
                };
                !value.as_object().is_some_and(missing)
            }
            "properties" => {
                let Some(object) = value.as_object() else { return Ok(()) };
                let named = rule.as_object().expect("by name").iter();
                return named
                    .filter_map(|(name, schema)| Some((name, schema, object.get(name)?)))
                    .try_for_each(|(name, schema, value)| {
                        self.valid(schema, value).map_err(|why| format!("{name}: {why}"))
                    });
            }
            "additionalProperties" => {
                let known = |name: &str| schema["properties"].get(name).is_some();
                rule == &Value::Bool(true)
                    || value.as_object().is_none_or(|object| object.keys().all(|name| known(name)))
            }
            "items" => {
                let items = value.as_array().map_or(&[] as &[Value], Vec::as_slice);
                return items.iter().try_for_each(|item| self.valid(rule, item));
            }
            "minItems" => {
                value.as_array().is_none_or(|list| list.len() as u64 >= rule.as_u64().expect("a number"))
            }
            "maxItems" => {
                value.as_array().is_none_or(|list| list.len() as u64 <= rule.as_u64().expect("a number"))
            }
            said if SAID.contains(&said) => true,
            other => panic!("unknown keyword: {other}"),
        };
        if holds { Ok(()) } else { Err(format!("{rule}")) }
    }
}

fn one_or_several(rule: &Value) -> impl Iterator<Item = &str> {
    let several = rule.as_array().map_or(std::slice::from_ref(rule), Vec::as_slice);
    several.iter().map(|kind| kind.as_str().expect("the name of a type"))
}

fn is_a(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("unknown type: {other}"),
    }
}

fn length(value: &Value) -> Option<u64> {
    value.as_str().map(|text| text.chars().count() as u64)
}

/// The patterns of texts in responses.
fn matches(pattern: &str, text: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let public = |text: &str| text.len() == 34 && text.starts_with("L-00000000") && hex(&text[2..]);
    let plain = |text: &str| !text.chars().any(char::is_control);
    match pattern {
        "^[0-9a-f]{64}$" => text.len() == 64 && hex(text),
        "^([0-9a-f]{64})?$" => text.is_empty() || text.len() == 64 && hex(text),
        "^L-0{8}[0-9a-f]{8}000[0-9a-f]{13}$" => public(text),
        r"^[^\u0000-\u001f\u007f-\u009f]+$" => !text.is_empty() && plain(text),
        "^[A-Z][A-Z0-9_]{0,31}$" => {
            text.starts_with(|first: char| first.is_ascii_uppercase()) && text.len() <= 32
        }
        "^A-[A-Za-z0-9_-]{96}$" => {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
            text.len() == 98 && text.starts_with("A-") && text[2..].bytes().all(is_part)
        }
        r"^[0-9]{1,19}\.[0-9]{1,9}(\.[0-9]{1,9})?$" => {
            let parts: Vec<&str> = text.split('.').collect();
            (2..=3).contains(&parts.len()) && parts.iter().all(|part| part.parse::<u64>().is_ok())
        }
        credential if credential.ends_with("[AQgw]$") => {
            let parts: Vec<&str> = text.split('.').collect();
            parts.len() == 3 && public(parts[0]) && parts[1].parse::<u64>().is_ok() && parts[2].len() == 22
        }
        other => panic!("a pattern that this judge does not know: {other}"),
    }
}

/// `/v1/leases/{id}` fits `/v1/leases/L-1`.
fn fits(template: &str, path: &str) -> bool {
    let (template, path) = (template.split('/'), path.split('/'));
    template.clone().count() == path.clone().count()
        && template.zip(path).all(|(wanted, given)| wanted.starts_with('{') || wanted == given)
}
