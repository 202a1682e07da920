//! The `LOCKD_CLIENT_*` variables that `acquire` exports and later commands read.
//!
//! **Invariant.** Exports are safe to eval with any values. A lease is only used for the key that it was acquired for: a
//! script with two keys cannot release one through the other's name. The output of a failed `acquire` makes its eval fail.
//!
//! `LOCKD_CLIENT_LEASE_ID` is the lease that was acquired last. `LOCKD_CLIENT_LEASES` has the ones before it as well, so
//! that a command that names a key finds its lease.

use api::responses::Granted;
use lockd_client::endpoint::Endpoint;
use serde::{Deserialize, Serialize};

use super::args::{ConnectionArgs, LeaseIdArg};
use super::{Failure, client_failure, client_identity, failed, usage_error};
use crate::untrusted::word;

/// The leases of this shell, as JSON.
const LEASES: &str = "LEASES";
/// The most leases in `LOCKD_CLIENT_LEASES`; the oldest are dropped, most likely released long ago.
const LEASES_MAX: usize = 32;
/// The variables of one lease, which the output of a failed acquire unsets.
const OF_LEASE: [&str; 6] = ["LEASE_ID", "KEY", "FENCING_TOKEN", "VERSION", "ETAG", "EXPIRES_UNIX"];

/// A held lease: its key and what proves it to the server.
pub struct LeaseCredential {
    /// The key that the lease covers.
    pub key: String,
    /// The namespace of the lease; `default` if missing.
    pub namespace: Option<String>,
    /// The secret `lease_id`.
    pub lease_id: String,
    /// Sent with writes if known.
    pub fencing_token: Option<u64>,
}

/// A lease in `LOCKD_CLIENT_LEASES`.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ShellLease {
    pub(crate) key: String,
    namespace: String,
    server: String,
    lease_id: String,
    fencing_token: u64,
}

impl ShellLease {
    fn credential(&self) -> LeaseCredential {
        LeaseCredential {
            key: self.key.clone(),
            namespace: Some(self.namespace.clone()),
            lease_id: self.lease_id.clone(),
            fencing_token: Some(self.fencing_token),
        }
    }

    fn is_at(&self, key: &str, namespace: &str, server: &str) -> bool {
        self.key == key && self.namespace == namespace && self.server == server
    }

    /// The public id: the part of the credential that is no secret.
    pub(crate) fn public_id(&self) -> &str {
        self.lease_id.split('.').next().unwrap_or_default()
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("LOCKD_CLIENT_{name}")).ok().filter(|value| !value.is_empty())
}

/// The key argument, or `LOCKD_CLIENT_KEY`.
pub(crate) fn key(named: Option<&str>) -> Result<String, Failure> {
    let key = named.map(str::to_string).or_else(|| variable("KEY"));
    key.ok_or_else(|| usage_error("no key given; name one, or eval the output of acquire"))
}

/// The lease over a key: from `--lease-id`, or from the environment.
pub(crate) fn lease_credential(
    connection: &ConnectionArgs,
    key_named: Option<&str>,
    lease: &LeaseIdArg,
) -> Result<LeaseCredential, Failure> {
    let (key, namespace) = (key(key_named)?, connection.namespace.clone());
    if let Some(lease_id) = &lease.lease_id {
        return Ok(LeaseCredential { key, namespace, lease_id: lease_id.clone(), fencing_token: None });
    }
    if variable("KEY").is_none_or(|ours| ours == key)
        && let Some(lease_id) = last_lease_id(connection)?
    {
        let fencing_token = variable("FENCING_TOKEN").and_then(|token| token.parse().ok());
        return Ok(LeaseCredential { key, namespace, lease_id, fencing_token });
    }
    let server = servers(connection)?.join(",");
    let at = namespace.as_deref().unwrap_or(api::DEFAULT_NAMESPACE);
    let leases = shell_leases()?;
    let found = leases.iter().find(|lease| lease.is_at(&key, at, &server));
    found.map(ShellLease::credential).ok_or_else(|| no_lease(&key, &leases))
}

/// The credential in `LOCKD_CLIENT_LEASE_ID`, unless flags name another server or namespace than that of the lease: the
/// other server would get a credential that is not for it.
fn last_lease_id(connection: &ConnectionArgs) -> Result<Option<String>, Failure> {
    let Some(lease_id) = variable("LEASE_ID") else { return Ok(None) };
    let namespace = connection.namespace.as_deref().unwrap_or(api::DEFAULT_NAMESPACE);
    let is_here = match variable("SERVER") {
        None => true,
        Some(text) => {
            let server: Vec<String> = text.split(',').map(str::to_string).collect();
            let of_lease = servers_at(&server, connection.mtls)?;
            of_lease == servers(connection)?
        }
    };
    let is_here = is_here && variable("NAMESPACE").is_none_or(|of_lease| of_lease == namespace);
    Ok(is_here.then_some(lease_id))
}

/// The lease for commands that need no key: of the key that is named, or the last one.
pub(crate) fn held_lease(
    connection: &ConnectionArgs,
    key_named: Option<&str>,
    lease: &LeaseIdArg,
) -> Result<String, Failure> {
    if let Some(lease_id) = &lease.lease_id {
        return Ok(lease_id.clone());
    }
    match (key_named, last_lease_id(connection)?) {
        (None, Some(lease_id)) => Ok(lease_id),
        _ => Ok(lease_credential(connection, key_named, lease)?.lease_id),
    }
}

/// The credentials of all leases in the environment.
pub(crate) fn shell_credentials() -> Result<Vec<String>, Failure> {
    let mut ids: Vec<String> = shell_leases()?.into_iter().map(|lease| lease.lease_id).collect();
    ids.extend(variable("LEASE_ID").filter(|last| !ids.contains(last)));
    Ok(ids)
}

fn no_lease(key: &str, leases: &[ShellLease]) -> Failure {
    let last = variable("LEASE_ID").and_then(|_| variable("KEY"));
    let last = last.map(|last| format!(" LOCKD_CLIENT_LEASE_ID is of key={}", word(&last)));
    let same_key = leases.iter().find(|lease| lease.key == key);
    let elsewhere = same_key
        .map(|lease| {
            let (namespace, server) = (word(&lease.namespace), word(&lease.server));
            format!("; there is one at another place: --namespace {namespace} --server {server}")
        })
        .unwrap_or_default();
    usage_error(format!(
        "no lease on this key in the environment; eval the output of acquire, pass --lease-id, or let lockc remember \
         leases{elsewhere}: key={}{}",
        word(key),
        last.unwrap_or_default()
    ))
}

/// The leases in `LOCKD_CLIENT_LEASES`, the oldest first.
fn shell_leases() -> Result<Vec<ShellLease>, Failure> {
    let Some(text) = variable(LEASES) else { return Ok(Vec::new()) };
    serde_json::from_str(&text).map_err(|error| {
        usage_error(format!("LOCKD_CLIENT_LEASES is not what acquire exports; unset it: reason={error}"))
    })
}

/// The lease in the plain variables.
fn last_lease() -> Option<ShellLease> {
    Some(ShellLease {
        key: variable("KEY")?,
        namespace: variable("NAMESPACE").unwrap_or_else(|| api::DEFAULT_NAMESPACE.into()),
        server: variable("SERVER")?,
        lease_id: variable("LEASE_ID")?,
        fencing_token: variable("FENCING_TOKEN")?.parse().ok()?,
    })
}

/// What `acquire` exports: read before the request, so that nothing is granted that could not be exported.
pub(crate) struct Exporter {
    leases: Vec<ShellLease>,
    server: String,
    files: Vec<(&'static str, String)>,
}

impl Exporter {
    pub(crate) fn new(connection: &ConnectionArgs) -> Result<Exporter, Failure> {
        let server = servers(connection)?.join(",");
        let mut leases = shell_leases()?;
        // A command under `lockd run` has the lease in the plain variables only.
        leases.extend(last_lease().filter(|last| leases.iter().all(|lease| lease.lease_id != last.lease_id)));
        Ok(Exporter { leases, server, files: files(connection)? })
    }

    /// The lease that the granted one replaces in `LOCKD_CLIENT_LEASE_ID`: of another key, and perhaps still held.
    pub(crate) fn replaced(&self, granted: &Granted) -> Option<&ShellLease> {
        let last = variable("LEASE_ID")?;
        let lease = self.leases.iter().find(|lease| lease.lease_id == last)?;
        let same = lease.server == self.server && lease.namespace == granted.namespace;
        (!same || Some(&lease.key) != granted.key.as_ref()).then_some(lease)
    }

    /// Shell `export` lines for a granted lease.
    pub(crate) fn exports(mut self, granted: &Granted) -> String {
        let key = granted.key.clone().unwrap_or_default();
        let lease = ShellLease {
            key,
            namespace: granted.namespace.clone(),
            server: self.server.clone(),
            lease_id: granted.lease_id.clone(),
            fencing_token: granted.fencing_token,
        };
        self.leases.retain(|other| !other.is_at(&lease.key, &lease.namespace, &lease.server));
        self.leases.push(lease);
        let excess = self.leases.len().saturating_sub(LEASES_MAX);
        let leases = serde_json::to_string(&self.leases[excess..]).expect("plain data");
        let at_grant = [
            ("VERSION", granted.version.to_string()),
            ("ETAG", granted.state_etag.clone()),
            ("EXPIRES_UNIX", granted.expires_at_unix.to_string()),
            (LEASES, leases),
        ];
        let values = of_lease(&self.server, granted).into_iter().chain(self.files).chain(at_grant);
        let lines = values.map(|(name, value)| format!("export LOCKD_CLIENT_{name}={}\n", quoted(&value)));
        lines.collect::<Vec<_>>().concat()
    }
}

/// The output of an acquire that failed: to eval it unsets the variables of the last lease and fails with the exit code.
/// Without it, `eval "$(lockd client acquire KEY)"` would evaluate nothing and succeed.
pub(crate) fn failing_eval(code: u8) -> String {
    let names = OF_LEASE.map(|name| format!(" LOCKD_CLIENT_{name}")).concat();
    format!("unset{names}; (exit {code})\n")
}

/// The variables that stay valid for as long as the lease is held, for the environment of a command.
pub fn values(connection: &ConnectionArgs, granted: &Granted) -> Result<Vec<(String, String)>, Failure> {
    let server = servers(connection)?.join(",");
    let values = of_lease(&server, granted).into_iter().chain(files(connection)?);
    Ok(values.map(|(name, value)| (format!("LOCKD_CLIENT_{name}"), value)).collect())
}

fn of_lease(server: &str, granted: &Granted) -> [(&'static str, String); 5] {
    [
        ("LEASE_ID", granted.lease_id.clone()),
        ("KEY", granted.key.clone().unwrap_or_default()),
        ("NAMESPACE", granted.namespace.clone()),
        ("SERVER", server.to_string()),
        ("FENCING_TOKEN", granted.fencing_token.to_string()),
    ]
}

/// The files of the identity in use and the denylist, absolute: later commands may run in another directory.
fn files(connection: &ConnectionArgs) -> Result<Vec<(&'static str, String)>, Failure> {
    let identity = client_identity::identity_file(connection)?;
    let tls = &connection.tls;
    let named = [
        ("IDENTITY", identity.as_ref()),
        ("TLS_CERT", tls.tls_cert.as_ref()),
        ("TLS_KEY", tls.tls_key.as_ref()),
        ("TLS_CA", tls.tls_ca.as_ref()),
        ("DENYLIST_PATH", connection.denylist_path.as_ref()),
    ];
    let named = named.into_iter().filter_map(|(name, file)| Some((name, file?)));
    let absolute = named.map(|(name, file)| {
        let file = std::path::absolute(file)
            .map_err(|error| failed("resolving the path of the identity file", &error))?;
        let text = file.into_os_string().into_string();
        let text = text.map_err(|path| usage_error(format!("not UTF-8: path={}", path.display())))?;
        Ok((name, text))
    });
    absolute.collect()
}

/// The servers as full URLs, whose scheme makes `--mtls` unnecessary.
pub fn servers(connection: &ConnectionArgs) -> Result<Vec<String>, Failure> {
    servers_at(&connection.server, connection.mtls)
}

fn servers_at(servers: &[String], mtls: bool) -> Result<Vec<String>, Failure> {
    let urls = servers.iter().map(|text| Endpoint::parse(text, !mtls).map(|at| at.to_string()));
    urls.collect::<Result<Vec<_>, _>>().map_err(client_failure)
}

/// Text as one word for the shell, quoted only if it must be.
pub(crate) fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@');
    if !text.is_empty() && text.chars().all(plain) { text.to_string() } else { quoted(text) }
}

/// Quotes text as one shell word. Inside single quotes only the closing quote is special. NULs are dropped: an environment
/// variable cannot contain one.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\0', "").replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_reads_a_quoted_text_as_it_was() {
        let hostile =
            ["", "plain", "a b", "it's", "'; echo x; '", "$(id)`id`", "\\", "a\nb", "!!", "ü\u{1b}[2J", "''"];
        for text in hostile {
            let script = format!("printf %s {}", quoted(text));
            let out = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
            assert_eq!(String::from_utf8(out.stdout).expect("text"), text);
            assert!(out.stderr.is_empty());
        }
    }

    /// Later acquires in a shell would make its environment ever larger, until no command can be started.
    #[test]
    fn the_oldest_leases_of_a_shell_are_dropped() {
        let granted = |n: u64| Granted { key: Some(format!("k{n}")), fencing_token: n, ..Granted::default() };
        let mut leases = Vec::new();
        for n in 0..40 {
            let exporter = Exporter { leases, server: "s".into(), files: Vec::new() };
            let text = exporter.exports(&granted(n));
            let line = text.lines().find_map(|line| line.strip_prefix("export LOCKD_CLIENT_LEASES='"));
            leases = serde_json::from_str(line.expect("exported").trim_end_matches('\'')).expect("JSON");
        }
        let keys: Vec<&str> = leases.iter().map(|lease| lease.key.as_str()).collect();
        assert_eq!((keys.len(), keys[0], keys[31]), (32, "k8", "k39"));
    }
}
