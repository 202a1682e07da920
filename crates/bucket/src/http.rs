//! Sends the requests of the client library: HTTP/1.1 on hyper, TLS by rustls.
//!
//! **Invariant.** Each call sends its request at most once. The status of every response is noted for the operation
//! ([`Exchange`]) before the library sees it.
//!
//! **What would break it.** A connection pool that repeats a request on a new connection when the old one closes: the
//! first may have reached the store, and the second would find its own object. So that is off.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use http::Uri;
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::counts::{Operation, RequestCounts};
use crate::exchange::Exchange;
use crate::options::{BucketOptions, PinnedAddress};
use crate::part_body::RequestBody;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection without requests is closed after this long.
const IDLE: Duration = Duration::from_secs(60);

/// How much of a body a connection buffers, in bytes.
const CONNECTION_BUFFER: usize = 128 << 10;

/// Makes the HTTP client of the library. Clones share the counts.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: Arc<ClientConfig>,
    address: Option<PinnedAddress>,
    counts: RequestCounts,
    origin: Arc<OnceLock<Uri>>,
}

impl Connector {
    /// The URL of the service, known since the first operation: what the library has made of options and environment.
    pub(crate) fn origin(&self) -> Option<&Uri> {
        self.origin.get()
    }

    /// Fails if the trusted CAs cannot be read.
    pub(crate) fn new(options: &BucketOptions, counts: RequestCounts) -> Result<Connector, String> {
        let is_plain = options.endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let roots = match &options.ca_file {
            Some(file) => roots_in(file)?,
            None if is_plain => RootCertStore::empty(),
            None => system_roots()?,
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| format!("TLS cannot be used: {error}"))?;
        let tls = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        Ok(Connector { tls, address: options.address.clone(), counts, origin: Arc::default() })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("address", &self.address).finish_non_exhaustive()
    }
}

impl object_store::client::HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut http = HttpConnector::new_with_resolver(Resolver { address: self.address.clone() });
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(ClientConfig::clone(&self.tls))
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .retry_canceled_requests(false)
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(CONNECTION_BUFFER)
            .build(connector);
        Ok(HttpClient::new(Service { client, counts: self.counts.clone(), origin: Arc::clone(&self.origin) }))
    }
}

/// Sends requests.
struct Service {
    client: Client<HttpsConnector<HttpConnector<Resolver>>, RequestBody>,
    counts: RequestCounts,
    origin: Arc<OnceLock<Uri>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri().clone();
        self.counts.add(Operation::of(request.method(), &uri));
        Exchange::sent(&uri);
        if Exchange::has(&uri) {
            self.origin.get_or_init(|| uri.clone());
        }
        let (head, body) = request.into_parts();
        let body = RequestBody::of(&head.method, &uri, body);
        let request = http::Request::from_parts(head, body);
        let response = self.client.request(request).await.map_err(|error| {
            if error.is_connect() {
                Exchange::not_sent(&uri);
            }
            // A kind that the library never retries.
            HttpError::new(HttpErrorKind::Unknown, Chain(Box::new(error)))
        })?;
        let (head, body) = response.into_parts();
        Exchange::received(&uri, head.status, &head.headers);
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Unknown, Chain(Box::new(error))));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

/// Shows an error with its causes: hyper's own text leaves them out.
#[derive(Debug)]
struct Chain(Box<dyn Error + Send + Sync>);

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl Error for Chain {}

/// Resolves host names by the system, and that of the endpoint to one address for a probe.
#[derive(Clone)]
struct Resolver {
    address: Option<PinnedAddress>,
}

type Addresses = std::vec::IntoIter<SocketAddr>;

impl tower::Service<Name> for Resolver {
    type Response = Addresses;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Addresses>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let pinned = self.address.as_ref().filter(|pinned| pinned.host.eq_ignore_ascii_case(name.as_str()));
        let pinned = pinned.map(|pinned| SocketAddr::new(pinned.address, 0));
        Box::pin(async move {
            match pinned {
                Some(address) => Ok(vec![address].into_iter()),
                // The port is that of the URI.
                None => {
                    Ok(tokio::net::lookup_host((name.as_str(), 0)).await?.collect::<Vec<_>>().into_iter())
                }
            }
        })
    }
}

fn roots_in(file: &Path) -> Result<RootCertStore, String> {
    let failed =
        |error: &dyn fmt::Display| format!("the CA file cannot be read: {error} path={}", file.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| failed(&error))? {
        let certificate = certificate.map_err(|error| failed(&error))?;
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    if roots.is_empty() { Err(failed(&"it contains no certificate")) } else { Ok(roots) }
}

fn system_roots() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let what = "this system has no trusted CAs; install its package ca-certificates, or name a file of them with \
                    --s3-ca-file";
        return Err(what.to_string());
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::str::FromStr as _;

    use tower::Service as _;

    use super::*;

    fn resolved(resolver: &mut Resolver, host: &str) -> Vec<IpAddr> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let found = runtime.block_on(resolver.call(Name::from_str(host).expect("a name"))).expect("resolved");
        found.map(|address| address.ip()).collect()
    }

    /// A probe sent the requests for credentials of GCS, of Azure and of a web identity to the address of the bucket, too.
    /// They failed, and with them the probe at the start of each server there.
    #[test]
    fn only_the_host_of_the_endpoint_is_at_the_pinned_address() {
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
        let pinned = PinnedAddress { host: "locks.s3.eu-north-1.amazonaws.com".into(), address };
        let mut resolver = Resolver { address: Some(pinned) };
        assert_eq!(resolved(&mut resolver, "locks.S3.eu-north-1.amazonaws.com"), [address]);
        let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        assert_eq!(resolved(&mut resolver, "127.0.0.2"), [other], "by the system");
        assert_eq!(resolved(&mut Resolver { address: None }, "127.0.0.2"), [other]);
    }
}
