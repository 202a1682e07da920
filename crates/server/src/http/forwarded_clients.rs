//! The clients of requests that other servers forward: they lose their authorization with their certificate, as connected
//! clients do.
//!
//! **Invariant.** A client whose certificate is revoked is either ended by [`ForwardedClients::end_invalid`], or refused
//! after it was registered. So are the clients of a server whose own connection has ended.
//!
//! **What would break it.** The check of a serial when the request arrives alone: a client that waits for a lease and is
//! revoked meanwhile is granted it when its holder releases.

use std::sync::{Mutex, MutexGuard, PoisonError};

use identity::SharedDenylist;

use crate::http::forwarded_peer::is_revoked;
use crate::peer::{ConnectionEnd, PeerConnection, WeakPeerConnection};

/// Requests that have ended are removed when there are twice as many entries as were left the last time, and this many more.
const PRUNE_MIN: usize = 64;

/// The clients of forwarded requests in progress.
#[derive(Default)]
pub(crate) struct ForwardedClients(Mutex<Registry>);

#[derive(Default)]
struct Registry {
    clients: Vec<ForwardedClient>,
    /// The number of entries at which those of ended requests are removed.
    prune_at: usize,
}

struct ForwardedClient {
    /// Gone with the request.
    connection: WeakPeerConnection,
    /// The connection of the server that forwards.
    by: PeerConnection,
}

impl ForwardedClients {
    /// Registers the client of a request that arrived on the connection `by`. Its certificate is to be checked after this.
    pub(crate) fn register(&self, client: &PeerConnection, by: &PeerConnection) {
        let mut registry = self.lock();
        if registry.clients.len() >= registry.prune_at {
            registry.clients.retain(|client| client.connection.upgrade().is_some());
            registry.prune_at = 2 * registry.clients.len() + PRUNE_MIN;
        }
        registry.clients.push(ForwardedClient { connection: client.downgrade(), by: by.clone() });
    }

    /// Ends the clients whose certificate is revoked, and those of servers whose connection has ended.
    pub(crate) fn end_invalid(&self, denylist: &SharedDenylist) {
        let in_progress =
            |client: &ForwardedClient| Some((client.connection.upgrade()?, client.by.end_reason()));
        let clients: Vec<_> = self.lock().clients.iter().filter_map(in_progress).collect();
        for (client, server_end) in clients {
            let is_revoked = is_revoked(denylist, client.serial().map(|serial| &**serial));
            if let Some(why) = is_revoked.then_some(ConnectionEnd::Revoked).or(server_end) {
                client.end(why);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use identity::{Denylist, Rights, Role};
    use kernel::Identity;

    use super::*;
    use crate::peer::Peer;

    fn forwarded(by: &Peer, serial: &str) -> PeerConnection {
        let identity = Identity::new("ada").expect("a name");
        by.forwarding(identity, Role::Worker, Rights::all(), Some(serial), None).connection
    }

    #[test]
    fn revoked_clients_and_those_of_an_ended_server_are_ended() {
        let clients = ForwardedClients::default();
        let [server, other] = [0, 1].map(|_| Peer::anonymous(Role::Server).on_connection(None));
        let [revoked, good] = ["0a", "0b"].map(|serial| forwarded(&server, serial));
        let of_other = forwarded(&other, "0c");
        for (client, by) in [(&revoked, &server), (&good, &server), (&of_other, &other)] {
            clients.register(client, &by.connection);
        }
        let denylist = SharedDenylist::new(Denylist::parse("0a\n").expect("serials"));
        other.connection.end(ConnectionEnd::Revoked);
        clients.end_invalid(&denylist);
        assert!(revoked.authorization().is_withdrawn() && of_other.authorization().is_withdrawn());
        assert_eq!(good.end_reason(), None);
    }

    #[test]
    fn requests_that_have_ended_are_removed() {
        let (clients, server) = (ForwardedClients::default(), Peer::anonymous(Role::Server));
        let kept = forwarded(&server, "0a");
        clients.register(&kept, &server.connection);
        for _ in 0..1000 {
            clients.register(&forwarded(&server, "0b"), &server.connection);
            assert!(clients.lock().clients.len() <= PRUNE_MIN + 2);
        }
        clients.end_invalid(&SharedDenylist::new(Denylist::parse("0a\n").expect("serials")));
        assert!(kept.authorization().is_withdrawn(), "the one in progress is still there");
    }
}
