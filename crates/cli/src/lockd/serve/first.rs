//! The first start: a CA, a server and a client, so that there is something to connect with.

use std::path::{Path, PathBuf};

use identity::file::{self, Existing};
use identity::{Algorithm, Authority, Days, Moment, Name, Rights, Role, UnixTime};

use super::random;
use crate::say;

const CA: &str = "ca.pem";
const SERVER: &str = "server.pem";
/// The client's identity file, made at the first start.
pub(super) const CLIENT: &str = "client.pem";

/// The server's identity file in the data folder; made, with a CA and a client, if it is not there.
pub(super) fn identities(data: &Path) -> Result<PathBuf, String> {
    let server = data.join(SERVER);
    if server.exists() {
        return Ok(server);
    }
    std::fs::create_dir_all(data).map_err(|error| format!("{error}: path={}", data.display()))?;
    let mut fill = random;
    let mut moment = Moment { now: UnixTime::now(), fill: &mut fill };
    let name = |text: &str| text.parse::<Name>();
    let authority = Authority::create(&name("lockd CA")?, Algorithm::default(), Days::OF_CA, &mut moment)?;
    let usual = (Algorithm::default(), Days::USUAL);
    let bundle = authority.issue_server(&name("lockd")?, &[], usual, &mut moment)?;
    let client =
        authority.issue_client(&name("operator")?, (Role::Operator, &Rights::all()), usual, &mut moment)?;
    let ca = authority.to_bundle(None, &mut moment)?;
    let (ca_path, client_path) = (data.join(CA), data.join(CLIENT));
    let files: [(&Path, &str); 3] =
        [(&ca_path, &ca.to_pem()), (&client_path, &client.to_pem()), (&server, &bundle.to_pem())];
    file::write(&files, Existing::Keep, &mut random)?;
    say(&format!("made a CA, a server and a client: folder={}", data.display()));
    say(&format!("the CA's key is not encrypted; keep it elsewhere: file={}", ca_path.display()));
    Ok(server)
}
