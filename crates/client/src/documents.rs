//! Documents: read, commit, remove.

use api::{header, path, responses};
use hyper::Method;
use hyper::body::Bytes;

use crate::call::ApiRequest;
use crate::client::Client;
use crate::document_body::DocumentBody;
use crate::document_reader::DocumentReader;
use crate::error::Error;
use crate::request::{get, query};

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

impl Client {
    /// Opens the document of a key, under a lease in the same namespace.
    pub async fn get_state(
        &self,
        key: &str,
        namespace: Option<&str>,
        lease_id: &str,
    ) -> Result<DocumentReader, Error> {
        let request = get(query(path::GET_STATE, &[("key", Some(key)), ("namespace", namespace)]));
        let headers = vec![(header::LEASE_ID, lease_id.to_string())];
        DocumentReader::open(self, ApiRequest { headers, ..request }).await
    }

    /// Opens the last committed document of a key, without a lease.
    pub async fn get_public_state(
        &self,
        key: &str,
        namespace: Option<&str>,
    ) -> Result<DocumentReader, Error> {
        let fields = [("key", Some(key)), ("namespace", namespace), ("public", Some("1"))];
        DocumentReader::open(self, get(query(path::GET_STATE, &fields))).await
    }

    /// Reads the document of a key into memory, under a lease in the same namespace.
    pub async fn read_state(
        &self,
        key: &str,
        namespace: Option<&str>,
        lease_id: &str,
    ) -> Result<DocumentState, Error> {
        self.get_state(key, namespace, lease_id).await?.collect().await
    }

    /// Reads the last committed document of a key into memory, without a lease.
    pub async fn read_public_state(
        &self,
        key: &str,
        namespace: Option<&str>,
    ) -> Result<DocumentState, Error> {
        self.get_public_state(key, namespace).await?.collect().await
    }

    /// Commits the document of a key, under a lease in the same namespace: bytes, text, a file or a stream.
    pub async fn update_state(
        &self,
        key: &str,
        namespace: Option<&str>,
        lease_id: &str,
        document: impl Into<DocumentBody>,
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
