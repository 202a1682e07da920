//! Reports of `lockd auth`: one JSON object, or text with the same fields.
//!
//! The JSON form is stable: fields are added, never renamed. Times are RFC 3339, each with a second field in Unix seconds.
//!
//! **What is absent.** Private keys.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use cli::output::{Output, rendered};
use cli::untrusted::escape;
use identity::{
    CaKey, Certificate, ClientBundle, Denylist, PeerIdentity, ServerBundle, TrustAnchors, UnixTime,
};
use serde_json::{Value, json};

/// The fields of a report, in order.
pub(crate) struct IdentityReport(Fields);

type Fields = Vec<(&'static str, Field)>;

enum Field {
    Text(String),
    /// Only in JSON; a text field has the same information.
    Number(u64),
    Flag(bool),
    List(Vec<String>),
    Group(Fields),
}

impl IdentityReport {
    /// A report that starts with the file's path.
    pub(crate) fn about(path: &Path) -> IdentityReport {
        IdentityReport(vec![("file", Field::Text(path.display().to_string()))])
    }

    pub(crate) fn add_path(&mut self, name: &'static str, path: Option<&Path>) {
        self.0.extend(path.map(|path| (name, Field::Text(path.display().to_string()))));
    }

    pub(crate) fn add_flag(&mut self, name: &'static str, flag: bool) {
        self.0.push((name, Field::Flag(flag)));
    }

    pub(crate) fn add_list(&mut self, name: &'static str, items: Vec<String>) {
        self.0.push((name, Field::List(items)));
    }

    pub(crate) fn add_serials(&mut self, name: &'static str, denylist: &Denylist) {
        self.add_list(name, denylist.iter().map(|serial| serial.to_string()).collect());
    }

    pub(crate) fn add_ca(&mut self, ca: &Certificate) {
        self.add_certificate("ca", ca, vec![]);
    }

    pub(crate) fn add_server(&mut self, bundle: &ServerBundle) {
        let key = match bundle.ca_key() {
            None => "not in this file",
            Some(CaKey::Plain(_)) => "in clear",
            Some(CaKey::Sealed(_)) => "encrypted",
        };
        let server = bundle.server().certificate();
        self.add_certificate("ca", bundle.ca(), vec![("key", Field::Text(key.into()))]);
        self.add_certificate("server", server, vec![("hosts", Field::List(server.hosts().to_vec()))]);
        if let Some(forwarding) = bundle.forwarding() {
            self.add_certificate("forwarding", forwarding.certificate(), vec![]);
        }
        self.add_other_cas(bundle.anchors());
    }

    pub(crate) fn add_client(&mut self, bundle: &ClientBundle) {
        let PeerIdentity { role, rights, .. } = bundle.identity();
        let namespaces = rights.iter().map(|one| one.to_string()).collect();
        let more = vec![("role", Field::Text(role.to_string())), ("namespaces", Field::List(namespaces))];
        self.add_certificate("client", bundle.client().certificate(), more);
        self.add_certificate("ca", bundle.ca(), vec![]);
        self.add_other_cas(bundle.anchors());
        if !bundle.denylist().is_empty() {
            self.add_serials("revoked_servers", bundle.denylist());
        }
    }

    fn add_other_cas(&mut self, anchors: &TrustAnchors) {
        for ca in anchors.others() {
            self.add_certificate("other_ca", ca, vec![]);
        }
    }

    pub(crate) fn add_text(&mut self, name: &'static str, text: &str) {
        self.0.push((name, Field::Text(text.into())));
    }

    fn add_certificate(&mut self, name: &'static str, certificate: &Certificate, more: Fields) {
        let (from, until) = (certificate.not_before(), certificate.not_after());
        let mut fields = vec![
            ("cn", Field::Text(certificate.name().to_string())),
            ("serial", Field::Text(certificate.serial().to_string())),
            ("purpose", Field::Text(certificate.purpose().to_string())),
            ("algorithm", Field::Text(certificate.algorithm().into())),
            ("not_before", Field::Text(rfc3339(from))),
            ("not_before_unix", Field::Number(from.as_secs())),
            ("not_after", Field::Text(rfc3339(until))),
            ("not_after_unix", Field::Number(until.as_secs())),
        ];
        fields.extend(more);
        self.0.push((name, Field::Group(fields)));
    }

    /// Prints the report. A closed pipe is no failure: the files are written already.
    pub(crate) fn print(self, output: Output) {
        let text = self.0.iter().map(|(name, field)| field.lines(name, "")).collect();
        let text = rendered(output, &Field::Group(self.0).json(), || text);
        drop(std::io::stdout().write_all(text.as_bytes()));
    }
}

impl Field {
    fn json(&self) -> Value {
        match self {
            Field::Text(text) => json!(text),
            Field::Number(number) => json!(number),
            Field::Flag(flag) => json!(flag),
            Field::List(items) => json!(items),
            Field::Group(fields) => {
                Value::Object(fields.iter().map(|(name, field)| ((*name).into(), field.json())).collect())
            }
        }
    }

    /// The text form.
    fn lines(&self, name: &str, indent: &str) -> String {
        match self {
            Field::Text(text) => format!("{indent}{name}: {}\n", escape(text)),
            Field::Number(_) => String::new(),
            Field::Flag(flag) => format!("{indent}{name}: {}\n", if *flag { "yes" } else { "no" }),
            Field::List(items) if items.is_empty() => format!("{indent}{name}: none\n"),
            Field::List(items) => items.iter().fold(format!("{indent}{name}:\n"), |lines, item| {
                lines + indent + "  " + &escape(item) + "\n"
            }),
            Field::Group(fields) => {
                fields.iter().fold(format!("{indent}{name}:\n"), |lines, (name, field)| {
                    lines + &field.lines(name, &format!("{indent}  "))
                })
            }
        }
    }
}

pub(crate) fn rfc3339(time: UnixTime) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(time.as_secs());
    humantime::format_rfc3339_seconds(time).to_string()
}
