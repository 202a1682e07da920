//! The open connections: admits them within limits, and ends those whose certificate is no longer valid.
//!
//! **Invariant.** No identity alone, and no client without a certificate, takes the last connection: an identity has at
//! most half of them, some are kept for operators, some for probes, and the Unix socket has its own. A connection whose
//! certificate is revoked is either ended by [`Connections::end_invalid`], or refused when it is registered.
//!
//! **What would break it.** A handshake that verified the certificate before the new denylist was in use, and whose
//! connection is registered after the open ones were ended: it would stay open. So a new connection is registered first,
//! and its certificate checked after that; a reload replaces the denylist first, and ends connections after that.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use identity::{PeerIdentity, Role, UnixTime};
use tokio::sync::Notify;

use crate::backend::metrics::Metrics;
use crate::http::forwarded_clients::ForwardedClients;
use crate::http::identities::Tls;
use crate::http::response_watch::ResponseWatch;
use crate::peer::{ConnectionEnd, Peer, PeerConnection};

/// Connections on the Unix socket.
const UNIX_MAX: usize = 128;
/// Connections beyond the limit that may only probe.
const PROBES_MAX: usize = 16;
/// How many of them one client may have.
const PROBES_PER_OWNER_MAX: usize = 2;
/// The most connections that are kept for operators.
const OPERATORS_RESERVED_MAX: usize = 64;

/// Where the connections of a server come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketKind {
    Tcp,
    Unix,
}

/// The calls that a connection may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionUse {
    /// Every call.
    Everything,
    /// `/healthz` and `/readyz`: the server has no connections left for anything else.
    Probes,
}

/// The limit that a connection exceeds. The names are labels of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionLimit {
    Connections,
    ConnectionsPerIdentity,
    Unix,
    Handshakes,
    HandshakesPerAddress,
}

impl ConnectionLimit {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ConnectionLimit::Connections => "connections",
            ConnectionLimit::ConnectionsPerIdentity => "connections_per_identity",
            ConnectionLimit::Unix => "unix",
            ConnectionLimit::Handshakes => "handshakes",
            ConnectionLimit::HandshakesPerAddress => "handshakes_per_address",
        }
    }
}

/// The part of an address that one client controls: an IPv4 address, or an IPv6 network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AddressPrefix(IpAddr);

impl AddressPrefix {
    pub(crate) fn of(address: IpAddr) -> AddressPrefix {
        match address.to_canonical() {
            IpAddr::V4(address) => AddressPrefix(address.into()),
            IpAddr::V6(address) => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                AddressPrefix(Ipv6Addr::from(network).into())
            }
        }
    }
}

/// The client that connections are counted for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Identity(String),
    /// Without mutual TLS. Clients on the same machine are not limited.
    Address(AddressPrefix),
}

impl Owner {
    fn of(peer: &Peer) -> Option<Owner> {
        match (&peer.certificate, peer.connection.address()) {
            // A server forwards the requests of many clients.
            (Some(_), _) if peer.role == Role::Server => None,
            (Some(_), _) => Some(Owner::Identity(peer.identity.as_str().to_string())),
            (None, Some(address)) if !address.ip().is_loopback() => {
                Some(Owner::Address(AddressPrefix::of(address.ip())))
            }
            (None, _) => None,
        }
    }
}

/// The open connections of a server.
pub(crate) struct Connections {
    max: usize,
    operators_reserved: usize,
    per_owner_max: usize,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// The clients of requests that arrive on connections of other servers.
    pub(crate) forwarded: ForwardedClients,
    closed: Notify,
}

#[derive(Default)]
struct State {
    next_id: u64,
    open: BTreeMap<u64, OpenConnection>,
    /// Connections over TCP for every call.
    tcp: usize,
    unix: usize,
    probing: usize,
    owners: BTreeMap<Owner, OwnerCount>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OwnerCount {
    open: usize,
    probing: usize,
}

struct OpenConnection {
    connection: PeerConnection,
    certificate: Option<Arc<PeerIdentity>>,
    responses: ResponseWatch,
    owner: Option<Owner>,
    kind: SocketKind,
    allowed: ConnectionUse,
}

/// The connections that are kept for operators, of at most `max`.
fn operators_reserved(max: usize) -> usize {
    (max / 10).clamp(1, OPERATORS_RESERVED_MAX).min(max.saturating_sub(1))
}

/// Half of the connections that are not kept for operators: one identity never has more.
pub(crate) fn most_of_one_owner(max: usize) -> usize {
    ((max - operators_reserved(max)) / 2).max(1)
}

impl Connections {
    /// At most `max` connections over TCP, and `per_owner_max` of one identity, but never more than half of them.
    pub(crate) fn new(max: usize, per_owner_max: usize, metrics: &Arc<Metrics>) -> Arc<Connections> {
        Arc::new(Connections {
            max,
            operators_reserved: operators_reserved(max),
            per_owner_max: per_owner_max.min(most_of_one_owner(max)),
            metrics: Arc::clone(metrics),
            state: Mutex::default(),
            forwarded: ForwardedClients::default(),
            closed: Notify::new(),
        })
    }

    /// Registers a connection, or says which limit it exceeds.
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: &Peer,
        kind: SocketKind,
        responses: &ResponseWatch,
    ) -> Result<ConnectionSlot, ConnectionLimit> {
        let owner = Owner::of(peer);
        let mut state = self.lock();
        let count = owner.as_ref().and_then(|owner| state.owners.get(owner)).copied().unwrap_or_default();
        let allowed = self.allowed(&state, peer.role, kind, count)?;
        let id = state.next_id;
        state.next_id += 1;
        let connection = OpenConnection {
            connection: peer.connection.clone(),
            certificate: peer.certificate.clone(),
            responses: responses.clone(),
            owner,
            kind,
            allowed,
        };
        state.count(&connection, 1);
        state.open.insert(id, connection);
        self.metrics.connections().inc();
        Ok(ConnectionSlot { connections: Arc::clone(self), id, allowed })
    }

    fn allowed(
        &self,
        state: &State,
        role: Role,
        kind: SocketKind,
        owner: OwnerCount,
    ) -> Result<ConnectionUse, ConnectionLimit> {
        if kind == SocketKind::Unix {
            let has_capacity = state.unix < UNIX_MAX;
            return has_capacity.then_some(ConnectionUse::Everything).ok_or(ConnectionLimit::Unix);
        }
        if owner.open >= self.per_owner_max {
            return Err(ConnectionLimit::ConnectionsPerIdentity);
        }
        let reserved = if role == Role::Operator { 0 } else { self.operators_reserved };
        if state.tcp < self.max - reserved {
            return Ok(ConnectionUse::Everything);
        }
        let may_probe = state.probing < PROBES_MAX && owner.probing < PROBES_PER_OWNER_MAX;
        may_probe.then_some(ConnectionUse::Probes).ok_or(ConnectionLimit::Connections)
    }

    /// Ends the connections whose certificate is revoked or has expired, whose CA is no longer trusted, or whose identity
    /// has changed. Returns their number. Clients of forwarded requests are ended as well, and not counted.
    ///
    /// The lock is not held meanwhile: after a change of the CAs every chain is verified again.
    pub(crate) fn end_invalid(&self, tls: &Tls, now: UnixTime) -> usize {
        let certified = |open: &OpenConnection| {
            let certificate = open.certificate.as_ref()?;
            Some((open.connection.clone(), Arc::clone(certificate)))
        };
        let open: Vec<_> = self.lock().open.values().filter_map(certified).collect();
        let is_ended = |(connection, certificate): &(PeerConnection, Arc<PeerIdentity>)| {
            let checked = tls.check(certificate, connection, now);
            checked.is_err_and(|why| self.end(connection, ConnectionEnd::from(why)))
        };
        let ended = open.iter().filter(|open| is_ended(open)).count();
        // After the connections of servers: with one of them, all its clients are ended.
        self.forwarded.end_invalid(&tls.denylist);
        ended
    }

    /// Ends the connections whose client has not taken a response for this time.
    pub(crate) fn end_stalled(&self, timeout: Duration, bytes_per_second_min: u64) {
        for open in self.lock().open.values() {
            if open.responses.is_stalled(timeout, bytes_per_second_min) {
                self.end(&open.connection, ConnectionEnd::Stalled);
            }
        }
    }

    /// Returns whether it had not been ended before.
    fn end(&self, connection: &PeerConnection, why: ConnectionEnd) -> bool {
        let is_ended = connection.end(why);
        if is_ended {
            self.metrics.connection_ended(why.as_str());
        }
        is_ended
    }

    /// Waits until every connection is closed.
    pub(crate) async fn closed(&self) {
        loop {
            let notified = self.closed.notified();
            if self.lock().open.is_empty() {
                return;
            }
            notified.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&mut self, connection: &OpenConnection, by: isize) {
        let add =
            |count: &mut usize| *count = count.checked_add_signed(by).expect("counted when it was opened");
        let owner = connection.owner.as_ref().map(|owner| self.owners.entry(owner.clone()).or_default());
        match (connection.kind, connection.allowed) {
            (SocketKind::Unix, _) => add(&mut self.unix),
            (SocketKind::Tcp, ConnectionUse::Everything) => {
                add(&mut self.tcp);
                if let Some(owner) = owner {
                    add(&mut owner.open);
                }
            }
            (SocketKind::Tcp, ConnectionUse::Probes) => {
                add(&mut self.probing);
                if let Some(owner) = owner {
                    add(&mut owner.probing);
                }
            }
        }
        if let Some(owner) = connection.owner.as_ref()
            && self.owners.get(owner) == Some(&OwnerCount::default())
        {
            self.owners.remove(owner);
        }
    }
}

/// The place of an open connection. Dropping it closes the place.
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    id: u64,
    /// The calls that the connection may be used for.
    pub(crate) allowed: ConnectionUse,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.connections.lock();
        if let Some(connection) = state.open.remove(&self.id) {
            state.count(&connection, -1);
        }
        drop(state);
        self.connections.metrics.connections().dec();
        self.connections.closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use kernel::Identity;

    use super::*;

    fn peer(name: &str, role: Role, address: &str) -> Peer {
        let address: SocketAddr = address.parse().expect("an address");
        let peer = Peer { identity: Identity::new(name).expect("a name"), ..Peer::anonymous(role) };
        peer.on_connection(Some(address))
    }

    fn admit(connections: &Arc<Connections>, peer: &Peer) -> Result<ConnectionSlot, ConnectionLimit> {
        connections.admit(peer, SocketKind::Tcp, &ResponseWatch::default())
    }

    #[test]
    fn one_client_gets_half_operators_keep_a_reserve_and_probes_come_last() {
        let connections = Connections::new(20, 1000, &Arc::new(Metrics::new()));
        let worker = |n: u8| peer("worker", Role::Worker, &format!("192.0.2.{n}:1"));
        let one: Vec<_> =
            (0..9).map(|_| admit(&connections, &worker(1)).expect("within the limit")).collect();
        assert_eq!(admit(&connections, &worker(1)).err(), Some(ConnectionLimit::ConnectionsPerIdentity));
        let others: Vec<_> = (2..11).map(|n| admit(&connections, &worker(n)).expect("of another")).collect();
        assert!(others.iter().all(|slot| slot.allowed == ConnectionUse::Everything));
        let probing: Vec<_> = (0..2).map(|_| admit(&connections, &worker(2)).expect("a probe")).collect();
        assert!(probing.iter().all(|slot| slot.allowed == ConnectionUse::Probes));
        assert_eq!(admit(&connections, &worker(2)).err(), Some(ConnectionLimit::Connections));
        let operator = admit(&connections, &peer("op", Role::Operator, "192.0.2.99:1")).expect("a reserve");
        assert_eq!(operator.allowed, ConnectionUse::Everything);
        drop((one, others, probing, operator));
        assert!(connections.lock().owners.is_empty() && connections.lock().open.is_empty());
    }

    #[test]
    fn the_unix_socket_has_its_own_connections() {
        let connections = Connections::new(1, 1, &Arc::new(Metrics::new()));
        let anonymous = Peer::anonymous(Role::Operator).on_connection(None);
        let unix = || connections.admit(&anonymous, SocketKind::Unix, &ResponseWatch::default());
        let _tcp = admit(&connections, &peer("worker", Role::Worker, "192.0.2.1:1")).expect("the only one");
        let _unix: Vec<_> = (0..UNIX_MAX).map(|_| unix().expect("its own")).collect();
        assert_eq!(unix().err(), Some(ConnectionLimit::Unix));
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        let prefix = |text: &str| AddressPrefix::of(text.parse().expect("an address"));
        assert_eq!(prefix("2001:db8:0:1::1"), prefix("2001:db8:0:1:ffff::2"));
        assert_ne!(prefix("2001:db8:0:1::1"), prefix("2001:db8:0:2::1"));
        assert_eq!(prefix("::ffff:192.0.2.1"), prefix("192.0.2.1"));
        assert_ne!(prefix("192.0.2.1"), prefix("192.0.2.2"));
    }
}
