//! What is stored, for anyone with the right to see it; and the health of the server.

use api::history::{Caller, History};
use api::{path, responses};

use crate::client::Client;
use crate::error::{Error, Kind};
use crate::request::{encode, get, lease_path, malformed_response, query};

impl Client {
    /// The state of a key: its lease and document metadata.
    pub async fn describe(&self, key: &str, namespace: Option<&str>) -> Result<responses::Described, Error> {
        self.call(get(query(path::DESCRIBE, &[("key", Some(key)), ("namespace", namespace)]))).await
    }

    /// A page of a namespace's keys that have a document and begin with `prefix`, by name; `cursor` comes from the page
    /// before.
    pub async fn keys(
        &self,
        namespace: Option<&str>,
        prefix: Option<&str>,
        cursor: Option<&str>,
    ) -> Result<responses::Keys, Error> {
        let fields = [("namespace", namespace), ("prefix", prefix), ("cursor", cursor)];
        self.call(get(query(path::KEYS, &fields))).await
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

    /// Whether a live lease with this fencing token covers the key, as of the response. It cannot replace a check at the
    /// protected resource.
    pub async fn fence(
        &self,
        key: &str,
        namespace: Option<&str>,
        token: u64,
    ) -> Result<responses::Fence, Error> {
        let token = token.to_string();
        let fields = [("key", Some(key)), ("namespace", namespace), ("token", Some(token.as_str()))];
        self.call(get(query(path::FENCE, &fields))).await
    }

    /// A page of the namespaces that the client may see; `cursor` comes from the page before.
    pub async fn namespaces(&self, cursor: Option<&str>) -> Result<responses::Namespaces, Error> {
        self.call(get(query(path::NAMESPACES, &[("cursor", cursor)]))).await
    }

    /// The client as the server knows it: its identity, role and rights.
    pub async fn whoami(&self) -> Result<Caller, Error> {
        self.call(get(path::WHOAMI.into())).await
    }

    /// What happened to a resource within the last hour, or since the time that the response names; `name` is
    /// `KIND:name`.
    pub async fn history(&self, name: &str, namespace: Option<&str>) -> Result<History, Error> {
        let path = format!("/v1/resource/{}/history", encode(name));
        self.call(get(query(&path, &[("namespace", namespace)]))).await
    }

    /// The metrics of the server that responds, in OpenMetrics text format.
    pub async fn metrics(&self) -> Result<String, Error> {
        self.text("/metrics").await
    }

    /// The OpenAPI document of the server that responds, as JSON.
    pub async fn openapi(&self) -> Result<String, Error> {
        self.text("/openapi.json").await
    }

    async fn text(&self, path: &str) -> Result<String, Error> {
        let response = self.servers.call(get(path.into())).await?;
        String::from_utf8(response.body.into())
            .map_err(|_| malformed_response("no UTF-8").with_kind(Kind::Invalid))
    }

    /// Succeeds if any server is ready to grant leases durably.
    pub async fn ready(&self) -> Result<(), Error> {
        self.servers.call(get("/readyz".into())).await.map(drop)
    }

    /// Succeeds if any server responds, ready or not.
    pub async fn alive(&self) -> Result<(), Error> {
        self.servers.call(get("/healthz".into())).await.map(drop)
    }
}
