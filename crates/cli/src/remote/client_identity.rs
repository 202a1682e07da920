//! The client's identity: from the file that was named, or the only one in the data directory.
//!
//! **Invariant.** A file that was not named is never taken from the current directory: an identity file brings the CA by
//! which its user trusts servers, so a cloned repository could redirect its users.

use std::path::{Path, PathBuf};

use identity::{ClientBundle, IdentityLocation};
use lockd_client::endpoint::Endpoint;

use super::args::ConnectionArgs;
use super::{Failure, usage_error};
use crate::stderr::notice;
use system::exposure::{self, Exposure};
use system::xdg;

/// The name of the identity for servers over HTTPS; `None` if all servers are plain HTTP.
pub(super) fn name(connection: &ConnectionArgs) -> Result<Option<String>, Failure> {
    Ok(bundle(connection)?.map(|bundle| bundle.client().certificate().name().as_str().to_string()))
}

fn bundle(connection: &ConnectionArgs) -> Result<Option<ClientBundle>, Failure> {
    location(connection)?.map(|location| location.read_client().map_err(failure)).transpose()
}

/// Where the identity for servers over HTTPS is; `None` if all servers are plain HTTP. Its key must be private.
pub(super) fn private_location(connection: &ConnectionArgs) -> Result<Option<IdentityLocation>, Failure> {
    // Here and not in `bundle`, which some commands call as well: one warning is enough.
    let location = location(connection)?;
    location.iter().try_for_each(|location| check_private(&location.key_file()))?;
    Ok(location)
}

fn location(connection: &ConnectionArgs) -> Result<Option<IdentityLocation>, Failure> {
    match connection.tls.separate()? {
        Some(files) if needs_identity(connection) => Ok(Some(IdentityLocation::Separate(files))),
        Some(_) => Ok(None),
        None => Ok(identity_file(connection)?.map(IdentityLocation::Path)),
    }
}

fn needs_identity(connection: &ConnectionArgs) -> bool {
    let over_tls = |text: &String| {
        Endpoint::parse(text, !connection.mtls)
            .is_ok_and(|endpoint| endpoint.to_string().starts_with("https"))
    };
    connection.server.iter().any(over_tls)
}

/// Refuses a file that every user may read, and warns of one that a group may. A missing one is reported when it is read.
fn check_private(path: &Path) -> Result<(), Failure> {
    match exposure::of(path) {
        Ok(Exposure::World(what)) => return Err(usage_error(what)),
        Ok(Exposure::Group(what)) => notice("lockd", &format!("warning: {what}")),
        Ok(Exposure::Private) | Err(_) => {}
    }
    Ok(())
}

fn failure(error: identity::Error) -> Failure {
    usage_error(String::from(error))
}

/// The identity file for servers over HTTPS; `None` if all servers are plain HTTP, or three files are named instead.
pub fn identity_file(connection: &ConnectionArgs) -> Result<Option<PathBuf>, Failure> {
    if !needs_identity(connection) || connection.tls.separate()?.is_some() {
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
        return Err(usage_error(
            "no identity file, and no home directory to look in; name one with --identity",
        ));
    };
    let mut found = clients_in(&folder);
    match found.len() {
        0 => {
            let what = "no identity file; name one, as in --identity client1.pem, or make one with `lockd auth new client`";
            Err(usage_error(format!("{what}: searched={}", folder.display())))
        }
        1 => Ok(found.remove(0)),
        _ => {
            let names: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
            Err(usage_error(format!(
                "several identity files; name one, as in --identity {}",
                names.join(" or ")
            )))
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
