//! What agents do: declare what they will touch, say that they live, find out what is true after a restart.

use std::time::Duration;

use api::agents::{
    Agent, AgentState, Agents, Bulk, BulkResult, Contention, Judged, Manifest, Reconcile, Reconciled,
    ResourceState, Results, SetAgent, Verdict,
};
use api::{path, requests, responses};

use crate::call::Ask;
use crate::client::{Client, encode, get, post, query, read};
use crate::clock::BootTime;
use crate::error::Error;
use crate::lease::Lease;

/// What came of a manifest.
#[derive(Debug)]
pub enum Declared {
    /// The lease, and the attempt that it was granted for: to be kept for a restart.
    Granted {
        /// It renews itself.
        lease: Lease,
        /// As old as the first try.
        attempt_id: String,
    },
    /// Not in the time that there was, or not before the caller does what the verdict says.
    Not(Box<Judged>),
}

impl Client {
    /// Declares what an agent will touch, once. What is granted does not renew itself.
    pub async fn manifest(&self, manifest: &Manifest) -> Result<Judged, Error> {
        let wait = Duration::from_millis(manifest.wait_ms.unwrap_or_default());
        self.told(Ask { wait, ..post(path::MANIFEST, manifest) }).await
    }

    /// Declares what an agent will touch until it is granted: waits while it may, and where it has to die, stays away for as
    /// long as it is told and comes again with the same attempt. It gives up when `patience` is over, and at once where only
    /// others can help: the caller, if the session has to give back what it holds, or an operator, if grants are stopped.
    /// Whoever comes later comes with the attempt.
    pub async fn declare(&self, manifest: &Manifest, patience: Duration) -> Result<Declared, Error> {
        let end = BootTime::now().after(patience);
        let mut ask = manifest.clone();
        loop {
            let wait = end.left();
            ask.wait_ms = u64::try_from(wait.as_millis()).ok().filter(|ms| *ms > 0);
            let heard = self.servers.call(Ask { wait, ..post(path::MANIFEST, &ask) }).await?;
            let mut judged: Judged = read(&heard)?;
            if let Some(granted) = judged.lease.take() {
                let lease = self.keep(granted, heard.sent_at).await?;
                return Ok(Declared::Granted { lease, attempt_id: judged.attempt_id });
            }
            let backoff = Duration::from_millis(judged.backoff_ms.unwrap_or_default());
            let must_give_back = judged.verdict == Verdict::Die && !judged.release.is_empty();
            if must_give_back || judged.verdict == Verdict::Paused || end.left() <= backoff {
                return Ok(Declared::Not(Box::new(judged)));
            }
            ask.attempt_id = Some(judged.attempt_id);
            tokio::time::sleep(backoff).await;
        }
    }

    /// Extends several leases, each by its own TTL. Each is answered on its own.
    pub async fn heartbeat(&self, leases: &Bulk) -> Result<Vec<BulkResult>, Error> {
        Ok(self.told::<Results<BulkResult>>(post(path::HEARTBEAT, leases)).await?.results)
    }

    /// Gives several leases back; again and again, if need be.
    pub async fn release_all(&self, leases: &Bulk) -> Result<Vec<BulkResult>, Error> {
        Ok(self.told::<Results<BulkResult>>(post(path::RELEASE_ALL, leases)).await?.results)
    }

    /// What is true of several leases, whatever their holder believes. With `rebind`, what ran out and is still held is
    /// taken back.
    pub async fn reconcile(&self, leases: &Reconcile) -> Result<Vec<Reconciled>, Error> {
        Ok(self.told::<Results<Reconciled>>(post(path::RECONCILE, leases)).await?.results)
    }

    /// A lease that was found valid, or taken back: it renews itself from here on. `None` if it was neither.
    pub async fn resume(&self, found: &Reconciled) -> Result<Option<Lease>, Error> {
        let Some(granted) = found.lease.clone().or_else(|| still_valid(found)) else { return Ok(None) };
        // When this was found out is not known any more: the server is asked what remains.
        let (extended, sent_at) = self.extend(&granted.lease_id, None, None).await?;
        let granted = responses::Granted { remaining_ms: extended.remaining_ms, ..granted };
        Ok(Some(self.keep(granted, sent_at).await?))
    }

    /// Says of an agent that it restarts, is alive, or, as an operator, that its grants are stopped.
    pub async fn set_agent(
        &self,
        agent_id: &str,
        namespace: Option<&str>,
        state: AgentState,
    ) -> Result<Agent, Error> {
        let ask = SetAgent { namespace: namespace.map(ToString::to_string), state };
        self.told(post(&format!("{}/{}/state", path::AGENTS, encode(agent_id)), &ask)).await
    }

    /// A page of a namespace's agents; `cursor` is the last page's.
    pub async fn agents(&self, namespace: Option<&str>, cursor: Option<&str>) -> Result<Agents, Error> {
        self.told(get(query(path::AGENTS, &[("namespace", namespace), ("cursor", cursor)]))).await
    }

    /// Who holds a resource, and how many wait for it.
    pub async fn resource(&self, name: &str, namespace: Option<&str>) -> Result<ResourceState, Error> {
        let path = format!("/v1/resource/{}/state", encode(name));
        self.told(get(query(&path, &[("namespace", namespace)]))).await
    }

    /// Who is in whose way.
    pub async fn contention(&self, namespace: Option<&str>) -> Result<Contention, Error> {
        self.told(get(query(path::CONTENTION, &[("namespace", namespace)]))).await
    }
}

/// The authority that a lease's holder has, as it is seen.
fn still_valid(found: &Reconciled) -> Option<responses::Granted> {
    let view = found.view.as_ref().filter(|_| found.valid)?;
    let resources = view.resources.iter().map(|member| requests::Resource {
        kind: member.kind.clone(),
        name: member.name.clone(),
        predicate: Some(member.predicate.clone()),
    });
    // As the grant was told: one key, or resources.
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
