//! The client `object_store`, for each dialect, over plain HTTP/1.1.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::TokioExecutor;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::{ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider};
use objectserver::{Dialect, ObjectServer, ServerOptions};

pub(crate) const BUCKET: &str = "trial";
pub(crate) const DIALECTS: [Dialect; 3] = [Dialect::S3, Dialect::Gcs, Dialect::Azure];

pub(crate) fn start(dialect: Dialect) -> ObjectServer {
    let options = ServerOptions { page_size: 10, smallest_part: 4, ..ServerOptions::new(dialect, BUCKET) };
    ObjectServer::start(options).expect("a free port")
}

/// A client without retries, so that a test sees each response.
pub(crate) fn client(server: &ObjectServer, dialect: Dialect) -> Arc<dyn ObjectStore> {
    client_at(&server.endpoint(), dialect)
}

pub(crate) fn client_at(endpoint: &str, dialect: Dialect) -> Arc<dyn ObjectStore> {
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let http = ClientOptions::new().with_allow_http(true);
    match dialect {
        Dialect::S3 => Arc::new(
            AmazonS3Builder::new()
                .with_endpoint(endpoint)
                .with_bucket_name(BUCKET)
                .with_region("us-east-1")
                .with_access_key_id("any")
                .with_secret_access_key("any")
                .with_client_options(http)
                .with_retry(retry)
                .with_http_connector(Connector)
                .build()
                .expect("valid settings"),
        ),
        Dialect::Gcs => Arc::new(
            GoogleCloudStorageBuilder::new()
                .with_base_url(endpoint)
                .with_bucket_name(BUCKET)
                .with_credentials(Arc::new(StaticCredentialProvider::new(GcpCredential {
                    bearer: "any".into(),
                })))
                .with_client_options(http)
                .with_retry(retry)
                .with_http_connector(Connector)
                .build()
                .expect("valid settings"),
        ),
        Dialect::Azure => Arc::new(
            MicrosoftAzureBuilder::new()
                .with_endpoint(endpoint.to_owned())
                .with_account("account")
                .with_access_key("a2V5")
                .with_container_name(BUCKET)
                .with_client_options(http)
                .with_retry(retry)
                .with_http_connector(Connector)
                .build()
                .expect("valid settings"),
        ),
    }
}

#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(Client::builder(TokioExecutor::new()).build_http())))
    }
}

#[derive(Debug)]
struct Service(Client<TcpConnector, HttpRequestBody>);

#[async_trait::async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response =
            self.0.request(request).await.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let (head, body) = response.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}
