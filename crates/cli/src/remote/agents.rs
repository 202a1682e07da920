//! What `lockd run --intent` and `lockd mcp` share: who an agent is, what it means to touch, and what was said to that.

use std::path::PathBuf;

use api::agents::{InTheWay, Intent, Judged, Manifest, Verdict};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{Connection, Failure, failed, misused, who};
use crate::stderr::shown;

/// What can be done with an object.
const PREDICATES: [&str; 6] = ["PROVIDES", "CONSUMES", "MUTATES", "DELETES", "DEPENDS_ON", "RENAMES"];

/// Who asks as an agent, and from where.
#[derive(clap::Args)]
pub struct AgentArgs {
    /// The agent; one name belongs to one identity [default: the name of the program and that of the identity].
    #[arg(long, env = "LOCKD_CLIENT_AGENT_ID", value_name = "NAME")]
    agent_id: Option<String>,
    /// The directory that relative FILE paths belong to [default: this one].
    #[arg(long, env = "LOCKD_CLIENT_ROOT", value_name = "DIR")]
    root: Option<PathBuf>,
}

/// One run of an agent.
#[derive(Clone)]
pub struct Agent {
    /// Its name.
    pub agent_id: String,
    /// This run of it, told from every other.
    pub session_id: String,
    /// What relative paths belong to.
    pub root: String,
}

impl AgentArgs {
    /// A new run of the agent. An agent's name is one identity's, so that of the identity is in the one that nobody gave.
    pub fn begin(&self, program: &str, connection: &Connection) -> Result<Agent, Failure> {
        let agent_id = match (&self.agent_id, who::name(connection)?) {
            (Some(given), _) => given.clone(),
            (None, Some(identity)) => format!("{program}.{identity}"),
            (None, None) => program.to_string(),
        };
        Ok(Agent { agent_id, session_id: session_id(), root: self.root()? })
    }

    fn root(&self) -> Result<String, Failure> {
        let given = self.root.clone().unwrap_or_else(|| PathBuf::from("."));
        let root = std::path::absolute(given).map_err(|error| failed("finding this folder", &error))?;
        let text = root.to_str().map(ToString::to_string);
        text.ok_or_else(|| misused(format!("the name of the root is no UTF-8: root={}", root.display())))
    }
}

impl Agent {
    /// What it declares, in its own name.
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
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).expect("the kernel has chance to give");
    assert_eq!(filled, bytes.len(), "so few bytes come whole");
    format!("{:032x}", u128::from_le_bytes(bytes))
}

/// `PREDICATE:KIND:name`. Whether the name is one is the server's to say.
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

/// Why a manifest was not granted, with the exit code of that.
pub fn refused(judged: &Judged) -> Failure {
    let detail = judged.detail.as_deref().map(shown).unwrap_or_default();
    match judged.verdict {
        Verdict::Paused => {
            (14, format!("grants to this agent are stopped, or its quota is used up: {detail}"))
        }
        Verdict::Wait | Verdict::Die | Verdict::Granted => {
            (10, format!("held by others: {}", others(judged)))
        }
    }
}

/// Who is in the way.
pub fn others(judged: &Judged) -> String {
    let mut all: Vec<String> = judged.holders.iter().map(other).collect();
    all.extend(
        judged.position.filter(|ahead| *ahead > 0).map(|ahead| format!("{ahead} came earlier and wait")),
    );
    if all.is_empty() { "they are gone by now".into() } else { all.join("; ") }
}

fn other(lease: &InTheWay) -> String {
    let mut text = format!("holder={} public_id={}", lease.holder, lease.public_id);
    let mut add = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            text = format!("{text} {name}={value:?}");
        }
    };
    add("owner", Some(lease.owner.as_str()).filter(|owner| *owner != lease.holder));
    add("agent_id", lease.agent_id.as_deref());
    add("reason", lease.reason.as_deref());
    let ends = match lease.remaining_ms {
        0 => " (over, and not yet free)".to_string(),
        ms => format!(" (ends in {ms} ms if it is not renewed)"),
    };
    shown(&(text + &ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_has_three_parts_and_a_name_may_have_colons() {
        let read = intent("CONSUMES:DB:orders:2026").expect("it is whole");
        assert_eq!((read.predicate.as_str(), read.object.as_str()), ("CONSUMES", "DB:orders:2026"));
        for bad in [
            "",
            "MUTATES",
            "MUTATES:FILE",
            "MUTATES:FILE:",
            "MUTATES::x",
            "WRITES:FILE:/x",
            "mutates:FILE:/x",
        ] {
            let said = intent(bad).expect_err(bad);
            assert!(said.contains("MUTATES:FILE:src/auth.rs") && said.contains("DEPENDS_ON"), "{said}");
        }
    }

    #[test]
    fn whoever_is_in_the_way_is_named_on_one_line() {
        let lease = InTheWay {
            holder: "ada".into(),
            public_id: "L-1".into(),
            owner: "ada".into(),
            reason: Some("rename\na field".into()),
            remaining_ms: 1500,
            ..InTheWay::default()
        };
        let judged = Judged { holders: vec![lease], position: Some(2), ..Judged::default() };
        let (code, said) = refused(&judged);
        let expected = "held by others: holder=ada public_id=L-1 reason=\"rename\\na field\" (ends in 1500 ms if it is not \
                        renewed); 2 came earlier and wait";
        assert_eq!((code, said.as_str()), (10, expected));
    }
}
