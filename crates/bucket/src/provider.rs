//! Builds the library's client for each dialect.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::signer::Signer;
use object_store::{ObjectStore, RetryConfig};

use crate::credentials::CredentialProcess;
use crate::http::Connector;
use crate::options::{BucketOptions, Encryption};
use crate::url::{BucketUrl, Provider};

/// The library's client, by its interfaces.
#[derive(Clone)]
pub(crate) struct Library {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) lists: Arc<dyn PaginatedListStore>,
    pub(crate) uploads: Arc<dyn MultipartStore>,
    /// Signs requests that the library does not have; not for Azure, which needs none of them.
    pub(crate) signer: Option<Arc<dyn Signer>>,
}

impl Library {
    pub(crate) fn build(
        url: &BucketUrl,
        options: &BucketOptions,
        connector: Connector,
    ) -> Result<Library, String> {
        let built = match url.provider {
            Provider::S3 => s3(url, options, connector),
            Provider::Gcs => gcs(url, options, connector),
            Provider::Azure => azure(url, options, connector),
        };
        built.map_err(|error| format!("the object store cannot be used: {error} store={url}"))
    }
}

/// The library never retries: see the crate's documentation.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn s3(url: &BucketUrl, options: &BucketOptions, connector: Connector) -> object_store::Result<Library> {
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(&url.bucket)
        .with_retry(no_retries())
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_http_connector(connector);
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    if let Some(command) = &options.credential_process {
        builder = builder.with_credentials(Arc::new(CredentialProcess::new(command)));
    }
    let (algorithm, key) = match &options.encryption {
        Encryption::Bucket => (None, None),
        Encryption::Aes256 => (Some("AES256"), None),
        Encryption::Kms(key) => (Some("aws:kms"), key.as_deref()),
    };
    if let Some(algorithm) = algorithm {
        builder = builder.with_config("aws_server_side_encryption".parse()?, algorithm);
    }
    if let Some(key) = key {
        builder = builder.with_config("aws_sse_kms_key_id".parse()?, key);
    }
    let store = Arc::new(builder.build()?);
    Ok(Library { objects: store.clone(), lists: store.clone(), uploads: store.clone(), signer: Some(store) })
}

fn gcs(url: &BucketUrl, options: &BucketOptions, connector: Connector) -> object_store::Result<Library> {
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(&url.bucket)
        .with_retry(no_retries())
        .with_http_connector(connector);
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    let store = Arc::new(builder.build()?);
    Ok(Library { objects: store.clone(), lists: store.clone(), uploads: store.clone(), signer: Some(store) })
}

fn azure(url: &BucketUrl, options: &BucketOptions, connector: Connector) -> object_store::Result<Library> {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(&url.bucket)
        .with_retry(no_retries())
        .with_http_connector(connector);
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint.clone()).with_allow_http(endpoint.starts_with("http://"));
    }
    let store = Arc::new(builder.build()?);
    Ok(Library { objects: store.clone(), lists: store.clone(), uploads: store, signer: None })
}
