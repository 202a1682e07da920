//! Calls for agents: declare resources, send heartbeats, reconcile leases after a restart.

use std::time::Duration;

use api::agents::{
    Agent, AgentState, Agents, Bulk, BulkResult, Contention, Manifest, ManifestOutcome, Reconcile,
    ReconciledLease, ResourceState, Results, SetAgent, Verdict,
};
use api::{path, requests, responses};

use crate::call::{ApiRequest, ApiResponse};
use crate::client::Client;
use crate::clock::BootTime;
use crate::error::Error;
use crate::lease::Lease;
use crate::request::{encode, get, post, query, read};
use crate::waiting::{BlockedReply, LeaseReply, LeaseRequest, Wait, WaitStatus};

/// The outcome of [`Client::declare`].
#[derive(Debug)]
pub enum DeclareOutcome {
    /// The manifest was granted; the lease renews itself.
    Granted(Lease),
    /// Not granted before the deadline, or not before the caller does what the verdict says.
    NotGranted(Box<ManifestOutcome>),
}

impl Client {
    /// Sends a manifest once. The lease, if granted, does not renew itself.
    pub async fn manifest(&self, manifest: &Manifest) -> Result<ManifestOutcome, Error> {
        let wait = Duration::from_millis(manifest.wait_ms.unwrap_or_default());
        self.call(ApiRequest { wait, ..post(path::MANIFEST, manifest) }).await
    }

    /// Sends a manifest until it is granted: waits where the verdict allows it, and after `DIE` backs off for `backoff_ms` and
    /// retries with the same attempt. Returns [`DeclareOutcome::NotGranted`] when the time to wait is over, and at once if the session must
    /// release leases first or grants are paused. A later call should pass the returned `attempt_id`: it keeps its age.
    ///
    /// `wait` may be a [`Duration`]; it replaces `wait_ms` of the manifest. The wait survives broken connections and restarts
    /// of the server.
    pub async fn declare(&self, manifest: &Manifest, wait: impl Into<Wait>) -> Result<DeclareOutcome, Error> {
        let (mut judged, sent_at) =
            self.wait_for(manifest, manifest.attempt_id.clone(), &wait.into()).await?;
        match judged.lease.take() {
            Some(granted) => {
                let lease = self.start_lease(granted, sent_at).await?;
                Ok(DeclareOutcome::Granted(lease))
            }
            None => Ok(DeclareOutcome::NotGranted(Box::new(judged))),
        }
    }

    /// Extends several leases, each by its own TTL. Each has its own result.
    pub async fn heartbeat(&self, leases: &Bulk) -> Result<Vec<BulkResult>, Error> {
        Ok(self.call::<Results<BulkResult>>(post(path::HEARTBEAT, leases)).await?.results)
    }

    /// Releases several leases. May be repeated.
    pub async fn release_all(&self, leases: &Bulk) -> Result<Vec<BulkResult>, Error> {
        Ok(self.call::<Results<BulkResult>>(post(path::RELEASE_ALL, leases)).await?.results)
    }

    /// Reads the server's state of several leases. With `rebind`, expired leases that are still on hold are taken over.
    pub async fn reconcile(&self, leases: &Reconcile) -> Result<Vec<ReconciledLease>, Error> {
        Ok(self.call::<Results<ReconciledLease>>(post(path::RECONCILE, leases)).await?.results)
    }

    /// Resumes a lease that [`Client::reconcile`] found valid or rebound: it renews itself from now on. `None` if it is
    /// neither.
    pub async fn resume(&self, found: &ReconciledLease) -> Result<Option<Lease>, Error> {
        let Some(granted) = found.lease.clone().or_else(|| still_valid(found)) else { return Ok(None) };
        // The age of the reconcile response is unknown: a keepalive confirms what remains.
        let (extended, sent_at) = self.extend(&granted.lease_id, None, None).await?;
        let granted = responses::Granted { remaining_ms: extended.remaining_ms, ..granted };
        Ok(Some(self.start_lease(granted, sent_at).await?))
    }

    /// Sets the state of an agent: `ALIVE` or `DIE_RESTART`, or, as an operator, `PAUSED`.
    pub async fn set_agent(
        &self,
        agent_id: &str,
        namespace: Option<&str>,
        state: AgentState,
    ) -> Result<Agent, Error> {
        let request = SetAgent { namespace: namespace.map(ToString::to_string), state };
        self.call(post(&format!("{}/{}/state", path::AGENTS, encode(agent_id)), &request)).await
    }

    /// A page of a namespace's agents; `cursor` comes from the page before.
    pub async fn agents(&self, namespace: Option<&str>, cursor: Option<&str>) -> Result<Agents, Error> {
        self.call(get(query(path::AGENTS, &[("namespace", namespace), ("cursor", cursor)]))).await
    }

    /// The leases over a resource, and the number of waiters.
    pub async fn resource(&self, name: &str, namespace: Option<&str>) -> Result<ResourceState, Error> {
        let path = format!("/v1/resource/{}/state", encode(name));
        self.call(get(query(&path, &[("namespace", namespace)]))).await
    }

    /// Waiters, the leases that block them, and recent contention.
    pub async fn contention(&self, namespace: Option<&str>) -> Result<Contention, Error> {
        self.call(get(query(path::CONTENTION, &[("namespace", namespace)]))).await
    }
}

impl LeaseRequest for Manifest {
    /// The verdict, and when the request was sent that it is the response to.
    type Outcome = (ManifestOutcome, BootTime);

    fn request(&self, queue_time: Duration, attempt_id: Option<&str>) -> ApiRequest {
        let request = Manifest {
            wait_ms: u64::try_from(queue_time.as_millis()).ok().filter(|ms| *ms > 0),
            attempt_id: attempt_id.map(ToString::to_string),
            ..self.clone()
        };
        ApiRequest { wait: queue_time, ..post(path::MANIFEST, &request) }
    }

    fn read(&self, reply: Result<ApiResponse, Error>) -> Result<LeaseReply<Self::Outcome>, Error> {
        let response = reply?;
        let judged: ManifestOutcome = read(&response)?;
        let must_release = judged.verdict == Verdict::Die && !judged.release.is_empty();
        if judged.lease.is_some() || must_release || judged.verdict == Verdict::Paused {
            return Ok(LeaseReply::Done((judged, response.sent_at)));
        }
        let status = WaitStatus {
            holder: judged.holders.first().map(|lease| lease.holder.clone()),
            owner: judged.holders.first().map(|lease| lease.owner.clone()),
            position: judged.position,
            leases: judged.holders.iter().map(|lease| lease.public_id.clone()).collect(),
            ..WaitStatus::default()
        };
        Ok(LeaseReply::Blocked(Box::new(BlockedReply {
            attempt_id: judged.attempt_id.clone(),
            status,
            backoff: Duration::from_millis(judged.backoff_ms.unwrap_or_default()),
            otherwise: Ok((judged, response.sent_at)),
        })))
    }
}

/// The grant of a valid lease, rebuilt from its view.
fn still_valid(found: &ReconciledLease) -> Option<responses::Granted> {
    let view = found.view.as_ref().filter(|_| found.valid)?;
    let resources = view.resources.iter().map(|member| requests::Resource {
        kind: member.kind.clone(),
        name: member.name.clone(),
        predicate: Some(member.predicate.clone()),
    });
    // As in a grant: one key, or resources.
    let key = match view.resources.as_slice() {
        [only] if only.kind == "KEY" => Some(only.name.clone()),
        _ => None,
    };
    Some(responses::Granted {
        lease_id: found.lease_id.clone(),
        public_id: view.public_id.clone(),
        lease_epoch: view.lease_epoch,
        fencing_token: view.fencing_token,
        namespace: view.namespace.clone(),
        resources: key.is_none().then(|| resources.collect()),
        key,
        owner: view.owner.clone(),
        acquired_at_unix: view.acquired_at_unix_ms / 1000,
        expires_at_unix: view.expires_at_unix_ms / 1000,
        expires_at_unix_ms: view.expires_at_unix_ms,
        remaining_ms: view.remaining_ms,
        ttl_ms: view.ttl_ms,
        ..responses::Granted::default()
    })
}
