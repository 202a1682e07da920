//! Shared by `lockd run --intent` and `lockd mcp`: the agent's identity, its intents, and the text of a rejection.

use std::path::PathBuf;

use api::agents::{ConflictingLease, Intent, Manifest, ManifestOutcome, Verdict};
use system::{hex, random};

use super::{ConnectionArgs, Failure, client_identity, failed, usage_error};
use crate::exit_codes;
use crate::untrusted::{escape, quote};

/// The predicates of an intent.
pub(crate) const PREDICATES: [&str; 6] =
    ["PROVIDES", "CONSUMES", "MUTATES", "DELETES", "DEPENDS_ON", "RENAMES"];

/// The options that identify an agent.
#[derive(clap::Args)]
pub struct AgentArgs {
    /// Agent name; it belongs to one identity [default: PROGRAM.IDENTITY, as in run.worker-1].
    #[arg(long, env = "LOCKD_CLIENT_AGENT_ID", value_name = "NAME")]
    agent_id: Option<String>,
    /// Directory that relative FILE paths are resolved against [default: the current directory].
    #[arg(long, env = "LOCKD_CLIENT_ROOT", value_name = "DIR")]
    root: Option<PathBuf>,
}

/// One run of an agent.
#[derive(Clone)]
pub struct AgentRun {
    /// The agent's name.
    pub agent_id: String,
    /// 128 random bits in hexadecimal, unique to this run.
    pub session_id: String,
    /// Absolute directory that relative FILE paths are resolved against.
    pub root: String,
}

impl AgentArgs {
    /// Starts a run of the agent. An agent name belongs to one identity, so the default name contains the identity's.
    pub fn begin(&self, program: &str, connection: &ConnectionArgs) -> Result<AgentRun, Failure> {
        let agent_id = match (&self.agent_id, client_identity::name(connection)?) {
            (Some(given), _) => given.clone(),
            (None, Some(identity)) => format!("{program}.{identity}"),
            (None, None) => program.to_string(),
        };
        Ok(AgentRun { agent_id, session_id: session_id(), root: self.root()? })
    }

    fn root(&self) -> Result<String, Failure> {
        let given = self.root.clone().unwrap_or_else(|| PathBuf::from("."));
        let root = std::path::absolute(given).map_err(|error| failed("resolving --root", &error))?;
        let text = root.to_str().map(ToString::to_string);
        text.ok_or_else(|| usage_error(format!("--root is not valid UTF-8: root={}", root.display())))
    }
}

impl AgentRun {
    /// A manifest of this agent with these intents.
    pub fn manifest(&self, namespace: Option<String>, intents: Vec<Intent>) -> Manifest {
        Manifest {
            namespace,
            agent_id: self.agent_id.clone(),
            session_id: self.session_id.clone(),
            root: Some(self.root.clone()),
            intents,
            ..Manifest::default()
        }
    }
}

fn session_id() -> String {
    hex::encode(&random::bytes::<16>())
}

/// Parses `PREDICATE:KIND:name`. The server validates kind and name.
pub fn intent(text: &str) -> Result<Intent, String> {
    let form = || {
        let all = PREDICATES.join(", ");
        format!("write PREDICATE:KIND:name, as in MUTATES:FILE:src/auth.rs; PREDICATE is one of {all}")
    };
    let (predicate, object) = text.split_once(':').ok_or_else(form)?;
    let (kind, name) = object.split_once(':').ok_or_else(form)?;
    if !PREDICATES.contains(&predicate) || kind.is_empty() || name.is_empty() {
        return Err(form());
    }
    Ok(Intent { predicate: predicate.to_string(), object: object.to_string() })
}

/// The exit code and message for a manifest that was not granted.
pub fn rejection(judged: &ManifestOutcome) -> Failure {
    let detail = judged.detail.as_deref().map(escape).unwrap_or_default();
    match judged.verdict {
        Verdict::Paused => Failure::new(
            exit_codes::DENIED,
            format!("this agent is paused, or its quota is used up: {detail}"),
        ),
        Verdict::Wait | Verdict::Die | Verdict::Granted => {
            Failure::new(exit_codes::HELD, format!("not granted, conflicting leases: {}", conflicts(judged)))
        }
    }
}

/// The conflicting leases and the earlier waiters, on one line.
pub fn conflicts(judged: &ManifestOutcome) -> String {
    let mut all: Vec<String> = judged.holders.iter().map(conflict).collect();
    all.extend(
        judged
            .position
            .filter(|ahead| *ahead > 0)
            .map(|ahead| format!("{ahead} earlier waiters in the queue")),
    );
    if all.is_empty() { "none left by now".into() } else { all.join("; ") }
}

fn conflict(lease: &ConflictingLease) -> String {
    let mut text = format!("holder={} public_id={}", quote(&lease.holder), lease.public_id);
    let mut add = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            text = format!("{text} {name}={}", quote(value));
        }
    };
    add("owner", Some(lease.owner.as_str()).filter(|owner| *owner != lease.holder));
    add("agent_id", lease.agent_id.as_deref());
    add("reason", lease.reason.as_deref());
    let ends = match lease.remaining_ms {
        0 => " (ended, but not yet freed)".to_string(),
        ms => format!(" (expires in {ms} ms unless renewed)"),
    };
    escape(&(text + &ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_has_three_parts_and_a_name_may_have_colons() {
        let parsed = intent("CONSUMES:DB:orders:2026").expect("a complete intent");
        assert_eq!((parsed.predicate.as_str(), parsed.object.as_str()), ("CONSUMES", "DB:orders:2026"));
        for bad in [
            "",
            "MUTATES",
            "MUTATES:FILE",
            "MUTATES:FILE:",
            "MUTATES::x",
            "WRITES:FILE:/x",
            "mutates:FILE:/x",
        ] {
            let error = intent(bad).expect_err(bad);
            assert!(error.contains("MUTATES:FILE:src/auth.rs") && error.contains("DEPENDS_ON"), "{error}");
        }
    }

    #[test]
    fn conflicting_leases_are_named_on_one_line() {
        let lease = ConflictingLease {
            holder: "ada".into(),
            public_id: "L-1".into(),
            owner: "ada".into(),
            reason: Some("rename\na field".into()),
            remaining_ms: 1500,
            ..ConflictingLease::default()
        };
        let judged =
            ManifestOutcome { holders: vec![lease], position: Some(2), ..ManifestOutcome::default() };
        let Failure { code, message, .. } = rejection(&judged);
        let expected = "not granted, conflicting leases: holder=\"ada\" public_id=L-1 reason=\"rename\\na field\" (expires in \
                        1500 ms unless renewed); 2 earlier waiters in the queue";
        assert_eq!((code, message.as_str()), (10, expected));
    }
}
