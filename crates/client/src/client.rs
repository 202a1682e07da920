//! [`Client`]: one method for each call of the API. [`Builder`]: its configuration.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::requests::{self, OnExpiry, Resource};
use api::{Code, header, path, responses};
use hyper::Method;
use hyper::body::Bytes;
use identity::{ClientTls, IdentityLocation};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{ApiRequest, ApiResponse, RetryPolicy, Servers};
use crate::clock::BootTime;
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::identity_files::{ClientIdentity, IdentitySource};
use crate::lease::{Lease, LossReason};
use crate::progress::{ProgressSink, TransferProgress};
use crate::random;

/// A client of lockd. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) servers: Arc<Servers>,
}

/// Configures a [`Client`].
#[derive(Clone)]
pub struct Builder {
    endpoints: Vec<String>,
    plain: bool,
    identity: Option<IdentitySource>,
    denylist: Option<PathBuf>,
    policy: RetryPolicy,
    progress: ProgressSink,
}

/// Options of an acquire. The server has a default for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcquireOptions {
    /// The namespace; `default` if missing.
    pub namespace: Option<String>,
    /// Time to live without a renewal.
    pub ttl: Option<Duration>,
    /// A display name for the holder; the identity if missing.
    pub owner: Option<String>,
    /// How long to wait in the queue; rounded up to whole seconds.
    pub block: Duration,
    /// When the resources become free after the lease expires.
    pub on_expiry: Option<OnExpiry>,
    /// Identifies one run of the client; used for deadlock detection.
    pub session_id: Option<String>,
    /// Opaque data of the holder, up to 1 KiB.
    pub metadata: Option<String>,
}

/// Conditions of a write to a document, and its effect on the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Reject the write unless this is the lease's fencing token.
    pub fencing_token: Option<u64>,
    /// Reject the write unless the key has this version.
    pub if_version: Option<u64>,
    /// Reject the write unless the document has this hash; `""` requires that there is none.
    pub if_etag: Option<String>,
    /// Release the lease in the same atomic step.
    pub release: bool,
}

/// The document of a key, with its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentState {
    /// The JSON; `None` if there is no document.
    pub document: Option<Bytes>,
    /// The key's version.
    pub version: u64,
    /// The document's hash, `""` if there is none.
    pub etag: String,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Builder { endpoints, plain, identity, denylist, policy, progress: _ } = self;
        let mut shown = f.debug_struct("Builder");
        shown.field("endpoints", endpoints).field("plain", plain);
        shown.field("identity", identity).field("denylist", denylist);
        shown.field("policy", policy).finish_non_exhaustive()
    }
}

impl Builder {
    /// Adds a server: `host[:port]`, a URL, or `unix:/path`. Calls go to the server that responded last.
    #[must_use]
    pub fn endpoint(mut self, text: impl Into<String>) -> Builder {
        self.endpoints.push(text.into());
        self
    }

    /// Addresses without a scheme mean HTTP instead of HTTPS.
    #[must_use]
    pub fn plain(mut self) -> Builder {
        self.plain = true;
        self
    }

    /// The client's identity file, or a directory with `tls.crt`, `tls.key` and `ca.crt`, for HTTPS endpoints. It is read
    /// again when it changes, so that a renewal needs no restart.
    #[must_use]
    pub fn identity_file(self, path: impl Into<PathBuf>) -> Builder {
        self.identity_location(IdentityLocation::Path(path.into()))
    }

    /// The same, for an identity in files of any names.
    #[must_use]
    pub fn identity_location(mut self, location: IdentityLocation) -> Builder {
        self.identity = Some(IdentitySource::Files(location));
        self
    }

    /// File of revoked server certificates, one serial per line, in addition to those in the identity file. It is read
    /// again when it changes. Has no effect on an identity that is no file.
    #[must_use]
    pub fn denylist_file(mut self, path: impl Into<PathBuf>) -> Builder {
        self.denylist = Some(path.into());
        self
    }

    /// The client's identity, for HTTPS endpoints, if it is not in a file. It never changes.
    #[must_use]
    pub fn identity(mut self, identity: ClientTls) -> Builder {
        self.identity = Some(IdentitySource::Fixed(identity));
        self
    }

    /// Timeout for opening a connection. 3 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, span: Duration) -> Builder {
        self.policy.connect_timeout = span;
        self
    }

    /// Timeout for a response, in addition to the time spent in a wait queue. 10 s by default.
    #[must_use]
    pub fn answer_timeout(mut self, span: Duration) -> Builder {
        self.policy.response_timeout = span;
        self
    }

    /// Maximum number of attempts of a call over all servers; each server gets at least one. 4 by default.
    #[must_use]
    pub fn tries(mut self, tries: usize) -> Builder {
        self.policy.attempts_max = tries;
        self
    }

    /// Reports the progress of large documents. Not reported by default.
    #[must_use]
    pub fn progress(mut self, progress: Arc<dyn TransferProgress>) -> Builder {
        self.progress = Some(progress);
        self
    }

    /// Builds the client. No connection is opened before the first call.
    pub fn build(self) -> Result<Client, Error> {
        let endpoints: Vec<Endpoint> =
            self.endpoints.iter().map(|text| Endpoint::parse(text, self.plain)).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(Error::new(Kind::Invalid, "no server is configured; name one, as in localhost:9341"));
        }
        let denylist = self.denylist;
        let identity = self.identity.map(|source| ClientIdentity::load(source, denylist)).transpose()?;
        if let Some(endpoint) = endpoints.iter().find(|endpoint| endpoint.tls && identity.is_none()) {
            let detail = "https needs an identity; name a client's identity file, or use an http:// address";
            return Err(Error::new(Kind::Invalid, format!("{detail}: server={endpoint}")));
        }
        Ok(Client { servers: Arc::new(Servers::new(endpoints, self.policy, identity, self.progress)) })
    }
}

impl Client {
    /// A builder with the defaults.
    pub fn builder() -> Builder {
        let policy = RetryPolicy {
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(10),
            attempts_max: 4,
            // A server remembers idempotency keys for 60 s.
            window: Duration::from_secs(45),
        };
        Builder {
            endpoints: Vec::new(),
            plain: false,
            identity: None,
            denylist: None,
            policy,
            progress: None,
        }
    }

    /// Acquires a lease over a key. It renews itself, and is released when it is dropped.
    pub async fn acquire(&self, key: &str, options: &AcquireOptions) -> Result<Lease, Error> {
        self.acquire_lease(
            requests::Acquire { key: Some(key.to_string()), ..options.to_request()? },
            options.block,
        )
        .await
    }

    /// Acquires one lease over several resources: all of them, or none.
    pub async fn acquire_many(
        &self,
        resources: Vec<Resource>,
        options: &AcquireOptions,
    ) -> Result<Lease, Error> {
        self.acquire_lease(
            requests::Acquire { resources: Some(resources), ..options.to_request()? },
            options.block,
        )
        .await
    }

    /// Acquires a lease over a key and runs `work` while it is held. If the lease is lost, the future of `work` is dropped.
    /// The lease is released when `work` is done, unless `work` released it with a commit.
    pub async fn with_lease<T>(
        &self,
        key: &str,
        options: &AcquireOptions,
        work: impl AsyncFnOnce(&Lease) -> T,
    ) -> Result<T, Error> {
        let lease = self.acquire(key, options).await?;
        let done = tokio::select! {
            biased;
            lost = lease.lost_unreleased() => Err(lost),
            done = work(&lease) => Ok(done),
        };
        match done {
            // If the release fails, the lease expires; the work is done either way.
            Ok(done) => {
                let _ = lease.release().await;
                Ok(done)
            }
            Err(lost) => Err(lost.into()),
        }
    }

    async fn acquire_lease(&self, request: requests::Acquire, block: Duration) -> Result<Lease, Error> {
        let (granted, sent_at) = self.acquire_within(request, block).await?;
        self.start_lease(granted, sent_at).await
    }

    /// A [`Lease`] that renews itself from now on.
    pub(crate) async fn start_lease(
        &self,
        granted: responses::Granted,
        mut sent_at: BootTime,
    ) -> Result<Lease, Error> {
        let mut remaining = Duration::from_millis(granted.remaining_ms);
        // After a long wait in the queue, a deadline counted from `sent_at` would be far too early; and a grant whose first
        // responses were lost may be close to its end. A keepalive confirms the deadline in both cases.
        let ttl = Duration::from_millis(granted.ttl_ms);
        if sent_at.elapsed() > remaining / 3 || remaining < ttl * 2 / 3 {
            let extended = self.extend(&granted.lease_id, None, None).await;
            let (extended, extend_sent_at) = match extended {
                Ok(extended) => extended,
                Err(error) => {
                    let _ = self.release(&granted.lease_id).await;
                    return Err(error);
                }
            };
            (remaining, sent_at) = (Duration::from_millis(extended.remaining_ms), extend_sent_at);
        }
        Ok(Lease::new(self.clone(), granted, sent_at, remaining))
    }

    /// Acquires a lease and returns the server's response: it does not renew itself and is not released on drop.
    pub async fn grant(
        &self,
        request: requests::Acquire,
        block: Duration,
    ) -> Result<responses::Granted, Error> {
        Ok(self.acquire_within(request, block).await?.0)
    }

    /// Repeats the acquire until `block` has passed, since servers cap the time in the wait queue.
    async fn acquire_within(
        &self,
        mut request: requests::Acquire,
        block: Duration,
    ) -> Result<(responses::Granted, BootTime), Error> {
        let end = BootTime::now().after(block);
        loop {
            let seconds = end.remaining().as_millis().div_ceil(1000);
            let wait = Duration::from_secs(seconds.try_into().unwrap_or(u64::MAX));
            request.block_seconds = i64::try_from(wait.as_secs()).ok().filter(|seconds| *seconds > 0);
            match self.servers.call(ApiRequest { wait, ..post(path::ACQUIRE, &request) }).await {
                Ok(response) => return Ok((read(&response)?, response.sent_at)),
                Err(error) if error.code() == Some(Code::Waiting) && !end.remaining().is_zero() => {
                    tokio::time::sleep(random::jitter(Duration::from_millis(100)).min(end.remaining())).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Extends a lease by `ttl`, or by its own TTL.
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
        attempt_timeout: Option<Duration>,
    ) -> Result<(responses::Extended, BootTime), Error> {
        let ttl_ms = ttl.map(millis).transpose()?;
        let request =
            requests::Keepalive { lease_id: lease_id.to_string(), ttl_seconds: None, ttl_ms, key: None };
        let request = ApiRequest { attempt_timeout, ..post(path::KEEPALIVE, &request) };
        let response = self.servers.call(request).await?;
        Ok((read(&response)?, response.sent_at))
    }

    /// Releases a lease. May be repeated.
    pub async fn release(&self, lease_id: &str) -> Result<(), Error> {
        let request = requests::Holder { lease_id: lease_id.to_string(), key: None };
        self.call::<responses::Released>(post(path::RELEASE, &request)).await.map(drop)
    }

    /// Succeeds if any server is ready to grant leases durably.
    pub async fn ready(&self) -> Result<(), Error> {
        self.servers.call(get("/readyz".into())).await.map(drop)
    }

    /// Makes the server read its identity file and denylist again. Only over its Unix socket.
    pub async fn reload(&self) -> Result<responses::Reloaded, Error> {
        self.call(ApiRequest { method: Method::POST, ..get(path::RELOAD.into()) }).await
    }

    /// Succeeds if any server responds, ready or not.
    pub async fn alive(&self) -> Result<(), Error> {
        self.servers.call(get("/healthz".into())).await.map(drop)
    }

    /// The state of a key: its lease and document metadata.
    pub async fn describe(&self, key: &str, namespace: Option<&str>) -> Result<responses::Described, Error> {
        self.call(get(query(path::DESCRIBE, &[("key", Some(key)), ("namespace", namespace)]))).await
    }

    /// A page of leases, of one namespace or all; `cursor` comes from the page before.
    pub async fn leases(
        &self,
        namespace: Option<&str>,
        cursor: Option<&str>,
    ) -> Result<responses::Leases, Error> {
        self.call(get(query(path::LEASES, &[("namespace", namespace), ("cursor", cursor)]))).await
    }

    /// One lease, by its public id.
    pub async fn lease(&self, public_id: &str) -> Result<responses::Lease, Error> {
        self.call(get(lease_path(public_id, ""))).await
    }

    /// The document of a key, under a lease in the same namespace.
    pub async fn get_state(
        &self,
        key: &str,
        namespace: Option<&str>,
        lease_id: &str,
    ) -> Result<DocumentState, Error> {
        let request = get(query(path::GET_STATE, &[("key", Some(key)), ("namespace", namespace)]));
        let headers = vec![(header::LEASE_ID, lease_id.to_string())];
        self.read_state(ApiRequest { headers, ..request }).await
    }

    /// The last committed document of a key, without a lease.
    pub async fn get_public_state(&self, key: &str, namespace: Option<&str>) -> Result<DocumentState, Error> {
        let fields = [("key", Some(key)), ("namespace", namespace), ("public", Some("1"))];
        self.read_state(get(query(path::GET_STATE, &fields))).await
    }

    async fn read_state(&self, request: ApiRequest) -> Result<DocumentState, Error> {
        let response = self.servers.call(request).await?;
        let text = |name: &str| response.headers.get(name).and_then(|value| value.to_str().ok());
        let version = text(header::KEY_VERSION).and_then(|text| text.parse().ok());
        let version = version.ok_or_else(|| malformed_response("no version").with_kind(Kind::Invalid))?;
        let etag = text("etag").unwrap_or_default().trim_matches('"').to_string();
        let document = (response.status != 204).then_some(response.body);
        Ok(DocumentState { document, version, etag })
    }

    /// Commits the document of a key, under a lease in the same namespace.
    pub async fn update_state(
        &self,
        key: &str,
        namespace: Option<&str>,
        lease_id: &str,
        document: impl Into<Bytes>,
        conditions: &Conditions,
    ) -> Result<responses::Committed, Error> {
        let request = write(path::UPDATE_STATE, (key, namespace), lease_id, conditions);
        self.call(ApiRequest { body: document.into(), ..request }).await
    }

    /// Removes the document of a key, under a lease in the same namespace.
    pub async fn remove_state(
        &self,
        key: &str,
        namespace: Option<&str>,
        lease_id: &str,
        conditions: &Conditions,
    ) -> Result<responses::Removed, Error> {
        self.call(write(path::REMOVE_STATE, (key, namespace), lease_id, conditions)).await
    }

    /// Revokes a lease; its resources stay blocked until it is reclaimed. For operators.
    pub async fn revoke(&self, public_id: &str) -> Result<responses::Lease, Error> {
        self.operate(public_id, "/revoke", &["revoking"]).await
    }

    /// Frees the resources of a revoked or expired lease. For operators.
    pub async fn reclaim(&self, public_id: &str) -> Result<responses::Lease, Error> {
        self.operate(public_id, "/reclaim", &["revoked", "expired"]).await
    }

    /// Sends an operator's action. A retry may find the lease already in one of the states `done`: that is a success.
    async fn operate(&self, public_id: &str, what: &str, done: &[&str]) -> Result<responses::Lease, Error> {
        let request = ApiRequest { method: Method::POST, mutates: true, ..get(lease_path(public_id, what)) };
        match self.call(request).await {
            Err(error) if error.ambiguous && error.code() == Some(Code::InvalidState) => {
                let lease = self.lease(public_id).await?;
                if done.contains(&lease.state.as_str()) { Ok(lease) } else { Err(error) }
            }
            result => result,
        }
    }

    pub(crate) async fn call<T: DeserializeOwned>(&self, request: ApiRequest) -> Result<T, Error> {
        read(&self.servers.call(request).await?)
    }
}

impl AcquireOptions {
    fn to_request(&self) -> Result<requests::Acquire, Error> {
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

impl From<LossReason> for Error {
    fn from(lost: LossReason) -> Error {
        let kind = match lost {
            LossReason::Expired | LossReason::Unreachable => Kind::Expired,
            LossReason::Revoked | LossReason::Released => Kind::Fenced,
        };
        Error::new(kind, format!("the lease was lost: {lost}"))
    }
}

fn millis(span: Duration) -> Result<i64, Error> {
    i64::try_from(span.as_millis())
        .map_err(|_| Error::new(Kind::Invalid, "the TTL does not fit into 64 bits of milliseconds"))
}

pub(crate) fn get(path: String) -> ApiRequest {
    let (headers, body) = (Vec::new(), Bytes::new());
    ApiRequest {
        method: Method::GET,
        path,
        headers,
        body,
        mutates: false,
        wait: Duration::ZERO,
        attempt_timeout: None,
    }
}

pub(crate) fn post(path: &str, body: &impl Serialize) -> ApiRequest {
    let body = serde_json::to_vec(body).expect("API types serialize").into();
    let headers = vec![("content-type", "application/json".to_string())];
    ApiRequest { method: Method::POST, headers, body, mutates: true, ..get(path.to_string()) }
}

fn write(
    path: &str,
    (key, namespace): (&str, Option<&str>),
    lease_id: &str,
    conditions: &Conditions,
) -> ApiRequest {
    let release = conditions.release.then_some("1");
    let mut headers =
        vec![("content-type", "application/json".to_string()), (header::LEASE_ID, lease_id.to_string())];
    let mut add = |name, value: Option<String>| headers.extend(value.map(|value| (name, value)));
    add(header::FENCING_TOKEN, conditions.fencing_token.map(|token| token.to_string()));
    add(header::IF_VERSION, conditions.if_version.map(|version| version.to_string()));
    add(header::IF_STATE_ETAG, conditions.if_etag.as_ref().map(|etag| format!("\"{etag}\"")));
    let path = query(path, &[("key", Some(key)), ("namespace", namespace), ("release", release)]);
    ApiRequest { method: Method::POST, headers, mutates: true, ..get(path) }
}

fn lease_path(public_id: &str, what: &str) -> String {
    format!("{}/{}{what}", path::LEASES, encode(public_id))
}

pub(crate) fn query(path: &str, fields: &[(&str, Option<&str>)]) -> String {
    let given = fields.iter().filter_map(|(name, value)| Some(format!("{name}={}", encode((*value)?))));
    let given: Vec<String> = given.collect();
    if given.is_empty() { path.to_string() } else { format!("{path}?{}", given.join("&")) }
}

/// Percent-encodes everything but unreserved characters, so that any name is one path segment or query value.
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

pub(crate) fn read<T: DeserializeOwned>(response: &ApiResponse) -> Result<T, Error> {
    serde_json::from_slice(&response.body).map_err(|error| malformed_response(&error.to_string()))
}

/// The status was a success, so the call may have been applied.
fn malformed_response(what: &str) -> Error {
    let detail = "malformed response; check that the server is a lockd of this version";
    Error::new(Kind::Indeterminate, format!("{detail}: reason={what:?}"))
}
