//! The client of a forwarded request, as one server describes it to another.
//!
//! The receiving server trusts it only on connections whose certificate has the role `server`. Without mutual TLS there are
//! no identities: it then says only that the request was forwarded.

use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use identity::{NamespaceRights, Rights, Role, Serial, SharedDenylist};
use kernel::Identity;
use serde::{Deserialize, Serialize};

use crate::peer::Peer;

/// The client of a forwarded request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForwardedPeer {
    identity: String,
    role: String,
    /// As `NAME:rw`, one for each namespace.
    rights: Vec<String>,
    /// The serial number of its certificate, in hexadecimal.
    pub(crate) serial: Option<String>,
    /// Where it is connected from.
    address: Option<SocketAddr>,
    /// The server that forwards, in hexadecimal.
    by: String,
}

impl ForwardedPeer {
    pub(crate) fn of(peer: &Peer, by: u128) -> ForwardedPeer {
        ForwardedPeer {
            identity: peer.identity.as_str().to_string(),
            role: peer.role.as_str().to_string(),
            rights: peer.rights.iter().map(|rights| rights.to_string()).collect(),
            serial: peer.connection.serial().map(ToString::to_string),
            address: peer.connection.address(),
            by: format!("{by:032x}"),
        }
    }

    /// The text of the header: Base64, since names may have characters that headers do not.
    pub(crate) fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("it serializes"))
    }

    pub(crate) fn decode(text: &[u8]) -> Option<ForwardedPeer> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }

    /// The client on the connection of the server that forwards; `None` if it is malformed, or itself a server.
    pub(crate) fn peer(&self, by: &Peer) -> Option<Peer> {
        let role: Role = self.role.parse().ok().filter(|role| *role != Role::Server)?;
        let rights: Result<Vec<NamespaceRights>, _> = self.rights.iter().map(|text| text.parse()).collect();
        let rights = Rights::new(rights.ok()?).ok()?;
        let identity = Identity::new(self.identity.as_str()).ok()?;
        Some(by.forwarding(identity, role, rights, self.serial.as_deref(), self.address))
    }
}

/// Whether the certificate of a forwarded client was revoked.
pub(crate) fn is_revoked(denylist: &SharedDenylist, serial: Option<&str>) -> bool {
    serial.and_then(|serial| serial.parse::<Serial>().ok()).is_some_and(|serial| denylist.contains(serial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_arrives_with_its_identity_rights_and_serial() {
        let server = Peer::anonymous(Role::Server);
        let rights = Rights::new(["jobs:rw".parse().unwrap(), "a:b:r".parse().unwrap()]).unwrap();
        let address = "192.0.2.1:7".parse().ok();
        let name = Identity::new("wörker").unwrap();
        let client = server.forwarding(name, Role::Worker, rights, Some("0a1b"), address);
        let sent = ForwardedPeer::of(&client, 7).encode();
        let received = ForwardedPeer::decode(sent.as_bytes()).expect("it was just encoded");
        let peer = received.peer(&server).expect("a worker");
        assert_eq!((peer.identity.as_str(), peer.role), ("wörker", Role::Worker));
        assert_eq!(peer.rights, client.rights);
        assert_eq!(peer.connection.serial().map(|serial| &**serial), Some("0a1b"));
        assert_eq!(peer.connection.address(), address);
    }

    #[test]
    fn a_malformed_client_and_a_server_are_refused() {
        let server = Peer::anonymous(Role::Server);
        for text in ["", "%%", "e30", "bnVsbA"] {
            assert_eq!(ForwardedPeer::decode(text.as_bytes()), None, "{text}");
        }
        let other = ForwardedPeer::of(&server, 7);
        assert!(other.peer(&server).is_none());
    }
}
