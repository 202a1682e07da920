//! [`Client`]: acquires leases, and has the calls of a lease's holder. The other calls of the API are methods of [`Client`] too,
//! in a module for each group.

use std::sync::Arc;
use std::time::Duration;

use api::requests::{self, OnExpiry, Resource};
use api::{Code, Refusal, path, responses};
use serde::de::DeserializeOwned;

use crate::call::{ApiRequest, ApiResponse, Servers};
use crate::clock::BootTime;
use crate::error::{Error, Kind};
use crate::lease::{Lease, LossReason};
use crate::request::{lease_path, post, read};
use crate::waiting::{BlockedReply, LeaseReply, LeaseRequest, Wait, WaitObserver, WaitStatus};

/// A client of lockd. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) servers: Arc<Servers>,
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
    /// How long to wait in the queue. The wait survives broken connections and restarts of the server.
    pub block: Duration,
    /// Called when the caller begins to wait, and when what it waits for changes.
    pub on_wait: Option<WaitObserver>,
    /// When the resources become free after the lease expires.
    pub on_expiry: Option<OnExpiry>,
    /// Identifies one run of the client; used for deadlock detection.
    pub session_id: Option<String>,
    /// Opaque data of the holder, up to 1 KiB.
    pub metadata: Option<String>,
}

impl Client {
    /// Acquires a lease over a key. It renews itself, and is released when it is dropped.
    pub async fn acquire(&self, key: &str, options: &AcquireOptions) -> Result<Lease, Error> {
        let request = requests::Acquire { key: Some(key.to_string()), ..options.to_request()? };
        self.acquire_lease(request, options.wait()).await
    }

    /// Acquires one lease over several resources: all of them, or none.
    pub async fn acquire_many(
        &self,
        resources: Vec<Resource>,
        options: &AcquireOptions,
    ) -> Result<Lease, Error> {
        let request = requests::Acquire { resources: Some(resources), ..options.to_request()? };
        self.acquire_lease(request, options.wait()).await
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

    async fn acquire_lease(&self, request: requests::Acquire, wait: Wait) -> Result<Lease, Error> {
        let (granted, sent_at) = self.acquire_within(request, &wait).await?;
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

    /// Acquires a lease and returns the server's response: it does not renew itself and is not released on drop. `wait` may
    /// be a [`Duration`]; it replaces `block_seconds` of the request.
    pub async fn grant(
        &self,
        request: requests::Acquire,
        wait: impl Into<Wait>,
    ) -> Result<responses::Granted, Error> {
        Ok(self.acquire_within(request, &wait.into()).await?.0)
    }

    async fn acquire_within(
        &self,
        mut request: requests::Acquire,
        wait: &Wait,
    ) -> Result<(responses::Granted, BootTime), Error> {
        let attempt_id = request.attempt_id.take();
        self.wait_for(&request, attempt_id, wait).await
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

    /// Makes a reserved lease active. Its deadline is unchanged.
    pub async fn activate(&self, lease_id: &str) -> Result<responses::Extended, Error> {
        self.call(post(path::ACTIVATE, &holder(lease_id))).await
    }

    /// Records use of a lease, for a quota on idle leases. Commits count as use, renewals do not.
    pub async fn touch(&self, lease_id: &str) -> Result<responses::Extended, Error> {
        self.call(post(&lease_path(public_id(lease_id), "/touch"), &holder(lease_id))).await
    }

    /// Takes back an expired lease that is on hold, with a new credential and a new fencing token. It does not renew itself.
    pub async fn rebind(&self, lease_id: &str) -> Result<responses::Granted, Error> {
        self.call(post(&lease_path(public_id(lease_id), "/rebind"), &holder(lease_id))).await
    }

    /// Releases a lease. May be repeated.
    pub async fn release(&self, lease_id: &str) -> Result<(), Error> {
        self.call::<responses::Released>(post(path::RELEASE, &holder(lease_id))).await.map(drop)
    }

    pub(crate) async fn call<T: DeserializeOwned>(&self, request: ApiRequest) -> Result<T, Error> {
        read(&self.servers.call(request).await?)
    }
}

impl LeaseRequest for requests::Acquire {
    /// The grant, and when the request was sent that it is the response to.
    type Outcome = (responses::Granted, BootTime);

    fn request(&self, queue_time: Duration, attempt_id: Option<&str>) -> ApiRequest {
        let seconds = queue_time.as_millis().div_ceil(1000);
        let request = requests::Acquire {
            block_seconds: i64::try_from(seconds).ok().filter(|seconds| *seconds > 0),
            attempt_id: attempt_id.map(ToString::to_string),
            ..self.clone()
        };
        let wait = Duration::from_secs(seconds.try_into().unwrap_or(u64::MAX));
        ApiRequest { wait, ..post(path::ACQUIRE, &request) }
    }

    fn read(&self, reply: Result<ApiResponse, Error>) -> Result<LeaseReply<Self::Outcome>, Error> {
        match reply {
            Ok(response) => Ok(LeaseReply::Done((read(&response)?, response.sent_at))),
            Err(error) => match error.refusal() {
                Some(Refusal { error: Code::Waiting, hints, .. }) => {
                    Ok(LeaseReply::Blocked(Box::new(BlockedReply {
                        attempt_id: hints.attempt_id.clone(),
                        status: WaitStatus::of_hints(hints),
                        backoff: Duration::ZERO,
                        otherwise: Err(error),
                    })))
                }
                _ => Err(error),
            },
        }
    }
}

impl AcquireOptions {
    fn wait(&self) -> Wait {
        Wait { block: self.block, on_wait: self.on_wait.clone() }
    }

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

fn holder(lease_id: &str) -> requests::Holder {
    requests::Holder { lease_id: lease_id.to_string(), key: None }
}

/// The public id: the part of a credential before the first dot.
fn public_id(lease_id: &str) -> &str {
    lease_id.split_once('.').map_or(lease_id, |(public_id, _)| public_id)
}

fn millis(span: Duration) -> Result<i64, Error> {
    i64::try_from(span.as_millis())
        .map_err(|_| Error::new(Kind::Invalid, "the TTL does not fit into 64 bits of milliseconds"))
}
