//! Answers: one JSON object, or lines for people. The same facts in both.
//!
//! Programs read the JSON: fields are added, and not renamed. Times are RFC 3339, with Unix seconds beside them.
//!
//! **What is absent.** Private keys, in either.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use identity::{CaKey, Certificate, ClientBundle, Denylist, PeerIdentity, ServerBundle, UnixTime};
use serde_json::{Value, json};

use super::args::Format;

/// What is to be said, in order.
pub(crate) struct Answer(Facts);

type Facts = Vec<(&'static str, Fact)>;

enum Fact {
    Text(String),
    /// Stands beside a text that says the same, and is for programs alone.
    Number(u64),
    Flag(bool),
    List(Vec<String>),
    Group(Facts),
}

impl Answer {
    /// Begins with the file that it is about.
    pub(crate) fn about(path: &Path) -> Answer {
        Answer(vec![("file", Fact::Text(path.display().to_string()))])
    }

    pub(crate) fn add_path(&mut self, name: &'static str, path: Option<&Path>) {
        self.0.extend(path.map(|path| (name, Fact::Text(path.display().to_string()))));
    }

    pub(crate) fn add_flag(&mut self, name: &'static str, flag: bool) {
        self.0.push((name, Fact::Flag(flag)));
    }

    pub(crate) fn add_list(&mut self, name: &'static str, items: Vec<String>) {
        self.0.push((name, Fact::List(items)));
    }

    pub(crate) fn add_serials(&mut self, name: &'static str, denylist: &Denylist) {
        self.add_list(name, denylist.iter().map(|serial| serial.to_string()).collect());
    }

    pub(crate) fn add_server(&mut self, bundle: &ServerBundle) {
        let key = match bundle.ca_key() {
            None => "not in this file",
            Some(CaKey::Plain(_)) => "in clear",
            Some(CaKey::Sealed(_)) => "encrypted",
        };
        let server = bundle.server().certificate();
        self.add_certificate("ca", bundle.ca(), vec![("key", Fact::Text(key.into()))]);
        self.add_certificate("server", server, vec![("hosts", Fact::List(server.hosts().to_vec()))]);
        self.add_certificate("forwarding", bundle.forwarding().certificate(), vec![]);
    }

    pub(crate) fn add_client(&mut self, bundle: &ClientBundle) {
        let PeerIdentity { role, rights, .. } = bundle.identity();
        let namespaces = rights.iter().map(|one| one.to_string()).collect();
        let says = vec![("role", Fact::Text(role.to_string())), ("namespaces", Fact::List(namespaces))];
        self.add_certificate("client", bundle.client().certificate(), says);
        self.add_certificate("ca", bundle.ca(), vec![]);
    }

    fn add_certificate(&mut self, name: &'static str, certificate: &Certificate, more: Facts) {
        let (from, until) = (certificate.not_before(), certificate.not_after());
        let mut facts = vec![
            ("cn", Fact::Text(certificate.name().to_string())),
            ("serial", Fact::Text(certificate.serial().to_string())),
            ("purpose", Fact::Text(certificate.purpose().to_string())),
            ("algorithm", Fact::Text(certificate.algorithm().into())),
            ("not_before", Fact::Text(rfc3339(from))),
            ("not_before_unix", Fact::Number(from.as_secs())),
            ("not_after", Fact::Text(rfc3339(until))),
            ("not_after_unix", Fact::Number(until.as_secs())),
        ];
        facts.extend(more);
        self.0.push((name, Fact::Group(facts)));
    }

    /// A reader that has gone away is no reason to fail what was done.
    pub(crate) fn print(self, format: Format) {
        let text = match format {
            Format::Json => format!("{}\n", Fact::Group(self.0).json()),
            Format::Text => self.0.iter().map(|(name, fact)| fact.lines(name, "")).collect(),
        };
        drop(std::io::stdout().write_all(text.as_bytes()));
    }
}

impl Fact {
    fn json(&self) -> Value {
        match self {
            Fact::Text(text) => json!(text),
            Fact::Number(number) => json!(number),
            Fact::Flag(flag) => json!(flag),
            Fact::List(items) => json!(items),
            Fact::Group(facts) => {
                Value::Object(facts.iter().map(|(name, fact)| ((*name).into(), fact.json())).collect())
            }
        }
    }

    /// For people.
    fn lines(&self, name: &str, indent: &str) -> String {
        match self {
            Fact::Text(text) => format!("{indent}{name}: {}\n", plain(text)),
            Fact::Number(_) => String::new(),
            Fact::Flag(flag) => format!("{indent}{name}: {}\n", if *flag { "yes" } else { "no" }),
            Fact::List(items) if items.is_empty() => format!("{indent}{name}: none\n"),
            Fact::List(items) => items.iter().fold(format!("{indent}{name}:\n"), |lines, item| {
                lines + indent + "  " + &plain(item) + "\n"
            }),
            Fact::Group(facts) => facts.iter().fold(format!("{indent}{name}:\n"), |lines, (name, fact)| {
                lines + &fact.lines(name, &format!("{indent}  "))
            }),
        }
    }
}

pub(crate) fn rfc3339(time: UnixTime) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(time.as_secs());
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Names come from certificates: whatever a terminal would act on is shown, not sent.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
