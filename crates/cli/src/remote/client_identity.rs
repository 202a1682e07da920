//! The client's identity: from the file that was named, or the only one in the data directory.
//!
//! **Invariant.** A file that was not named is never taken from the current directory: an identity file brings the CA by
//! which its user trusts servers, so a cloned repository could redirect its users.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use identity::{ClientBundle, ClientTls};
use lockd_client::endpoint::Endpoint;
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;

use super::Failure;
use super::args::ConnectionArgs;
use crate::stderr::notice;
use system::exposure::{self, Exposure};
use system::xdg;

/// TLS for servers over HTTPS; `None` if all servers are plain HTTP.
pub(super) fn identity(connection: &ConnectionArgs) -> Result<Option<ClientTls>, Failure> {
    let tls = |bundle| ClientTls::new(&bundle, Arc::new(DefaultTimeProvider)).map_err(failure);
    bundle(connection)?.map(tls).transpose()
}

/// The name of the identity for servers over HTTPS; `None` if all servers are plain HTTP.
pub(super) fn name(connection: &ConnectionArgs) -> Result<Option<String>, Failure> {
    Ok(bundle(connection)?.map(|bundle| bundle.client().certificate().name().as_str().to_string()))
}

fn bundle(connection: &ConnectionArgs) -> Result<Option<ClientBundle>, Failure> {
    let Some(path) = identity_file(connection)? else { return Ok(None) };
    check_private(&path)?;
    let text = identity::file::read(&path).map_err(failure)?;
    ClientBundle::parse(&text).map(Some).map_err(|error| failure(error.in_file(&path)))
}

/// Refuses a file that every user may read, and warns of one that a group may. A missing one is reported when it is read.
fn check_private(path: &Path) -> Result<(), Failure> {
    match exposure::of(path) {
        Ok(Exposure::World(what)) => return Err((2, what)),
        Ok(Exposure::Group(what)) => notice("lockd", &format!("warning: {what}")),
        Ok(Exposure::Private) | Err(_) => {}
    }
    Ok(())
}

fn failure(error: identity::Error) -> Failure {
    (2, String::from(error))
}

/// The identity file for servers over HTTPS; `None` if all servers are plain HTTP.
pub fn identity_file(connection: &ConnectionArgs) -> Result<Option<PathBuf>, Failure> {
    let over_tls = |text: &String| {
        Endpoint::parse(text, !connection.mtls)
            .is_ok_and(|endpoint| endpoint.to_string().starts_with("https"))
    };
    if !connection.server.iter().any(over_tls) {
        return Ok(None);
    }
    match &connection.identity {
        Some(path) => Ok(Some(path.clone())),
        None => discover().map(Some),
    }
}

/// The only `client*.pem` in the data directory, where the first start of a server puts one.
fn discover() -> Result<PathBuf, Failure> {
    let Some(folder) = xdg::data_home().map(|home| home.join("lockd")) else {
        return Err((
            2,
            "no identity file, and no home directory to look in; name one with --identity".into(),
        ));
    };
    let mut found = clients_in(&folder);
    match found.len() {
        0 => {
            let what = "no identity file; name one, as in --identity client1.pem, or make one with `lockd auth new client`";
            Err((2, format!("{what}: searched={}", folder.display())))
        }
        1 => Ok(found.remove(0)),
        _ => {
            let names: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
            Err((2, format!("several identity files; name one, as in --identity {}", names.join(" or "))))
        }
    }
}

fn clients_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let is_client = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("client") && path.extension().is_some_and(|extension| extension == "pem")
    };
    let mut found: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_client).collect();
    found.sort();
    found
}
