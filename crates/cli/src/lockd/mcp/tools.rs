//! The tools and their schemas. Descriptions and doc comments on arguments are read by the model.

use api::agents::Intent;
use rmcp::handler::server::tool::schema_for_input;
use rmcp::model::{Tool, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Instructions for the model.
pub(super) const INSTRUCTIONS: &str = "\
lockd lets several agents and programs work on the same files, keys and other resources without conflicts.
1. Before you use anything that others may use, declare all of it at once with `manifest` (or acquire one key with `acquire`). \
Start working only after the result says GRANTED.
2. Remember the handle and the fencing token of each lease. Pass the fencing token with every write to a system that checks it. \
Leases are renewed automatically while this connection is open.
3. If a result says LOST, stop the work under that lease at once: others may already be using its resources.
4. Call `release` as soon as you are done. Follow the NEXT step of each result.
Store progress that must survive you in the document of a key: `state_get`, `state_update`.";

/// The tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolName {
    Acquire,
    Release,
    WhoHolds,
    Manifest,
    Reconcile,
    StateGet,
    StateUpdate,
}

impl ToolName {
    pub(super) const ALL: [ToolName; 7] = [
        ToolName::Manifest,
        ToolName::Acquire,
        ToolName::Release,
        ToolName::WhoHolds,
        ToolName::Reconcile,
        ToolName::StateGet,
        ToolName::StateUpdate,
    ];

    pub(super) fn named(name: &str) -> Option<ToolName> {
        ToolName::ALL.into_iter().find(|tool| tool.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            ToolName::Acquire => "acquire",
            ToolName::Release => "release",
            ToolName::WhoHolds => "who_holds",
            ToolName::Manifest => "manifest",
            ToolName::Reconcile => "reconcile",
            ToolName::StateGet => "state_get",
            ToolName::StateUpdate => "state_update",
        }
    }

    /// The tool's description, schema and annotations.
    pub(super) fn tool(self) -> Tool {
        let (description, schema) = match self {
            ToolName::Acquire => (
                "Acquire an exclusive lease on one key, before you work on what the key stands for. Returns GRANTED with handle \
                 and fencing token, or the current holder.",
                schema_for_input::<Acquire>(),
            ),
            ToolName::Release => (
                "Release a lease as soon as you are done with it, so that waiters can proceed.",
                schema_for_input::<Release>(),
            ),
            ToolName::WhoHolds => (
                "Show who holds a key or another resource, and how many waiters it has. Acquires nothing.",
                schema_for_input::<WhoHolds>(),
            ),
            ToolName::Manifest => (
                "Declare every resource that you will use (files, keys, anything with a name) before you use it: all are granted as \
                 one lease, or none. Call it before you edit files that others may edit. Returns GRANTED, or the conflicting \
                 leases and when to retry.",
                schema_for_input::<Manifest>(),
            ),
            ToolName::Reconcile => (
                "Check which leases you really hold, after a pause, an error or a restart. Without arguments: all leases of this \
                 connection. With lease_ids of an earlier connection: takes over those that are still yours.",
                schema_for_input::<Reconcile>(),
            ),
            ToolName::StateGet => (
                "Read the JSON document of a key: the progress, checkpoint or notes that its last holder left.",
                schema_for_input::<StateGet>(),
            ),
            ToolName::StateUpdate => (
                "Write the JSON document of a key that you hold, as a whole or by edits. It is refused if you no longer hold the \
                 key, so a stale writer cannot overwrite anything.",
                schema_for_input::<StateUpdate>(),
            ),
        };
        let read_only = matches!(self, ToolName::WhoHolds | ToolName::StateGet);
        let hints = ToolAnnotations::new()
            .read_only(read_only)
            .destructive(self == ToolName::StateUpdate)
            .open_world(false);
        Tool::new(self.name(), description, schema.expect("every argument type is a struct"))
            .with_annotations(hints)
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct Acquire {
    /// Key to acquire: any name that the users of the resource agree on, as in "orders".
    pub(super) key: String,
    /// Seconds to wait if another holder has it; 0 or omitted: do not wait.
    pub(super) wait_seconds: Option<u64>,
    /// Seconds until the lease expires if this connection breaks; 60 if omitted. It is renewed before that.
    #[schemars(range(min = 1))]
    pub(super) ttl_seconds: Option<u32>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct Release {
    /// Handle of the lease, as returned by `acquire` or `manifest`; omitted: all leases of this connection.
    pub(super) handle: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct WhoHolds {
    /// `KIND:name`, as in `FILE:src/auth.rs` or `KEY:orders`. Relative file paths are resolved against this connection's root.
    pub(super) object: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// All resources that you will use, and how; at most 128.
    #[schemars(length(min = 1, max = 128))]
    pub(super) intents: Vec<IntentArgs>,
    /// Purpose, shown to clients that are blocked by this lease; at most 256 bytes.
    pub(super) reason: Option<String>,
    /// Seconds to wait if conflicting leases exist; 0 or omitted: do not wait.
    pub(super) wait_seconds: Option<u64>,
    /// Seconds until the lease expires if this connection breaks; 60 if omitted. It is renewed before that.
    #[schemars(range(min = 1))]
    pub(super) ttl_seconds: Option<u32>,
    /// For a retry: the `attempt_id` of the previous result. It keeps your seniority, so that you are not starved.
    pub(super) attempt_id: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars", inline)]
#[serde(deny_unknown_fields)]
pub(super) struct IntentArgs {
    /// Kind of use. `CONSUMES`: read. `MUTATES`: change. `DELETES`: remove. `RENAMES`: move. `PROVIDES`: create for others to
    /// read. `DEPENDS_ON`: must not change. Readers are compatible with each other; change, removal and move are exclusive.
    predicate: Predicate,
    /// `KIND:name`, as in `FILE:src/auth.rs`, `FILE:/src/*` (everything below a directory) or `KEY:orders`. Relative file
    /// paths are resolved against this connection's root.
    object: String,
}

#[derive(Deserialize, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars", inline)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Predicate {
    Provides,
    Consumes,
    Mutates,
    Deletes,
    DependsOn,
    Renames,
}

impl From<IntentArgs> for Intent {
    fn from(intent: IntentArgs) -> Intent {
        let word = serde_json::to_value(intent.predicate).expect("a word");
        Intent { predicate: word.as_str().expect("a word").to_string(), object: intent.object }
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct Reconcile {
    /// Credentials (`lease_id`) of an earlier connection; omitted: the leases of this one.
    pub(super) lease_ids: Option<Vec<String>>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct StateGet {
    /// Key of the document. If you do not hold it, the last committed document is returned, which may change at any time;
    /// that needs the right `p` (public read) in the namespace.
    pub(super) key: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct StateUpdate {
    /// Key of the document; this connection must hold it.
    pub(super) key: String,
    /// The whole new document: a JSON object or another JSON value; a string is read as JSON text. Either this or `edits`.
    pub(super) document: Option<Value>,
    /// Edits to the current document, as in `progress.step=fetch`, `progress.count++`, `tags[+]=new`, `rm:error` or
    /// `limits:={"max":3}`. Either this or `document`.
    pub(super) edits: Option<Vec<String>>,
    /// Fail unless the key has this version, as returned by `state_get`. Edits always apply to the version that they read.
    pub(super) if_version: Option<u64>,
    /// Release the lease atomically with the write.
    #[serde(default)]
    pub(super) release: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some clients cannot resolve `$ref` and drop the fields that use it.
    #[test]
    fn tool_schemas_are_self_contained_and_described() {
        for name in ToolName::ALL {
            let tool = name.tool();
            assert_eq!(ToolName::named(&tool.name), Some(name));
            let schema = serde_json::to_value(&*tool.input_schema).expect("JSON");
            let text = schema.to_string();
            assert!(!text.contains("$ref") && !text.contains("$defs"), "{text}");
            assert_eq!(schema["additionalProperties"], false, "{text}");
            let fields = schema["properties"].as_object().expect("it takes something");
            for (field_name, field) in fields {
                assert!(field["description"].is_string(), "{}: {field_name}", tool.name);
            }
        }
    }

    #[test]
    fn predicates_are_the_words_of_the_protocol() {
        let intent: IntentArgs =
            serde_json::from_str(r#"{"predicate":"DEPENDS_ON","object":"FILE:/x"}"#).expect("valid");
        assert_eq!(Intent::from(intent).predicate, "DEPENDS_ON");
        let schema = serde_json::to_value(&*ToolName::Manifest.tool().input_schema).expect("JSON");
        let words = &schema["properties"]["intents"]["items"]["properties"]["predicate"]["enum"];
        let all = ["PROVIDES", "CONSUMES", "MUTATES", "DELETES", "DEPENDS_ON", "RENAMES"];
        assert_eq!(words, &serde_json::json!(all));
    }
}
