//! The `LOCKD_CLIENT_*` variables that `acquire` exports and later commands read.
//!
//! **Invariant.** Exports are safe to eval with any values. A lease is only used for the key that it was acquired for: a
//! script with two keys cannot release one through the other's name.

use api::responses::Granted;
use lockd_client::endpoint::Endpoint;

use super::args::{ConnectionArgs, LeaseIdArg};
use super::{Failure, client_failure, usage_error};

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
    let ours = variable("KEY").is_none_or(|ours| ours == key);
    let lease_id = variable("LEASE_ID").filter(|_| ours).ok_or_else(|| {
        usage_error(format!(
            "no lease on this key in the environment; eval the output of acquire, or pass --lease-id: key={key:?}"
        ))
    })?;
    let fencing_token = variable("FENCING_TOKEN").and_then(|token| token.parse().ok());
    Ok(LeaseCredential { key, namespace, lease_id, fencing_token })
}

/// Shell `export` lines for a granted lease.
pub(crate) fn exports(connection: &ConnectionArgs, granted: &Granted) -> Result<String, Failure> {
    let at_grant = [
        ("LOCKD_CLIENT_VERSION", granted.version.to_string()),
        ("LOCKD_CLIENT_ETAG", granted.state_etag.clone()),
        ("LOCKD_CLIENT_EXPIRES_UNIX", granted.expires_at_unix.to_string()),
    ];
    let values = values(connection, granted)?.into_iter().chain(at_grant);
    let lines = values.map(|(name, value)| format!("export {name}={}\n", quoted(&value)));
    Ok(lines.collect::<Vec<_>>().concat())
}

/// The variables that stay valid for as long as the lease is held.
pub fn values(
    connection: &ConnectionArgs,
    granted: &Granted,
) -> Result<[(&'static str, String); 6], Failure> {
    let servers = servers(connection)?.join(",");
    Ok([
        ("LOCKD_CLIENT_LEASE_ID", granted.lease_id.clone()),
        ("LOCKD_CLIENT_KEY", granted.key.clone().unwrap_or_default()),
        ("LOCKD_CLIENT_NAMESPACE", granted.namespace.clone()),
        ("LOCKD_CLIENT_SERVER", servers),
        ("LOCKD_CLIENT_OWNER", granted.owner.clone()),
        ("LOCKD_CLIENT_FENCING_TOKEN", granted.fencing_token.to_string()),
    ])
}

/// The servers as full URLs, whose scheme makes `--mtls` unnecessary.
pub fn servers(connection: &ConnectionArgs) -> Result<Vec<String>, Failure> {
    let servers = connection.server.iter();
    let servers = servers.map(|text| Endpoint::parse(text, !connection.mtls).map(|at| at.to_string()));
    servers.collect::<Result<Vec<_>, _>>().map_err(client_failure)
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
}
