//! The first start: creates a CA, a server and an operator's client in the data directory.
//!
//! **Invariant.** The CA's key is in a directory of its own, `ca/` with mode 0700, so that one `mv` takes it off the
//! server. No existing file is replaced. Every issued certificate is recorded beside the CA.
//!
//! While the server can read a CA key that is not encrypted, each start logs a warning: an attacker in the server process
//! could issue operators.

use std::path::{Path, PathBuf};

use identity::file::{self, Existing};
use identity::{
    Algorithm, Authority, CaBundle, Days, Error, Host, IssueContext, IssuedCertificate, IssuedRecord, Name,
    Rights, Role, ServerBundle, UnixTime,
};

use crate::backend::machine_clocks;

/// The directory of the CA, in the data directory.
const CA_DIRECTORY: &str = "ca";
const CA: &str = "ca.pem";
/// The server's identity file in the data directory.
pub(crate) const SERVER: &str = "server.pem";
/// The client's identity file that the first start creates in the data directory.
pub const CLIENT: &str = "client.pem";

/// The server's identity file in the data directory; created with a CA and an operator client if it does not exist.
pub(crate) fn server_file(data: &Path) -> Result<PathBuf, Error> {
    let server = data.join(SERVER);
    if !server.exists() {
        refuse_existing_ca(data, &server)?;
        refuse_existing_client(data, &server)?;
        create(data, &server)?;
    }
    Ok(server)
}

/// A data directory with a CA, but without a server, is not new: a second CA would lock out its clients.
fn refuse_existing_ca(data: &Path, server: &Path) -> Result<(), Error> {
    let places = [data.join(CA_DIRECTORY).join(CA), data.join(CA)];
    match places.iter().find(|place| place.exists()) {
        None => Ok(()),
        Some(ca) => {
            let (ca, server) = (ca.display(), server.display());
            let advice = format!("make it with `lockd auth new server --ca-in {ca} --out {server}`");
            Err(Error::missing(format!(
                "the server's identity file is missing, but its CA is here; {advice}: file={server}"
            )))
        }
    }
}

/// The CA may have been moved away, as the warning of each start advises: its client is still there.
fn refuse_existing_client(data: &Path, server: &Path) -> Result<(), Error> {
    let client = data.join(CLIENT);
    if !client.exists() {
        return Ok(());
    }
    let (client, server) = (client.display(), server.display());
    Err(Error::missing(format!(
        "the server's identity file is missing, but a client's is here; if the CA is elsewhere, make the file with \
         `lockd auth new server --ca-in CA --out {server}`; for a new CA, move the client's file away: file={server} \
         client={client}"
    )))
}

fn create(data: &Path, server: &Path) -> Result<(), Error> {
    let ca_directory = data.join(CA_DIRECTORY);
    store::private::create_dir(&ca_directory)
        .map_err(|error| Error::io("creating the directory of the CA", &ca_directory, &error))?;
    let mut fill = system::random::fill;
    let mut moment =
        IssueContext { now: UnixTime::since_unix_epoch(machine_clocks::since_epoch()), fill: &mut fill };
    let name = |text: &str| text.parse::<Name>();
    let authority =
        Authority::create(&name("lockd CA")?, Algorithm::default(), Days::CA_DEFAULT, &mut moment)?;
    let usual = (Algorithm::default(), Days::DEFAULT);
    let hosts = Host::of_this_machine(&system::host_name());
    let bundle = authority.issue_server(&name("lockd")?, &hosts, usual, &mut moment)?;
    let client =
        authority.issue_client(&name("operator")?, (Role::Operator, &Rights::all()), usual, &mut moment)?;
    let ca = authority.to_bundle(None, &mut moment)?;
    let (ca_path, client_path) = (ca_directory.join(CA), data.join(CLIENT));
    let mut issued = IssuedCertificate::of_server(&bundle);
    issued.push(IssuedCertificate::of_client(&client));
    IssuedRecord::append(&IssuedRecord::path_beside(&ca_path), &issued)?;
    let files: [(&Path, &str); 3] =
        [(&ca_path, &ca.to_pem()), (&client_path, &client.to_pem()), (server, &bundle.to_pem())];
    file::write(&files, Existing::Keep, &mut system::random::fill)?;
    tracing::info!(directory = %data.display(), "created a CA, a server and a client identity");
    Ok(())
}

/// Logs a warning if the server can read its CA's key, with the command that takes it elsewhere.
pub(crate) fn warn_of_ca_key(server: &Path, bundle: &ServerBundle) {
    if bundle.ca_key().is_some_and(|key| !key.is_sealed()) {
        let file = server.display();
        tracing::warn!(%file, "the CA's key is in the server's file and not encrypted: the server could issue any identity");
        return;
    }
    let places = [server.with_file_name(CA_DIRECTORY).join(CA), server.with_file_name(CA)];
    for place in places.iter().filter(|place| is_readable_key(place)) {
        let file = place.display();
        let moved = place.parent().filter(|parent| parent.ends_with(CA_DIRECTORY)).unwrap_or(place).display();
        tracing::warn!(%file, "the server can read the CA's key, which is not encrypted; run: mv {moved} ~/lockd-ca");
    }
}

fn is_readable_key(path: &Path) -> bool {
    file::read(path).is_ok_and(|text| CaBundle::parse(&text).is_ok_and(|ca| !ca.key().is_sealed()))
}
