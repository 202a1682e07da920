//! Builds the library's client for each dialect.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AwsCredential, S3ConditionalPut};
use object_store::azure::{AzureAccessKey, AzureCredential, MicrosoftAzureBuilder};
use object_store::gcp::{GcpCredential, GcpCredentialProvider, GoogleCloudStorageBuilder};
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::signer::Signer;
use object_store::{ObjectStore, RetryConfig, StaticCredentialProvider};

use crate::credentials::CredentialProcess;
use crate::http::Connector;
use crate::options::{BucketOptions, Encryption};
use crate::static_credentials::StaticCredentials;
use crate::url::{BucketUrl, Provider};

/// The service of Google.
const GCS_ENDPOINT: &str = "https://storage.googleapis.com";

/// The library's client, by its interfaces.
#[derive(Clone)]
pub(crate) struct Library {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) lists: Arc<dyn PaginatedListStore>,
    pub(crate) uploads: Arc<dyn MultipartStore>,
    pub(crate) spooled: SpooledWrites,
    pub(crate) bucket_access: BucketAccess,
}

/// The interfaces for requests whose body the library does not see: their signature does not cover it.
#[derive(Clone)]
pub(crate) struct SpooledWrites {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) uploads: Arc<dyn MultipartStore>,
}

/// How requests to the bucket itself are authorized, which the library does not have.
#[derive(Clone)]
pub(crate) enum BucketAccess {
    /// By a signature in the URL (S3).
    Signed(Arc<dyn Signer>),
    /// By a token, at this URL (GCS). A signature would need a private key, or a request to another service.
    Bearer(String, GcpCredentialProvider),
    /// Azure has no such requests.
    None,
}

impl Library {
    pub(crate) fn build(
        url: &BucketUrl,
        options: &BucketOptions,
        connector: Connector,
    ) -> Result<Library, String> {
        check_credentials(url, options)?;
        let built = match url.provider {
            Provider::S3 => s3(url, options, connector),
            Provider::Gcs => gcs(url, options, connector),
            Provider::Azure => azure(url, options, connector),
        };
        built.map_err(|error| format!("the object store cannot be used: {error} store={url}"))
    }
}

fn check_credentials(url: &BucketUrl, options: &BucketOptions) -> Result<(), String> {
    let provider = match &options.credentials {
        None => return Ok(()),
        Some(StaticCredentials::AccessKey { .. }) => Provider::S3,
        Some(StaticCredentials::BearerToken(_)) => Provider::Gcs,
        Some(StaticCredentials::AccountKey { .. }) => Provider::Azure,
    };
    if provider == url.provider {
        return Ok(());
    }
    Err(format!(
        "the credentials are those of another kind of store: of={}:// store={url}",
        provider.scheme()
    ))
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
    if let Some(StaticCredentials::AccessKey { id, secret, session_token }) = &options.credentials {
        let (key_id, secret_key, token) = (id.clone(), secret.clone(), session_token.clone());
        let credential = AwsCredential { key_id, secret_key, token };
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(credential)));
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
    let store = Arc::new(builder.clone().build()?);
    let credentials = Arc::clone(store.credentials());
    let unsigned = Arc::new(builder.with_credentials(credentials).with_unsigned_payload(true).build()?);
    let spooled = SpooledWrites { objects: unsigned.clone(), uploads: unsigned };
    let bucket_access = BucketAccess::Signed(store.clone());
    Ok(Library { objects: store.clone(), lists: store.clone(), uploads: store, spooled, bucket_access })
}

fn gcs(url: &BucketUrl, options: &BucketOptions, connector: Connector) -> object_store::Result<Library> {
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(&url.bucket)
        .with_retry(no_retries())
        .with_http_connector(connector);
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    if let Some(StaticCredentials::BearerToken(token)) = &options.credentials {
        let credential = GcpCredential { bearer: token.clone() };
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(credential)));
    }
    let store = Arc::new(builder.build()?);
    let endpoint = options.endpoint.as_deref().unwrap_or(GCS_ENDPOINT).trim_end_matches('/');
    let bucket_url = format!("{endpoint}/{}", url.bucket);
    let bucket_access = BucketAccess::Bearer(bucket_url, Arc::clone(store.credentials()));
    let spooled = SpooledWrites { objects: store.clone(), uploads: store.clone() };
    Ok(Library { objects: store.clone(), lists: store.clone(), uploads: store, spooled, bucket_access })
}

fn azure(url: &BucketUrl, options: &BucketOptions, connector: Connector) -> object_store::Result<Library> {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(&url.bucket)
        .with_retry(no_retries())
        .with_http_connector(connector);
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint.clone()).with_allow_http(endpoint.starts_with("http://"));
    }
    if let Some(StaticCredentials::AccountKey { account, key }) = &options.credentials {
        let credential = AzureCredential::AccessKey(AzureAccessKey::try_new(key)?);
        let provider = Arc::new(StaticCredentialProvider::new(credential));
        builder = builder.with_account(account).with_credentials(provider);
    }
    let store = Arc::new(builder.build()?);
    let bucket_access = BucketAccess::None;
    let spooled = SpooledWrites { objects: store.clone(), uploads: store.clone() };
    Ok(Library { objects: store.clone(), lists: store.clone(), uploads: store, spooled, bucket_access })
}
