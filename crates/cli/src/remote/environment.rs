//! What `acquire` leaves to the commands after it: `LOCKD_CLIENT_*`.
//!
//! **Invariant.** Exports are safe to eval, whatever is in them. A lease is only found for the key that it was taken for:
//! a script that has two keys cannot release one by the other's name.

use api::tell::Granted;
use client::endpoint::Endpoint;

use super::args::{Connection, LeaseId};
use super::{Failure, misused, told};

/// A lease to work under.
pub struct Held {
    /// The key.
    pub key: String,
    /// The lease's credential.
    pub lease_id: String,
    /// Sent along with writes, where it is known.
    pub fencing_token: Option<u64>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("LOCKD_CLIENT_{name}")).ok().filter(|value| !value.is_empty())
}

/// The key that is named, or the environment's.
pub(crate) fn key(named: Option<&str>) -> Result<String, Failure> {
    let key = named.map(str::to_string).or_else(|| variable("KEY"));
    key.ok_or_else(|| misused("no key is named; name one, or eval what acquire prints"))
}

/// The lease over a key: the one that is named, or the environment's.
pub(crate) fn held(key_named: Option<&str>, lease: &LeaseId) -> Result<Held, Failure> {
    let key = key(key_named)?;
    if let Some(lease_id) = &lease.lease_id {
        return Ok(Held { key, lease_id: lease_id.clone(), fencing_token: None });
    }
    let ours = variable("KEY").is_none_or(|ours| ours == key);
    let lease_id = variable("LEASE_ID").filter(|_| ours).ok_or_else(|| {
        misused(format!(
            "no lease of this key is known; eval what acquire prints, or use --lease-id: key={key:?}"
        ))
    })?;
    let fencing_token = variable("FENCING_TOKEN").and_then(|token| token.parse().ok());
    Ok(Held { key, lease_id, fencing_token })
}

/// Lines for the shell that set the environment.
pub(crate) fn exports(connection: &Connection, granted: &Granted) -> Result<String, Failure> {
    let of_this_moment = [
        ("LOCKD_CLIENT_VERSION", granted.version.to_string()),
        ("LOCKD_CLIENT_ETAG", granted.state_etag.clone()),
        ("LOCKD_CLIENT_EXPIRES_UNIX", granted.expires_at_unix.to_string()),
    ];
    let values = values(connection, granted)?.into_iter().chain(of_this_moment);
    let lines = values.map(|(name, value)| format!("export {name}={}\n", quoted(&value)));
    Ok(lines.collect::<Vec<_>>().concat())
}

/// What stays true for as long as the lease is held.
pub fn values(connection: &Connection, granted: &Granted) -> Result<[(&'static str, String); 6], Failure> {
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

/// The servers as addresses that need no `--mtls`.
pub fn servers(connection: &Connection) -> Result<Vec<String>, Failure> {
    let servers = connection.server.iter();
    let servers = servers.map(|text| Endpoint::parse(text, !connection.mtls).map(|at| at.to_string()));
    servers.collect::<Result<Vec<_>, _>>().map_err(told)
}

/// One word for any shell. Nothing has a meaning between single quotes but the quote that ends them; a NUL cannot be in
/// an environment at all.
fn quoted(text: &str) -> String {
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
