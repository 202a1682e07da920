//! `docs/reference/api.md`, generated from `/openapi.json`, so that the page cannot go stale.
//!
//! **Invariant.** The page has every call of the table and no other, every field and every error code; each call has a
//! curl command. A test of the `lockd` program runs these commands against a real server.
//!
//! [`examples`] holds the commands and which clients may use a call; [`schemas`] turns schemas into tables; `preface.md` is
//! the only hand-written part of the page.

mod examples;
mod schemas;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use api::Code;
use serde_json::Value;

use self::examples::{Example, GROUPS};
use self::schemas::{cell, text};
use crate::backend::shards::RequestLimits;
use crate::http::calls;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/api.md");
const COMMAND: &str = concat!("UPDATE_DOCS=1 cargo test -p ", env!("CARGO_PKG_NAME"), " --lib reference");
const CURL: &str = "curl --cacert client.pem --cert client.pem ";
const URL: &str = "https://localhost:9341/";
/// Headers of many calls, which the preface explains.
const COMMON: [&str; 2] = [api::header::CORRELATION_ID, api::header::IDEMPOTENCY_KEY];
/// Schemas that have a place of their own on the page, or need none.
const ELSEWHERE: [&str; 4] = ["Code", "Hints", "Refusal", "String"];

/// One operation of the document.
struct Operation<'a> {
    method: String,
    path: &'a str,
    value: &'a Value,
}

impl Operation<'_> {
    fn title(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// The anchor of its heading.
    fn anchor(&self) -> String {
        let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ' ');
        self.title().to_lowercase().chars().filter(|c| kept(*c)).collect::<String>().replace(' ', "-")
    }

    fn is_deprecated(&self) -> bool {
        self.value["deprecated"] == true
    }
}

/// All operations by their id.
fn operations(document: &Value) -> BTreeMap<&str, Operation<'_>> {
    let paths = document["paths"].as_object().expect("the document has paths");
    let all = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods of the path").iter();
        methods.map(move |(method, value)| {
            (text(value, "operationId"), Operation { method: method.to_uppercase(), path, value })
        })
    });
    all.collect()
}

fn page(document: &Value) -> String {
    let operations = operations(document);
    let listed: BTreeSet<&str> =
        GROUPS.iter().flat_map(|group| group.examples).map(|example| example.call).collect();
    let known: BTreeSet<&str> = operations.keys().copied().collect();
    assert_eq!(listed, known, "each call has one example in examples.rs");
    let preface = include_str!("reference/preface.md");
    let mut page = format!("{preface}This page is generated: `{COMMAND}`.\n\n{}", errors(document));
    page.push_str("## Calls\n\n| call | purpose |\n|---|---|\n");
    for example in GROUPS.iter().flat_map(|group| group.examples) {
        let operation = &operations[example.call];
        let (title, anchor, summary) =
            (operation.title(), operation.anchor(), text(operation.value, "summary"));
        writeln!(page, "| [`{title}`](#{anchor}) | {summary} |").expect("writing to a string");
    }
    for group in &GROUPS {
        write!(page, "\n## {}\n\n{}\n", group.name, group.about).expect("writing to a string");
        for example in group.examples {
            page.push_str(&call(document, &operations[example.call], example));
        }
    }
    page.push_str(&types(document));
    page
}

/// The shape of an error, and all codes.
fn errors(document: &Value) -> String {
    let refusal = schemas::response_table(document, &document["components"]["schemas"]["Refusal"]);
    let mut section = format!(
        "## Errors\n\nEvery status of 400 and above comes with this body; `error` is for programs, `detail` for people. An unknown path returns\n\
         404 `not_found`, an unsupported method 405 `method_not_allowed`.\n\n{refusal}\n\
         ### Retries\n\n\
         - 409 `waiting`, 429 and 503: the request was not applied. Retry after `retry_after_seconds` (also in the header\n  \
           `Retry-After`), with exponential backoff and jitter; with `block_seconds`, `acquire` waits in a fair queue instead.\n\
         - No response (timeout, broken connection): the request may have been applied. Retry it with the same idempotency key\n  \
           within 60 seconds; after that, read the state first.\n\
         - Every other error: the same request fails again. Do what the table says. Of a connection that goes on, each refusal with\n  \
           400, 401, 403 `forbidden`, 405, 413, 422 or 429 behind 16 in a row is held back for 20 ms.\n\n\
         ### Error codes\n\n| status | code | meaning | what to do |\n|---|---|---|---|\n"
    );
    for code in Code::ALL {
        let (status, means, remedy) = (code.status(), cell(code.means()), remedy(*code));
        writeln!(section, "| {status} | `{code}` | {means} | {remedy} |").expect("writing to a string");
    }
    section + "\n"
}

/// The client's reaction to an error.
fn remedy(code: Code) -> &'static str {
    match code {
        Code::InvalidBody
        | Code::InvalidKey
        | Code::InvalidTtl
        | Code::InvalidJson
        | Code::MissingKey
        | Code::MissingLeaseId
        | Code::NotFound
        | Code::MethodNotAllowed
        | Code::DocumentTooLarge
        | Code::InvalidRange => "correct the request",
        Code::IdempotencyMismatch => "use a new key for a new request",
        Code::Unauthenticated => "present a valid certificate",
        Code::Forbidden => "use an identity with the role or right",
        Code::NotHeld
        | Code::LeaseExpired
        | Code::LeaseRevoked
        | Code::StaleEpoch
        | Code::FencingMismatch
        | Code::Retired => "stop the work under this lease; acquire again",
        Code::Waiting => "retry later, or wait with `block_seconds`",
        Code::Deadlock => "release the session's leases, then retry",
        Code::AlreadyHeld => "use or release the lease that the session has",
        Code::VersionConflict | Code::EtagMismatch => "read the document again, then decide",
        Code::InvalidState => "read the lease, then decide",
        Code::QuotaExceeded => "release leases, or ask an operator for a higher quota",
        Code::Throttled | Code::Unavailable => "retry later",
        Code::Moved => "retry with the server that has the namespace",
        Code::Draining => "retry with another server, or later",
        Code::NoSpace => "retry later; the operator frees disk space",
    }
}

/// The section of one call.
fn call(document: &Value, operation: &Operation<'_>, example: &Example) -> String {
    let value = operation.value;
    let mut section =
        format!("\n### `{}`\n\n{}.", operation.title(), text(value, "summary").trim_end_matches('.'));
    if operation.is_deprecated() {
        return section + " Deprecated.\n\n" + &commands(example);
    }
    for part in [text(value, "description"), example.note] {
        if !part.is_empty() {
            write!(section, " {}", cell(part).replace("\\|", "|")).expect("writing to a string");
        }
    }
    write!(section, "\n\nMay be called by {}.\n\n", example.who).expect("writing to a string");
    section.push_str(&parameters(document, value));
    let body = &value["requestBody"];
    if !body.is_null() {
        let schema = &body["content"]["application/json"]["schema"];
        section.push_str("Request body:");
        if schemas::reference(schema).is_some() {
            write!(section, "\n\n{}\n", schemas::request_table(document, schema))
                .expect("writing to a string");
        } else {
            write!(section, " {}\n\n", cell(text(body, "description"))).expect("writing to a string");
        }
    }
    section + &responses(document, value) + &commands(example)
}

/// Parameters of path, query and header; the common headers in one line.
fn parameters(document: &Value, operation: &Value) -> String {
    let parameters = operation["parameters"].as_array().expect("parameters of the call");
    let (common, own): (Vec<&Value>, Vec<&Value>) =
        parameters.iter().partition(|parameter| COMMON.contains(&text(parameter, "name")));
    let mut section = String::new();
    if !own.is_empty() {
        section.push_str("| parameter | in | type | required | meaning |\n|---|---|---|---|---|\n");
    }
    for parameter in &own {
        let (name, place, about) =
            (text(parameter, "name"), text(parameter, "in"), cell(text(parameter, "description")));
        let required = if parameter["required"] == true { "yes" } else { "no" };
        let kind = schemas::type_text(document, &parameter["schema"]);
        writeln!(section, "| `{name}` | {place} | {kind} | {required} | {about} |")
            .expect("writing to a string");
    }
    let common: Vec<String> = common.iter().map(|one| format!("`{}`", text(one, "name"))).collect();
    let separator = if own.is_empty() { "" } else { "\n" };
    section + &format!("{separator}[Common headers](#conventions): {}.\n\n", common.join(", "))
}

/// Responses with their fields, then the error codes by status.
fn responses(document: &Value, operation: &Value) -> String {
    let (mut section, mut errors) = (String::new(), Vec::new());
    for (status, response) in operation["responses"].as_object().expect("responses of the call") {
        let content = response["content"].as_object().and_then(|content| content.iter().next());
        let schema = content.map(|(_, content)| &content["schema"]);
        let codes = schema.and_then(|schema| schema.pointer("/allOf/1/properties/error/enum"));
        if let Some(codes) = codes.and_then(Value::as_array) {
            let codes: Vec<String> =
                codes.iter().filter_map(Value::as_str).map(|code| format!("`{code}`")).collect();
            errors.push(format!("{status} {}", codes.join(", ")));
            continue;
        }
        write!(section, "Response {status}: {}", cell(text(response, "description")))
            .expect("writing to a string");
        if let Some((media, _)) = content.filter(|(media, _)| *media != "application/json") {
            write!(section, " Media type `{media}`.").expect("writing to a string");
        }
        section.push_str(&headers(response));
        section.push_str("\n\n");
        let table = schema.map(|schema| schemas::response_table(document, schema));
        if let Some(table) = table.filter(|table| table.lines().count() > 2) {
            section = section + &table + "\n";
        }
    }
    format!("{section}[Errors](#error-codes): {}.\n\n", errors.join("; "))
}

/// The headers of a response.
fn headers(response: &Value) -> String {
    let mut list = String::new();
    for (name, header) in response["headers"].as_object().into_iter().flatten() {
        let about = cell(text(header, "description"));
        let about = if about.is_empty() { ".".to_string() } else { format!(": {about}") };
        write!(list, " Header `{name}`{about}").expect("writing to a string");
    }
    list
}

/// The commands of a call, as they are run.
fn commands(example: &Example) -> String {
    let (bare, quoted) = (format!("{CURL}{URL}"), format!("{CURL}\"{URL}"));
    let shell = example.shell.replace("@/", &bare).replace("@\"/", &quoted);
    format!("Example, status {}:\n\n```sh\n{shell}\n```\n", example.status)
}

/// Named types that fields refer to.
fn types(document: &Value) -> String {
    let schemas = document["components"]["schemas"].as_object().expect("the document has schemas");
    let bodies = bodies(document);
    let mut referenced = BTreeSet::new();
    references(&document["components"], &mut referenced);
    let shown = schemas.iter().filter(|(name, _)| {
        !ELSEWHERE.contains(&name.as_str())
            && (!bodies.contains(name.as_str()) || referenced.contains(name.as_str()))
    });
    let (scalars, others): (Vec<_>, Vec<_>) = shown.partition(|(_, schema)| schemas::is_scalar(schema));
    let mut section = String::from("\n## Types\n");
    for (name, schema) in others {
        write!(section, "\n{}", schemas::type_section(document, name, schema)).expect("writing to a string");
    }
    section.push_str("\n### Texts and numbers\n\n| type | form | pattern | meaning |\n|---|---|---|---|\n");
    section
        + &scalars
            .iter()
            .map(|(name, schema)| schemas::scalar_row(document, name, schema))
            .collect::<String>()
}

/// Schemas that are the whole body of a request or response: their fields are shown with the call.
fn bodies(document: &Value) -> BTreeSet<&str> {
    let operations = operations(document);
    let contents = operations.values().flat_map(|operation| {
        let responses = operation.value["responses"].as_object().into_iter().flat_map(|all| all.values());
        responses.chain([&operation.value["requestBody"]]).map(|part| &part["content"])
    });
    let contents: Vec<&Value> = contents.filter_map(Value::as_object).flat_map(|all| all.values()).collect();
    contents.into_iter().filter_map(|content| schemas::reference(&content["schema"])).collect()
}

/// The names of all schemas that are referred to below a value.
fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(schemas::reference(value));
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn the_reference_page_is_the_document() {
    let bytes = super::document(&calls::all(), &RequestLimits::default());
    let page = page(&serde_json::from_slice(&bytes).expect("the document is JSON"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &page).expect("the page is writable");
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(written == page, "docs/reference/api.md is stale: run {COMMAND}");
}
