//! One method for each call of the API, and how to set it up.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use api::requests::{self, OnExpiry, Resource};
use api::{Code, header, path, responses};
use hyper::Method;
use hyper::body::Bytes;
use identity::ClientTls;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_rustls::TlsConnector;

use crate::call::{Ask, Heard, Patience, Servers};
use crate::chance;
use crate::clock::BootTime;
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::lease::{Lease, Lost};
use crate::progress::{Progress, Watcher};

/// Talks to lockd. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) servers: Arc<Servers>,
}

/// What a [`Client`] is set to.
#[derive(Clone)]
pub struct Builder {
    endpoints: Vec<String>,
    plain: bool,
    identity: Option<ClientTls>,
    patience: Patience,
    watcher: Watcher,
}

/// How a lease is asked for. What is left out is the server's to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where; `default` where it is missing.
    pub namespace: Option<String>,
    /// How long it lasts without a renewal.
    pub ttl: Option<Duration>,
    /// For people to read; the identity where it is missing.
    pub owner: Option<String>,
    /// How long to wait for it; in whole seconds, rounded up.
    pub block: Duration,
    /// When the resources may be granted again after the lease has run out.
    pub on_expiry: Option<OnExpiry>,
    /// The run of the program that asks: who waits for whom is told by it.
    pub session_id: Option<String>,
    /// The holder's own, up to 1 KiB.
    pub metadata: Option<String>,
}

/// When a document may be written, and what happens then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Refuse unless this is the lease's fencing token.
    pub fencing_token: Option<u64>,
    /// Refuse unless the key has this version.
    pub if_version: Option<u64>,
    /// Refuse unless the document has this hash; `""`: unless there is none.
    pub if_etag: Option<String>,
    /// Give the lease back with it, in one step.
    pub release: bool,
}

/// The document of a key, as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The JSON; `None` if there is no document.
    pub document: Option<Bytes>,
    /// The key's version.
    pub version: u64,
    /// The document's hash, `""` if there is none.
    pub etag: String,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Builder { endpoints, plain, identity, patience, watcher: _ } = self;
        let mut shown = f.debug_struct("Builder");
        shown.field("endpoints", endpoints).field("plain", plain).field("identity", identity);
        shown.field("patience", patience).finish_non_exhaustive()
    }
}

impl Builder {
    /// One more server; the first that answers is kept to. `host[:port]`, a URL, or `unix:/path`.
    #[must_use]
    pub fn endpoint(mut self, text: impl Into<String>) -> Builder {
        self.endpoints.push(text.into());
        self
    }

    /// Addresses without a scheme mean HTTP, not HTTPS.
    #[must_use]
    pub fn plain(mut self) -> Builder {
        self.plain = true;
        self
    }

    /// Who it is, to servers that are reached over HTTPS.
    #[must_use]
    pub fn identity(mut self, identity: ClientTls) -> Builder {
        self.identity = Some(identity);
        self
    }

    /// How long a connection may take to open. 3 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, span: Duration) -> Builder {
        self.patience.connect = span;
        self
    }

    /// How long an answer may take, beside the time for which a lease is waited for. 10 s by default.
    #[must_use]
    pub fn answer_timeout(mut self, span: Duration) -> Builder {
        self.patience.answer = span;
        self
    }

    /// How often a call is tried, over all servers; each is asked at least once. 4 by default.
    #[must_use]
    pub fn tries(mut self, tries: usize) -> Builder {
        self.patience.tries = tries;
        self
    }

    /// Who is told how far large documents have come. Nobody by default.
    #[must_use]
    pub fn progress(mut self, watcher: Arc<dyn Progress>) -> Builder {
        self.watcher = Some(watcher);
        self
    }

    /// The client. Nothing is connected before the first call.
    pub fn build(self) -> Result<Client, Error> {
        let endpoints: Vec<Endpoint> =
            self.endpoints.iter().map(|text| Endpoint::parse(text, self.plain)).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(Error::new(Kind::Invalid, "no server is named; name one, as in localhost:9341"));
        }
        let tls = self.identity.as_ref().map(connector);
        if let Some(endpoint) = endpoints.iter().find(|endpoint| endpoint.tls && tls.is_none()) {
            let detail = "https takes an identity; name a client's identity file, or use an http:// address";
            return Err(Error::new(Kind::Invalid, format!("{detail}: server={endpoint}")));
        }
        Ok(Client { servers: Arc::new(Servers::new(endpoints, self.patience, tls.as_ref(), self.watcher)) })
    }
}

/// HTTP/1.1 alone: requests are small, and it is quicker for those.
fn connector(identity: &ClientTls) -> TlsConnector {
    let mut config = (*identity.config()).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

impl Client {
    /// A client to be set up.
    pub fn builder() -> Builder {
        let patience = Patience {
            connect: Duration::from_secs(3),
            answer: Duration::from_secs(10),
            tries: 4,
            // A server keeps keys for 60 s.
            window: Duration::from_secs(45),
        };
        Builder { endpoints: Vec::new(), plain: false, identity: None, patience, watcher: None }
    }

    /// Takes a lease over a key. It renews itself, and is given back when it is dropped.
    pub async fn acquire(&self, key: &str, options: &Options) -> Result<Lease, Error> {
        self.hold(requests::Acquire { key: Some(key.to_string()), ..options.to_ask()? }, options.block).await
    }

    /// Takes a lease over several resources: all of them, or none.
    pub async fn acquire_many(&self, resources: Vec<Resource>, options: &Options) -> Result<Lease, Error> {
        self.hold(requests::Acquire { resources: Some(resources), ..options.to_ask()? }, options.block).await
    }

    /// Takes a lease over a key, and works while it is held. The work is dropped where it stands if the lease is
    /// lost; the lease is given back when the work is done, if it did not do that itself with a commit.
    pub async fn with_lease<T>(
        &self,
        key: &str,
        options: &Options,
        work: impl AsyncFnOnce(&Lease) -> T,
    ) -> Result<T, Error> {
        let lease = self.acquire(key, options).await?;
        let done = tokio::select! {
            biased;
            lost = lease.taken() => Err(lost),
            done = work(&lease) => Ok(done),
        };
        match done {
            // What cannot be given back now runs out by itself; the work is done either way.
            Ok(done) => {
                let _ = lease.release().await;
                Ok(done)
            }
            Err(lost) => Err(lost.into()),
        }
    }

    async fn hold(&self, ask: requests::Acquire, block: Duration) -> Result<Lease, Error> {
        let (granted, sent_at) = self.granted(ask, block).await?;
        self.keep(granted, sent_at).await
    }

    /// A lease that renews itself from here on.
    pub(crate) async fn keep(
        &self,
        granted: responses::Granted,
        mut sent_at: BootTime,
    ) -> Result<Lease, Error> {
        let mut remaining = Duration::from_millis(granted.remaining_ms);
        // Whoever waited for long cannot tell when the lease began, and would count it as over; and a grant whose first
        // answers were lost may be almost over. Both ask again.
        let whole = Duration::from_millis(granted.ttl_ms);
        if sent_at.elapsed() > remaining / 3 || remaining < whole * 2 / 3 {
            let extended = self.extend(&granted.lease_id, None, None).await;
            let (extended, again) = match extended {
                Ok(extended) => extended,
                Err(error) => {
                    let _ = self.release(&granted.lease_id).await;
                    return Err(error);
                }
            };
            (remaining, sent_at) = (Duration::from_millis(extended.remaining_ms), again);
        }
        Ok(Lease::new(self.clone(), granted, sent_at, remaining))
    }

    /// Takes a lease as the server grants it: it does not renew itself, and nobody gives it back.
    pub async fn grant(&self, ask: requests::Acquire, block: Duration) -> Result<responses::Granted, Error> {
        Ok(self.granted(ask, block).await?.0)
    }

    /// Servers have a longest wait: whoever wants to wait for longer asks again.
    async fn granted(
        &self,
        mut ask: requests::Acquire,
        block: Duration,
    ) -> Result<(responses::Granted, BootTime), Error> {
        let end = BootTime::now().after(block);
        loop {
            let wait =
                Duration::from_secs(end.left().as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX));
            ask.block_seconds = i64::try_from(wait.as_secs()).ok().filter(|seconds| *seconds > 0);
            let sent = Ask { wait, ..post(path::ACQUIRE, &ask) };
            match self.servers.call(sent).await {
                Ok(heard) => return Ok((read(&heard)?, heard.sent_at)),
                Err(error) if error.code() == Some(Code::Waiting) && !end.left().is_zero() => {
                    tokio::time::sleep(chance::jitter(Duration::from_millis(100)).min(end.left())).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Extends a lease; by its own TTL if none is named.
    pub async fn keepalive(
        &self,
        lease_id: &str,
        ttl: Option<Duration>,
    ) -> Result<responses::Extended, Error> {
        Ok(self.extend(lease_id, ttl, None).await?.0)
    }

    pub(crate) async fn extend(
        &self,
        lease_id: &str,
        ttl: Option<Duration>,
        try_max: Option<Duration>,
    ) -> Result<(responses::Extended, BootTime), Error> {
        let ttl_ms = ttl.map(millis).transpose()?;
        let ask =
            requests::Keepalive { lease_id: lease_id.to_string(), ttl_seconds: None, ttl_ms, key: None };
        let heard = self.servers.call(Ask { try_max, ..post(path::KEEPALIVE, &ask) }).await?;
        Ok((read(&heard)?, heard.sent_at))
    }

    /// Gives a lease back; again and again, if need be.
    pub async fn release(&self, lease_id: &str) -> Result<(), Error> {
        let ask = requests::Holder { lease_id: lease_id.to_string(), key: None };
        self.told::<responses::Released>(post(path::RELEASE, &ask)).await.map(drop)
    }

    /// Can a server grant, durably? The first that can is enough.
    pub async fn ready(&self) -> Result<(), Error> {
        self.servers.call(get("/readyz".into())).await.map(drop)
    }

    /// Is a server alive, whether or not it can grant?
    pub async fn alive(&self) -> Result<(), Error> {
        self.servers.call(get("/healthz".into())).await.map(drop)
    }

    /// What is known of a key.
    pub async fn describe(&self, key: &str, namespace: Option<&str>) -> Result<responses::Described, Error> {
        self.told(get(query(path::DESCRIBE, &[("key", Some(key)), ("namespace", namespace)]))).await
    }

    /// A page of leases, of one namespace or all; `cursor` is the last page's.
    pub async fn leases(
        &self,
        namespace: Option<&str>,
        cursor: Option<&str>,
    ) -> Result<responses::Leases, Error> {
        self.told(get(query(path::LEASES, &[("namespace", namespace), ("cursor", cursor)]))).await
    }

    /// One lease, by its public name.
    pub async fn lease(&self, public_id: &str) -> Result<responses::Lease, Error> {
        self.told(get(lease_path(public_id, ""))).await
    }

    /// The document of a key, under a lease.
    pub async fn get_state(&self, key: &str, lease_id: &str) -> Result<State, Error> {
        let ask = get(query(path::GET_STATE, &[("key", Some(key))]));
        self.read_state(Ask { headers: vec![(header::LEASE_ID, lease_id.to_string())], ..ask }).await
    }

    /// The last committed document of a key, without a lease.
    pub async fn get_public_state(&self, key: &str, namespace: Option<&str>) -> Result<State, Error> {
        let named = [("key", Some(key)), ("namespace", namespace), ("public", Some("1"))];
        self.read_state(get(query(path::GET_STATE, &named))).await
    }

    async fn read_state(&self, ask: Ask) -> Result<State, Error> {
        let heard = self.servers.call(ask).await?;
        let text = |name: &str| heard.headers.get(name).and_then(|value| value.to_str().ok());
        let version = text(header::KEY_VERSION).and_then(|text| text.parse().ok());
        let version = version.ok_or_else(|| strange("no version").with_kind(Kind::Invalid))?;
        let etag = text("etag").unwrap_or_default().trim_matches('"').to_string();
        let document = (heard.status != 204).then_some(heard.body);
        Ok(State { document, version, etag })
    }

    /// Commits the document of a key, under a lease.
    pub async fn update_state(
        &self,
        key: &str,
        lease_id: &str,
        document: impl Into<Bytes>,
        conditions: &Conditions,
    ) -> Result<responses::Committed, Error> {
        let ask = write(path::UPDATE_STATE, key, lease_id, conditions);
        self.told(Ask { body: document.into(), ..ask }).await
    }

    /// Removes the document of a key, under a lease.
    pub async fn remove_state(
        &self,
        key: &str,
        lease_id: &str,
        conditions: &Conditions,
    ) -> Result<responses::Removed, Error> {
        self.told(write(path::REMOVE_STATE, key, lease_id, conditions)).await
    }

    /// Withdraws a lease; its resources stay taken until it is reclaimed. For operators.
    pub async fn revoke(&self, public_id: &str) -> Result<responses::Lease, Error> {
        self.operate(public_id, "/revoke", &["revoking"]).await
    }

    /// Frees what a withdrawn lease covered. For operators.
    pub async fn reclaim(&self, public_id: &str) -> Result<responses::Lease, Error> {
        self.operate(public_id, "/reclaim", &["revoked", "expired"]).await
    }

    /// A second try finds the lease where the first may have taken it: that is no failure.
    async fn operate(&self, public_id: &str, what: &str, done: &[&str]) -> Result<responses::Lease, Error> {
        let ask = Ask { method: Method::POST, mutates: true, ..get(lease_path(public_id, what)) };
        match self.told(ask).await {
            Err(error) if error.ambiguous && error.code() == Some(Code::InvalidState) => {
                let lease = self.lease(public_id).await?;
                if done.contains(&lease.state.as_str()) { Ok(lease) } else { Err(error) }
            }
            told => told,
        }
    }

    pub(crate) async fn told<T: DeserializeOwned>(&self, ask: Ask) -> Result<T, Error> {
        read(&self.servers.call(ask).await?)
    }
}

impl Options {
    fn to_ask(&self) -> Result<requests::Acquire, Error> {
        Ok(requests::Acquire {
            namespace: self.namespace.clone(),
            ttl_ms: self.ttl.map(millis).transpose()?,
            owner: self.owner.clone(),
            on_expiry: self.on_expiry,
            session_id: self.session_id.clone(),
            metadata: self.metadata.clone(),
            ..requests::Acquire::default()
        })
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Error {
        let kind = match lost {
            Lost::Expired | Lost::Unreachable => Kind::Expired,
            Lost::Revoked | Lost::Released => Kind::Fenced,
        };
        Error::new(kind, format!("the lease was lost: {lost}"))
    }
}

fn millis(span: Duration) -> Result<i64, Error> {
    i64::try_from(span.as_millis())
        .map_err(|_| Error::new(Kind::Invalid, "a ttl is longer than can be counted"))
}

pub(crate) fn get(path: String) -> Ask {
    let (headers, body) = (Vec::new(), Bytes::new());
    Ask { method: Method::GET, path, headers, body, mutates: false, wait: Duration::ZERO, try_max: None }
}

pub(crate) fn post(path: &str, body: &impl Serialize) -> Ask {
    let body = serde_json::to_vec(body).expect("it can always be written").into();
    let headers = vec![("content-type", "application/json".to_string())];
    Ask { method: Method::POST, headers, body, mutates: true, ..get(path.to_string()) }
}

fn write(path: &str, key: &str, lease_id: &str, conditions: &Conditions) -> Ask {
    let release = conditions.release.then_some("1");
    let mut headers =
        vec![("content-type", "application/json".to_string()), (header::LEASE_ID, lease_id.to_string())];
    let mut add = |name, value: Option<String>| headers.extend(value.map(|value| (name, value)));
    add(header::FENCING_TOKEN, conditions.fencing_token.map(|token| token.to_string()));
    add(header::IF_VERSION, conditions.if_version.map(|version| version.to_string()));
    add(header::IF_STATE_ETAG, conditions.if_etag.as_ref().map(|etag| format!("\"{etag}\"")));
    let path = query(path, &[("key", Some(key)), ("release", release)]);
    Ask { method: Method::POST, headers, mutates: true, ..get(path) }
}

fn lease_path(public_id: &str, what: &str) -> String {
    format!("{}/{}{what}", path::LEASES, encode(public_id))
}

pub(crate) fn query(path: &str, fields: &[(&str, Option<&str>)]) -> String {
    let given = fields.iter().filter_map(|(name, value)| Some(format!("{name}={}", encode((*value)?))));
    let given: Vec<String> = given.collect();
    if given.is_empty() { path.to_string() } else { format!("{path}?{}", given.join("&")) }
}

/// Whatever a name is made of, it stays one part of the address.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").expect("writing to a string"),
        }
    }
    out
}

pub(crate) fn read<T: DeserializeOwned>(heard: &Heard) -> Result<T, Error> {
    serde_json::from_slice(&heard.body).map_err(|error| strange(&error.to_string()))
}

/// It was accepted, whatever it said: that is all that is known.
fn strange(what: &str) -> Error {
    let detail = "an answer that cannot be read; is it a lockd of this version?";
    Error::new(Kind::Indeterminate, format!("{detail} reason={what:?}"))
}
