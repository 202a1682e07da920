//! What an agent may call. Texts here are what a model reads to know when and how.

use api::agents::Intent;
use rmcp::handler::server::tool::schema_for_input;
use rmcp::model::{Tool, ToolAnnotations};
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How to work, for the model.
pub(super) const INSTRUCTIONS: &str = "\
lockd lets several agents and programs work on the same files, keys and other resources without being in each other's way.
1. Before you touch anything that others may touch, declare all of it at once with `manifest` (or take one key with `acquire`). \
Work only after it says GRANTED.
2. Keep the handle and the fencing token of what you hold. Hand the fencing token to whatever can check it when you write. \
Leases renew themselves while this connection lives.
3. If an answer says LOST, stop at once what you do under that lease: others may be at work there already.
4. Call `release` as soon as you are done. What an answer says to do NEXT is what to do next.
Progress that must outlive you belongs into the document of a key: `state_get`, `state_update`.";

/// Something that an agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Acquire,
    Release,
    WhoHolds,
    Manifest,
    Reconcile,
    StateGet,
    StateUpdate,
}

impl Verb {
    pub(super) const ALL: [Verb; 7] = [
        Verb::Manifest,
        Verb::Acquire,
        Verb::Release,
        Verb::WhoHolds,
        Verb::Reconcile,
        Verb::StateGet,
        Verb::StateUpdate,
    ];

    pub(super) fn named(name: &str) -> Option<Verb> {
        Verb::ALL.into_iter().find(|verb| verb.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Verb::Acquire => "acquire",
            Verb::Release => "release",
            Verb::WhoHolds => "who_holds",
            Verb::Manifest => "manifest",
            Verb::Reconcile => "reconcile",
            Verb::StateGet => "state_get",
            Verb::StateUpdate => "state_update",
        }
    }

    /// As it is listed.
    pub(super) fn tool(self) -> Tool {
        let (description, schema) = match self {
            Verb::Acquire => (
                "Take an exclusive lease over one key, before you work on what the key stands for. Answers GRANTED with handle and \
                 fencing token, or says who holds it.",
                schema_for_input::<Acquire>(),
            ),
            Verb::Release => (
                "Give a lease back, as soon as you are done with it, so that others can go on.",
                schema_for_input::<Release>(),
            ),
            Verb::WhoHolds => (
                "Look who holds a key or another resource, and how many wait for it. Takes nothing.",
                schema_for_input::<WhoHolds>(),
            ),
            Verb::Manifest => (
                "Declare everything that you will touch (files, keys, anything with a name) before you touch it: all of it is granted \
                 as one lease, or nothing is. Use it before you edit files that others may edit. Answers GRANTED, or who is \
                 in the way and when to come again.",
                schema_for_input::<Manifest>(),
            ),
            Verb::Reconcile => (
                "Find out what you hold in truth, after a pause, an error or a restart. Without arguments: everything that this \
                 connection holds. With lease_ids of an earlier connection: takes over what is still yours.",
                schema_for_input::<Reconcile>(),
            ),
            Verb::StateGet => (
                "Read the JSON document of a key: the progress, checkpoint or notes that its last holder left.",
                schema_for_input::<StateGet>(),
            ),
            Verb::StateUpdate => (
                "Write the JSON document of a key that you hold, whole or by edits. It is refused if you no longer hold the key, so a \
                 stale writer can spoil nothing.",
                schema_for_input::<StateUpdate>(),
            ),
        };
        let looks = matches!(self, Verb::WhoHolds | Verb::StateGet);
        let hints =
            ToolAnnotations::new().read_only(looks).destructive(self == Verb::StateUpdate).open_world(false);
        Tool::new(self.name(), description, schema.expect("all of them are objects")).with_annotations(hints)
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct Acquire {
    /// The key: any name that those who share the resource agree on, as in "orders".
    pub(super) key: String,
    /// How long to wait while others hold it, in seconds; 0 or left out: not at all.
    pub(super) wait_seconds: Option<u64>,
    /// How long the lease lasts if this connection breaks, in seconds; 60 if left out. It renews itself before that.
    #[schemars(range(min = 1))]
    pub(super) ttl_seconds: Option<u32>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct Release {
    /// Which lease, as `acquire` or `manifest` said; left out: all that this connection holds.
    pub(super) handle: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct WhoHolds {
    /// `KIND:name`, as in `FILE:src/auth.rs` or `KEY:orders`. Relative files belong to the root of this connection.
    pub(super) object: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// All that you will touch, and how; at most 128.
    #[schemars(length(min = 1, max = 128))]
    pub(super) intents: Vec<Touch>,
    /// Why, for others who find this in their way; at most 256 bytes.
    pub(super) reason: Option<String>,
    /// How long to wait while others are in the way, in seconds; 0 or left out: not at all.
    pub(super) wait_seconds: Option<u64>,
    /// How long the lease lasts if this connection breaks, in seconds; 60 if left out. It renews itself before that.
    #[schemars(range(min = 1))]
    pub(super) ttl_seconds: Option<u32>,
    /// From the answer to the last try, if this is a further one: you keep your place, and are not overtaken for ever.
    pub(super) attempt_id: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars", inline)]
#[serde(deny_unknown_fields)]
pub(super) struct Touch {
    /// How. `CONSUMES`: read. `MUTATES`: change. `DELETES`: remove. `RENAMES`: move. `PROVIDES`: make for others to read.
    /// `DEPENDS_ON`: it must stay as it is. Readers go together, and nobody beside whoever changes, removes or moves.
    predicate: Predicate,
    /// `KIND:name`, as in `FILE:src/auth.rs`, `FILE:/src/*` (all beneath a directory) or `KEY:orders`. Relative files
    /// belong to the root of this connection.
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

impl From<Touch> for Intent {
    fn from(touch: Touch) -> Intent {
        let word = serde_json::to_value(touch.predicate).expect("a word");
        Intent { predicate: word.as_str().expect("a word").to_string(), object: touch.object }
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct Reconcile {
    /// Credentials (`lease_id`) that an earlier connection was given; left out: what this one holds.
    pub(super) lease_ids: Option<Vec<String>>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct StateGet {
    /// The key. If you do not hold it, this is what was last committed, and may change at any time.
    pub(super) key: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct StateUpdate {
    /// The key, which this connection must hold.
    pub(super) key: String,
    /// The whole new document, as a text of JSON. Either this or `edits`.
    pub(super) document: Option<String>,
    /// Changes to the document that is there, as in `progress.step=fetch`, `progress.count++`, `tags[+]=new`, `rm:error` or
    /// `limits:={"max":3}`. Either this or `document`.
    pub(super) edits: Option<Vec<String>>,
    /// Refuse unless the key has this version, as `state_get` told it. Edits are always of the document that was read.
    pub(super) if_version: Option<u64>,
    /// Give the lease back with it, in one step.
    #[serde(default)]
    pub(super) release: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some clients cannot follow a reference, and leave out what they cannot read.
    #[test]
    fn every_tool_says_what_it_takes_in_one_piece() {
        for verb in Verb::ALL {
            let tool = verb.tool();
            assert_eq!(Verb::named(&tool.name), Some(verb));
            let schema = serde_json::to_value(&*tool.input_schema).expect("JSON");
            let text = schema.to_string();
            assert!(!text.contains("$ref") && !text.contains("$defs"), "{text}");
            assert_eq!(schema["additionalProperties"], false, "{text}");
            let fields = schema["properties"].as_object().expect("it takes something");
            for (name, field) in fields {
                assert!(field["description"].is_string(), "{}: {name}", tool.name);
            }
        }
    }

    #[test]
    fn predicates_are_the_words_of_the_protocol() {
        let touch: Touch =
            serde_json::from_str(r#"{"predicate":"DEPENDS_ON","object":"FILE:/x"}"#).expect("valid");
        assert_eq!(Intent::from(touch).predicate, "DEPENDS_ON");
        let schema = serde_json::to_value(&*Verb::Manifest.tool().input_schema).expect("JSON");
        let words = &schema["properties"]["intents"]["items"]["properties"]["predicate"]["enum"];
        let all = ["PROVIDES", "CONSUMES", "MUTATES", "DELETES", "DEPENDS_ON", "RENAMES"];
        assert_eq!(words, &serde_json::json!(all));
    }
}
