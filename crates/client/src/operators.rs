//! Calls for operators.

use api::{Code, path, requests, responses};
use hyper::Method;

use crate::call::ApiRequest;
use crate::client::Client;
use crate::error::Error;
use crate::request::{encode, get, lease_path, post, query};

impl Client {
    /// Revokes a lease; its resources stay blocked until it is reclaimed.
    pub async fn revoke(&self, public_id: &str) -> Result<responses::Lease, Error> {
        self.operate(public_id, "/revoke", &["revoking"]).await
    }

    /// Frees the resources of a revoked or expired lease.
    pub async fn reclaim(&self, public_id: &str) -> Result<responses::Lease, Error> {
        self.operate(public_id, "/reclaim", &["revoked", "expired"]).await
    }

    /// Revokes all leases of an identity or an agent, in one namespace.
    pub async fn revoke_all(&self, party: &requests::Party) -> Result<responses::RevokedAll, Error> {
        self.call(post(path::REVOKE, party)).await
    }

    /// Pauses or resumes the grants of an identity or an agent.
    pub async fn pause(&self, pause: &requests::Pause) -> Result<(), Error> {
        self.call::<responses::Done>(post(path::PAUSE, pause)).await.map(drop)
    }

    /// A page of the quotas of all scopes; `cursor` comes from the page before.
    pub async fn quotas(&self, cursor: Option<&str>) -> Result<responses::Quotas, Error> {
        self.call(get(query(path::QUOTAS, &[("cursor", cursor)]))).await
    }

    /// Replaces the quota of a scope: a missing limit is unlimited.
    pub async fn set_quota(&self, quota: &requests::Quota) -> Result<(), Error> {
        let request = ApiRequest { method: Method::PUT, ..post(path::QUOTAS, quota) };
        self.call::<responses::Done>(request).await.map(drop)
    }

    /// Deletes a namespace and all its data. Refused while any lease is held in it. May be repeated.
    pub async fn delete_namespace(&self, name: &str) -> Result<(), Error> {
        let path = format!("{}/{}", path::NAMESPACES, encode(name));
        let request = ApiRequest { method: Method::DELETE, mutates: true, ..get(path) };
        self.call::<responses::Done>(request).await.map(drop)
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

    /// Makes the server hand a shard over to another server of its bucket; without a shard, all that it owns.
    pub async fn hand_over(&self, shard: Option<u32>) -> Result<responses::HandedOver, Error> {
        self.call(post(path::HAND_OVER, &requests::HandOver { shard })).await
    }

    /// Makes the server read its identity file and denylist again. Only over its Unix socket.
    pub async fn reload(&self) -> Result<responses::Reloaded, Error> {
        self.call(ApiRequest { method: Method::POST, ..get(path::RELOAD.into()) }).await
    }
}
