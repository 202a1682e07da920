//! The clients of a probe, one for each address, and the names that it uses.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use object_store::PutMode;
use store::object::{Objects as _, ObjectsError, ObjectsErrorKind};

use super::{CheckName, Latency, Outcome, ProbeDepth, Progress};
use crate::bucket::{Bucket, Inner};
use crate::options::{BucketOptions, PinnedAddress};
use crate::url::BucketUrl;

/// Attempts of a read whose result decides about a race.
const READ_ATTEMPTS: u32 = 3;

/// What a check has found.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) outcome: Outcome,
    pub(super) what: String,
    /// Further checks would only show the same.
    pub(super) is_last: bool,
}

impl Finding {
    fn new(outcome: Outcome, what: impl Into<String>) -> Finding {
        Finding { outcome, what: what.into(), is_last: false }
    }

    pub(super) fn passed(what: impl Into<String>) -> Finding {
        Finding::new(Outcome::Passed, what)
    }

    pub(super) fn warning(what: impl Into<String>) -> Finding {
        Finding::new(Outcome::Warning, what)
    }

    pub(super) fn failed(what: impl Into<String>) -> Finding {
        Finding::new(Outcome::Failed, what)
    }

    pub(super) fn skipped(what: impl Into<String>) -> Finding {
        Finding::new(Outcome::Skipped, what)
    }

    pub(super) fn last(self) -> Finding {
        Finding { is_last: true, ..self }
    }
}

/// One run of a probe.
pub(super) struct Session {
    pub(super) depth: ProbeDepth,
    /// One for each address; at least one.
    clients: Vec<Bucket>,
    /// Finds the endpoint, and runs all requests.
    first: Bucket,
    endpoint: String,
    addresses: Vec<IpAddr>,
    addresses_untested: usize,
    prefix: String,
    names: Mutex<Vec<String>>,
    latencies: Mutex<Vec<Latency>>,
    events: Sender<Progress>,
}

impl Session {
    /// Sends one request, to find out what the library makes of the options, and resolves the name of the endpoint.
    pub(super) fn open(
        url: &BucketUrl,
        options: &BucketOptions,
        addresses: &[IpAddr],
        depth: ProbeDepth,
        events: Sender<Progress>,
    ) -> Result<Session, String> {
        let first = Bucket::new(url, options)?;
        let prefix = format!("probe/{}/", system::hex::encode(&system::random::bytes::<8>()));
        // Its outcome is that of the first check.
        let _ = first.head(&format!("{prefix}first"));
        let origin = first.inner().http.origin().cloned().unwrap_or_default();
        let mut addresses = endpoint_addresses(&origin, addresses);
        let addresses_untested = addresses.len().saturating_sub(depth.addresses_max());
        addresses.truncate(depth.addresses_max());
        let host = origin.host().unwrap_or_default();
        let pinned = addresses.iter().map(|address| {
            let address = Some(PinnedAddress { host: host.to_string(), address: *address });
            Bucket::new(url, &BucketOptions { address, ..options.clone() })
        });
        let mut clients = pinned.collect::<Result<Vec<_>, _>>()?;
        if clients.is_empty() {
            clients.push(first.clone());
        }
        let endpoint = match (origin.scheme_str(), origin.authority()) {
            (Some(scheme), Some(authority)) => format!("{scheme}://{authority}"),
            _ => options.endpoint.clone().unwrap_or_default(),
        };
        let (names, latencies) = (Mutex::default(), Mutex::default());
        Ok(Session {
            depth,
            clients,
            first,
            endpoint,
            addresses,
            addresses_untested,
            prefix,
            names,
            latencies,
            events,
        })
    }

    pub(super) fn url(&self) -> &BucketUrl {
        self.first.url()
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    pub(super) fn addresses_untested(&self) -> usize {
        self.addresses_untested
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The client whose threads send all requests.
    pub(super) fn runner(&self) -> Arc<Inner> {
        Arc::clone(self.first.inner())
    }

    /// The number of clients, each with an address of its own.
    pub(super) fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// The client with this number; they repeat.
    pub(super) fn client(&self, number: usize) -> &Inner {
        self.clients[number % self.clients.len()].inner()
    }

    /// The address of a client, for people.
    pub(super) fn address(&self, number: usize) -> String {
        let address = self.addresses.get(number % self.clients.len());
        address.map_or_else(|| self.endpoint.clone(), IpAddr::to_string)
    }

    /// A name of the probe, which is removed at the end.
    pub(super) fn name(&self, name: &str) -> String {
        let name = format!("{}{name}", self.prefix);
        lock(&self.names).push(name.clone());
        name
    }

    /// Creates an object on the condition that there is none.
    pub(super) async fn create(&self, client: usize, name: &str, bytes: &str) -> Result<(), ObjectsError> {
        self.client(client).put(name, Bytes::copy_from_slice(bytes.as_bytes()), PutMode::Create).await
    }

    /// Whether the object is there.
    pub(super) async fn exists(&self, client: usize, name: &str) -> Result<bool, ObjectsError> {
        match self.client(client).head(name).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ObjectsErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The bytes of an object; `None` if there is none. Retries.
    pub(super) async fn read(&self, client: usize, name: &str) -> Result<Option<Vec<u8>>, ObjectsError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.client(client).get(name, None).await {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) if error.kind == ObjectsErrorKind::NotFound => return Ok(None),
                Err(error) if error.is_transient() && attempt < READ_ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn add_latency(&self, latency: Latency) {
        lock(&self.latencies).push(latency);
    }

    pub(super) fn latencies(&self) -> Vec<Latency> {
        lock(&self.latencies).clone()
    }

    /// All requests so far.
    pub(super) fn requests(&self) -> u64 {
        let clients: u64 = self.clients.iter().map(|client| client.counts().total()).sum();
        // Without addresses the first client is one of them.
        if self.addresses.is_empty() { clients } else { clients + self.first.counts().total() }
    }

    pub(super) fn progress(&self, check: CheckName) {
        let (rounds, creators) = self.depth.race();
        let pairs = self.clients.len().pow(2) * 4;
        let others = if self.depth == ProbeDepth::Full { 400 } else { 60 };
        let requests_expected = u64::from(rounds) * (creators as u64 + 1) + pairs as u64 + others;
        let _ = self.events.send(Progress { check, requests: self.requests(), requests_expected });
    }

    /// Removes what the checks have written.
    pub(super) async fn remove_all(&self) -> Result<(), String> {
        let names = std::mem::take(&mut *lock(&self.names));
        self.client(0).delete_all(names).await.map_err(|error| error.to_string())
    }
}

/// Those that were given, or those that the endpoint's name resolves to; just one if the endpoint is an address.
fn endpoint_addresses(origin: &http::Uri, given: &[IpAddr]) -> Vec<IpAddr> {
    let host = origin.host().unwrap_or_default().trim_matches(['[', ']']);
    if let Ok(address) = host.parse() {
        return vec![address];
    }
    let mut seen = BTreeSet::new();
    let mut addresses = match given {
        [] => (host, 0)
            .to_socket_addrs()
            .map(|found| found.map(|found| found.ip()).collect())
            .unwrap_or_default(),
        given => given.to_vec(),
    };
    addresses.retain(|address| seen.insert(*address));
    addresses
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_given_or_found_and_an_address_stands_for_itself() {
        let uri = |text: &str| text.parse::<http::Uri>().expect("a URI");
        let given: Vec<IpAddr> =
            ["10.0.0.1", "10.0.0.2", "10.0.0.1"].map(|text| text.parse().expect("an address")).to_vec();
        assert_eq!(endpoint_addresses(&uri("https://store.example/b"), &given), given[..2]);
        for literal in ["http://127.0.0.1:9000/b", "http://[::1]:9000/b"] {
            let found = endpoint_addresses(&uri(literal), &given);
            assert!(found.len() == 1 && found[0].is_loopback(), "{found:?}");
        }
        assert!(endpoint_addresses(&uri("http://localhost:9000/b"), &[]).iter().all(IpAddr::is_loopback));
        assert_eq!(endpoint_addresses(&http::Uri::default(), &[]), Vec::<IpAddr>::new());
    }
}
