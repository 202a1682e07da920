//! Traces: a span for each request, in batches, to a collector that speaks OTLP over HTTP.
//!
//! A collector that is slow or gone costs traces, never requests: a batch that does not fit into the queue is dropped.

use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

/// How long one batch may take to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Dropped, it sends what is left.
pub(super) struct Traces(SdkTracerProvider);

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(PATIENCE) {
            crate::say(&format!("the last traces could not be sent: {error}"));
        }
    }
}

/// Spans go to the collector at `endpoint`, such as `http://127.0.0.1:4318/v1/traces`.
pub(super) fn layer<S>(endpoint: &str) -> Result<(OpenTelemetryLayer<S, SdkTracer>, Traces), String>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    if !endpoint.starts_with("http://") {
        return Err(format!(
            "traces go to a collector on this machine or in its network, by http://: otlp-endpoint={endpoint}"
        ));
    }
    let client =
        Client { runtime: Handle::current(), inner: HyperClient::with_default_connector(PATIENCE, None) };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint)
        .build()
        .map_err(|error| format!("{error}: otlp-endpoint={endpoint}"))?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("lockd").build())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("lockd"));
    Ok((layer, Traces(provider)))
}

/// The exporter has a thread of its own; sockets are the runtime's.
#[derive(Debug)]
struct Client {
    runtime: Handle,
    inner: HyperClient,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let inner = self.inner.clone();
        self.runtime.spawn(async move { inner.send_bytes(request).await }).await?
    }
}
