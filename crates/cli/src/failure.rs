//! A failed command: its exit code, the message for people, and the server's refusal for programs.

use std::time::Duration;

use api::{Code, Hints, Refusal};
use lockd_client::Error;

use crate::exit_codes::{self, FAILED, USAGE};
use crate::times::{duration_text, ms_text};
use crate::untrusted::{escape, quote, word};

/// Why a command failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The message for people, on one line and safe to show.
    pub message: String,
    /// The server's refusal, if the server sent one.
    pub refusal: Option<Box<Refusal>>,
    /// The message is where standard error goes, already.
    pub is_shown: bool,
}

/// The result of a command.
pub type CommandResult = Result<(), Failure>;

impl Failure {
    /// A failure without a refusal of the server.
    pub fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), refusal: None, is_shown: false }
    }
}

impl From<(u8, String)> for Failure {
    fn from((code, message): (u8, String)) -> Failure {
        Failure::new(code, message)
    }
}

/// A client error as an exit code and a message with the refusal's hints.
#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` needs")]
pub fn client_failure(error: Error) -> Failure {
    let code = exit_codes::of_kind(error.kind());
    let hints = error.refusal().map(|refusal| hints(&refusal.hints)).unwrap_or_default();
    let refusal = error.refusal().cloned().map(Box::new);
    Failure { code, message: escape(&format!("{error}{hints}")), refusal, is_shown: false }
}

/// A lease that was not granted: who holds it, for how long, and how to wait for it.
pub fn not_granted(error: Error, key: &str, waited: Duration) -> Failure {
    let mut failure = client_failure(error);
    if let Some(refusal) = failure.refusal.as_ref().filter(|refusal| refusal.error == Code::Waiting) {
        failure.message = escape(&conflict(&refusal.hints, key, waited));
    }
    failure
}

fn conflict(hints: &Hints, key: &str, waited: Duration) -> String {
    let (what, remedy) = match waited {
        Duration::ZERO => ("not granted".to_string(), "; --block 60s waits for it"),
        _ => (format!("waited {} in vain", duration_text(waited)), ""),
    };
    let holder = hints.holder.as_deref().map(word);
    let who = match (&holder, hints.remaining_ms) {
        (Some(holder), Some(0)) => format!("the lease of {holder} has ended, and still blocks the key"),
        (Some(holder), Some(ms)) => format!("{holder} holds it for another {} unless renewed", ms_text(ms)),
        (Some(holder), None) => format!("{holder} holds it"),
        (None, _) => "earlier waiters come first".to_string(),
    };
    let ahead = match hints.position {
        Some(1) => ", and 1 earlier waiter comes first".to_string(),
        Some(ahead) if ahead > 1 => format!(", and {ahead} earlier waiters come first"),
        _ => String::new(),
    };
    let mut text = format!("{what}: {who}{ahead}{remedy}: key={}", word(key));
    let mut add = |name: &str, value: Option<String>| {
        text.extend(value.map(|value| format!(" {name}={value}")));
    };
    add("holder", holder);
    add("owner", shown_owner(hints));
    add("public_id", hints.leases.first().cloned());
    text
}

/// The text that a holder gave as its name, unless it is the identity.
fn shown_owner(hints: &Hints) -> Option<String> {
    hints.owner.as_ref().filter(|owner| hints.holder.as_ref() != Some(owner)).map(|owner| quote(owner))
}

fn hints(hints: &Hints) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text = format!("{text} {name}={value}");
        }
    };
    add("holder", hints.holder.as_deref().map(word));
    add("owner", shown_owner(hints));
    add("position", hints.position.map(|position| position.to_string()));
    add("current_version", hints.current_version.map(|version| version.to_string()));
    add("current_etag", hints.current_etag.clone());
    text
}

/// A failure on this machine: exit code 1.
pub fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(FAILED, format!("{what}: {error}"))
}

/// Wrong usage or invalid input: exit code 2.
pub fn usage_error(what: impl Into<String>) -> Failure {
    Failure::new(USAGE, what)
}
